//! The files of one snapshot, each once: its database and class, its pages in memory, and the
//! processes that have it open.
//!
//! Invariants: openers are recorded process by process, so recording one takes the same time
//! however many processes have a file open. At most as many openers of one party are kept as there
//! may be files; the others are counted.

pub(crate) mod devices;
pub(crate) mod opened_files;
pub(crate) mod sample;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use pagekeeper_catalog::Party;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::process::InodeSet;
use pagekeeper_kernel::{ExpectedFile, Inode, InspectedFile, stat_of_name};
use pagekeeper_text::{escaped, unescaped};

use crate::discovery::subjects::ObservedDatabase;
use crate::files::devices::DeviceTable;
use crate::files::opened_files::{OpenedFile, reach};
use crate::files::sample::FileSample;
use crate::trees::directory_owners::DirectoryOwners;
use crate::trees::directory_trees::DirectoryTrees;
use crate::visibility::{GapKind, VisibilityGaps};
use crate::{File, ObserverOptions, Opener, OpenerKind};

/// The files of one snapshot.
#[derive(Debug)]
pub(crate) struct FileSet {
    all: Vec<File>,
    /// Indices by device and inode number in stat(2).
    by_inode: HashMap<Inode, usize>,
    /// The top directory of each tree that was added.
    added: HashSet<Inode>,
    /// Maximum number of openers that are kept per party.
    most_openers: usize,
    /// For each party, the number of openers kept, and of descriptors and mappings left out.
    openers: BTreeMap<Party, (usize, usize)>,
}

/// A process that has a file open or mapped.
#[derive(Debug)]
pub(crate) struct OpenerRecord {
    pub(crate) inode: Inode,
    pub(crate) pid: u32,
    /// The party of the process.
    pub(crate) party: Party,
    pub(crate) kind: OpenerKind,
    /// The number of descriptors or mappings.
    pub(crate) count: usize,
}

impl FileSet {
    /// Makes an empty set that keeps at most `most_openers` openers per party.
    pub(crate) fn new(most_openers: usize) -> Self {
        Self {
            all: Vec::new(),
            by_inode: HashMap::new(),
            added: HashSet::new(),
            most_openers,
            openers: BTreeMap::new(),
        }
    }

    /// Adds all files in the directories of a database.
    pub(crate) fn take_directories(
        &mut self,
        options: &ObserverOptions,
        (index, subject): (usize, &ObservedDatabase),
        owners: &DirectoryOwners,
        trees: &mut DirectoryTrees,
        devices: &mut DeviceTable,
        gaps: &mut VisibilityGaps,
    ) {
        let roots = &options.roots;
        for at in 0..subject.directories.len() {
            let tree = trees.scan((index, at), subject, owners, options, gaps);
            if tree.inode.is_some_and(|inode| !self.added.insert(inode)) {
                // The same directory by another path.
                continue;
            }
            self.all.reserve(tree.len());
            for (path, reach, known) in tree.files() {
                let inode = devices.traced(roots, known.sample.inode, &reach);
                self.add(File {
                    inode,
                    stat_inode: known.sample.inode,
                    path,
                    reach,
                    size: known.sample.size,
                    database: Some(index),
                    class: known.class,
                    residency: known.sample.residency,
                    openers: Vec::new(),
                });
            }
        }
    }

    /// Adds the open files of a database's processes, up to its limit.
    pub(crate) fn take_held(
        &mut self,
        roots: &SysRoots,
        (index, subject): (usize, &ObservedDatabase),
        trees: &mut DirectoryTrees,
        devices: &mut DeviceTable,
        gaps: &mut VisibilityGaps,
    ) {
        let most = trees.opened_limit(index, subject);
        let (mut taken, mut left_out) = (0, subject.further_descriptors);
        for (pid, held) in &subject.held {
            if !self.by_inode.contains_key(&held.inode) {
                if held.private {
                    continue;
                }
                if taken == most {
                    left_out += 1;
                    continue;
                }
                taken += 1;
                let file = file_of(roots, subject, index, *pid, held, devices, gaps);
                self.add(file);
            }
            if subject.partly_read.contains(pid) {
                continue;
            }
            let (inode, kind, count) = (held.inode, held.kind, held.count);
            let used = OpenerRecord { inode, pid: *pid, party: subject.party, kind, count };
            self.opened(&used, || unescaped(&roots.proc.name(*pid).unwrap_or_default()).into_owned());
        }
        trees.take_held(index, subject, taken);
        if left_out > 0 {
            let what = format!("all files that process {} has open", subject.pid.unwrap_or_default());
            let why = format!("{left_out} of them exceed the number kept per database");
            gaps.add_of(subject.party, &what, why);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the set of their inodes, for finding their openers.
    pub(crate) fn inode_set(&self) -> InodeSet {
        let mut set = InodeSet::default();
        for file in &self.all {
            set.insert(file.stat_inode, file.inode);
        }
        set
    }

    /// Returns the inodes of the files that a process has open or mapped.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = Inode> {
        self.all.iter().filter(|file| !file.openers.is_empty()).map(|file| file.stat_inode)
    }

    /// Returns all files, in no order.
    pub(crate) fn into_files(self) -> Vec<File> {
        self.all
    }

    pub(crate) fn of_database(&mut self, index: usize) -> impl Iterator<Item = &mut File> {
        self.all.iter_mut().filter(move |file| file.database == Some(index))
    }

    /// Gives the files of one database to an earlier one; the indices of all later databases move
    /// up.
    pub(crate) fn merge_databases(&mut self, into: usize, from: usize) {
        for database in self.all.iter_mut().filter_map(|file| file.database.as_mut()) {
            match (*database).cmp(&from) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => *database = into,
                std::cmp::Ordering::Greater => *database -= 1,
            }
        }
    }

    fn add(&mut self, file: File) {
        if !self.by_inode.contains_key(&file.stat_inode) {
            self.by_inode.insert(file.stat_inode, self.all.len());
            self.all.push(file);
        }
    }

    /// Records an opener of a known file, after everything that was recorded of other processes.
    pub(crate) fn opened(&mut self, used: &OpenerRecord, name: impl FnOnce() -> String) {
        let Some(&index) = self.by_inode.get(&used.inode) else { return };
        let openers = &mut self.all[index].openers;
        let mut own = openers.iter_mut().rev().take_while(|opener| opener.pid == used.pid);
        if let Some(known) = own.find(|opener| opener.kind == used.kind) {
            known.count += used.count;
            return;
        }
        let (kept, left_out) = self.openers.entry(used.party).or_default();
        if *kept < self.most_openers {
            *kept += 1;
            openers.push(Opener { pid: used.pid, name: name(), kind: used.kind, count: used.count });
        } else {
            *left_out += used.count;
        }
    }

    /// Reports openers that were left out.
    pub(crate) fn report_left_out(&self, gaps: &mut VisibilityGaps) {
        for (party, (_, left_out)) in self.openers.iter().filter(|(_, (_, left_out))| *left_out > 0) {
            let what = format!("all processes of {party} that have files of databases open");
            let why = format!("{left_out} of their descriptors and mappings exceed the number kept per user");
            gaps.add_of(*party, &what, why);
        }
    }
}

/// Returns the record of a file that a process holds and that is in none of its database's
/// directories.
fn file_of(
    roots: &SysRoots,
    subject: &ObservedDatabase,
    index: usize,
    pid: u32,
    held: &OpenedFile,
    devices: &mut DeviceTable,
    gaps: &mut VisibilityGaps,
) -> File {
    let residency = match InspectedFile::open_magic_link(
        &held.link,
        ExpectedFile::Inode(held.inode),
        held.path.clone(),
    ) {
        Ok(file) => {
            let (sample, gap) = FileSample::of(&file);
            if let Some(gap) = gap {
                let example = || escaped(&held.path).to_string();
                gaps.count(subject.party, gap.kind, example, &gap.why);
            }
            sample.residency
        }
        Err(error) => {
            gaps.failed(subject.party, GapKind::File, &error);
            None
        }
    };
    let exists = |beside: &Path| {
        let reach_it = || reach(&roots.proc, pid, &held.path);
        beside.file_name().is_some_and(|name| stat_of_name(&reach_it().with_file_name(name)).is_ok())
    };
    File {
        inode: devices.traced(roots, held.inode, &held.link),
        stat_inode: held.inode,
        path: held.path.clone(),
        reach: held.reach(&roots.proc, pid),
        size: held.size,
        database: Some(index),
        class: subject.profile.class_beside(&held.path, exists),
        residency,
        openers: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::process::AccessMode;
    use std::path::PathBuf;

    const FILE: Inode = Inode { dev: 1, ino: 2 };
    const READS: OpenerKind = OpenerKind::Buffered(AccessMode::ReadOnly);

    fn one_file(most_openers: usize) -> FileSet {
        let mut files = FileSet::new(most_openers);
        files.add(File {
            inode: FILE,
            stat_inode: FILE,
            path: PathBuf::from("/d/table.ibd"),
            reach: PathBuf::from("/d/table.ibd"),
            size: 1,
            database: None,
            class: None,
            residency: None,
            openers: Vec::new(),
        });
        files
    }

    fn by(pid: u32, user: u32, kind: OpenerKind) -> OpenerRecord {
        OpenerRecord { inode: FILE, pid, party: Party::User(user), kind, count: 1 }
    }

    #[test]
    fn many_openers_of_a_file_slow_no_other() {
        // With a linear search this takes minutes.
        let many = 500_000;
        let mut files = one_file(usize::MAX);
        for pid in 0..many {
            for kind in [READS, OpenerKind::Direct(AccessMode::ReadOnly), READS] {
                files.opened(&by(pid, 7, kind), String::new);
            }
        }
        let openers = &files.all[0].openers;
        assert_eq!(openers.len(), 2 * many as usize);
        assert_eq!((openers[0].count, openers[1].count), (2, 1));
    }

    #[test]
    fn many_descriptors_of_one_user_hide_no_opener_of_another() {
        let mut files = one_file(100);
        for pid in 0..1000 {
            files.opened(&by(pid, 7, READS), String::new);
        }
        files.opened(&by(1000, 8, READS), String::new);
        assert_eq!((files.all[0].openers.len(), files.all[0].openers[100].pid), (101, 1000));
        let mut gaps = VisibilityGaps::default();
        files.report_left_out(&mut gaps);
        let gaps = gaps.into_gaps();
        assert_eq!(gaps.len(), 1, "{gaps:?}");
        assert_eq!(gaps[0].what, "all processes of user 7 that have files of databases open");
        assert!(gaps[0].why.starts_with("900 of their descriptors"), "{gaps:?}");
    }
}

//! The files of one snapshot, each once: of which database, of which class, what of them is in memory.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::process::InodeSet;
use pagekeeper_kernel::text::{escaped, unescaped};
use pagekeeper_kernel::{Expected, Inode, InspectedFile, stat_of_name};

use crate::devices::Devices;
use crate::directory_trees::DirectoryTrees;
use crate::held::{Held, reach};
use crate::neighbours::Neighbours;
use crate::sample::FileSample;
use crate::subjects::Subject;
use crate::visibility::{GapKind, VisibilityGaps};
use crate::{File, ObserverOptions, Opener, OpenerKind};

/// The files of one snapshot.
#[derive(Debug, Default)]
pub(crate) struct Files {
    all: Vec<File>,
    /// By device and inode number as stat(2) shows them.
    by_inode: HashMap<Inode, usize>,
    /// The top directory of each tree that was added.
    added: HashSet<Inode>,
}

impl Files {
    /// Adds all files in the directories of a database.
    pub(crate) fn take_directories(
        &mut self,
        options: &ObserverOptions,
        (index, subject): (usize, &Subject),
        neighbours: &Neighbours,
        trees: &mut DirectoryTrees,
        devices: &mut Devices,
        gaps: &mut VisibilityGaps,
    ) {
        let roots = &options.roots;
        for at in 0..subject.directories.len() {
            let tree = trees.scan((index, at), subject, neighbours, options, gaps);
            if tree.inode.is_some_and(|inode| !self.added.insert(inode)) {
                // The same directory by another way.
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

    /// Adds the files that a database's processes hold, as many as it may.
    pub(crate) fn take_held(
        &mut self,
        roots: &SysRoots,
        (index, subject): (usize, &Subject),
        trees: &mut DirectoryTrees,
        devices: &mut Devices,
        gaps: &mut VisibilityGaps,
    ) {
        let most = trees.most_held(index, subject);
        let (mut taken, mut left_out) = (0, 0_usize);
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
            self.opened(held.inode, *pid, held.kind, || {
                unescaped(&roots.proc.name(*pid).unwrap_or_default()).into_owned()
            });
        }
        trees.take_held(index, subject, taken);
        if left_out > 0 {
            let what = format!("all files that process {} has open", subject.pid.unwrap_or_default());
            let why = format!("{left_out} of them are more than are kept of one database");
            gaps.add_of(subject.party, &what, why);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Which files they are, to find who has them open.
    pub(crate) fn inode_set(&self) -> InodeSet {
        let mut set = InodeSet::default();
        for file in &self.all {
            set.insert(file.stat_inode, file.inode);
        }
        set
    }

    /// Those that a process has open or mapped.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = Inode> {
        self.all.iter().filter(|file| !file.openers.is_empty()).map(|file| file.stat_inode)
    }

    /// All, in no order.
    pub(crate) fn into_files(self) -> Vec<File> {
        self.all
    }

    pub(crate) fn of_database(&mut self, index: usize) -> impl Iterator<Item = &mut File> {
        self.all.iter_mut().filter(move |file| file.database == Some(index))
    }

    /// Gives the files of one database to an earlier one; all later ones move up.
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

    /// Records an opener of a known file.
    pub(crate) fn opened(&mut self, inode: Inode, pid: u32, kind: OpenerKind, name: impl FnOnce() -> String) {
        let Some(&index) = self.by_inode.get(&inode) else { return };
        let openers = &mut self.all[index].openers;
        match openers.iter_mut().find(|opener| opener.pid == pid && opener.kind == kind) {
            Some(opener) => opener.count += 1,
            None => openers.push(Opener { pid, name: name(), kind, count: 1 }),
        }
    }
}

/// A file that a process holds, and that lies in none of its database's directories.
fn file_of(
    roots: &SysRoots,
    subject: &Subject,
    index: usize,
    pid: u32,
    held: &Held,
    devices: &mut Devices,
    gaps: &mut VisibilityGaps,
) -> File {
    let reach_it = || reach(&roots.proc, pid, &held.path);
    let reach = if held.deleted { held.link.clone() } else { reach_it() };
    let residency =
        match InspectedFile::open_magic_link(&held.link, Expected::Inode(held.inode), held.path.clone()) {
            Ok(file) => {
                let (sample, gap) = FileSample::of(&file);
                if let Some(gap) = gap {
                    gaps.count(gap.kind, &escaped(&held.path).to_string(), &gap.why);
                }
                sample.residency
            }
            Err(error) => {
                gaps.failed(GapKind::File, &error);
                None
            }
        };
    let exists = |beside: &Path| {
        beside.file_name().is_some_and(|name| stat_of_name(&reach_it().with_file_name(name)).is_ok())
    };
    File {
        inode: devices.traced(roots, held.inode, &held.link),
        stat_inode: held.inode,
        path: held.path.clone(),
        reach,
        size: held.size,
        database: Some(index),
        class: subject.profile.class_beside(&held.path, exists),
        residency,
        openers: Vec::new(),
    }
}

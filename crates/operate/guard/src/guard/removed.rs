//! Removed log files that some process has open: no name leads to them, and their pages stay until
//! the last descriptor is closed. A backend of `PostgreSQL` keeps the segment that it wrote last
//! open for its whole life, and a purged binlog stays for its reader.
//!
//! Such a file is known by descriptors of a watched database and of its children. It is opened
//! through these for one pass alone.
//!
//! Invariants:
//! 1. A file that has a name, or got one again, is left alone, because readers by that name are not
//!    seen here. A file must also be the database's by [the ownership
//!    rules](pagekeeper_catalog::ownership), be on the file system of the watched directory it was
//!    in, and have the name of a log of that directory.
//! 2. A file that was written or changed in the last [`QUIET_AFTER`] is left alone. Nothing at or
//!    behind the position of a reader is released.
//! 3. Before anything is done to a file, all processes that may have it open were listed since it
//!    was first seen. So no reader is missed, except those that may not be inspected, as
//!    everywhere. A process that has more files open than are remembered may have any of its user's
//!    files open.
//! 4. No descriptor of such a file is held between ticks: its space comes back with the last of the
//!    database's own.
//! 5. At most twice [`REMOVED_DESCRIPTORS_MAX`] descriptors are remembered, and only the name of a
//!    file. A pass visits them once. The work for a database is charged to it, runs in a job that
//!    may hang alone, and does not begin if the database has no budget left.
//!
//! A file is left alone if anything needed about it can't be seen.

mod pass;
mod release;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::{OpenFile, ProcRoot};
use pagekeeper_policy::FileId;
use pagekeeper_policy::removed_file::{QUIET_AFTER, RemovedFileState};
use pagekeeper_policy::shares::shares_by_party;

use self::pass::RemovalItem;
use crate::decision::{Action, FileAct};
use crate::directory::Directory;
use crate::ids::new_id;

/// Time between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// The most descriptors of removed files that are remembered, per process and in all, by shares.
const REMOVED_DESCRIPTORS_MAX: (usize, usize) = (256, 4096);
/// A file with more descriptors than this is left alone.
const OPENERS_MAX: usize = 1024;
/// Maximum number of files of one database that are examined in one pass.
const FILES_PER_PASS_MAX: usize = 16;

/// A descriptor of a removed file.
#[derive(Debug, Clone, Copy)]
struct FileOpener {
    pid: u32,
    fd: RawFd,
    /// The inode number that fdinfo shows.
    shown: Option<u64>,
    /// Whether the process is the file's database, or a child of it.
    is_own: bool,
}

/// The removed files that a process has open.
#[derive(Debug)]
struct OpenerProcess {
    party: Party,
    /// The database that it is, or whose child it is.
    of: Option<u32>,
    open: Vec<(RawFd, Inode, Option<u64>)>,
    /// Whether the list may be incomplete.
    is_cut: bool,
}

/// A removed file.
#[derive(Debug)]
struct RemovedFile {
    database: u32,
    /// The watched directory that it was in, and its name there.
    directory: Inode,
    name: OsString,
    /// After a listing that began later than this, it is known whether a process has the file open.
    since: Instant,
    known: Option<RemovedFileState>,
}

/// All removed files. See the module.
#[derive(Debug)]
pub(super) struct RemovedFiles {
    held: BTreeMap<u32, OpenerProcess>,
    /// The total number of descriptors.
    count: usize,
    files: BTreeMap<Inode, RemovedFile>,
    names: HashSet<OsString>,
    due: Instant,
    pass: usize,
    /// [`QUIET_AFTER`], or a shorter time in tests.
    pub(super) quiet: Duration,
}

impl RemovedFiles {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            held: BTreeMap::new(),
            count: 0,
            files: BTreeMap::new(),
            names: HashSet::new(),
            due: now,
            pass: 0,
            quiet: QUIET_AFTER,
        }
    }

    /// Records the removed files that a process has open: those already known, and for a database
    /// or its child also those for which `place` finds a watched directory.
    fn note(
        &mut self,
        pid: u32,
        (party, of): (Party, Option<u32>),
        (listed, is_cut): (Vec<OpenFile>, bool),
        mut place: impl FnMut(&OpenFile) -> Option<Inode>,
        now: Instant,
    ) {
        self.forget(pid);
        let (mut open, mut is_cut) = (Vec::new(), is_cut);
        for file in listed {
            let is_known = self.files.contains_key(&file.inode);
            let directory = if is_known || of.is_none() { None } else { place(&file) };
            if !is_known && directory.is_none() {
                continue;
            }
            if open.len() >= REMOVED_DESCRIPTORS_MAX.0 {
                is_cut = true;
                break;
            }
            if let Some(((directory, database), name)) = directory.zip(of).zip(file.path.file_name()) {
                self.names.insert(name.to_os_string());
                let name = name.to_os_string();
                self.files
                    .insert(file.inode, RemovedFile { database, directory, name, since: now, known: None });
            }
            open.push((file.fd, file.inode, file.shown_inode));
        }
        if open.is_empty() && !is_cut {
            return;
        }
        self.count += open.len();
        open.shrink_to_fit();
        self.held.insert(pid, OpenerProcess { party, of, open, is_cut });
        if self.count > 2 * REMOVED_DESCRIPTORS_MAX.1 {
            self.share_out();
        }
    }

    /// Records that a process has no removed file open.
    fn forget(&mut self, pid: u32) {
        self.count -= self.held.remove(&pid).map_or(0, |process| process.open.len());
    }

    /// Returns whether a file of this name is a known removed file.
    pub(super) fn has_name(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| self.names.contains(name))
    }

    /// Returns for each file whether it was examined.
    #[cfg(test)]
    pub(super) fn looked_at(&self) -> Vec<bool> {
        self.files.values().map(|file| file.known.is_some()).collect()
    }

    /// Begins a pass: forgets files that are gone, and those beyond the limits.
    fn begin(&mut self, proc: &ProcRoot, now: Instant) {
        self.due = now + PASS_INTERVAL;
        self.pass = self.pass.wrapping_add(FILES_PER_PASS_MAX);
        self.held.retain(|pid, _| proc.start_time(*pid).is_ok());
        self.share_out();
    }

    /// Cuts the descriptors of each process to its share, and forgets files that no database has
    /// open.
    fn share_out(&mut self) {
        let wanted: Vec<_> = self.held.values().map(|process| (process.party, process.open.len())).collect();
        let mut own = HashSet::new();
        self.count = 0;
        for ((pid, process), share) in
            self.held.iter_mut().zip(shares_by_party(REMOVED_DESCRIPTORS_MAX.1, &wanted))
        {
            process.is_cut |= process.open.len() > share;
            process.open.truncate(share);
            self.count += process.open.len();
            let database = process.of.unwrap_or(*pid);
            own.extend(process.open.iter().map(|(_, inode, _)| (database, *inode)));
        }
        self.files.retain(|inode, file| own.contains(&(file.database, *inode)));
        self.names = self.files.values().map(|file| file.name.clone()).collect();
    }

    /// Returns the files of each database.
    fn by_database(&self) -> BTreeMap<u32, Vec<Inode>> {
        let mut files: BTreeMap<u32, Vec<Inode>> = BTreeMap::new();
        for (inode, file) in &self.files {
            files.entry(file.database).or_default().push(*inode);
        }
        files
    }

    /// Returns the openers of each file.
    fn openers(&self) -> HashMap<Inode, Vec<FileOpener>> {
        let mut openers: HashMap<Inode, Vec<FileOpener>> = HashMap::new();
        for (pid, process) in &self.held {
            for (fd, inode, shown) in &process.open {
                let database = self.files.get(inode).map(|file| file.database);
                let is_own = process.of == database;
                let opener = FileOpener { pid: *pid, fd: *fd, shown: *shown, is_own };
                openers.entry(*inode).or_default().push(opener);
            }
        }
        openers
    }

    /// Returns the items to examine for these files of one database, in turns.
    fn items(
        &self,
        mut files: Vec<Inode>,
        openers: &mut HashMap<Inode, Vec<FileOpener>>,
        own: &[Box<Directory>],
        all_listed: Option<Instant>,
    ) -> Vec<RemovalItem> {
        let count = files.len();
        files.rotate_left(self.pass % count.max(1));
        let directories: HashMap<Inode, usize> =
            own.iter().enumerate().filter_map(|(at, directory)| Some((directory.pin?.inode, at))).collect();
        let item = |inode: Inode| {
            let file = self.files.get(&inode)?;
            let openers = openers.remove(&inode).filter(|all| all.len() <= OPENERS_MAX)?;
            let at = *directories.get(&file.directory)?;
            let directory = &own[at];
            let path = directory.path_of(&file.name);
            let log = directory.log_like(&path)?;
            let act = FileAct {
                path,
                inode,
                range: 0..0,
                action: Action::Release,
                class: directory.spec(log).class,
                rule: directory.rule(log),
                file: FileId(new_id()),
                directory: at,
            };
            let all_listed = all_listed.is_some_and(|all| all > file.since);
            let (database, known) = (file.database, file.known.clone());
            Some(RemovalItem { act, database, openers, all_listed, known })
        };
        files.into_iter().take(FILES_PER_PASS_MAX).filter_map(item).collect()
    }
}

/// For each party, the start of the oldest listing among the processes that may have files of its
/// databases open.
#[derive(Debug, Default)]
struct ListedSince {
    /// For processes that may open anybody's files.
    anybody: Option<Instant>,
    own: BTreeMap<Party, Option<Instant>>,
}

impl ListedSince {
    fn note(&mut self, party: Party, since: Option<Instant>) {
        match party {
            Party::User(0) | Party::Unknown | Party::Operator => self.anybody = self.anybody.min(since),
            Party::User(_) | Party::Container(_) => {
                let own = self.own.entry(party).or_insert(since);
                *own = (*own).min(since);
            }
        }
    }

    fn since(&self, party: Party) -> Option<Instant> {
        self.own.get(&party).map_or(self.anybody, |own| self.anybody.min(*own))
    }
}

#[cfg(test)]
mod tests;

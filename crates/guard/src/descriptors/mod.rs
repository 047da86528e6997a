//! Who has which log file open, and where in it: writers and followers, from `/proc/PID/fd` and
//! `/proc/PID/fdinfo`.
//!
//! Listing all descriptors of a process is the expensive part (some microseconds each), so it is done seldom: at intervals that
//! keep its cost under [a share](schedule) of the time, as far as there is time for it. It goes in slices of processor time, so a
//! process with very many takes some ticks, and keeps no other waiting. When files came, or a descriptor turned out to be another
//! file than before, what may have changed is looked at first: [of a database](likely) and [of others](changes). In between
//! only the descriptors known to be of log files are read, at most [`POLLED`] in one tick, by shares, and of many those first that
//! moved. No more of one process than [`DESCRIPTORS`] are kept in mind, and of all that are no databases together
//! [`DESCRIPTORS_OF_OTHERS`], by shares. A process that ended has no descriptors; one that may not be inspected is reported by its
//! error.
//!
//! [`DESCRIPTORS`]: crate::budget::DESCRIPTORS
//! [`DESCRIPTORS_OF_OTHERS`]: crate::budget::DESCRIPTORS_OF_OTHERS

mod changes;
mod likely;
mod lister;
mod others;
mod poll;
mod schedule;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::{Access, OpenFile, ProcRoot, thread_cpu_time};
use pagekeeper_policy::FileId;

use crate::directory::DirectoryId;
use crate::ids::IdSet;
use crate::known_names::KnownNames;

use self::likely::Likely;
pub(crate) use self::lister::{ListedProcess, Lister, Listing, Wanted, is_written, name_of_removed};
pub(crate) use self::others::Others;
use self::poll::poll;
pub(crate) use self::schedule::{Extent, Schedule};

/// Descriptors of databases whose positions are read in one tick, and of other processes; of more in turns.
pub(crate) const POLLED: usize = 256;
/// The files of a process with no more descriptors are sampled at each tick, whether these are seen to move or not: not all
/// that is written moves one.
const FEW_HELD: usize = 64;

/// A descriptor of a log file.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub(crate) pid: u32,
    pub(crate) fd: RawFd,
    pub(crate) file: FileId,
    /// That file's directory.
    pub(crate) directory: DirectoryId,
    /// Its inode number as fdinfo shows it, which on overlayfs is not always stat's; none before Linux 5.14.
    pub(crate) shown_inode: Option<u64>,
    pub(crate) inode: Inode,
    pub(crate) access: Access,
    pub(crate) position: u64,
    /// Whether it was seen elsewhere at this tick than before, or for the first time.
    pub(crate) moved: bool,
    /// The same of when it was looked at last.
    pub(crate) lively: bool,
}

/// At which files processes are.
#[derive(Debug, Default)]
pub(crate) struct FilesInUse {
    /// To be sampled at each tick.
    pub(crate) busy: IdSet<FileId>,
    /// Open, but of a process with very many, and no descriptor was seen to move at this tick.
    pub(crate) held: IdSet<FileId>,
    /// The directories of those to be sampled at each tick.
    pub(crate) directories: IdSet<DirectoryId>,
}

impl FilesInUse {
    /// Takes in the descriptors of one process.
    pub(crate) fn add(&mut self, of_process: &[Descriptor]) {
        let are_few = of_process.len() <= FEW_HELD;
        for descriptor in of_process {
            if are_few || descriptor.moved {
                self.busy.insert(descriptor.file);
                self.directories.insert(descriptor.directory);
            } else {
                self.held.insert(descriptor.file);
            }
        }
    }
}

/// The descriptors of a database's process, kept up to date.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) known: Vec<Descriptor>,
    pub(crate) schedule: Schedule,
    turn: usize,
    likely: Likely,
}

impl Descriptors {
    pub(crate) fn new(now: Instant) -> Self {
        Self { known: Vec::new(), schedule: Schedule::new(now), turn: 0, likely: Likely::default() }
    }

    /// Takes in that a listing of all has ended, which took so long; when it began there were so many. [`Self::settle`] is given
    /// what was listed.
    pub(crate) fn listed(&mut self, cost: Duration, count: Option<u64>) {
        self.schedule.end(cost);
        self.likely.listed(count);
    }

    /// Takes note of new files, each the last of its log: the process may have opened them, and closed others.
    pub(crate) fn expect(&mut self, files: impl Iterator<Item = FileId>) {
        let extent = self.likely.expect(files);
        self.schedule.ask(extent);
    }

    /// Begins a listing, if one is due, and of what.
    pub(crate) fn begin(&mut self, now: Instant) -> Option<Extent> {
        let extent = self.schedule.begin(now);
        if extent == Some(Extent::All) {
            self.likely.begin_all();
        }
        extent
    }

    /// Looks where what has changed is likely to be, as far as there is time for it and it may be enough. Whether that shows what a
    /// listing of all would, for which it was begun: else that is to come. See [`likely`].
    pub(crate) fn end_with_check(&mut self, pid: u32, proc: &ProcRoot, names: Option<&KnownNames>) -> bool {
        let before = thread_cpu_time();
        let count = || proc.fd_count(pid);
        let is_enough =
            names.is_some_and(|names| self.likely.check(&mut self.known, pid, proc, names, count));
        if is_enough {
            self.schedule.end(thread_cpu_time().saturating_sub(before));
        } else {
            self.schedule.go_on_with_all();
            self.likely.begin_all();
        }
        is_enough
    }

    /// Knows those of the listed descriptors that are of watched files.
    pub(crate) fn settle(&mut self, pid: u32, listed: &[OpenFile], names: &KnownNames) {
        let before: HashMap<RawFd, (FileId, u64)> =
            self.known.iter().map(|known| (known.fd, (known.file, known.position))).collect();
        self.known = listed.iter().filter_map(|file| descriptor(pid, file, names)).collect();
        for known in &mut self.known {
            known.moved = before.get(&known.fd) != Some(&(known.file, known.position));
        }
        self.likely.settled(before.into_keys(), &self.known, listed.len());
    }

    /// Reads the positions of so many of the known descriptors again. One that is closed or became another file asks for
    /// a check.
    pub(crate) fn poll(&mut self, proc: &ProcRoot, share: usize) {
        let polled = poll(&mut self.known, &mut self.turn, proc, share);
        if !polled.lost.is_empty() {
            self.schedule.ask(Extent::Changes);
        }
        self.likely.polled(&polled);
    }
}

/// A descriptor of one of the log files; `None` if another file has such a name.
fn descriptor(pid: u32, file: &OpenFile, names: &KnownNames) -> Option<Descriptor> {
    let (id, directory) = names.find(file.path.file_name()?, file.inode)?;
    Some(Descriptor {
        pid,
        fd: file.fd,
        file: id,
        directory,
        shown_inode: file.shown_inode,
        inode: file.inode,
        access: file.access,
        position: file.position,
        moved: true,
        lively: true,
    })
}

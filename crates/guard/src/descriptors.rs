//! Who has which log file open, and where in it: writers and followers, from `/proc/PID/fd` and
//! `/proc/PID/fdinfo`.
//!
//! Listing all descriptors of a process is the expensive part (about a microsecond each), so it is done seldom: when
//! a descriptor turned out to be another file than before, and else at intervals that keep its cost under
//! [`SHARE`] of the time. In between only the descriptors known to be of log files are read. A process that
//! ended has no descriptors; one that may not be inspected is reported by its error.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{Access, OpenFile, OpenFilesScan, ProcRoot, Selection};
use pagekeeper_kernel::{Error, Inode};
use pagekeeper_policy::FileId;

use crate::directory::{Directory, Entry};

/// A listing that takes a millisecond is repeated after this many.
const SHARE: u32 = 500;
/// One that is asked for, after this many.
const URGENT_SHARE: u32 = 50;
/// The least time between two listings that nothing asked for.
const LEAST: Duration = Duration::from_secs(1);

/// A descriptor of a log file.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub(crate) pid: u32,
    pub(crate) fd: RawFd,
    pub(crate) file: FileId,
    /// Its inode number as fdinfo shows it, which on overlayfs is not always stat's; none before Linux 5.14.
    pub(crate) shown_inode: Option<u64>,
    pub(crate) inode: Inode,
    pub(crate) access: Access,
    pub(crate) position: u64,
}

/// A descriptor as it is listed, with its process.
pub(crate) type Listed = (u32, OpenFile);

/// The descriptors of a set of processes, kept up to date.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) known: Vec<Descriptor>,
    due: Instant,
    asked: bool,
    /// However urgently it is asked for, not before.
    earliest: Instant,
}

impl Descriptors {
    pub(crate) fn new(now: Instant) -> Self {
        Self { known: Vec::new(), due: now, asked: true, earliest: now }
    }

    /// Asks for a listing at the next tick.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether a listing is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.earliest && (self.asked || now >= self.due)
    }

    /// Lists the descriptors of `pids` anew: those of regular files whose name passes, and the processes that could not be
    /// listed, except ended ones. What of it is of watched files is for [`Self::settle`].
    pub(crate) fn list(
        &mut self,
        proc: &ProcRoot,
        pids: &[u32],
        wanted: &dyn Fn(&Path) -> bool,
    ) -> (Vec<Listed>, Vec<(u32, Error)>) {
        let began = Instant::now();
        let selection = Selection { name: Some(wanted), ..Selection::default() };
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for process in OpenFilesScan::of(proc, pids.iter().copied(), selection).finish().processes {
            found.extend(process.open.into_iter().map(|file| (process.pid, file)));
            errors.extend(process.error.map(|error| (process.pid, error)));
        }
        let (cost, now) = (began.elapsed(), Instant::now());
        self.asked = false;
        self.due = now + (cost * SHARE).max(LEAST);
        self.earliest = now + cost * URGENT_SHARE;
        (found, errors)
    }

    /// Knows those of the listed descriptors that are of watched files.
    pub(crate) fn settle(&mut self, listed: &[Listed], names: &Names<'_>) {
        self.known = listed.iter().filter_map(|(pid, file)| descriptor(*pid, file, names)).collect();
    }

    /// Reads the positions of the known descriptors again. One that is closed or became another file asks for a
    /// listing.
    pub(crate) fn poll(&mut self, proc: &ProcRoot) {
        let mut changed = false;
        self.known.retain_mut(|descriptor| {
            let same =
                proc.fd_info(descriptor.pid, descriptor.fd).ok().filter(|info| match info.inode_number {
                    Some(number) => descriptor.shown_inode == Some(number),
                    // Before Linux 5.14 fdinfo has no inode.
                    None => proc.inode_behind(descriptor.pid, descriptor.fd) == Some(descriptor.inode),
                });
            changed |= same.is_none();
            if let Some(info) = &same {
                descriptor.position = info.position;
                descriptor.access = info.access();
            }
            same.is_some()
        });
        self.asked |= changed;
    }
}

/// Where there are more directories, it takes an index to find a name in all of them.
const FEW: usize = 16;

/// The names of all watched files, and which files they are.
pub(crate) struct Names<'a> {
    directories: &'a [Directory],
    /// In which of many directories a name is.
    index: Option<HashMap<&'a OsStr, Vec<usize>>>,
}

impl<'a> Names<'a> {
    pub(crate) fn of(directories: &'a [Directory]) -> Self {
        let index = (directories.len() > FEW).then(|| {
            let mut index: HashMap<&OsStr, Vec<usize>> = HashMap::new();
            for (at, directory) in directories.iter().enumerate() {
                for name in directory.entries.keys() {
                    index.entry(name).or_default().push(at);
                }
            }
            index
        });
        Self { directories, index }
    }

    /// Whether a watched file has the name that a path ends in.
    pub(crate) fn has(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| match &self.index {
            Some(index) => index.contains_key(name),
            None => self.directories.iter().any(|directory| directory.entries.contains_key(name)),
        })
    }

    /// The watched file of this name that is this one.
    fn find(&self, name: &OsStr, inode: Inode) -> Option<&'a Entry> {
        let entry_in = |directory: &'a Directory| {
            directory.entries.get(name).filter(|entry: &&Entry| entry.inode == inode)
        };
        match &self.index {
            Some(index) => index.get(name)?.iter().find_map(|at| entry_in(&self.directories[*at])),
            None => self.directories.iter().find_map(entry_in),
        }
    }
}

/// A descriptor of one of the log files; `None` if another file has such a name.
fn descriptor(pid: u32, file: &OpenFile, names: &Names<'_>) -> Option<Descriptor> {
    let entry = names.find(file.path.file_name()?, file.inode)?;
    Some(Descriptor {
        pid,
        fd: file.fd,
        file: entry.id,
        shown_inode: file.shown_inode,
        inode: file.inode,
        access: file.access,
        position: file.position,
    })
}

//! Who has which log file open, and where in it: writers and followers, from `/proc/PID/fd` and
//! `/proc/PID/fdinfo`.
//!
//! Listing all descriptors of a process is the expensive part (about a microsecond each), so it is done seldom: when
//! a descriptor turned out to be another file than before, and else at intervals that keep its cost under
//! [`SHARE`] of the time. In between only the descriptors known to be of log files are read. A process that
//! ended has no descriptors; one that may not be inspected is reported by its error.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{Access, OpenFile, OpenFilesScan, ProcRoot, Selection};
use pagekeeper_kernel::{Error, Inode};
use pagekeeper_policy::FileId;

use crate::directory::Directory;

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

    /// Lists the descriptors of `pids` anew; `each` is given all that they lead to. Returns the
    /// processes that could not be listed, except ended ones.
    pub(crate) fn list(
        &mut self,
        proc: &ProcRoot,
        pids: &[u32],
        directories: &[Directory],
        each: impl FnMut(&Path),
    ) -> Vec<(u32, Error)> {
        let began = Instant::now();
        self.known.clear();
        let each = RefCell::new(each);
        let may_be_log = |target: &Path| {
            (each.borrow_mut())(target);
            let is_entry = |name| directories.iter().any(|directory| directory.entries.contains_key(name));
            target.file_name().is_some_and(is_entry)
        };
        let selection = Selection { name: Some(&may_be_log), ..Selection::default() };
        let mut errors = Vec::new();
        for process in OpenFilesScan::of(proc, pids.iter().copied(), selection).finish().processes {
            let pid = process.pid;
            self.known.extend(process.open.iter().filter_map(|file| descriptor(pid, file, directories)));
            errors.extend(process.error.map(|error| (pid, error)));
        }
        let (cost, now) = (began.elapsed(), Instant::now());
        self.asked = false;
        self.due = now + (cost * SHARE).max(LEAST);
        self.earliest = now + cost * URGENT_SHARE;
        errors
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

/// A descriptor of one of the log files; `None` if another file has such a name.
fn descriptor(pid: u32, file: &OpenFile, directories: &[Directory]) -> Option<Descriptor> {
    let name = file.path.file_name()?;
    let mut entries = directories.iter().filter_map(|directory| directory.entries.get(name));
    let entry = entries.find(|entry| entry.inode == file.inode)?;
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

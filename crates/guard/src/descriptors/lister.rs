//! Listing the descriptors of processes: those of files whose names pass.

use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::{Access, FdVisitor, OpenFile, ProcRoot};

use crate::budget::DESCRIPTORS;
use crate::directory::Directory;
use crate::known_names::KnownNames;

/// What the kernel appends to the name of a removed file that is open.
const MARK: &[u8] = b" (deleted)";

/// Files that no pattern names: so many descriptors of one process are looked at, and so many that are open for writing kept.
const UNNAMED: (usize, usize) = (512, 64);

/// The name that a removed file had, where what the kernel shows of a descriptor may be one's.
pub(crate) fn name_of_removed(shown: &Path) -> Option<&Path> {
    let name = shown.as_os_str().as_bytes().strip_suffix(MARK)?;
    Some(Path::new(OsStr::from_bytes(name)))
}

/// By which names files matter.
pub(crate) struct Wanted<'a> {
    /// The directories of the watched files.
    pub(crate) directories: &'a [Box<Directory>],
    /// These files' names.
    pub(crate) names: &'a mut KnownNames,
    /// Whether a file of this name that was removed was a log, where this process has it open.
    pub(crate) was_log: &'a dyn Fn(u32, &Path) -> bool,
}

/// What was listed of a process that is being read.
#[derive(Debug)]
pub(crate) struct Listing {
    pid: u32,
    began: Instant,
    count: Option<u64>,
    open: Vec<OpenFile>,
    unnamed: Vec<OpenFile>,
    /// How many descriptors of unnamed files were looked at.
    looked_at: usize,
    has_more_unnamed: bool,
    left_out: bool,
}

/// What was listed of a process.
#[derive(Debug)]
pub(crate) struct ListedProcess {
    pub(crate) pid: u32,
    /// When that began.
    pub(crate) began: Instant,
    /// How many descriptors it had then, where the kernel says it.
    pub(crate) count: Option<u64>,
    /// Its descriptors of regular files whose names passed.
    pub(crate) open: Vec<OpenFile>,
    /// Files that it has open for writing and that no pattern names, as far as they are looked at.
    pub(crate) unnamed: Vec<OpenFile>,
    /// Whether it may have more of those.
    pub(crate) has_more_unnamed: bool,
    /// Whether it has more of them than are kept in mind.
    pub(crate) left_out: bool,
    /// Whether all could be read.
    pub(crate) read: Result<()>,
    /// The processor time that it took.
    pub(crate) cost: Duration,
}

impl ListedProcess {
    /// Whether it is there and could not be read.
    pub(crate) fn is_unread(&self) -> bool {
        self.read.as_ref().is_err_and(|error| !error.is_gone())
    }
}

/// Lists descriptors of files whose names pass.
pub(crate) struct Lister<'a> {
    proc: &'a ProcRoot,
    wanted: &'a dyn Fn(u32, &Path) -> bool,
    kept: &'a dyn Fn(&OpenFile) -> bool,
    unnamed: &'a dyn Fn(u32, &Path) -> bool,
    pub(crate) done: Vec<ListedProcess>,
}

impl<'a> Lister<'a> {
    /// Of the names that are wanted, those files that are kept.
    pub(crate) fn new(
        proc: &'a ProcRoot,
        wanted: &'a dyn Fn(u32, &Path) -> bool,
        kept: &'a dyn Fn(&OpenFile) -> bool,
    ) -> Self {
        Self { proc, wanted, kept, unnamed: &|_, _| false, done: Vec::new() }
    }

    /// The same, and beside these the files that are open for writing and that no pattern names.
    pub(crate) fn with_unnamed(self, unnamed: &'a dyn Fn(u32, &Path) -> bool) -> Self {
        Self { unnamed, ..self }
    }
}

/// Whether a file is open for writing.
pub(crate) fn is_written(file: &OpenFile) -> bool {
    matches!(file.access, Access::WriteOnly | Access::ReadWrite)
}

impl FdVisitor for Lister<'_> {
    type Process = Listing;

    fn begin(&mut self, pid: u32) -> Option<Listing> {
        let (began, count) = (Instant::now(), self.proc.fd_count(pid));
        let (open, unnamed) = (Vec::new(), Vec::new());
        let (has_more_unnamed, left_out) = (false, false);
        Some(Listing { pid, began, count, open, unnamed, looked_at: 0, has_more_unnamed, left_out })
    }

    fn descriptor(&mut self, listing: &mut Listing, fd: RawFd, target: &Path) {
        if (self.wanted)(listing.pid, target) {
            if listing.open.len() >= DESCRIPTORS {
                listing.left_out = true;
                return;
            }
            let file = self.proc.open_file_at(listing.pid, fd, target);
            listing.open.extend(file.filter(|file| (self.kept)(file)));
        } else if listing.looked_at >= UNNAMED.0 || listing.unnamed.len() >= UNNAMED.1 {
            listing.has_more_unnamed = true;
        } else if (self.unnamed)(listing.pid, target) {
            listing.looked_at += 1;
            let file = self.proc.open_file_at(listing.pid, fd, target);
            listing.unnamed.extend(file.filter(|file| is_written(file) && !file.direct && !file.deleted));
        }
    }

    fn end(&mut self, pid: u32, listing: Listing, read: Result<()>, cost: Duration) {
        let Listing { open, unnamed, has_more_unnamed, left_out, began, count, .. } = listing;
        self.done.push(ListedProcess {
            pid,
            began,
            count,
            open,
            unnamed,
            has_more_unnamed,
            left_out,
            read,
            cost,
        });
    }
}

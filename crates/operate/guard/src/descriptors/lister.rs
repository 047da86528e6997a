//! Lists those descriptors of processes whose files have a relevant name.

use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::{Access, FdVisitor, OpenFile, ProcRoot};

use crate::budget::DESCRIPTORS_PER_PROCESS;
use crate::descriptor::Descriptor;
use crate::directory::Directory;
use crate::known_names::KnownNames;

/// The suffix that the kernel appends to the name of a removed file that is open.
const DELETED_MARK: &[u8] = b" (deleted)";

/// Limits per process for files that no pattern names: descriptors that are looked at, and files open for
/// writing that are kept.
const UNNAMED_MAX: (usize, usize) = (512, 64);

/// Returns the name that a removed file had, if the kernel shows this descriptor's file as removed.
pub(crate) fn name_of_removed(shown: &Path) -> Option<&Path> {
    let name = shown.as_os_str().as_bytes().strip_suffix(DELETED_MARK)?;
    Some(Path::new(OsStr::from_bytes(name)))
}

/// Returns the descriptor of a log file; `None` if it is another file of that name.
pub(super) fn descriptor(pid: u32, file: &OpenFile, names: &KnownNames) -> Option<Descriptor> {
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

/// The names by which files are relevant.
pub(crate) struct RelevantNames<'a> {
    /// The directories of the watched files.
    pub(crate) directories: &'a [Box<Directory>],
    /// The names of these files.
    pub(crate) names: &'a mut KnownNames,
    /// Returns whether a removed file of this name was a log, in a process that has it open.
    pub(crate) was_log: &'a dyn Fn(u32, &Path) -> bool,
}

/// The listing of a process, finished or still being read.
#[derive(Debug)]
pub(crate) struct ListedProcess {
    pub(crate) pid: u32,
    /// When the listing began.
    pub(crate) began: Instant,
    /// The number of its descriptors then, if the kernel reports it.
    pub(crate) count: Option<u64>,
    /// Its descriptors of regular files with relevant names.
    pub(crate) open: Vec<OpenFile>,
    /// Files that no pattern names and that it has open for writing, up to the limits.
    pub(crate) unnamed: Vec<OpenFile>,
    /// The number of descriptors of unnamed files that were looked at.
    pub(super) looked_at: usize,
    /// Whether it may have more such files.
    pub(crate) has_more_unnamed: bool,
    /// Whether it has more relevant descriptors than are remembered.
    pub(crate) left_out: bool,
    /// An error if not all descriptors could be read.
    pub(crate) read: Result<()>,
    /// The processor time that the listing took.
    pub(crate) cost: Duration,
}

impl ListedProcess {
    /// Returns whether the process is there and could not be read.
    pub(crate) fn is_unread(&self) -> bool {
        self.read.as_ref().is_err_and(|error| !error.is_gone())
    }
}

/// Lists descriptors of files with relevant names.
pub(crate) struct Lister<'a> {
    proc: &'a ProcRoot,
    wanted: &'a dyn Fn(u32, &Path) -> bool,
    kept: &'a dyn Fn(&OpenFile) -> bool,
    unnamed: &'a dyn Fn(u32, &Path) -> bool,
    pub(crate) done: Vec<ListedProcess>,
}

impl<'a> Lister<'a> {
    /// Lists files whose names are `wanted` and that are `kept`.
    pub(crate) fn new(
        proc: &'a ProcRoot,
        wanted: &'a dyn Fn(u32, &Path) -> bool,
        kept: &'a dyn Fn(&OpenFile) -> bool,
    ) -> Self {
        Self { proc, wanted, kept, unnamed: &|_, _| false, done: Vec::new() }
    }

    /// Lists files that are open for writing and that no pattern names as well.
    pub(crate) fn with_unnamed(self, unnamed: &'a dyn Fn(u32, &Path) -> bool) -> Self {
        Self { unnamed, ..self }
    }
}

/// Returns whether a file is open for writing.
pub(crate) fn is_written(file: &OpenFile) -> bool {
    matches!(file.access, Access::WriteOnly | Access::ReadWrite)
}

impl FdVisitor for Lister<'_> {
    type Process = ListedProcess;

    fn begin(&mut self, pid: u32) -> Option<ListedProcess> {
        Some(ListedProcess {
            pid,
            began: Instant::now(),
            count: self.proc.fd_count(pid),
            open: Vec::new(),
            unnamed: Vec::new(),
            looked_at: 0,
            has_more_unnamed: false,
            left_out: false,
            read: Ok(()),
            cost: Duration::ZERO,
        })
    }

    fn descriptor(&mut self, listing: &mut ListedProcess, fd: RawFd, target: &Path) {
        if (self.wanted)(listing.pid, target) {
            if listing.open.len() >= DESCRIPTORS_PER_PROCESS {
                listing.left_out = true;
                return;
            }
            let file = self.proc.open_file_at(listing.pid, fd, target);
            listing.open.extend(file.filter(|file| (self.kept)(file)));
        } else if listing.looked_at >= UNNAMED_MAX.0 || listing.unnamed.len() >= UNNAMED_MAX.1 {
            listing.has_more_unnamed = true;
        } else if (self.unnamed)(listing.pid, target) {
            listing.looked_at += 1;
            let file = self.proc.open_file_at(listing.pid, fd, target);
            listing.unnamed.extend(file.filter(|file| is_written(file) && !file.direct && !file.deleted));
        }
    }

    fn end(&mut self, _: u32, listing: ListedProcess, read: Result<()>, cost: Duration) {
        self.done.push(ListedProcess { read, cost, ..listing });
    }
}

//! Lists those descriptors of processes whose files have a relevant name.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::{FdVisitor, OpenFile, ProcRoot};

use crate::budget::DESCRIPTORS_PER_PROCESS;
use crate::descriptor::Descriptor;
use crate::known_names::KnownNames;

/// The suffix that the kernel appends to the name of a removed file that is open.
const DELETED_MARK: &[u8] = b" (deleted)";

/// Limits per process for files that no pattern names: descriptors that are looked at, and files
/// open for writing that are kept.
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

/// Marks those listed descriptors of a process as moved that are new, or moved since they were
/// known as `before`. Those that had moved by then stay marked.
pub(super) fn mark_moved(listed: &mut [Descriptor], before: &[Descriptor]) {
    let before: HashMap<RawFd, &Descriptor> = before.iter().map(|known| (known.fd, known)).collect();
    for descriptor in listed {
        let place = (descriptor.file, descriptor.position);
        let same = before.get(&descriptor.fd).filter(|before| (before.file, before.position) == place);
        descriptor.moved = same.is_none_or(|before| before.moved);
    }
}

/// The listing of a process, finished or still being read.
#[derive(Debug)]
pub(crate) struct ListedProcess {
    pub(crate) pid: u32,
    /// The time when the listing began.
    pub(crate) began: Instant,
    /// The number of its descriptors then, if the kernel reports it.
    pub(crate) count: Option<u64>,
    /// Its descriptors of regular files with relevant names, and those of them that were removed.
    pub(crate) open: Vec<OpenFile>,
    pub(crate) removed: Vec<OpenFile>,
    /// Files that no pattern names and that it has open for writing, up to the limits.
    pub(crate) unnamed: Vec<OpenFile>,
    /// The number of descriptors of unnamed files that were looked at.
    pub(super) looked_at: usize,
    /// Whether it may have more unnamed files open for writing.
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
    pub(crate) proc: &'a ProcRoot,
    /// Returns whether a name is relevant.
    pub(crate) wanted: &'a dyn Fn(u32, &Path) -> bool,
    /// Returns whether descriptors of a file with this name are kept.
    pub(crate) kept: &'a dyn Fn(&OpenFile) -> bool,
    /// Returns whether no pattern names a file; those that are open for writing are listed as well.
    pub(crate) unnamed: &'a dyn Fn(u32, &Path) -> bool,
    pub(crate) done: Vec<ListedProcess>,
}

impl FdVisitor for Lister<'_> {
    type Process = ListedProcess;

    fn begin(&mut self, pid: u32) -> Option<ListedProcess> {
        Some(ListedProcess {
            pid,
            began: Instant::now(),
            count: self.proc.fd_count(pid),
            open: Vec::new(),
            removed: Vec::new(),
            unnamed: Vec::new(),
            looked_at: 0,
            has_more_unnamed: false,
            left_out: false,
            read: Ok(()),
            cost: Duration::ZERO,
        })
    }

    fn visit(&mut self, listing: &mut ListedProcess, fd: RawFd, target: &Path) {
        if (self.wanted)(listing.pid, target) {
            if listing.open.len() + listing.removed.len() >= DESCRIPTORS_PER_PROCESS {
                listing.left_out = true;
                return;
            }
            let file = self.proc.open_file_at(listing.pid, fd, target);
            if let Some(file) = file.filter(|file| (self.kept)(file)) {
                let those = if file.deleted { &mut listing.removed } else { &mut listing.open };
                those.push(file);
            }
        } else if listing.looked_at >= UNNAMED_MAX.0 || listing.unnamed.len() >= UNNAMED_MAX.1 {
            listing.has_more_unnamed = true;
        } else if (self.unnamed)(listing.pid, target) {
            listing.looked_at += 1;
            let file = self.proc.open_file_at(listing.pid, fd, target);
            listing.unnamed.extend(file.filter(|file| file.access.writes() && !file.direct && !file.deleted));
        }
    }

    fn end(&mut self, _: u32, listing: ListedProcess, read: Result<()>, cost: Duration) {
        self.done.push(ListedProcess { read, cost, ..listing });
    }
}

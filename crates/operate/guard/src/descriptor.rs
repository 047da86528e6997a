//! A descriptor of a log file in some process, as it was read last.

use std::collections::HashSet;
use std::os::fd::RawFd;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_policy::FileId;

use crate::ids::DirectoryId;

/// Maximum number of descriptors of databases whose positions are read in one tick, and as many of
/// other processes. If there are more, they take turns.
pub(crate) const POLLED_PER_TICK: usize = 256;
/// Up to this many descriptors, all of a process's files are sampled at each tick, even if no
/// descriptor is seen to move: not every write moves one.
pub(crate) const FEW_DESCRIPTORS_MAX: usize = 64;

/// A descriptor of a log file.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub(crate) pid: u32,
    pub(crate) fd: RawFd,
    pub(crate) file: FileId,
    /// The file's directory.
    pub(crate) directory: DirectoryId,
    /// The inode number that fdinfo shows, which on overlayfs is not always stat's; `None` before
    /// Linux 5.14.
    pub(crate) shown_inode: Option<u64>,
    pub(crate) inode: Inode,
    pub(crate) access: AccessMode,
    pub(crate) position: u64,
    /// Whether its position differs from the tick before, or it is new.
    pub(crate) moved: bool,
    /// Whether it had moved when it was read last.
    pub(crate) lively: bool,
}

impl Descriptor {
    /// Returns whether it is open for writing.
    pub(crate) fn writes(&self) -> bool {
        self.access.writes()
    }
}

/// The files that processes have open, by how often they are to be sampled.
#[derive(Debug, Default)]
pub(crate) struct FilesInUse {
    /// To be sampled at each tick.
    pub(crate) busy: HashSet<FileId>,
    /// Open in a process with very many descriptors, and no descriptor was seen to move at this
    /// tick.
    pub(crate) held: HashSet<FileId>,
    /// The directories of the files to be sampled at each tick.
    pub(crate) directories: HashSet<DirectoryId>,
}

impl FilesInUse {
    /// Adds the descriptors of one process.
    pub(crate) fn add(&mut self, of_process: &[Descriptor]) {
        let are_few = of_process.len() <= FEW_DESCRIPTORS_MAX;
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

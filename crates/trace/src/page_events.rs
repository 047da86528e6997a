//! Events of the page cache that followed processes cause: pages they add, pages that anybody uses of the files they touched, and
//! the life of the processes themselves.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::TraceError;

/// A file as the kernel's events name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventFile {
    /// The device of its file system, as `st_dev` encodes it (on btrfs that of the whole file system, not of the subvolume); of a
    /// block device its own number (`st_rdev`).
    pub dev: u64,
    /// The inode number; 0 for a block device.
    pub ino: u64,
    /// The inode's generation: it tells an inode from a later one of the same number.
    pub generation: u32,
    /// The subvolume that the inode belongs to, on btrfs alone.
    pub subvolume: Option<u64>,
    /// Whether it is a block device.
    pub is_block_device: bool,
    /// The address of the file's mapping in the kernel, by which [`PageEvents::forget`] finds it. Never to be shown.
    pub mapping: u64,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageEvent {
    /// A followed process brought pages in.
    Added {
        /// The process (thread group), in the first pid namespace.
        process: u32,
        /// The file.
        file: EventFile,
        /// Bytes, in whole pages.
        bytes: Range<u64>,
    },
    /// Some process read or mapped pages that were resident, of a file that a followed process has added pages of (Linux 6.12).
    Used {
        /// The process.
        process: u32,
        /// Whether it is followed.
        is_followed: bool,
        /// The file.
        file: EventFile,
        /// Bytes, in whole pages.
        bytes: Range<u64>,
    },
    /// A process is followed from now on: by its name as it became another program, or as the child of one that is followed.
    Began {
        /// The process.
        process: u32,
        /// The followed process that it is a child of, or 0.
        parent: u32,
        /// Its name (`comm`) now.
        name: String,
    },
    /// A followed process has become a program that is not followed (a database).
    Left {
        /// The process.
        process: u32,
    },
    /// A followed process has ended, all its threads.
    Ended {
        /// The process.
        process: u32,
    },
}

/// What is to be followed by its name.
#[derive(Debug, Clone, Default)]
pub struct FollowedNames {
    /// Names of processes as the kernel keeps them, 15 bytes at most; `*` may stand at the end. Followed from their exec on, with
    /// their children.
    pub streams: Vec<String>,
    /// Names that are never followed, even as children: databases.
    pub never: Vec<String>,
}

/// Events of followed processes, from when it is made until it is dropped.
pub struct PageEvents {}

impl fmt::Debug for PageEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageEvents")
    }
}

impl PageEvents {
    /// Loads and attaches the programs. Fails where the kernel or the caller's permissions don't allow that; the error's `Display`
    /// says why.
    pub fn open(_names: &FollowedNames) -> Result<Self, TraceError> {
        Err(TraceError::NotAsked)
    }

    /// Follows a process and the children that it starts from now on. The number is that of the first pid namespace.
    pub fn follow(&self, _process: u32) -> Result<(), TraceError> {
        Ok(())
    }

    /// Follows a process no longer.
    pub fn unfollow(&self, _process: u32) -> Result<(), TraceError> {
        Ok(())
    }

    /// Gives back the place that a file takes in the kernel's table; its [`PageEvent::Used`] events end.
    pub fn forget(&self, _file: &EventFile) -> Result<(), TraceError> {
        Ok(())
    }

    /// Whether [`PageEvent::Used`] events come.
    pub fn sees_use(&self) -> bool {
        false
    }

    /// Takes the events that have come, the oldest first, at most one buffer's worth.
    pub fn drain(&mut self, _take: &mut dyn FnMut(PageEvent)) {}

    /// Waits until an event comes, or for so long.
    pub fn wait(&self, timeout: Duration) {
        std::thread::sleep(timeout);
    }

    /// Becomes readable when an event comes.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How many pages' additions found no room in the buffer since the start.
    pub fn lost_pages(&self) -> u64 {
        0
    }
}

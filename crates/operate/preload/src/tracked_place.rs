//! The place of a tracked file in a report: what the processes of a command write, and the launcher reads.
//!
//! Invariant: a place is valid while its state is [`TRACKED`]. Whoever takes a place sets all else before that.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::identity::{FileIdentity, SharedIdentity};

/// Files tracked at a time.
pub const PLACES: usize = 1024;
/// Bytes of a path that are kept. A longer path is kept without its beginning.
pub const PATH: usize = 448;
/// The place is free.
const FREE: u32 = 0;
/// The place is being filled in.
const BEING_TAKEN: u32 = 1;
/// The place is valid.
pub const TRACKED: u32 = 2;

/// The file's residency cannot be seen.
pub const UNKNOWN: u64 = u64::MAX;

/// Events of a file, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FileEvents {
    /// All of its pages were gone when it was closed.
    Gone = 1,
    /// It was mapped.
    Mapped = 2,
    /// It was used by calls that are not hooked.
    Unseen = 4,
    /// The kernel copied it to something that is not a file: a pipe or a socket, which may hold its pages.
    Sent = 8,
    /// It is open; nobody has closed it since.
    Open = 16,
    /// It was small, and not written yet when its process went on.
    NotWaitedFor = 32,
}

/// The place of a tracked file.
#[repr(C, align(64))]
pub struct TrackedPlace {
    pub(crate) state: AtomicU32,
    pub(crate) seen: AtomicU32,
    pub(crate) file: SharedIdentity,
    pub(crate) before: AtomicU64,
    pub(crate) at_close: AtomicU64,
    pub(crate) unobserved: AtomicU64,
    path: [AtomicU64; PATH / 8],
}

impl TrackedPlace {
    pub(crate) fn is_of(&self, file: FileIdentity) -> bool {
        self.state.load(Ordering::Acquire) == TRACKED && self.file.get() == file
    }

    pub(crate) fn has(&self, what: FileEvents) -> bool {
        self.seen.load(Ordering::Relaxed) & what as u32 != 0
    }

    /// Takes the place if it is free, or not needed any more.
    pub(crate) fn take(&self) -> bool {
        let from = match self.state.load(Ordering::Relaxed) {
            FREE => FREE,
            TRACKED if self.has(FileEvents::Gone) => TRACKED,
            _ => return false,
        };
        self.state.compare_exchange(from, BEING_TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the path; of a long one, only its end.
    pub(crate) fn name(&self, path: &[u8]) {
        let from = path.len().saturating_sub(PATH - 1);
        let mut kept = [0; PATH];
        for (to, &byte) in kept.iter_mut().zip(path.get(from..).unwrap_or_default()) {
            *to = byte;
        }
        for (word, bytes) in self.path.iter().zip(kept.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
    }
}

/// A tracked file, as the launcher reads it.
#[cfg(not(feature = "interpose"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedFile {
    /// Its device, as `st_dev` encodes it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its path, as a process saw it; without its beginning if it is too long.
    pub path: std::path::PathBuf,
    /// Bytes resident before a process of the command opened it; `None` if that could not be seen.
    pub before: Option<u64>,
    /// Additional resident bytes at its last close; 0 if it was never closed.
    pub at_close: u64,
    /// Bytes read whose residency could not be seen.
    pub unobserved: u64,
    seen: u32,
}

#[cfg(not(feature = "interpose"))]
impl TrackedFile {
    /// Whether that event was seen.
    pub fn has(&self, what: FileEvents) -> bool {
        self.seen & what as u32 != 0
    }

    /// Reads a place; `None` if it is not valid.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        use core::mem::offset_of;
        use std::os::unix::ffi::OsStringExt as _;

        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let half = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        if half(offset_of!(TrackedPlace, state))? != TRACKED {
            return None;
        }
        let path = bytes.get(offset_of!(TrackedPlace, path)..)?.get(..PATH)?;
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(Self {
            device: word(offset_of!(TrackedPlace, file.device))?,
            inode: word(offset_of!(TrackedPlace, file.inode))?,
            path: std::ffi::OsString::from_vec(path.to_vec()).into(),
            before: word(offset_of!(TrackedPlace, before)).filter(|&before| before != UNKNOWN),
            at_close: word(offset_of!(TrackedPlace, at_close))?,
            unobserved: word(offset_of!(TrackedPlace, unobserved))?,
            seen: half(offset_of!(TrackedPlace, seen))?,
        })
    }
}

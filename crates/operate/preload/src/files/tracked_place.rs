//! The place of a tracked file in a report: what the processes of a command write, and the launcher
//! reads.
//!
//! Invariant: a place is valid while its state is [`TRACKED`]. Whoever takes a place sets all else
//! before that.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::files::identity::{FileIdentity, SharedIdentity};

/// Files tracked at a time.
pub const PLACES: usize = 1024;
/// Bytes of a path that are kept. A longer path is kept without its beginning.
pub const PATH: usize = 448;
/// The place is free.
const PLACE_FREE: u32 = 0;
/// The place is being filled in.
const PLACE_BEING_TAKEN: u32 = 1;
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
    /// The kernel copied it to something that is not a file: a pipe or a socket, which may hold its
    /// pages.
    Sent = 8,
    /// It is open; nobody has closed it since.
    Open = 16,
    /// It was small, and not written yet when its process continued.
    NotWaitedFor = 32,
}

/// The place of a tracked file.
#[repr(C, align(64))]
pub struct TrackedPlace {
    pub(crate) state: AtomicU32,
    pub(crate) seen: AtomicU32,
    /// Its identity.
    pub file: SharedIdentity,
    /// Bytes resident before a process of the command opened it; [`UNKNOWN`] if that could not be
    /// seen.
    pub before: AtomicU64,
    /// Additional resident bytes at its last close; 0 if it was never closed.
    pub at_close: AtomicU64,
    /// Bytes read whose residency could not be seen.
    pub unobserved: AtomicU64,
    path: [AtomicU64; PATH / 8],
}

impl TrackedPlace {
    pub(crate) fn is_of(&self, file: FileIdentity) -> bool {
        self.is_tracked() && self.file.get() == file
    }

    /// Whether it is valid.
    pub fn is_tracked(&self) -> bool {
        self.state.load(Ordering::Acquire) == TRACKED
    }

    /// Whether that event was seen.
    pub fn has(&self, what: FileEvents) -> bool {
        self.seen.load(Ordering::Relaxed) & what as u32 != 0
    }

    /// Takes the place if it is free, or not needed any more.
    pub(crate) fn take(&self) -> bool {
        let from = match self.state.load(Ordering::Relaxed) {
            PLACE_FREE => PLACE_FREE,
            TRACKED if self.has(FileEvents::Gone) => TRACKED,
            _ => return false,
        };
        self.state.compare_exchange(from, PLACE_BEING_TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the path; of a long one, only its end.
    pub(crate) fn name(&self, path: &[u8]) {
        let from = path.len().saturating_sub(PATH - 1);
        let mut kept = [0; PATH];
        for (to, &byte) in kept.iter_mut().zip(path.get(from..).unwrap_or_default()) {
            *to = byte;
        }
        for (word, bytes) in self.path.iter().zip(kept.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
    }

    /// Returns the bytes of its path, as a process saw it; without its beginning if it is too long.
    pub fn path(&self) -> impl Iterator<Item = u8> {
        let bytes = self.path.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        bytes.take_while(|&byte| byte != 0)
    }
}

//! What index and snapshots take of the standard library to coordinate threads.
//!
//! It is named here alone, so that the models can compile the same sources with loom's in its place.

use std::sync::atomic::AtomicUsize;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Parts of the index, each with a lock of its own.
pub(crate) const SHARDS: usize = 64;

/// Parts that readers register in, each with a lock of its own.
pub(crate) const READER_PARTS: usize = 32;

/// The part of this thread: threads take turns.
pub(crate) fn reader_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % READER_PARTS;
    }
    MINE.with(|mine| *mine)
}

//! The types of the standard library with which index and snapshots coordinate threads.
//!
//! They are named only here, so that the models can compile the same sources with loom's types
//! instead.

use std::sync::atomic::AtomicUsize;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Shards of the index, each with its own lock.
pub(crate) const SHARDS: usize = 64;

/// Parts that readers register in, each with its own lock.
pub(crate) const READER_PARTS: usize = 32;

/// Returns this thread's part. Parts are assigned round-robin.
pub(crate) fn reader_part() -> usize {
    static NEXT_PART: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN_PART: usize = NEXT_PART.fetch_add(1, Ordering::Relaxed) % READER_PARTS;
    }
    OWN_PART.with(|mine| *mine)
}

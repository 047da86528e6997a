//! Loom's in the place of the standard library's.

pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(super) use loom::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// There is one page.
pub(super) const SHARDS: usize = 1;

/// One that nobody uses, and one for all.
pub(super) const READER_PARTS: usize = 2;

pub(super) fn reader_part() -> usize {
    1
}

//! Loom's types instead of the standard library's.

pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(super) use loom::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// There is one page.
pub(super) const SHARDS: usize = 1;

/// One part that nobody uses, and one for all readers.
pub(super) const READER_PARTS: usize = 2;

pub(super) fn reader_part() -> usize {
    1
}

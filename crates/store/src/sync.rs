//! What index and snapshots take of the standard library to coordinate threads.
//!
//! It is named here alone, so that the models can compile the same sources with loom's in its place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Parts of the index, each with a lock of its own.
pub(crate) const SHARDS: usize = 64;

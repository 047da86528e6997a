//! The primitives that coordinate threads in the log buffer and in group commit.
//!
//! They are named only here, so that the models can compile the same sources with loom's instead.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

pub(super) use super::event_count::EventCount;
pub(super) use super::memory::UncheckedMemory;

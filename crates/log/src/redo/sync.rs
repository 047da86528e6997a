//! What the log buffer and group commit take of the standard library to coordinate threads.
//!
//! It is named here alone, so that the models can compile the same sources with loom's in its place.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

pub(super) use super::event_count::EventCount;
pub(super) use super::memory::Memory;

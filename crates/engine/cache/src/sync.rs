//! What the cache takes of the standard library to coordinate threads.
//!
//! It is named here alone, so that the models can compile the same sources with loom's in its place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

pub(crate) use crate::sys::barrier::Barrier;
/// So many counts of 0, which take up memory as they are first used.
pub(crate) use crate::sys::memory::zeros as counters;

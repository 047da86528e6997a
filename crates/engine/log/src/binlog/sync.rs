//! The primitives of the standard library by which the queue and the followers' progress coordinate threads.
//!
//! They are named only here, so that the models compile the same sources with loom's instead.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(super) use std::thread::yield_now;

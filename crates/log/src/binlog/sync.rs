//! What the queue and the followers' progress take of the standard library to coordinate threads.
//!
//! It is named here alone, so that the models can compile the same sources with loom's in its place.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(super) use std::thread::yield_now;

//! The standard library's primitives that coordinate threads in the queue and the followers'
//! progress.
//!
//! They are named only here, so that the models can compile the same sources with loom's instead.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(super) use std::thread::yield_now;

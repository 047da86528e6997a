//! What [`flight`](super::flight) and [`entries`](super::entries) take of the standard library to coordinate threads.
//!
//! It is named here alone, so that the model (`model.rs`) can compile the same source with loom's in its place.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::{ThreadId, current};

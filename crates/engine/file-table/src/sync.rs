//! The parts of the standard library that [`flight`](super::flight) and [`entries`](super::entries)
//! use to coordinate threads.
//!
//! They are named only here, so that the model (`model.rs`) can compile the same source with loom's
//! versions.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::{ThreadId, current};

//! What [`work`](crate::work) takes of the standard library to coordinate threads.
//!
//! It is named here alone, so that the model (`model.rs`) can compile the same source with loom's in its place.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

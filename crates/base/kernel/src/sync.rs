//! The items of the standard library that [`work`](crate::work) uses to coordinate threads.
//!
//! They are named only here, so that the model (`model.rs`) can compile the same source with
//! loom's.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

//! The primitives that coordinate threads in group commit.
//!
//! They are named only here, so that the models can compile the same source with loom's instead.

pub(crate) use std::sync::{Mutex, MutexGuard, TryLockError};

pub(crate) use crate::event_count::EventCount;

//! Replaces `sync` in the models: loom's atomics, locks and conditions.

pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
pub(super) use loom::thread::yield_now;
// This one is not loom's: the models do not check reference counts, and each step would multiply
// the orders.
pub(super) use std::sync::Arc;

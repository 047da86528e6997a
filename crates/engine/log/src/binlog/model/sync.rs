//! Replaces `sync` in the models: loom's atomics, locks and conditions.

pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
pub(super) use loom::thread::yield_now;
// Not loom's: how often a value is shared is no part of what is checked, and each step would multiply the orders.
pub(super) use std::sync::Arc;

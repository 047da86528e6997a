//! The lock of the write transaction: held from its beginning to its end, which may be on another thread.
//!
//! Invariant: at most one guard lives. Fails never.

use std::sync::{Condvar, Mutex};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::handle::Handle;

/// Whether there is a write transaction, and who waits for its end.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    is_held: Mutex<bool>,
    released: Condvar,
}

/// The write transaction's.
pub(crate) struct WriterGuard<'a>(Handle<'a>);

impl<'a> WriterGuard<'a> {
    /// Waits until nobody has that store's.
    pub(crate) fn lock(core: Handle<'a>) -> Self {
        let writer = &core.writer;
        let is_held = lock(&writer.is_held);
        *ignore_poison(writer.released.wait_while(is_held, |is_held| *is_held)) = true;
        Self(core)
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        if !self.0.process.is_current() {
            return;
        }
        *lock(&self.0.writer.is_held) = false;
        self.0.writer.released.notify_one();
    }
}

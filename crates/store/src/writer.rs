//! The lock of the write transaction: held from its beginning to its end, which may be on another thread.
//!
//! Invariant: at most one guard lives. Fails never.

use std::sync::{Condvar, Mutex};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

/// Whether there is a write transaction, and who waits for its end.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    is_held: Mutex<bool>,
    released: Condvar,
}

/// The write transaction's.
#[derive(Debug)]
pub(crate) struct WriterGuard<'a>(&'a Writer);

impl Writer {
    /// Waits until nobody has it.
    pub(crate) fn lock(&self) -> WriterGuard<'_> {
        let is_held = lock(&self.is_held);
        *ignore_poison(self.released.wait_while(is_held, |is_held| *is_held)) = true;
        WriterGuard(self)
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.0.is_held) = false;
        self.0.released.notify_one();
    }
}

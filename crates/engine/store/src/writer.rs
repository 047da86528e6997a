//! The lock of the write transaction, which may be released on another thread.

use std::sync::{Condvar, Mutex};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

/// The state of the lock, and the threads that wait for it.
#[derive(Debug, Default)]
pub(crate) struct WriterLock {
    is_held: Mutex<bool>,
    released: Condvar,
}

impl WriterLock {
    /// Waits until there is no write transaction, and begins one.
    pub(crate) fn acquire(&self) {
        let is_held = lock(&self.is_held);
        *ignore_poison(self.released.wait_while(is_held, |is_held| *is_held)) = true;
    }

    /// Ends the write transaction.
    pub(crate) fn release(&self) {
        *lock(&self.is_held) = false;
        self.released.notify_one();
    }
}

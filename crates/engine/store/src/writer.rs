//! The lock of the write transaction, which may be released on another thread.

use std::sync::{Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::Error;

/// The way to begin a write transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BeginWrite {
    /// The transaction ends on the thread that begins it, so that a wait of this thread for it
    /// would never end.
    pub(crate) stays_here: bool,
    /// The end of the wait for the previous transaction and for room in the journal; `None` for no
    /// end.
    pub(crate) deadline: Option<Instant>,
}

impl BeginWrite {
    /// Waits until `timeout` is over; `None` for no limit.
    pub(crate) fn within(stays_here: bool, timeout: Option<Duration>) -> Self {
        Self { stays_here, deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)) }
    }

    /// Returns the rest of `longest` that may be waited for.
    ///
    /// Fails with [`Error::WriteTimeout`] at the deadline.
    pub(crate) fn wait_time(self, longest: Duration) -> Result<Duration, Error> {
        let Some(deadline) = self.deadline else { return Ok(longest) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Error::WriteTimeout) } else { Ok(left.min(longest)) }
    }
}

/// The write transaction, if there is one.
#[derive(Debug, Default)]
struct WriterState {
    is_held: bool,
    /// The thread that began it, if it ends there.
    thread: Option<ThreadId>,
}

/// The state of the lock, and the threads that wait for it.
#[derive(Debug, Default)]
pub(crate) struct WriterLock {
    state: Mutex<WriterState>,
    released: Condvar,
}

impl WriterLock {
    /// Waits until there is no write transaction, and begins one.
    ///
    /// Fails with [`Error::WriteTimeout`] if there still is one at the deadline, and with
    /// [`Error::OwnTransaction`] if the wait would never end.
    pub(crate) fn acquire(&self, begin: BeginWrite) -> Result<(), Error> {
        let this_thread = thread::current().id();
        let mut state = lock(&self.state);
        while state.is_held {
            if begin.deadline.is_none() && state.thread == Some(this_thread) {
                return Err(Error::OwnTransaction);
            }
            let wait = begin.wait_time(Duration::MAX)?;
            state = ignore_poison(self.released.wait_timeout(state, wait)).0;
        }
        *state = WriterState { is_held: true, thread: begin.stays_here.then_some(this_thread) };
        Ok(())
    }

    /// Ends the write transaction.
    pub(crate) fn release(&self) {
        *lock(&self.state) = WriterState::default();
        self.released.notify_one();
    }
}

//! Waiting for a load of another caller: a thread is parked, a future leaves its waker.
//!
//! Invariants: a waiter is settled once. Whoever reads it after that sees the outcome, even without
//! having waited before. Nothing fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use pagekeeper_kernel::mutex::ignore_poison;

use super::error::Error;
use super::sync::{Condvar, Mutex, MutexGuard};

#[derive(Debug)]
enum WaiterState {
    Pending(Option<Waker>),
    Settled(Result<(), Error>),
}

/// Wakes a task. A waker that panics (a bug of an executor, which its panic hook reports) must not
/// stop the next wake.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

/// One waiter for a load.
#[derive(Debug)]
pub(crate) struct LoadWaiter {
    state: Mutex<WaiterState>,
    settled: Condvar,
}

impl LoadWaiter {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(WaiterState::Pending(None)), settled: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, WaiterState> {
        ignore_poison(self.state.lock())
    }

    /// Sets the outcome and wakes all waiters.
    pub(crate) fn settle(&self, outcome: Result<(), Error>) {
        let before = std::mem::replace(&mut *self.state(), WaiterState::Settled(outcome));
        self.settled.notify_all();
        if let WaiterState::Pending(Some(waker)) = before {
            wake(waker);
        }
    }

    /// Parks the thread until the outcome is known.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        let mut state = self.state();
        loop {
            if let WaiterState::Settled(outcome) = &*state {
                return outcome.clone();
            }
            state = ignore_poison(self.settled.wait(state));
        }
    }

    /// Returns the outcome if it is known; otherwise the task is woken when it is.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<(), Error>> {
        match &mut *self.state() {
            WaiterState::Settled(outcome) => Poll::Ready(outcome.clone()),
            WaiterState::Pending(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

//! One open in progress and its waiters: parked threads, and futures by their wakers, in any mix.
//!
//! Invariants, checked in every order of threads by `model.rs`:
//! 1. A flight ends once. All current and later waiters get the same outcome.
//! 2. A waiter that gives up (a dropped future) leaves nothing behind, and nothing waits for it.
//! 3. No foreign code runs with the lock held: neither an opener, nor a waker, nor a value's
//!    `drop`.
//! 4. A wait within a step of the opener on the same thread would last forever: it panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

// Not from `crate`: the model has its own `sync` beside its copy of this file.
use super::sync::{Condvar, Mutex, MutexGuard, ThreadId, current};

/// The result of an open: the value or the error, shared by all waiters.
pub(super) type OpenResult<V, E> = Result<Arc<V>, Arc<E>>;

/// The end of a flight.
pub(super) enum FlightOutcome<V, E> {
    Opened(OpenResult<V, E>),
    /// The opener panicked or was dropped: the waiters try again.
    Abandoned,
}

// A derived impl would require `V: Clone`.
impl<V, E> Clone for FlightOutcome<V, E> {
    fn clone(&self) -> Self {
        match self {
            Self::Opened(opened) => Self::Opened(opened.clone()),
            Self::Abandoned => Self::Abandoned,
        }
    }
}

/// An open in progress.
pub(super) struct Flight<V, E> {
    state: Mutex<FlightState<V, E>>,
    ended: Condvar,
}

struct FlightState<V, E> {
    outcome: Option<FlightOutcome<V, E>>,
    /// The thread that is running a step of the opener.
    runs_on: Option<ThreadId>,
    wakers: Vec<(u64, Waker)>,
    /// The ticket of the next future that waits.
    next: u64,
}

impl<V, E> Flight<V, E> {
    pub(super) fn new() -> Self {
        let state = FlightState { outcome: None, runs_on: None, wakers: Vec::new(), next: 0 };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }

    /// Runs a step of the opener: the whole call, or one poll.
    pub(super) fn run<R>(&self, step: impl FnOnce() -> R) -> R {
        struct RunningStep<'a, V, E>(&'a Flight<V, E>);
        impl<V, E> Drop for RunningStep<'_, V, E> {
            fn drop(&mut self) {
                self.0.lock().runs_on = None;
            }
        }
        self.lock().runs_on = Some(current().id());
        let _running = RunningStep(self);
        step()
    }

    /// Ends the flight and wakes all waiters.
    pub(super) fn end(&self, outcome: FlightOutcome<V, E>) {
        let mut state = self.lock();
        state.outcome = Some(outcome);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.ended.notify_all();
        for (_, waker) in wakers {
            wake(waker);
        }
    }

    /// Parks the thread until the flight has ended.
    ///
    /// # Panics
    /// If the opener runs on this thread.
    pub(super) fn wait(&self) -> FlightOutcome<V, E> {
        let mut state = assert_other_thread(self.lock());
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns a future that waits for the end. It panics if the opener polls it.
    pub(super) fn ended(&self) -> FlightEnd<'_, V, E> {
        FlightEnd { flight: self, ticket: None }
    }

    fn lock(&self) -> MutexGuard<'_, FlightState<V, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a task. If the waker panics (an executor's fault, which its panic hook reports), the next
/// ones must still be woken.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

/// Returns the state. Panics if the wait would be for the caller itself.
fn assert_other_thread<V, E>(state: MutexGuard<'_, FlightState<V, E>>) -> MutexGuard<'_, FlightState<V, E>> {
    if state.runs_on == Some(current().id()) {
        drop(state);
        panic!("a FileTable's opener asked for the key that it is opening");
    }
    state
}

/// A future that waits for the end of a flight.
pub(super) struct FlightEnd<'a, V, E> {
    flight: &'a Flight<V, E>,
    /// The ticket of its waker.
    ticket: Option<u64>,
}

impl<V, E> Future for FlightEnd<'_, V, E> {
    type Output = FlightOutcome<V, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker().clone();
        let mut state = assert_other_thread(self.flight.lock());
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        if let Some(ticket) = self.ticket {
            let old = state.wakers.iter_mut().find(|(of, _)| *of == ticket);
            let old = old.map(|(_, old)| std::mem::replace(old, waker));
            drop(state);
            drop(old);
        } else {
            let ticket = state.next;
            state.next += 1;
            state.wakers.push((ticket, waker));
            drop(state);
            self.ticket = Some(ticket);
        }
        Poll::Pending
    }
}

impl<V, E> Drop for FlightEnd<'_, V, E> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.flight.lock();
        let at = state.wakers.iter().position(|(of, _)| *of == ticket);
        let waker = at.map(|at| state.wakers.swap_remove(at));
        drop(state);
        drop(waker);
    }
}

//! Progress reports of a recovery. The checkpoint makes them, and they are delivered where no lock
//! is held, so that the receiver may call the store.
//!
//! Invariant: they are delivered in order, one at a time, by a separate thread or by the caller of
//! a store without threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::Progress;

/// Reports that were not delivered yet.
#[derive(Debug, Default)]
pub(crate) struct ProgressQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    due: VecDeque<Progress>,
    /// Whether no more come.
    ended: bool,
}

impl ProgressQueue {
    pub(crate) fn add(&self, progress: Progress) {
        let mut state = lock(&self.state);
        state.ended |= progress.left == 0;
        state.due.push_back(progress);
        self.changed.notify_all();
    }

    /// Returns the next report, if there is one.
    pub(crate) fn next(&self) -> Option<Progress> {
        lock(&self.state).due.pop_front()
    }

    /// Waits for the next report; `None` if no more come.
    pub(crate) fn wait_for_next(&self) -> Option<Progress> {
        let state = lock(&self.state);
        let is_to_wait = |state: &mut QueueState| state.due.is_empty() && !state.ended;
        ignore_poison(self.changed.wait_while(state, is_to_wait)).due.pop_front()
    }

    /// Ends all waiting: the store is being closed.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }
}

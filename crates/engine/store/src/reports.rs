//! Reports of how far a recovery is, on their way to the user: made by the checkpoint, handed over where no lock is held, so that whoever
//! gets them may call the store.
//!
//! Invariant: they are handed over in order, by one at a time: a thread of their own, or who calls a store without threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::Progress;

/// Those that nobody got yet.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    due: VecDeque<Progress>,
    /// No more come.
    ended: bool,
}

impl Reports {
    pub(crate) fn add(&self, progress: Progress) {
        let mut state = lock(&self.state);
        state.ended |= progress.left == 0;
        state.due.push_back(progress);
        self.changed.notify_all();
    }

    /// Returns the next one, if any is due.
    pub(crate) fn next(&self) -> Option<Progress> {
        lock(&self.state).due.pop_front()
    }

    /// Waits for the next one; `None` if no more come.
    pub(crate) fn wait_for_next(&self) -> Option<Progress> {
        let state = lock(&self.state);
        let is_to_wait = |state: &mut State| state.due.is_empty() && !state.ended;
        ignore_poison(self.changed.wait_while(state, is_to_wait)).due.pop_front()
    }

    /// Whoever waits need wait no longer: the store is being closed.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }
}

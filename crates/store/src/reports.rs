//! Reports of how far a recovery is, on their way to the user: made by the checkpoint, handed over where no lock is held, so that whoever
//! gets them may call the store.
//!
//! Invariant: they are handed over in order, by one at a time: a thread of their own, or who calls a store without threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::core::Core;
use crate::{Error, Progress, threads};

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

    fn next(&self) -> Option<Progress> {
        lock(&self.state).due.pop_front()
    }

    /// Waits for the next one; `None` if no more come.
    fn wait_for_next(&self) -> Option<Progress> {
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

impl Core {
    /// Hands over what is due, in a store without threads.
    pub(crate) fn hand_over_reports(&self) {
        while let Some(progress) = self.reports.next() {
            self.hand_over(&progress);
        }
    }

    fn hand_over(&self, progress: &Progress) {
        if let Some(report) = &self.config.options.on_progress {
            // Its panic is reported by the panic hook, and must not end the thread that it comes on.
            let _ = catch_unwind(AssertUnwindSafe(|| report(progress)));
        }
    }
}

/// Starts the thread that hands them over, if somebody wants them and any come. It ends with the last one.
pub(crate) fn start(core: &Arc<Core>) -> Result<Option<JoinHandle<()>>, Error> {
    if core.config.options.on_progress.is_none() || core.config.opening.pages == 0 {
        return Ok(None);
    }
    let core = Arc::clone(core);
    let name = "store_reporter";
    let run = move || {
        while let Some(progress) = core.reports.wait_for_next() {
            core.hand_over(&progress);
        }
    };
    Builder::new().name(name.into()).spawn(run).map(Some).map_err(|error| threads::not_started(name, &error))
}

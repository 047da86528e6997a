//! Shares work that creates more work among threads.
//!
//! Invariants, checked in every order of threads by `model.rs`:
//! 1. Every job runs exactly once, the last one added first, unless no worker is left to run it.
//! 2. Workers return only when no job is left and none is running that could add more. All return.
//! 3. No lock is held while a job runs, so that it may add jobs.
//! 4. A job that panics ends only its worker: the others run the remaining jobs and return.
//!
//! A job that never returns keeps all workers.

// Not of `crate`: the model has its own `sync` beside its copy of this file.
use super::sync::{Condvar, Mutex, MutexGuard};
use crate::mutex::ignore_poison;

/// Jobs for several threads, each of which calls [`work`](Self::work).
pub(crate) struct WorkQueue<J> {
    state: Mutex<QueueState<J>>,
    /// Signals that there are more jobs, or that there will be none.
    changed: Condvar,
}

struct QueueState<J> {
    jobs: Vec<J>,
    /// The number of running jobs.
    running: usize,
}

impl<J> WorkQueue<J> {
    /// Creates a queue of these jobs; the last one runs first.
    pub(crate) fn new(jobs: Vec<J>) -> Self {
        Self { state: Mutex::new(QueueState { jobs, running: 0 }), changed: Condvar::new() }
    }

    /// Adds jobs; the last one runs next. Called by a running job, or before the workers start.
    pub(crate) fn push(&self, jobs: Vec<J>) {
        self.lock().jobs.extend(jobs);
        self.changed.notify_all();
    }

    /// Runs jobs until none is left and none is running that could add more.
    pub(crate) fn work(&self, mut run: impl FnMut(J)) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop() {
                state.running += 1;
                drop(state);
                let running = RunningJob(self);
                run(job);
                drop(running);
                state = self.lock();
            } else if state.running == 0 {
                return;
            } else {
                state = ignore_poison(self.changed.wait(state));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<J>> {
        ignore_poison(self.state.lock())
    }
}

/// A running job, until it returns or panics.
struct RunningJob<'a, J>(&'a WorkQueue<J>);

impl<J> Drop for RunningJob<'_, J> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        if state.running == 0 && state.jobs.is_empty() {
            self.0.changed.notify_all();
        }
    }
}

//! A pool of threads that take jobs from one queue.
//!
//! Invariants: the lock is never held over a job; each accepted job runs once, also after the [`Pool`] is dropped; a thread ends when
//! the pool is dropped and the queue is empty.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use super::batch::Help;
use crate::job::Request;
use crate::{Error, Process};

/// What a thread does.
pub(super) enum Job {
    /// One request of the background.
    Request(Request),
    /// A share in a batch.
    Help(Help),
}

impl Job {
    fn run(self) {
        match self {
            Self::Request(request) => request.run(),
            Self::Help(help) => help.run(),
        }
    }

    /// There is no thread to run it: why.
    pub(super) fn refused(self, why: Error) {
        match self {
            Self::Request(request @ Request::Read(_)) => request.finish(Err(why)),
            // An error of a write is final to its file: better that the submitter waits.
            Self::Request(request @ Request::Write(..)) => request.run(),
            // The caller of the batch does its share.
            Self::Help(_) => {}
        }
    }
}

#[derive(Debug)]
pub(super) struct Pool {
    threads_max: usize,
    shared: Arc<Shared>,
    process: Process,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    added: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job, and have not yet been given one.
    idle: usize,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A panic in a file of another crate's making must not take the thread from the pool.
                let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
                queue = self.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = ignore_poison(self.added.wait(queue));
                queue.idle -= 1;
            }
        }
    }
}

impl Pool {
    pub(super) fn new(threads_max: usize) -> Self {
        Self { threads_max, shared: Arc::default(), process: Process::current() }
    }

    /// How many threads there can be.
    pub(super) fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Takes jobs in. Gives back what will not be run, since there is no thread and none can be started.
    #[must_use]
    pub(super) fn add(&self, jobs: Vec<Job>) -> Vec<Job> {
        if !self.process.is_current() {
            return jobs;
        }
        let mut queue = self.shared.lock();
        let added = jobs.len();
        queue.jobs.extend(jobs);
        let starting = queue.jobs.len().saturating_sub(queue.idle).min(self.threads_max - queue.threads);
        queue.threads += starting;
        queue.idle += starting;
        drop(queue);
        for _ in 0..added {
            self.shared.added.notify_one();
        }
        for started in 0..starting {
            if !self.start() {
                let mut queue = self.shared.lock();
                queue.threads -= starting - started;
                queue.idle -= starting - started;
                if queue.threads == 0 {
                    return queue.jobs.drain(..).collect();
                }
                break;
            }
        }
        Vec::new()
    }

    /// Why there is no thread.
    pub(super) fn refusal(&self) -> Error {
        let none = Error::Unavailable { what: "a thread", call: "clone", errno: libc::EAGAIN };
        self.process.require().err().unwrap_or(none)
    }

    fn start(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("pagekeeper-io".to_owned()).spawn(move || {
            // Counted as idle when it was asked for.
            shared.lock().idle -= 1;
            shared.serve();
        });
        thread.is_ok()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Not joined: this may run on one of the threads, in a `done` that held the last handle. In a child there is none, and the
        // lock may be held for ever.
        if self.process.is_current() {
            self.shared.lock().closed = true;
            self.shared.added.notify_all();
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("jobs", &self.jobs.len())
            .field("threads", &self.threads)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

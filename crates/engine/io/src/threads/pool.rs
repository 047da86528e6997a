//! A pool of threads that take jobs from one queue.
//!
//! Invariants: the lock is never held over a job. Each accepted job runs once, even after the
//! [`ThreadPool`] is dropped. A thread ends when the pool is dropped and the queue is empty.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use super::batch::BatchHelp;
use crate::transfers::job::IoRequest;
use crate::{Error, Process};

/// A job of a thread.
pub(super) enum PoolJob {
    /// One background request.
    Request(IoRequest),
    /// A share of a batch.
    BatchHelp(BatchHelp),
}

impl PoolJob {
    fn run(self) {
        match self {
            Self::Request(request) => request.run(),
            Self::BatchHelp(help) => help.run(),
        }
    }

    /// Handles a job that no thread can run, with the reason.
    pub(super) fn refuse(self, why: Error) {
        match self {
            Self::Request(request @ IoRequest::Read(_)) => request.finish(Err(why)),
            // An error of a write is final for its file, so it is better to make the submitter
            // wait.
            Self::Request(request @ IoRequest::Write(..)) => request.run(),
            // The caller of the batch performs its share.
            Self::BatchHelp(_) => {}
        }
    }
}

#[derive(Debug)]
pub(super) struct ThreadPool {
    threads_max: usize,
    shared: Arc<SharedJobs>,
    process: Process,
}

#[derive(Debug, Default)]
struct SharedJobs {
    queue: Mutex<JobQueue>,
    added: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<PoolJob>,
    threads: usize,
    /// Threads that wait for a job, and have not yet been given one.
    idle: usize,
    closed: bool,
}

impl SharedJobs {
    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        lock(&self.queue)
    }

    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A panic in a file of another crate must not take the thread from the pool.
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

impl ThreadPool {
    pub(super) fn new(threads_max: usize) -> Self {
        Self { threads_max, shared: Arc::default(), process: Process::current() }
    }

    /// Returns the maximum number of threads.
    pub(super) fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Queues jobs. Returns those that will not run, since there is no thread and none can be
    /// started.
    #[must_use]
    pub(super) fn add(&self, jobs: Vec<PoolJob>) -> Vec<PoolJob> {
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

    /// Returns why there is no thread.
    pub(super) fn refusal(&self) -> Error {
        let none = Error::Unavailable { what: "a thread", call: "clone", errno: libc::EAGAIN };
        self.process.require().err().unwrap_or(none)
    }

    fn start(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("pagekeeper-io".to_owned()).spawn(move || {
            // The thread was counted as idle when it was requested.
            shared.lock().idle -= 1;
            shared.serve();
        });
        thread.is_ok()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // Not joined: this may run on one of the threads, in a `done` that held the last handle. A
        // forked child has none of the threads, and the lock may be held forever.
        if self.process.is_current() {
            self.shared.lock().closed = true;
            self.shared.added.notify_all();
        }
    }
}

impl fmt::Debug for JobQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobQueue")
            .field("jobs", &self.jobs.len())
            .field("threads", &self.threads)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

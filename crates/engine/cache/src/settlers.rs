//! Threads that settle background reads of files with a verifier. Without them the back-end's one
//! thread would do all verification.
//!
//! Invariants: a job that is handed over runs once, on a thread of the pool or, if there is none,
//! on the calling thread. If only one read is in flight, the back-end's thread settles it: handing
//! it over would only cost time. Threads start on demand, and end with the pool. Nothing fails: a
//! job that panics affects no other, and settles when it is dropped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use pagekeeper_io::Process;
use pagekeeper_kernel::mutex::{ignore_poison, lock};

/// More threads gain nothing: the device is then the limit.
const SETTLER_THREADS_MAX: usize = 8;

type SettleJob = Box<dyn FnOnce() + Send>;

/// The pool of threads.
#[derive(Debug)]
pub(crate) struct SettlerPool {
    shared: Arc<SettlerQueue>,
    /// Reads that have begun and are not settled.
    in_flight: AtomicUsize,
    max_threads: usize,
    process: Process,
}

#[derive(Default)]
struct SettlerQueue {
    queue: Mutex<SettlerState>,
    changed: Condvar,
}

#[derive(Default)]
struct SettlerState {
    jobs: VecDeque<SettleJob>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl std::fmt::Debug for SettlerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SettlerQueue").finish_non_exhaustive()
    }
}

impl SettlerPool {
    /// Creates a pool that starts threads on demand, or never.
    pub(crate) fn new(threads: bool) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            shared: Arc::default(),
            in_flight: AtomicUsize::new(0),
            max_threads: if threads { processors.min(SETTLER_THREADS_MAX) } else { 0 },
            process: Process::current(),
        }
    }

    /// Notes that `reads` reads begin. [`settle`](Self::settle) must be called for each.
    pub(crate) fn begin(&self, reads: usize) {
        self.in_flight.fetch_add(reads, Ordering::Relaxed);
    }

    /// Settles a read that has ended, before this call returns or later.
    pub(crate) fn settle(&self, job: impl FnOnce() + Send + 'static) {
        let is_alone = self.in_flight.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_alone {
            return job();
        }
        if let Some(job) = self.hand_over(Box::new(job)) {
            job();
        }
    }

    /// Hands a job over. Returns it if no thread is available.
    fn hand_over(&self, job: SettleJob) -> Option<SettleJob> {
        let mut queue = lock(&self.shared.queue);
        // Idle threads have been woken for the jobs before this one.
        if queue.idle <= queue.jobs.len() && queue.threads < self.max_threads {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("cache_settler".to_owned());
            if thread.spawn(move || serve(&shared)).is_ok() {
                queue.threads += 1;
            }
        }
        if queue.threads == 0 {
            return Some(job);
        }
        queue.jobs.push_back(job);
        let is_idle = queue.idle > 0;
        drop(queue);
        if is_idle {
            self.shared.changed.notify_one();
        }
        None
    }
}

impl Drop for SettlerPool {
    fn drop(&mut self) {
        // Not joined: the current thread may be one of them, with the last handle of the cache.
        // Jobs keep the cache, so there are none. A child of fork(2) has no threads, and the lock
        // may be held forever.
        if self.process.is_current() {
            lock(&self.shared.queue).is_closed = true;
            self.shared.changed.notify_all();
        }
    }
}

fn serve(shared: &SettlerQueue) {
    let mut queue = lock(&shared.queue);
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            // The job's contents settle when they are dropped, with an error for the waiters.
            let _ = catch_unwind(AssertUnwindSafe(job));
            queue = lock(&shared.queue);
        } else if queue.is_closed {
            return;
        } else {
            queue.idle += 1;
            queue = ignore_poison(shared.changed.wait(queue));
            queue.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn a_single_load_settles_immediately_and_each_of_many_once() {
        let settlers = SettlerPool::new(true);
        let here = std::thread::current().id();
        settlers.begin(1);
        settlers.settle(move || assert_eq!(std::thread::current().id(), here));
        assert_eq!(lock(&settlers.shared.queue).threads, 0);

        let (done, settled) = channel();
        settlers.begin(1000);
        for number in 0..1000 {
            let done = done.clone();
            settlers.settle(move || done.send(number).unwrap());
        }
        let mut all: Vec<i32> = (0..1000).map(|_| settled.recv_timeout(SETTLE_TIMEOUT).unwrap()).collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..1000));
        assert!((1..=settlers.max_threads).contains(&lock(&settlers.shared.queue).threads));
    }

    #[test]
    fn without_threads_each_is_settled_where_it_ends() {
        let settlers = SettlerPool::new(false);
        let here = std::thread::current().id();
        settlers.begin(3);
        for _ in 0..3 {
            settlers.settle(move || assert_eq!(std::thread::current().id(), here));
        }
    }

    #[test]
    fn a_panicking_callback_ends_no_thread() {
        let mut settlers = SettlerPool::new(true);
        settlers.max_threads = 1;
        let (done, settled) = channel();
        settlers.begin(3);
        for panics in [true, false] {
            let done = done.clone();
            settlers.settle(move || {
                assert!(!panics, "asked for");
                done.send(()).unwrap();
            });
        }
        settled.recv_timeout(SETTLE_TIMEOUT).unwrap();
    }

    #[test]
    fn threads_leave_with_the_pool() {
        let settlers = SettlerPool::new(true);
        let (done, settled) = channel::<()>();
        settlers.begin(2);
        settlers.settle(move || drop(done));
        assert!(settled.recv_timeout(SETTLE_TIMEOUT).is_err());
        let shared = Arc::downgrade(&settlers.shared);
        drop(settlers);
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}

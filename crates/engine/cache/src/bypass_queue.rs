//! The queue of reads past the cache that futures make. Each takes a page of memory beside the
//! budget, and a server may begin hundreds of thousands at once.
//!
//! Invariants: at most as many reads are in flight as the queue was made for. Queued reads begin in
//! the order in which they came, without anybody polling for them; each read that ends lets the
//! next begin. No lock is held while reads begin. Nothing fails.

use std::collections::VecDeque;

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{Mutex, MutexGuard};

#[derive(Debug)]
struct BypassQueueState<T> {
    queued: VecDeque<T>,
    under_way: usize,
    /// Whether a thread is beginning reads; it continues until none may begin.
    beginning: bool,
}

/// The reads in flight and the queued reads.
#[derive(Debug)]
pub(crate) struct BypassQueue<T> {
    max: usize,
    state: Mutex<BypassQueueState<T>>,
}

impl<T> BypassQueue<T> {
    /// Creates a queue for at most `max` reads in flight, and at least one.
    pub(crate) fn new(max: usize) -> Self {
        let state = BypassQueueState { queued: VecDeque::new(), under_way: 0, beginning: false };
        Self { max: max.max(1), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, BypassQueueState<T>> {
        ignore_poison(self.state.lock())
    }

    /// Queues a read, and begins the reads that may begin: `begin` gets reads that may be in flight
    /// from now on. [`ended`](Self::ended) must be called once for each of them, within `begin` or
    /// later, by any thread.
    pub(crate) fn push(&self, read: T, begin: impl FnMut(Vec<T>)) {
        self.state().queued.push_back(read);
        self.begin(begin);
    }

    /// Notes that a read has ended, and begins the next.
    pub(crate) fn ended(&self, begin: impl FnMut(Vec<T>)) {
        self.state().under_way -= 1;
        self.begin(begin);
    }

    /// Begins the reads that may begin. The beginning thread counts reads that end meanwhile, so
    /// calls do not nest.
    fn begin(&self, mut begin: impl FnMut(Vec<T>)) {
        let mut state = self.state();
        if std::mem::replace(&mut state.beginning, true) {
            return;
        }
        loop {
            let room = (self.max - state.under_way).min(state.queued.len());
            if room == 0 {
                break;
            }
            let reads = state.queued.drain(..room).collect();
            state.under_way += room;
            drop(state);
            begin(reads);
            state = self.state();
        }
        state.beginning = false;
        if state.queued.is_empty() {
            // A burst leaves no memory behind.
            state.queued = VecDeque::new();
        }
    }
}

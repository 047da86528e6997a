//! Which reads past the cache futures have under way, and which are next: each takes a page of memory beside the budget, and a server
//! may begin hundreds of thousands at once.
//!
//! Invariants: no more are under way than the queue was made for; what is queued begins in the order it came, without anybody
//! polling for it; a read that ended lets the next begin. No lock is held while reads begin. It fails never.

use std::collections::VecDeque;

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{Mutex, MutexGuard};

#[derive(Debug)]
struct State<T> {
    queued: VecDeque<T>,
    under_way: usize,
    /// A thread begins reads, and goes on until none may begin.
    beginning: bool,
}

/// Reads under way and queued.
#[derive(Debug)]
pub(crate) struct BypassQueue<T> {
    max: usize,
    state: Mutex<State<T>>,
}

impl<T> BypassQueue<T> {
    /// With at most `max` reads under way, and at least one.
    pub(crate) fn new(max: usize) -> Self {
        let state = State { queued: VecDeque::new(), under_way: 0, beginning: false };
        Self { max: max.max(1), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        ignore_poison(self.state.lock())
    }

    /// Queues a read, and begins what may begin: `begin` is given reads that may be under way from now on. For each of them
    /// [`ended`](Self::ended) is to be called once, within `begin` or later, by any thread.
    pub(crate) fn push(&self, read: T, begin: impl FnMut(Vec<T>)) {
        self.state().queued.push_back(read);
        self.begin(begin);
    }

    /// A read has ended: the next may begin.
    pub(crate) fn ended(&self, begin: impl FnMut(Vec<T>)) {
        self.state().under_way -= 1;
        self.begin(begin);
    }

    /// Reads that end while they begin are counted by the thread that begins them, so that none waits in a deeper call.
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
            // A burst leaves nothing behind.
            state.queued = VecDeque::new();
        }
    }
}

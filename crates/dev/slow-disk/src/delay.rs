//! Requests that were executed and wait for their time: one thread answers each when the schedule
//! says so.
//!
//! Due times never decrease (see `schedule`), so the waiting requests are a queue, and adding one
//! wakes the thread only if the queue was empty. No lock is held while an answer is given. Nothing
//! fails: an answer that the kernel no longer wants is dropped.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::schedule::{DelaySchedule, DiskModel};
use super::stats::{DiskStats, RequestCounts, RequestPurpose};

/// Answers taken out at once, so that the lock is free between batches.
const ANSWERS_PER_LOCK: usize = 64;

/// An answer to a request.
pub(super) trait RequestAnswer: Send {
    /// Gives the answer.
    fn give(self);
}

/// The requests in flight.
#[derive(Debug)]
pub(super) struct DelayQueue<A> {
    zero: Instant,
    state: Mutex<DelayState<A>>,
    /// Signals a new request, or the end.
    wake: Condvar,
}

#[derive(Debug)]
struct DelayState<A> {
    schedule: DelaySchedule,
    waiting: VecDeque<(u64, A)>,
    counts: RequestCounts,
    ended: bool,
}

impl<A: RequestAnswer> DelayQueue<A> {
    /// Creates a delay without a model: answers are given at once.
    pub(super) fn new() -> Self {
        let state = DelayState {
            schedule: DelaySchedule::new(DiskModel::NO_DELAY),
            waiting: VecDeque::new(),
            counts: RequestCounts::default(),
            ended: false,
        };
        Self { zero: Instant::now(), state: Mutex::new(state), wake: Condvar::new() }
    }

    /// Applies `model` from now on and resets the counts.
    pub(super) fn begin(&self, model: DiskModel) {
        let mut state = self.state();
        state.schedule = DelaySchedule::new(model);
        state.counts = RequestCounts::begin(cpu());
    }

    /// Resets the counts.
    pub(super) fn reset(&self) {
        self.state().counts = RequestCounts::begin(cpu());
    }

    pub(super) fn stats(&self) -> DiskStats {
        self.state().counts.stats(cpu())
    }

    /// Returns the time, in ns.
    pub(super) fn now(&self) -> u64 {
        super::schedule::nanos(self.zero.elapsed())
    }

    /// Adds a request that arrived at `arrival` and was executed: its answer is given when the disk
    /// would have been done.
    pub(super) fn add(&self, arrival: u64, kind: RequestPurpose, bytes: u64, answer: A) {
        let mut state = self.state();
        let due = state.schedule.add(arrival, bytes);
        // Only after a change of the model.
        let due = state.waiting.back().map_or(due, |&(last, _)| due.max(last));
        let idle = state.waiting.is_empty();
        state.waiting.push_back((due, answer));
        let depth = state.waiting.len();
        state.counts.add(kind, bytes, arrival, due, depth);
        drop(state);
        if idle {
            self.wake.notify_one();
        }
    }

    /// Starts the thread that gives the answers; it ends after [`end`](Self::end), when all have
    /// been given.
    pub(super) fn spawn(self: &Arc<Self>) -> std::io::Result<std::thread::JoinHandle<()>>
    where
        A: 'static,
    {
        let delay = Arc::clone(self);
        std::thread::Builder::new().name("slowdisk-timer".to_owned()).spawn(move || delay.run())
    }

    /// Marks that no more requests come.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.wake.notify_one();
    }

    fn run(&self) {
        // Otherwise the kernel may extend a sleep by up to 50 µs. If this is refused, `.stats`
        // shows how late answers are.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
        let mut batch = Vec::with_capacity(ANSWERS_PER_LOCK);
        let mut late = Vec::with_capacity(ANSWERS_PER_LOCK);
        while self.take_due(&mut batch, &mut late) {
            for (due, answer) in batch.drain(..) {
                late.push(self.now().saturating_sub(due));
                answer.give();
            }
        }
    }

    /// Waits until answers are due and takes them out; returns false when no more come.
    fn take_due(&self, batch: &mut Vec<(u64, A)>, late: &mut Vec<u64>) -> bool {
        let mut state = self.state();
        late.drain(..).for_each(|late| state.counts.answered(late));
        loop {
            let now = self.now();
            let due = state.waiting.iter().take(ANSWERS_PER_LOCK).take_while(|(due, _)| *due <= now).count();
            batch.extend(state.waiting.drain(..due));
            if !batch.is_empty() {
                return true;
            }
            state = match state.waiting.front() {
                Some(&(due, _)) => {
                    let wait = Duration::from_nanos(due - now);
                    self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None if state.ended => return false,
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, DelayState<A>> {
        // A thread that panicked left no inconsistent state that matters: the disk is taken down.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns this process's CPU time, in ns.
fn cpu() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).map_or(0, super::schedule::nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    struct Tell(usize, Sender<(usize, Instant)>);

    impl RequestAnswer for Tell {
        fn give(self) {
            self.1.send((self.0, Instant::now())).unwrap();
        }
    }

    #[test]
    fn answers_come_in_order_never_early_and_all_before_the_end() {
        let latency = Duration::from_millis(2);
        let delay = Arc::new(DelayQueue::new());
        delay.begin(DiskModel { latency, width: 4, ..DiskModel::NO_DELAY });
        let thread = delay.spawn().unwrap();
        let (send, answers) = channel();
        let began = Instant::now();
        for number in 0..40 {
            delay.add(delay.now(), RequestPurpose::Read, 4096, Tell(number, send.clone()));
        }
        delay.end();
        thread.join().unwrap();
        drop(send);
        let answers: Vec<(usize, Instant)> = answers.iter().collect();
        assert_eq!(answers.len(), 40);
        for (place, (number, when)) in (0_u32..).zip(answers) {
            assert_eq!(number, place as usize);
            assert!(when - began >= latency * (place / 4 + 1), "{number} is early");
        }
        let stats = delay.stats();
        assert_eq!((stats.reads, stats.read_bytes), (40, 40 * 4096));
        assert!(stats.depth_peak <= 40 && stats.busy_seconds >= 0.02, "{stats:?}");
        delay.reset();
        assert_eq!(delay.stats().requests(), 0);
    }
}

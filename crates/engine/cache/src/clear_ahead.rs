//! Has the kernel clear the memory of frames before they are used. A thread runs a little ahead of
//! the frame that was used last. Otherwise, in huge pages, a reader's miss would clear 2 MiB, or
//! wait while the kernel moves memory to make room for a huge page.
//!
//! Invariants: at most [`LEAD_BYTES_MAX`], and at most a sixteenth of the budget, is taken up
//! before it is used; nothing is before the first file is opened. No frame past the pool's limit is
//! cleared, and when the limit falls, cleared memory above it returns to the kernel. Frames are
//! used from the lowest on (`free_frames`), so one mark separates used from unused. The thread does
//! not keep the cache alive; it ends with the cache, or when all is cleared. Nothing fails: a frame
//! that was not cleared ahead is cleared when it is used.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use pagekeeper_io::Process;

use crate::pool::FramePool;

/// Bytes that are cleared at once: a huge page.
const CLEAR_STEP_BYTES: usize = 2 << 20;
/// The maximum lead of the thread, in bytes.
const LEAD_BYTES_MAX: usize = 16 << 20;
/// The lead is at most one part in `LEAD_BUDGET_DIVISOR` of the budget.
const LEAD_BUDGET_DIVISOR: u32 = 16;

/// The thread and how far it is ahead.
#[derive(Debug)]
pub(crate) struct ClearAhead {
    state: Arc<ClearAheadState>,
    thread: OnceLock<Thread>,
    limits: ClearAheadLimits,
    process: Process,
}

#[derive(Debug)]
struct ClearAheadState {
    /// The use of this frame, or a higher one, wakes the thread.
    mark: AtomicU32,
    is_closed: AtomicBool,
    /// The thread has cleared the frames below this one.
    cleared: AtomicU32,
}

/// The frames that the thread clears at once, and its maximum lead in frames.
#[derive(Debug, Clone, Copy)]
struct ClearAheadLimits {
    step: u32,
    ahead: u32,
}

impl ClearAhead {
    /// Creates it for `frames` frames of `1 << page_shift` bytes. It does nothing if it is not
    /// wanted, or if a sixteenth of the cache is less than a huge page.
    pub(crate) fn new(page_shift: u32, frames: u32, is_wanted: bool) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a huge page has few pages")]
        let (step, most) = ((CLEAR_STEP_BYTES >> page_shift) as u32, (LEAD_BYTES_MAX >> page_shift) as u32);
        let limits = ClearAheadLimits { step, ahead: most.min(frames / LEAD_BUDGET_DIVISOR) };
        let mark = AtomicU32::new(if is_wanted && limits.ahead >= step { 0 } else { u32::MAX });
        let state = ClearAheadState { mark, is_closed: AtomicBool::new(false), cleared: AtomicU32::new(0) };
        Self { state: Arc::new(state), thread: OnceLock::new(), limits, process: Process::current() }
    }

    /// Notes that a frame of the pool is about to be used, or the first one soon.
    #[inline]
    pub(crate) fn note_use<T>(&self, shared: &Arc<T>, frame: u32)
    where
        T: AsRef<FramePool> + Send + Sync + 'static,
    {
        if frame >= self.state.mark.load(Ordering::Relaxed) {
            self.move_on(shared, frame);
        }
    }

    #[cold]
    fn move_on<T>(&self, shared: &Arc<T>, frame: u32)
    where
        T: AsRef<FramePool> + Send + Sync + 'static,
    {
        // A child of fork(2) has no thread to wake.
        if !self.process.is_current() {
            return;
        }
        let next = frame.saturating_add(self.limits.step);
        if self.state.mark.fetch_max(next, Ordering::Relaxed) >= next {
            return;
        }
        let thread = self.thread.get_or_init(|| self.start(shared));
        thread.unpark();
    }

    /// Starts the thread; if that fails, nothing is cleared ahead.
    fn start<T>(&self, shared: &Arc<T>) -> Thread
    where
        T: AsRef<FramePool> + Send + Sync + 'static,
    {
        let (state, weak, limits) = (Arc::clone(&self.state), Arc::downgrade(shared), self.limits);
        let named = std::thread::Builder::new().name("cache_clearer".to_owned());
        let started = named.spawn(move || {
            while !state.is_closed.load(Ordering::Acquire) {
                let Some(shared) = weak.upgrade() else { break };
                match state.clear_step((*shared).as_ref(), limits) {
                    ClearAheadProgress::Step => {}
                    // This thread may own the last reference to the cache.
                    ClearAheadProgress::Wait => {
                        drop(shared);
                        std::thread::park();
                    }
                    ClearAheadProgress::End => break,
                }
            }
            state.mark.store(u32::MAX, Ordering::Relaxed);
        });
        started.map_or_else(
            |_| {
                self.state.mark.store(u32::MAX, Ordering::Relaxed);
                std::thread::current()
            },
            |started| started.thread().clone(),
        )
    }
}

enum ClearAheadProgress {
    Step,
    Wait,
    End,
}

impl ClearAheadState {
    /// Clears one step, if it is needed.
    fn clear_step(&self, pool: &FramePool, limits: ClearAheadLimits) -> ClearAheadProgress {
        let cleared = self.cleared.load(Ordering::Relaxed);
        // Frames that were used before the thread reached them were cleared by their users.
        let used = self.mark.load(Ordering::Relaxed).saturating_sub(limits.step);
        let from = cleared.max(used - used % limits.step);
        let limit = pool.limit();
        let end = from.saturating_add(limits.step).min(limit);
        if from >= pool.frames() {
            return ClearAheadProgress::End;
        }
        if from >= limit || end > used.saturating_add(limits.ahead) {
            return ClearAheadProgress::Wait;
        }
        if pool.arena.take_up(from..end).is_err() {
            return ClearAheadProgress::End;
        }
        pool.note_cleared(end);
        self.cleared.store(end, Ordering::Relaxed);
        ClearAheadProgress::Step
    }
}

impl Drop for ClearAhead {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::Release);
        // Not joined: the current thread may be that thread.
        if let Some(thread) = self.thread.get().filter(|_| self.process.is_current()) {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HugePages, PageCache};

    /// Waits until the thread has cleared up to `wanted`.
    fn await_cleared(state: &ClearAheadState, wanted: u32) {
        while state.cleared.load(Ordering::Relaxed) < wanted {
            std::thread::yield_now();
        }
    }

    /// Whether this kernel supports `MADV_POPULATE_WRITE`, judged by its release.
    fn kernel_clears_ahead() -> bool {
        let system = rustix::system::uname();
        let release = system.release().to_string_lossy();
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
        let mut number = || numbers.next().and_then(Result::ok).unwrap_or(0_u32);
        (number(), number()) >= (5, 14)
    }

    #[test]
    fn clearing_ahead_gives_up_at_once_where_the_kernel_lacks_it() {
        if kernel_clears_ahead() {
            return;
        }
        let cache = PageCache::options().memory(256 << 20).build().unwrap();
        let state = &cache.shared.clear_ahead.state;
        cache.shared.clear_ahead.note_use(&cache.shared, 0);
        while state.mark.load(Ordering::Relaxed) != u32::MAX {
            std::thread::yield_now();
        }
        assert_eq!(state.cleared.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn it_runs_a_sixteenth_of_the_cache_ahead_and_leaves_with_it() {
        if !kernel_clears_ahead() {
            return;
        }
        let cache = PageCache::options().memory(256 << 20).build().unwrap();
        let state = Arc::clone(&cache.shared.clear_ahead.state);
        let (frames, step) = (cache.shared.pool.frames(), cache.shared.clear_ahead.limits.step);
        let ahead = (frames / LEAD_BUDGET_DIVISOR) / step * step;
        assert_eq!(state.cleared.load(Ordering::Relaxed), 0);
        cache.shared.clear_ahead.note_use(&cache.shared, 0);
        await_cleared(&state, ahead);
        // Uses within the current step wake nothing more.
        cache.shared.clear_ahead.note_use(&cache.shared, 1);
        cache.shared.clear_ahead.note_use(&cache.shared, step);
        await_cleared(&state, step + ahead);
        assert_eq!(state.cleared.load(Ordering::Relaxed), step + ahead);
        // The thread skips frames that were used before it reached them.
        cache.shared.clear_ahead.note_use(&cache.shared, 10 * step + 7);
        await_cleared(&state, 10 * step + ahead);
        drop(cache);
        while Arc::strong_count(&state) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn it_stays_below_a_budget_that_is_made_smaller() {
        if !kernel_clears_ahead() {
            return;
        }
        let cache = PageCache::options().memory(256 << 20).build().unwrap();
        cache.set_memory(16 << 20).unwrap();
        let limit = cache.shared.pool.limit();
        cache.shared.clear_ahead.note_use(&cache.shared, limit - 1);
        await_cleared(&cache.shared.clear_ahead.state, limit);
        assert_eq!(cache.shared.clear_ahead.state.cleared.load(Ordering::Relaxed), limit);
    }

    #[test]
    fn small_pages_and_those_of_small_caches_are_cleared_as_they_are_used() {
        let options = || PageCache::options().memory(64 << 20);
        for options in
            [options().huge_pages(HugePages::Off), options().memory(28 << 20), options().without_threads()]
        {
            let cache = options.build().unwrap();
            cache.shared.clear_ahead.note_use(&cache.shared, 0);
            assert!(cache.shared.clear_ahead.thread.get().is_none());
        }
    }
}

//! The budget of unwritten bytes that all paced writers of one disk in this process share.
//!
//! A writer is admitted before it makes pages dirty. While there is no room, it waits for the writeback of the oldest step
//! there is, of any writer: so an idle writer holds nobody up. Writeback was started when the step was handed over.
//!
//! Invariants: `unwritten` counts each step from its admission until its writeback has ended, and is never above the
//! limit; the lock is never held over I/O; a failed wait is reported by the step's own writer, for good: the kernel
//! reports it once only.
//!
//! Size: the kernel leaves dirty pages alone up to the background limit, and throttles all writers from the middle between that and
//! the other limit on (`balance_dirty_pages`, mm/page-writeback.c). What is unwritten here comes on top of the dirty pages of
//! others, so all budgets of a process together have half the room between the two: enough for a disk of 100 MB/s at limits of 8
//! and 16 MiB, where the budget is 2 MiB.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use pagekeeper_io::{Error as IoError, IoFile};
use pagekeeper_kernel::mutex;
use pagekeeper_kernel::pressure::{DirtyReport, SysRoots};

use crate::Error;
use crate::convert::to_usize;
use crate::layout::DiskKey;

/// More than this in flight makes no disk faster.
const MAX: u64 = 16 << 20;
/// Less than this is no stream any more.
const MIN: u64 = 256 << 10;
/// Budgets and steps are multiples of this.
const GRAIN: u64 = 64 << 10;
/// The longest step.
const LONGEST_STEP: u64 = 1 << 20;
/// The kernel drops folios that lie wholly in a range, and builds them up to 2 MiB.
const FOLIO: u64 = 2 << 20;

/// The budgets that are in use.
static BUDGETS: Mutex<Option<HashMap<DiskKey, Weak<Budget>>>> = Mutex::new(None);

/// One disk's.
pub(super) struct Budget {
    limit: u64,
    state: Mutex<BudgetState>,
    /// Notified when room came free.
    freed: Condvar,
}

#[derive(Default)]
struct BudgetState {
    /// Bytes that were admitted, and not waited for.
    unwritten: u64,
    /// Writeback of these was started; the oldest first.
    steps: VecDeque<Step>,
}

struct Step {
    writer: Arc<Writer>,
    range: Range<u64>,
}

impl Step {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Waits for its writeback, and drops its pages.
    fn write_back(&self) {
        let Writer { file, releases, failed, .. } = &*self.writer;
        match file.wait_writeback(self.range.clone()) {
            Ok(()) if *releases => {
                // That it can't be released harms nobody: the writer's end releases all, and reports that.
                let _ = file.release(self.range.start / FOLIO * FOLIO..self.range.end);
            }
            Ok(()) => {}
            Err(error) => {
                let errno = error.errno().unwrap_or(libc::EIO);
                let path = file.path().to_path_buf();
                let _ = failed.set(Error::Io(IoError::Write { path, range: self.range.clone(), errno }));
            }
        }
    }
}

/// One of the budget's writers.
struct Writer {
    file: Arc<dyn IoFile>,
    /// Whether its pages are dropped here.
    releases: bool,
    /// Bytes of its steps that were not waited for. Changed under the budget's lock.
    unwritten: AtomicU64,
    failed: OnceLock<Error>,
}

impl Budget {
    /// The budget of the disk: the one in use, or a new one of the requested size, or by the kernel's limits as they are now,
    /// but no more than is `enough`.
    pub(super) fn of(key: DiskKey, requested: Option<u64>, enough: Option<u64>) -> Arc<Self> {
        let room = if requested.is_none() { room_below_limits() } else { None };
        let mut budgets = mutex::lock(&BUDGETS);
        let budgets = budgets.get_or_insert_default();
        budgets.retain(|_, budget| budget.strong_count() > 0);
        if let Some(budget) = budgets.get(&key).and_then(Weak::upgrade) {
            return budget;
        }
        let others = budgets.values().filter_map(Weak::upgrade).map(|budget| budget.limit).sum();
        let limit = requested.unwrap_or_else(|| {
            room.map_or(MAX, |room| size_within(room, others)).min(enough.unwrap_or(u64::MAX))
        });
        let budget = Arc::new(Self::new(limit));
        budgets.insert(key, Arc::downgrade(&budget));
        budget
    }

    fn new(limit: u64) -> Self {
        let limit = (limit / GRAIN * GRAIN).max(MIN);
        Self { limit, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Bytes that may be unwritten.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes of a step: a quarter of the budget, so that there is always one in flight while another is filled.
    fn step(&self) -> u64 {
        let quarter = (self.limit / 4).clamp(GRAIN, LONGEST_STEP);
        // A power of two, so that steps and folios begin together.
        1 << quarter.ilog2()
    }

    /// Bytes that are.
    #[cfg(test)]
    pub(super) fn unwritten(&self) -> u64 {
        self.lock().unwritten
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        mutex::lock(&self.state)
    }

    fn admit(&self, len: u64) {
        let mut state = self.lock();
        while state.unwritten + len > self.limit {
            state = self.make_room(state, |_| true);
        }
        state.unwritten += len;
        debug_assert!(state.unwritten <= self.limit);
    }

    /// Waits until all of a writer's steps are written.
    fn drain(&self, writer: &Arc<Writer>) {
        let mut state = self.lock();
        while writer.unwritten.load(Ordering::Relaxed) > 0 {
            state = self.make_room(state, |step| Arc::ptr_eq(&step.writer, writer));
        }
    }

    /// Waits for the oldest step of those, or if others wait for all of them, until one of the others has.
    fn make_room<'a>(
        &'a self,
        mut state: MutexGuard<'a, BudgetState>,
        of: impl Fn(&Step) -> bool,
    ) -> MutexGuard<'a, BudgetState> {
        let oldest = state.steps.iter().position(of);
        let Some(step) = oldest.and_then(|oldest| state.steps.remove(oldest)) else {
            return mutex::ignore_poison(self.freed.wait(state));
        };
        drop(state);
        step.write_back();
        let mut state = self.lock();
        state.unwritten -= step.len();
        step.writer.unwritten.fetch_sub(step.len(), Ordering::Relaxed);
        self.freed.notify_all();
        state
    }
}

/// Bytes between where background writeback begins and where the kernel slows writers down; `None` where that can't be read.
fn room_below_limits() -> Option<u64> {
    let report = DirtyReport::read(&SysRoots::default()).ok()?;
    let limits = report.kernel_thresholds.unwrap_or(report.thresholds);
    Some(limits.background.midpoint(limits.limit).saturating_sub(limits.background))
}

/// Half of what other budgets leave of the room.
fn size_within(room: u64, others: u64) -> u64 {
    (room.saturating_sub(others) / 2).min(MAX)
}

/// A writer's part in a budget. Dropped, it leaves its steps for others to wait for.
pub(super) struct Share {
    budget: Arc<Budget>,
    writer: Arc<Writer>,
}

impl Share {
    /// `releases`: whether pages are to be dropped once they are written.
    pub(super) fn new(budget: Arc<Budget>, file: Arc<dyn IoFile>, releases: bool) -> Self {
        let writer = Writer { file, releases, unwritten: AtomicU64::new(0), failed: OnceLock::new() };
        Self { budget, writer: Arc::new(writer) }
    }

    /// How long steps should be, in bytes.
    pub(super) fn step(&self) -> usize {
        to_usize(self.budget.step())
    }

    /// Waits until so many bytes, a step at most, may become dirty; returns how long that took as well.
    pub(super) fn admit(&self, len: u64) -> (Admitted<'_>, Duration) {
        let began = Instant::now();
        self.budget.admit(len);
        (Admitted { share: self, len }, began.elapsed())
    }

    /// Waits for the writeback of all steps; returns how long that took.
    pub(super) fn end(&self) -> Result<Duration, Error> {
        let began = Instant::now();
        self.budget.drain(&self.writer);
        self.check()?;
        Ok(began.elapsed())
    }

    /// Fails if the writeback of a step has.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.writer.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// Room for bytes that become dirty now.
pub(super) struct Admitted<'a> {
    share: &'a Share,
    len: u64,
}

impl Admitted<'_> {
    /// They are dirty, and writeback of them was started.
    pub(super) fn hand_over(mut self, range: Range<u64>) {
        let Share { budget, writer } = self.share;
        debug_assert_eq!(range.end - range.start, self.len);
        let mut state = budget.lock();
        writer.unwritten.fetch_add(self.len, Ordering::Relaxed);
        state.steps.push_back(Step { writer: Arc::clone(writer), range });
        self.len = 0;
        budget.freed.notify_all();
    }
}

impl Drop for Admitted<'_> {
    /// Gives room back that was not used: its holder panicked.
    fn drop(&mut self) {
        if self.len > 0 {
            self.share.budget.lock().unwritten -= self.len;
            self.share.budget.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn budgets_stay_within_the_room_below_the_limits() {
        assert_eq!(size_within(4 * MIB, 0), 2 * MIB);
        assert_eq!(size_within(u64::MAX, 0), MAX);
        assert_eq!(size_within(MIB, 2 * MIB), 0);
        for room in [0, MIB, 12 * MIB, 100 * MIB] {
            let mut sum = 0;
            for _ in 0..100 {
                sum += size_within(room, sum);
                assert!(sum <= room);
            }
        }
        assert!(room_below_limits().unwrap() > 0);
    }

    #[test]
    fn steps_are_a_part_of_the_budget() {
        for (limit, budget, step) in
            [(0, MIN, GRAIN), (MIB, MIB, 256 << 10), (3 * MIB + 1, 3 * MIB, 512 << 10), (MAX, MAX, MIB)]
        {
            let found = Budget::new(limit);
            assert_eq!((found.limit(), found.step()), (budget, step));
        }
    }

    #[test]
    fn writers_of_a_disk_share_its_budget_while_there_are_any() {
        let key = |dev: u64| DiskKey::of_device(0xffe << 32 | dev);
        let first = Budget::of(key(1), Some(MIB), None);
        let same = Budget::of(key(1), Some(2 * MIB), None);
        assert!(Arc::ptr_eq(&first, &same));
        assert_eq!(Budget::of(key(2), Some(2 * MIB), None).limit(), 2 * MIB);
        drop((first, same));
        assert_eq!(Budget::of(key(1), Some(2 * MIB), None).limit(), 2 * MIB);
    }

    #[test]
    fn a_budget_is_no_larger_than_the_disk_needs() {
        let key = |dev: u64| DiskKey::of_device(0xffd << 32 | dev);
        let limit = |dev, requested, enough| Budget::of(key(dev), requested, enough).limit();
        assert_eq!(limit(1, None, Some(512 << 10)), 512 << 10);
        assert_eq!(limit(2, None, Some(u64::MAX)), limit(3, None, None));
        assert_eq!(limit(4, Some(2 * MIB), Some(MIB)), 2 * MIB, "who asks for a size gets it");
    }
}

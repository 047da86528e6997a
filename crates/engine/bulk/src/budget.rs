//! The budget of unwritten bytes that all direct, paced and uncached writers of one disk in this
//! process share, and the order in which these bytes go to the disk.
//!
//! A writer is admitted before it makes pages dirty. While there is no room, it waits for the
//! writeback of the oldest step of any writer, so an idle writer blocks nobody. At most as many
//! bytes as the [`Pacer`] allows are in flight. If a step took longer than on an idle disk, a pause
//! follows. A commit of a log on the same disk therefore waits for one piece, not for the whole
//! output. While others sync on the disk, each piece is followed by a pause ([`OthersSyncs`]). A
//! direct step is in flight from its admission to its completion ([`DirectStep`]).
//!
//! Invariants:
//! - A budget belongs to one process, since a forked child never sees its parent's writes end.
//! - `unwritten` counts each step from its admission until its writeback has ended, and never
//!   exceeds the limit.
//! - `in_flight` counts the steps whose writeback was begun.
//! - The lock is never held over I/O.
//! - A failed wait is reported by the step's own writer, permanently: the kernel reports it only
//!   once.
//!
//! Size: the kernel leaves dirty pages alone up to the background limit, and throttles all writers
//! from the midpoint between that and the other limit on (`balance_dirty_pages`,
//! mm/page-writeback.c). The unwritten bytes here come on top of the dirty pages of others. All
//! budgets of a process together therefore have half the room between the two. At limits of 8 and
//! 16 MiB the budget is 2 MiB, which is enough for a disk of 100 MB/s.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use pagekeeper_io::{Error, IoFile, PerProcess};
use pagekeeper_kernel::mutex;
use pagekeeper_kernel::pressure::{DirtyReport, SysRoots};
use pagekeeper_policy::pacer::{Pacer, WrittenPart, nanoseconds};

use crate::layout::DiskKey;
use crate::others_syncs::OthersSyncs;

/// The largest default budget, in bytes. More in flight makes no disk faster.
const BUDGET_BYTES_MAX: u64 = 16 << 20;
/// The smallest budget, in bytes. Less does not keep a disk streaming.
const BUDGET_BYTES_MIN: u64 = 256 << 10;
/// Budgets and steps are multiples of this.
const BUDGET_GRAIN_BYTES: u64 = 64 << 10;
/// A shorter wait means that the step's writeback had already ended.
const AWAITED_MIN: Duration = Duration::from_micros(50);
/// The longest step, in bytes.
pub(crate) const STEP_BYTES_MAX: usize = 1 << 20;
/// The kernel drops only folios that lie entirely in a range, and builds them up to 2 MiB.
const FOLIO_BYTES_MAX: u64 = 2 << 20;

/// The budgets in use.
static BUDGETS: PerProcess<HashMap<DiskKey, Weak<DiskBudget>>> = PerProcess::new();

/// The budget of one disk.
pub(crate) struct DiskBudget {
    limit: u64,
    others: OthersSyncs,
    state: Mutex<BudgetState>,
    /// Notified when room becomes free.
    freed: Condvar,
}

#[derive(Default)]
struct BudgetState {
    /// Admitted bytes that were not waited for yet.
    unwritten: u64,
    /// Steps whose writeback was not begun, oldest first.
    pending: VecDeque<WriteStep>,
    /// Steps whose writeback was begun, oldest first.
    started: VecDeque<StartedStep>,
    /// Bytes whose writeback was begun and not waited for yet.
    in_flight: u64,
    pacer: Pacer,
    /// Nothing is begun before this time.
    pause_until: Option<Instant>,
    /// The time at which the last step was written, if the disk had more to write ever since.
    done_at: Option<Instant>,
}

impl BudgetState {
    fn may_begin(&self, len: u64) -> bool {
        let is_paused = self.pause_until.is_some_and(|until| until > Instant::now());
        !is_paused && (self.in_flight == 0 || self.in_flight + len <= self.pacer.piece())
    }

    /// Learns from a finished step of `bytes` that was begun at `begun` with `in_flight` bytes in
    /// flight. If it was not `was_awaited`, it may have ended earlier.
    fn learn(&mut self, bytes: u64, in_flight: u64, begun: Instant, ended: Instant, was_awaited: bool) {
        let took = nanoseconds(ended.duration_since(begun));
        let since_last = self.done_at.map(|done_at| nanoseconds(ended.saturating_duration_since(done_at)));
        let alone = (in_flight == bytes).then_some(took);
        let pause = self.pacer.written(WrittenPart {
            bytes,
            in_flight,
            took_min: if was_awaited { took } else { 0 },
            took_max: took,
            busy: since_last.or(alone).filter(|_| was_awaited),
        });
        let has_more = !self.pending.is_empty() || self.in_flight > 0;
        // A pause says nothing about the disk's rate.
        let may_begin_at = ended + Duration::from_nanos(pause);
        self.done_at = (was_awaited && has_more).then_some(may_begin_at);
        if pause > 0 {
            self.pause_until = Some(may_begin_at);
        }
    }
}

struct WriteStep {
    writer: Arc<StepWriter>,
    range: Range<u64>,
}

/// A step whose writeback was begun.
struct StartedStep {
    step: WriteStep,
    begun: Instant,
    /// Bytes that were in flight then, including its own.
    in_flight: u64,
}

impl WriteStep {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Begins its writeback.
    fn begin(&self) {
        self.note(self.writer.file.start_writeback(self.range.clone()));
    }

    /// Waits for its writeback. Returns whether that succeeded.
    fn wait(&self) -> bool {
        self.note(self.writer.file.wait_writeback(self.range.clone()))
    }

    /// Drops its pages, if the budget is responsible for that.
    fn release(&self) {
        if self.writer.releases {
            // A failed release does no harm: the writer's end releases everything, and reports the
            // failure.
            let _ = self
                .writer
                .file
                .release(self.range.start / FOLIO_BYTES_MAX * FOLIO_BYTES_MAX..self.range.end);
        }
    }

    fn note(&self, done: Result<(), Error>) -> bool {
        let Err(error) = done else { return true };
        let errno = error.errno().unwrap_or(libc::EIO);
        let path = self.writer.file.path().to_path_buf();
        let _ = self.writer.failed.set(Error::Write { path, range: self.range.clone(), errno });
        false
    }
}

/// One of the budget's writers.
struct StepWriter {
    file: Arc<dyn IoFile>,
    /// Whether its pages are dropped here. Otherwise the kernel begins their writeback as they are
    /// written, and drops them.
    releases: bool,
    /// Bytes of its steps that were not waited for yet. Changed only under the budget's lock.
    unwritten: AtomicU64,
    failed: OnceLock<Error>,
}

impl DiskBudget {
    /// Returns the disk's budget: the one in use, or a new one. A new one has the requested size,
    /// or else a size by the kernel's current limits, at most `enough`.
    pub(crate) fn of(key: DiskKey, requested: Option<u64>, enough: Option<u64>) -> Arc<Self> {
        let room = if requested.is_none() { room_below_limits() } else { None };
        let mut budgets = BUDGETS.lock();
        budgets.retain(|_, budget| budget.strong_count() > 0);
        if let Some(budget) = budgets.get(&key).and_then(Weak::upgrade) {
            return budget;
        }
        let others = budgets.values().filter_map(Weak::upgrade).map(|budget| budget.limit).sum();
        let limit = requested.unwrap_or_else(|| {
            room.map_or(BUDGET_BYTES_MAX, |room| size_within(room, others)).min(enough.unwrap_or(u64::MAX))
        });
        let budget = Arc::new(Self::new(limit, key.disks()));
        budgets.insert(key, Arc::downgrade(&budget));
        budget
    }

    fn new(limit: u64, disks: &[u64]) -> Self {
        let limit = (limit / BUDGET_GRAIN_BYTES * BUDGET_GRAIN_BYTES).max(BUDGET_BYTES_MIN);
        Self { limit, others: OthersSyncs::on(disks), state: Mutex::default(), freed: Condvar::new() }
    }

    /// Returns the maximum of unwritten bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Makes a sync of one of its writers, which is none of others.
    pub(crate) fn during_sync<T>(&self, sync: impl FnOnce() -> T) -> T {
        self.others.during_own(sync)
    }

    /// Returns the bytes of the step that begins at this offset of a file: a step, or less so that
    /// it begins at a multiple of its length.
    pub(crate) fn step_at(&self, offset: u64) -> usize {
        let aligned = offset.checked_ilog2().map_or(u32::MAX, |_| offset.trailing_zeros());
        1 << self.step().ilog2().min(aligned)
    }

    /// Returns the bytes of a step: a part of a piece, but at most a quarter of the budget.
    fn step(&self) -> u64 {
        let quarter = (self.limit / 4).clamp(BUDGET_GRAIN_BYTES, STEP_BYTES_MAX as u64);
        let part = self.lock().pacer.part().clamp(BUDGET_GRAIN_BYTES, quarter);
        // A power of two, so that steps and folios begin together.
        1 << part.ilog2()
    }

    /// Returns the unwritten bytes.
    #[cfg(test)]
    pub(crate) fn unwritten(&self) -> u64 {
        self.lock().unwritten
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        mutex::lock(&self.state)
    }

    /// Admits `len` bytes. `begins`: their writeback begins as they are written.
    fn admit(&self, len: u64, begins: bool) {
        let mut state = self.lock();
        while state.unwritten + len > self.limit.min(state.pacer.backlog())
            || (begins && !state.may_begin(len))
        {
            state = self.make_room(state, |_| true);
        }
        state.unwritten += len;
        if begins {
            state.in_flight += len;
        }
        debug_assert!(state.unwritten <= self.limit);
    }

    /// Admits a direct step: waits until this many bytes may go to the disk.
    pub(crate) fn admit_direct(self: &Arc<Self>, bytes: u64) -> DirectStep {
        self.admit(bytes, true);
        let in_flight = self.lock().in_flight.max(bytes);
        DirectStep { budget: Arc::clone(self), bytes, in_flight, begun: Instant::now(), is_written: false }
    }

    /// Waits until all of a writer's steps are written.
    fn drain(&self, writer: &Arc<StepWriter>) {
        let mut state = self.lock();
        while writer.unwritten.load(Ordering::Relaxed) > 0 {
            state = self.make_room(state, |step| Arc::ptr_eq(&step.writer, writer));
        }
    }

    /// Begins the pending steps that may begin now.
    fn begin<'a>(&'a self, mut state: MutexGuard<'a, BudgetState>) -> MutexGuard<'a, BudgetState> {
        while state.pending.front().is_some_and(|step| state.may_begin(step.len()))
            && let Some(step) = state.pending.pop_front()
        {
            state.in_flight += step.len();
            let (begun, in_flight) = (Instant::now(), state.in_flight);
            drop(state);
            step.begin();
            state = self.lock();
            state.started.push_back(StartedStep { step, begun, in_flight });
            self.freed.notify_all();
        }
        state
    }

    /// Waits for the oldest step in flight of those that `of` selects. Otherwise waits for a step
    /// that must be written before, for the end of a pause, or for another thread that waits or
    /// writes.
    fn make_room<'a>(
        &'a self,
        state: MutexGuard<'a, BudgetState>,
        of: impl Fn(&WriteStep) -> bool,
    ) -> MutexGuard<'a, BudgetState> {
        let mut state = self.begin(state);
        let oldest = state.started.iter().position(|started| of(&started.step));
        let before = (!state.pending.is_empty()).then_some(0);
        if let Some(started) = oldest.or(before).and_then(|at| state.started.remove(at)) {
            drop(state);
            return self.finish(&started);
        }
        let pause = state.pause_until.map(|until| until.saturating_duration_since(Instant::now()));
        match pause.filter(|pause| !pause.is_zero()) {
            Some(pause) => mutex::ignore_poison(self.freed.wait_timeout(state, pause)).0,
            None => mutex::ignore_poison(self.freed.wait(state)),
        }
    }

    /// Waits for the writeback of a step.
    fn finish(&self, started: &StartedStep) -> MutexGuard<'_, BudgetState> {
        let step = &started.step;
        let waited_from = Instant::now();
        let is_written = step.wait();
        let ended = Instant::now();
        if is_written {
            step.release();
        }
        let share = self.others.share();
        let mut state = self.lock();
        state.pacer.others(share);
        state.unwritten -= step.len();
        state.in_flight -= step.len();
        // A step that had already ended did so at an unknown time, and the disk may have been idle
        // since.
        let was_awaited = ended.duration_since(waited_from) >= AWAITED_MIN;
        state.learn(step.len(), started.in_flight, started.begun, ended, was_awaited);
        step.writer.unwritten.fetch_sub(step.len(), Ordering::Relaxed);
        self.freed.notify_all();
        state
    }
}

/// A step of direct output in flight. A drop ends it.
pub(crate) struct DirectStep {
    budget: Arc<DiskBudget>,
    bytes: u64,
    /// Bytes that were in flight when it began, including its own.
    in_flight: u64,
    begun: Instant,
    is_written: bool,
}

impl DirectStep {
    /// Notes that the write has just succeeded.
    pub(crate) fn written(mut self) {
        self.is_written = true;
    }
}

impl Drop for DirectStep {
    fn drop(&mut self) {
        let ended = Instant::now();
        let share = self.budget.others.share();
        let mut state = self.budget.lock();
        state.pacer.others(share);
        state.unwritten -= self.bytes;
        state.in_flight -= self.bytes;
        if self.is_written {
            state.learn(self.bytes, self.in_flight, self.begun, ended, true);
        }
        self.budget.freed.notify_all();
    }
}

/// Returns the bytes between the start of background writeback and the point where the kernel
/// throttles writers; `None` if the limits can't be read.
fn room_below_limits() -> Option<u64> {
    let report = DirtyReport::read(&SysRoots::default()).ok()?;
    let limits = report.kernel_thresholds.unwrap_or(report.thresholds);
    Some(limits.background.midpoint(limits.limit).saturating_sub(limits.background))
}

/// Returns half of the room that other budgets leave.
fn size_within(room: u64, others: u64) -> u64 {
    (room.saturating_sub(others) / 2).min(BUDGET_BYTES_MAX)
}

/// A writer's share of a budget. Dropped, it leaves its steps for others to wait for.
pub(crate) struct BudgetShare {
    budget: Arc<DiskBudget>,
    writer: Arc<StepWriter>,
}

impl BudgetShare {
    /// Creates a share. `releases`: whether pages are to be dropped once they are written.
    pub(crate) fn new(budget: Arc<DiskBudget>, file: Arc<dyn IoFile>, releases: bool) -> Self {
        let writer = StepWriter { file, releases, unwritten: AtomicU64::new(0), failed: OnceLock::new() };
        Self { budget, writer: Arc::new(writer) }
    }

    /// Returns the bytes of the step that begins at this offset.
    pub(crate) fn step_at(&self, offset: u64) -> usize {
        self.budget.step_at(offset)
    }

    /// Waits until this many bytes, at most a step, may become dirty. Also returns the time waited.
    pub(crate) fn admit(&self, len: u64) -> (AdmittedBytes<'_>, Duration) {
        let began = Instant::now();
        self.budget.admit(len, !self.writer.releases);
        (AdmittedBytes { share: self, len, since: Instant::now() }, began.elapsed())
    }

    /// Waits for the writeback of all steps. Returns the time waited.
    pub(crate) fn end(&self) -> Result<Duration, Error> {
        let began = Instant::now();
        self.budget.drain(&self.writer);
        self.check()?;
        Ok(began.elapsed())
    }

    /// Fails if the writeback of a step has failed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.writer.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// Admitted room for bytes that become dirty now.
pub(crate) struct AdmittedBytes<'a> {
    share: &'a BudgetShare,
    len: u64,
    since: Instant,
}

impl AdmittedBytes<'_> {
    /// Notes that the bytes are dirty: their writeback begins as soon as the budget allows it.
    pub(crate) fn hand_over(mut self, range: Range<u64>) {
        let BudgetShare { budget, writer } = self.share;
        debug_assert_eq!(range.end - range.start, self.len);
        let mut state = budget.lock();
        writer.unwritten.fetch_add(self.len, Ordering::Relaxed);
        let step = WriteStep { writer: Arc::clone(writer), range };
        if writer.releases {
            state.pending.push_back(step);
        } else {
            let in_flight = state.in_flight;
            state.started.push_back(StartedStep { step, begun: self.since, in_flight });
        }
        self.len = 0;
        budget.freed.notify_all();
        drop(budget.begin(state));
    }
}

impl Drop for AdmittedBytes<'_> {
    /// Returns unused room: its holder panicked.
    fn drop(&mut self) {
        if self.len > 0 {
            let mut state = self.share.budget.lock();
            state.unwritten -= self.len;
            if !self.share.writer.releases {
                state.in_flight -= self.len;
            }
            self.share.budget.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::pacer::{PIECE_MAX, PIECE_MIN};

    const MIB: u64 = 1 << 20;

    #[test]
    fn budgets_stay_within_the_room_below_the_limits() {
        assert_eq!(size_within(4 * MIB, 0), 2 * MIB);
        assert_eq!(size_within(u64::MAX, 0), BUDGET_BYTES_MAX);
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
        for (limit, budget, step) in [
            (0, BUDGET_BYTES_MIN, BUDGET_GRAIN_BYTES),
            (MIB, MIB, 256 << 10),
            (3 * MIB + 1, 3 * MIB, 512 << 10),
            (BUDGET_BYTES_MAX, BUDGET_BYTES_MAX, MIB),
        ] {
            let found = DiskBudget::new(limit, &[]);
            assert_eq!((found.limit(), found.step()), (budget, step.min(PIECE_MIN / 2)));
            // A fast disk, whose pieces are long.
            let mut pacer = Pacer::new();
            while pacer.piece() < PIECE_MAX {
                let (bytes, in_flight) = (pacer.piece() / 2, pacer.piece());
                let took = in_flight / 4;
                let busy = Some(took / 2);
                pacer.written(WrittenPart { bytes, in_flight, took_min: took, took_max: took, busy });
            }
            found.lock().pacer = pacer;
            assert_eq!(found.step(), step);
        }
    }

    #[test]
    fn a_direct_step_is_in_flight_until_it_is_over_and_shows_the_disks_price() {
        let budget = Arc::new(DiskBudget::new(BUDGET_BYTES_MAX, &[]));
        let first = budget.admit_direct(PIECE_MIN);
        assert_eq!((budget.unwritten(), budget.lock().in_flight), (PIECE_MIN, PIECE_MIN));
        assert!(!budget.lock().may_begin(BUDGET_GRAIN_BYTES), "a piece is in flight");
        first.written();
        assert_eq!((budget.unwritten(), budget.lock().in_flight), (0, 0));
        assert!(budget.lock().pacer.price() > 0);
        // A failed step reveals nothing.
        let failing = Arc::new(DiskBudget::new(BUDGET_BYTES_MAX, &[]));
        drop(failing.admit_direct(PIECE_MIN));
        assert_eq!((failing.unwritten(), failing.lock().pacer), (0, Pacer::new()));
    }

    #[test]
    fn after_a_late_direct_step_nothing_begins_for_a_while() {
        let budget = Arc::new(DiskBudget::new(BUDGET_BYTES_MAX, &[]));
        let now = Instant::now();
        let took = |ms| now.checked_sub(Duration::from_millis(ms)).unwrap();
        budget.lock().learn(PIECE_MIN, PIECE_MIN, took(2), now, true);
        assert!(budget.lock().may_begin(PIECE_MIN));
        let mut late = budget.admit_direct(PIECE_MIN);
        late.begun = took(60_000);
        late.written();
        let pause_until = budget.lock().pause_until.unwrap();
        assert!(pause_until > now, "a pause of 100 ms");
        drop(budget.admit_direct(PIECE_MIN));
        assert!(Instant::now() >= pause_until, "it was waited for");
    }

    #[test]
    fn writers_of_a_disk_share_its_budget_while_there_are_any() {
        let key = |dev: u64| DiskKey::of_device(0xffe << 32 | dev);
        let first = DiskBudget::of(key(1), Some(MIB), None);
        let same = DiskBudget::of(key(1), Some(2 * MIB), None);
        assert!(Arc::ptr_eq(&first, &same));
        assert_eq!(DiskBudget::of(key(2), Some(2 * MIB), None).limit(), 2 * MIB);
        drop((first, same));
        assert_eq!(DiskBudget::of(key(1), Some(2 * MIB), None).limit(), 2 * MIB);
    }

    #[test]
    fn a_budget_is_no_larger_than_the_disk_needs() {
        let key = |dev: u64| DiskKey::of_device(0xffd << 32 | dev);
        let limit = |dev, requested, enough| DiskBudget::of(key(dev), requested, enough).limit();
        assert_eq!(limit(1, None, Some(512 << 10)), 512 << 10);
        assert_eq!(limit(2, None, Some(u64::MAX)), limit(3, None, None));
        assert_eq!(limit(4, Some(2 * MIB), Some(MIB)), 2 * MIB, "an explicit size is used");
    }
}

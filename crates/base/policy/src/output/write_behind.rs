//! Write-behind: decides which parts of a writer's output to write, to wait for and to release now.
//!
//! A writer that is ahead of its disk fills the page cache with dirty pages, until the kernel makes
//! every writer of that disk wait. So writeback of each step is started as soon as it is complete,
//! and the writer itself waits for the data a budget of bytes behind it.
//!
//! One run of output in order is followed; it may leave holes at the end of the file. Data
//! rewritten inside the run is written and released once it amounts to a step, and again at the
//! end. Output elsewhere starts a new run. The rests of the last few runs are remembered.
//!
//! Invariants: a range that is waited for was started. A released range was waited for since it was
//! written in order, and holds only this writer's data or nobody's. A run's ranges ascend. The
//! window that the writer is in is not released before the end.

use core::ops::Range;

use crate::logs::exact::DueWork;
use crate::{PAGE_BYTES, WINDOW};

/// Maximum number of runs remembered besides the current one.
const OLDER_RUNS_MAX: usize = 4;

/// The pace of a writer's output, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WritePace {
    /// The size of the steps in which writeback is started.
    pub step: u64,
    /// The writer waits for data this far behind it. With `u64::MAX` it does not wait; a later
    /// write does.
    pub budget: u64,
    /// Whether to release pages once they are written.
    pub release: bool,
}

/// The state of a file that is being written.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteBehind {
    /// The run: its start, and the ends of its released, waited-for, started and written parts.
    from: u64,
    released: u64,
    waited: u64,
    started: u64,
    written: u64,
    /// The end of the file, as far as known.
    size: u64,
    /// The data rewritten inside the run since it was last waited for: its range, its bytes, and
    /// how many of them were started.
    again: (u64, u64),
    again_bytes: u64,
    again_started: u64,
    /// The rests of older runs.
    old: [(u64, u64); OLDER_RUNS_MAX],
    next_old: usize,
}

impl WriteBehind {
    /// Returns the initial state: all zeros, so that static memory of it takes no space in an
    /// executable.
    pub const fn new() -> Self {
        Self {
            from: 0,
            released: 0,
            waited: 0,
            started: 0,
            written: 0,
            size: 0,
            again: (0, 0),
            again_bytes: 0,
            again_started: 0,
            old: [(0, 0); OLDER_RUNS_MAX],
            next_old: 0,
        }
    }

    /// Creates the state of a file of `size` bytes that is going to be written.
    pub const fn of(size: u64) -> Self {
        Self { size, ..Self::new() }
    }

    /// Returns the state of the same file for its next writer, which has not written to it yet.
    ///
    /// ```
    /// use pagekeeper_policy::write_behind::{WriteBehind, WritePace};
    ///
    /// let mut behind = WriteBehind::new();
    /// behind.wrote(0..1000, WritePace { step: 1 << 20, budget: 4 << 20, release: true });
    /// assert_eq!(behind.for_next_writer().rest(true).next(), None);
    /// ```
    #[must_use]
    pub const fn for_next_writer(&self) -> Self {
        Self::of(self.size)
    }

    /// Records that the range was written. Returns the work due now.
    ///
    /// ```
    /// use pagekeeper_policy::write_behind::{WriteBehind, WritePace};
    ///
    /// let mut behind = WriteBehind::new();
    /// let pace = WritePace { step: 1 << 20, budget: 4 << 20, release: true };
    /// assert!(behind.wrote(0..1000, pace).is_none());
    /// let due = behind.wrote(1000..9 << 20, pace);
    /// assert_eq!((due.start, due.wait, due.release), (Some(0..9 << 20), Some(0..5 << 20), Some(0..4 << 20)));
    /// ```
    pub fn wrote(&mut self, range: Range<u64>, pace: WritePace) -> DueWork {
        if range.is_empty() {
            return DueWork::default();
        }
        let step = pace.step.max(1);
        if self.from <= range.start && range.end <= self.written {
            return self.wrote_again(&range, step, pace);
        }
        let continues = (self.from..=self.written).contains(&range.start)
            // A hole, in which nobody has pages.
            || (range.start > self.written && self.written >= self.size && self.from < self.written);
        let start = if continues { None } else { self.begin(range.start, step) };
        self.written = range.end;
        self.size = self.size.max(range.end);
        let mut due = DueWork { start, ..DueWork::default() };
        let whole = self.written - self.written % step;
        // If the rest of an older run has to be started as well, this one is started with the next
        // write.
        if whole > self.started && due.start.is_none() {
            due.start = Some(self.started..whole);
            self.started = whole;
        }
        let behind = self.written.saturating_sub(pace.budget.max(step));
        let end = (behind - behind % step).min(self.started);
        if end > self.waited {
            due.wait = Some(self.waited..end);
            self.waited = end;
        }
        if pace.release {
            let end = self.waited - self.waited % WINDOW;
            if end > self.released {
                due.release = Some(self.release_from()..end);
                self.released = end;
            }
        }
        due
    }

    /// Records that all written data is on disk. Returns the range to drop, which needs no wait,
    /// if `release` is set.
    pub fn synced(&mut self, release: bool) -> Option<Range<u64>> {
        (self.started, self.waited) = (self.written, self.written);
        // Rewritten data is released at the end, or once there is much of it: a page that is synced
        // often is soon rewritten.
        self.again_started = self.again_bytes;
        let due = self.waited - self.waited % WINDOW;
        if !release || due <= self.released {
            return None;
        }
        let range = self.release_from()..due;
        self.released = due;
        Some(range)
    }

    /// Returns the remaining ranges at the end: to be written, waited for and released. An end of
    /// `u64::MAX` means the end of the file.
    pub fn rest(&self, release: bool) -> impl Iterator<Item = Range<u64>> {
        let from = self.with_again(if release { self.release_from() } else { self.waited });
        let end = if self.written >= self.size { u64::MAX } else { self.written };
        let has_run = self.from < self.written && from < self.written;
        let old = self.old.into_iter().filter(|old| old.0 < old.1).map(|(start, end)| start..end);
        old.chain(has_run.then_some(from..end))
    }

    /// Returns the length of the run.
    pub fn length(&self) -> u64 {
        self.written - self.from
    }

    /// Records that the file was truncated.
    pub fn truncated(&mut self, size: u64) {
        self.size = size;
        for end in
            [&mut self.from, &mut self.released, &mut self.waited, &mut self.started, &mut self.written]
        {
            *end = (*end).min(size);
        }
        self.again.1 = self.again.1.min(size);
        if self.again.0 >= self.again.1 {
            self.forget_again();
        }
    }

    fn wrote_again(&mut self, range: &Range<u64>, step: u64, pace: WritePace) -> DueWork {
        if range.start >= self.started {
            // Not started yet; it will be.
            return DueWork::default();
        }
        let first = if self.again_bytes == 0 { range.start } else { self.again.0 };
        self.again = (first.min(range.start), self.again.1.max(range.end));
        self.again_bytes += range.end - range.start;
        let all = self.again.0..self.again.1;
        let mut due = DueWork::default();
        if self.again_bytes - self.again_started >= step {
            self.again_started = self.again_bytes;
            due.start = Some(all.clone());
        }
        if self.again_bytes >= pace.budget.max(step) && due.start.is_some() {
            due.wait = Some(all.clone());
            // The writer's window stays.
            let end = all.end.min(self.written - self.written % WINDOW);
            let start = all.start.max(self.from).div_ceil(PAGE_BYTES) * PAGE_BYTES;
            if pace.release && start < end {
                due.release = Some(start..end);
            }
            self.forget_again();
        }
        due
    }

    /// Returns `from`, or the start of the rewritten data if that is lower.
    fn with_again(&self, from: u64) -> u64 {
        if self.again_bytes > 0 { from.min(self.again.0) } else { from }
    }

    fn forget_again(&mut self) {
        (self.again, self.again_bytes, self.again_started) = ((0, 0), 0, 0);
    }

    /// Starts a new run. Returns the rest of the previous one if that was long: it is to be
    /// started.
    fn begin(&mut self, at: u64, step: u64) -> Option<Range<u64>> {
        let rest = self.with_again(self.release_from())..self.written;
        let is_long = self.length() >= step;
        self.forget_again();
        (self.from, self.released, self.waited, self.started, self.written) = (at, at, at, at, at);
        if rest.is_empty() {
            return None;
        }
        if let Some(old) = self.old.get_mut(self.next_old) {
            *old = (rest.start, rest.end);
        }
        self.next_old = (self.next_old + 1) % OLDER_RUNS_MAX;
        is_long.then_some(rest)
    }

    /// Returns the start of the next release: one window back, for pages that stayed.
    fn release_from(&self) -> u64 {
        (self.released - self.released % WINDOW)
            .saturating_sub(WINDOW)
            .max(self.from.div_ceil(PAGE_BYTES) * PAGE_BYTES)
    }
}

#[cfg(all(test, feature = "std"))]
#[allow(
    clippy::single_range_in_vec_init,
    clippy::cast_possible_truncation,
    reason = "one range is what is meant; small numbers"
)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logs::examples::MIB;

    const WRITE_PACE: WritePace = WritePace { step: MIB, budget: 4 * MIB, release: true };

    fn due(start: Range<u64>, wait: Range<u64>, release: Range<u64>) -> DueWork {
        let some = |range: Range<u64>| (!range.is_empty()).then_some(range);
        DueWork { start: some(start), wait: some(wait), release: some(release) }
    }

    #[test]
    fn steps_are_started_and_waited_for_a_budget_behind() {
        let mut behind = WriteBehind::new();
        let mut write = |from: u64, to: u64| behind.wrote(from..to, WRITE_PACE);
        assert_eq!(write(0, MIB - 1), due(0..0, 0..0, 0..0));
        assert_eq!(write(MIB - 1, MIB + 5), due(0..MIB, 0..0, 0..0));
        assert_eq!(write(MIB + 5, 5 * MIB), due(MIB..5 * MIB, 0..MIB, 0..0));
        assert_eq!(write(5 * MIB, 6 * MIB), due(5 * MIB..6 * MIB, MIB..2 * MIB, 0..2 * MIB));
        assert_eq!(write(6 * MIB, 10 * MIB), due(6 * MIB..10 * MIB, 2 * MIB..6 * MIB, 0..6 * MIB));
        // The previous window once more.
        assert_eq!(write(10 * MIB, 12 * MIB), due(10 * MIB..12 * MIB, 6 * MIB..8 * MIB, 4 * MIB..8 * MIB));
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [6 * MIB..u64::MAX]);
        assert_eq!(behind.rest(false).collect::<Vec<_>>(), [8 * MIB..u64::MAX]);
        assert_eq!(behind.synced(true), Some(6 * MIB..12 * MIB));
        assert_eq!(behind.synced(true), None);
        let kept = WritePace { release: false, ..WRITE_PACE };
        assert_eq!(behind.wrote(12 * MIB..17 * MIB, kept), due(12 * MIB..17 * MIB, 12 * MIB..13 * MIB, 0..0));
    }

    #[test]
    fn ranges_are_waited_for_later_if_not_now() {
        let mut behind = WriteBehind::new();
        let hurried = WritePace { budget: u64::MAX, ..WRITE_PACE };
        assert_eq!(behind.wrote(0..9 * MIB, hurried), due(0..9 * MIB, 0..0, 0..0));
        assert_eq!(behind.wrote(9 * MIB..12 * MIB, hurried), due(9 * MIB..12 * MIB, 0..0, 0..0));
        assert_eq!(behind.wrote(0..8 * MIB, hurried), due(0..8 * MIB, 0..0, 0..0));
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [0..u64::MAX]);
        assert_eq!(
            behind.wrote(12 * MIB..13 * MIB, WRITE_PACE),
            due(12 * MIB..13 * MIB, 0..9 * MIB, 0..8 * MIB)
        );
    }

    /// A database rewrites its first page with each transaction.
    #[test]
    fn rewritten_ranges_are_released_again() {
        let mut behind = WriteBehind::new();
        assert_eq!(behind.wrote(0..9 * MIB, WRITE_PACE).release, Some(0..4 * MIB));
        assert!(behind.wrote(PAGE_BYTES..2 * PAGE_BYTES, WRITE_PACE).is_none());
        assert_eq!(behind.synced(true), Some(2 * MIB..8 * MIB));
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [PAGE_BYTES..u64::MAX]);
        // The page is not written again alone, but released with later ones.
        assert_eq!(
            behind.wrote(PAGE_BYTES..4 * MIB, WRITE_PACE),
            due(PAGE_BYTES..4 * MIB, PAGE_BYTES..4 * MIB, PAGE_BYTES..4 * MIB)
        );
        assert!(behind.wrote(0..PAGE_BYTES, WRITE_PACE).is_none());
        behind.truncated(9 * MIB - 1);
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [0..u64::MAX]);
        behind.truncated(0);
        assert_eq!(behind.rest(true).count(), 0);
        // The writer goes elsewhere in an existing file.
        let mut behind = WriteBehind::of(30 * MIB);
        assert_eq!(behind.wrote(0..9 * MIB, WRITE_PACE).release, Some(0..4 * MIB));
        assert!(behind.wrote(PAGE_BYTES..2 * PAGE_BYTES, WRITE_PACE).is_none());
        assert_eq!(behind.wrote(20 * MIB..20 * MIB + 9, WRITE_PACE).start, Some(PAGE_BYTES..9 * MIB));
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [PAGE_BYTES..9 * MIB, 20 * MIB..20 * MIB + 9]);
    }

    #[test]
    fn out_of_order_ranges_are_released_at_the_end() {
        // Appends to an existing file.
        let mut behind = WriteBehind::of(10 * MIB + 5);
        assert!(behind.wrote(10 * MIB + 5..10 * MIB + 9, WRITE_PACE).is_none());
        assert_eq!(behind.rest(true).count(), 0);
        let start = 10 * MIB + PAGE_BYTES;
        assert!(behind.wrote(10 * MIB + 9..start + 1, WRITE_PACE).is_none());
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [start..u64::MAX]);
        // A hole at the end, filled later: still one run.
        assert_eq!(
            behind.wrote(18 * MIB..19 * MIB, WRITE_PACE),
            due(10 * MIB + 5..19 * MIB, 10 * MIB + 5..15 * MIB, start..14 * MIB)
        );
        assert!(behind.wrote(17 * MIB..17 * MIB + 9, WRITE_PACE).is_none());
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [12 * MIB..u64::MAX]);
        assert_eq!(behind.wrote(12 * MIB..13 * MIB, WRITE_PACE).start, Some(12 * MIB..17 * MIB + 9));
        assert!(behind.wrote(12 * MIB..13 * MIB - 1, WRITE_PACE).is_none());
        let again = 12 * MIB..17 * MIB + 9;
        assert_eq!(behind.wrote(12 * MIB..15 * MIB, WRITE_PACE), due(again.clone(), again.clone(), again));
        // A write elsewhere in existing data: the rest of the previous run is started and
        // remembered.
        assert_eq!(behind.wrote(0..9, WRITE_PACE), due(12 * MIB..19 * MIB, 0..0, 0..0));
        assert_eq!(behind.rest(true).collect::<Vec<_>>(), [12 * MIB..19 * MIB, 0..9]);
        // Scattered writes are left to the kernel.
        for nth in 1..100 {
            assert!(behind.wrote(nth * 4096..nth * 4096 + 9, WRITE_PACE).is_none());
        }
        assert_eq!(behind.rest(true).count(), OLDER_RUNS_MAX + 1);
        behind.truncated(0);
        assert_eq!(behind.rest(true).count(), OLDER_RUNS_MAX);
    }

    const CELL_BYTES: u64 = 64 << 10;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Cell {
        Clean,
        Dirty,
        Started,
    }

    fn cells(range: &Range<u64>, count: usize) -> Range<usize> {
        (range.start.div_ceil(CELL_BYTES) as usize).min(count)..((range.end / CELL_BYTES) as usize).min(count)
    }

    proptest! {
        #[test]
        fn a_writer_in_order_has_no_more_than_its_budget_unwritten(
            writes in prop::collection::vec(1..60_u64, 1..300),
            budget in 1..12_u64, step in 1..3_u64,
        ) {
            let pace = WritePace { step: step * MIB, budget: budget * MIB, release: true };
            let (mut behind, mut at) = (WriteBehind::new(), 0);
            let mut file = vec![Cell::Clean; 300 * 60];
            let mut resident = vec![false; file.len()];
            for length in writes {
                let range = at..at + length * CELL_BYTES;
                at = range.end;
                file[cells(&range, usize::MAX)].fill(Cell::Dirty);
                resident[cells(&range, usize::MAX)].fill(true);
                let due = behind.wrote(range, pace);
                let count = file.len();
                for cell in due.start.iter().flat_map(|range| cells(range, count)) {
                    prop_assert_eq!(file[cell], Cell::Dirty);
                    file[cell] = Cell::Started;
                }
                for cell in due.wait.iter().flat_map(|range| cells(range, count)) {
                    prop_assert_eq!(file[cell], Cell::Started);
                    file[cell] = Cell::Clean;
                }
                for cell in due.release.iter().flat_map(|range| cells(range, count)) {
                    prop_assert_eq!(file[cell], Cell::Clean);
                    resident[cell] = false;
                }
                let unwritten = file.iter().filter(|&&cell| cell != Cell::Clean).count() as u64 * CELL_BYTES;
                prop_assert!(unwritten < pace.budget.max(pace.step) + pace.step);
                let left = resident.iter().filter(|&&is| is).count() as u64 * CELL_BYTES;
                prop_assert!(left < pace.budget.max(pace.step) + pace.step + WINDOW);
            }
            let rest: Vec<_> = behind.rest(true).collect();
            prop_assert_eq!(rest.len(), 1);
            for (cell, &is_resident) in resident.iter().enumerate() {
                prop_assert!(!is_resident || cell as u64 * CELL_BYTES >= rest[0].start);
            }
        }

        #[test]
        fn random_writers_are_handled(
            writes in prop::collection::vec((0..200_u64, 1..80_u64), 1..200),
            release: bool, size in 0..200_u64,
        ) {
            let pace = WritePace { step: MIB, budget: 4 * MIB, release };
            let mut behind = WriteBehind::of(size * CELL_BYTES);
            let mut written = vec![false; 300];
            for (from, length) in writes {
                let range = from * CELL_BYTES..(from + length) * CELL_BYTES;
                written[cells(&range, usize::MAX)].fill(true);
                let due = behind.wrote(range, pace);
                if let Some(range) = &due.release {
                    prop_assert!(release && range.start < range.end);
                    // Nothing of anyone else's.
                    for cell in cells(range, 300) {
                        prop_assert!(written[cell] || cell as u64 >= size, "{:?}: {}", range, cell);
                    }
                }
                if let (Some(wait), Some(release)) = (&due.wait, &due.release) {
                    prop_assert!(release.end <= wait.end);
                }
            }
            for range in behind.rest(release) {
                for cell in cells(&range, 300) {
                    prop_assert!(written[cell] || cell as u64 >= size, "{:?}: {}", range, cell);
                }
            }
        }
    }
}

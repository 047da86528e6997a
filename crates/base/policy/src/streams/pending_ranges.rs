//! Ranges of a file that were dropped but kept some pages: the queue of a socket or a pipe holds
//! these until they are sent.
//!
//! Invariant: an entry is one range that should be gone, or the union of several adjacent ones; no
//! page between two entries is touched. Ranges without a free place stay.

use core::ops::Range;

/// Maximum number of ranges.
const PENDING_RANGES_MAX: usize = 8;
/// Nanoseconds between two attempts: at least `RETRY_MIN_NS`, and at least `RETRY_FACTOR` times the
/// duration of the last one.
const RETRY_MIN_NS: u64 = 2_000_000;
const RETRY_FACTOR: u64 = 50;

/// The ranges of one file.
#[derive(Debug, Clone, Copy, Default)]
pub struct PendingRanges {
    ranges: [(u64, u64); PENDING_RANGES_MAX],
    /// Their resident bytes when last seen.
    bytes: u64,
    due: u64,
}

/// The result of dropping a range once more.
#[derive(Debug, Clone, Copy)]
pub struct DroppedRange {
    /// Bytes that were dropped.
    pub went: u64,
    /// Bytes that stay.
    pub left: u64,
    /// The start of the part that has pages.
    pub start: u64,
}

impl PendingRanges {
    /// Returns the state without ranges.
    pub const fn new() -> Self {
        Self { ranges: [(0, 0); PENDING_RANGES_MAX], bytes: 0, due: 0 }
    }

    /// Returns the bytes that stayed, as last seen.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes and returns the ranges.
    pub fn take(&mut self) -> impl Iterator<Item = Range<u64>> {
        let ranges = core::mem::replace(self, Self::new()).ranges;
        ranges.into_iter().filter(|(start, end)| start < end).map(|(start, end)| start..end)
    }

    /// Adds a range that was dropped, or is yet to be, and of which `bytes` stay. Returns false
    /// if there is no free place.
    pub fn stays(&mut self, range: &Range<u64>, bytes: u64) -> bool {
        let meeting = |&(start, end): &(u64, u64)| start < end && start <= range.end && range.start <= end;
        let (mut start, mut end) = (range.start, range.end);
        for other in self.ranges.iter_mut().filter(|other| meeting(other)) {
            (start, end) = (start.min(other.0), end.max(other.1));
            *other = (0, 0);
        }
        let free = self.ranges.iter_mut().find(|(start, end)| start >= end);
        let has_room = free.is_some();
        if let Some(free) = free {
            *free = (start, end);
            self.bytes = self.bytes.saturating_add(bytes);
        }
        has_room
    }

    /// Makes the next attempt due now.
    pub const fn make_due(&mut self) {
        self.due = 0;
    }

    /// Whether an attempt is due.
    pub const fn is_due(&self, now: u64) -> bool {
        self.bytes > 0 && now >= self.due
    }

    /// Drops the ranges once more by `drop`; returns how many bytes went.
    pub fn retry<E>(
        &mut self,
        mut drop: impl FnMut(&Range<u64>) -> Result<DroppedRange, E>,
    ) -> Result<u64, E> {
        self.bytes = 0;
        let mut went = 0;
        for range in self.ranges.iter_mut().filter(|(start, end)| start < end) {
            let dropped = drop(&(range.0..range.1))?;
            went += dropped.went;
            self.bytes = self.bytes.saturating_add(dropped.left);
            *range = if dropped.left == 0 { (0, 0) } else { (dropped.start, range.1) };
        }
        Ok(went)
    }

    /// Records the start and the end of an attempt.
    pub fn tried(&mut self, from: u64, to: u64) {
        let took = to.saturating_sub(from);
        self.due = to.saturating_add(RETRY_MIN_NS.max(took.saturating_mul(RETRY_FACTOR)));
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one_and_no_others() {
        let mut pending = PendingRanges::new();
        for (start, end) in [(0, 2), (4, 6), (8, 10), (2, 4), (20, 22)] {
            pending.stays(&(start..end), 1);
        }
        assert_eq!(pending.bytes(), 5);
        let mut ranges: Vec<Range<u64>> = pending.take().collect();
        ranges.sort_by_key(|range| range.start);
        assert_eq!(ranges, [0..6, 8..10, 20..22]);
        assert_eq!((pending.bytes(), pending.take().count()), (0, 0));
        // Further ranges are not added.
        let taken = (0..20).filter(|nth| pending.stays(&(nth * 10..nth * 10 + 1), 1)).count();
        assert_eq!(taken, 8);
        assert_eq!((pending.bytes(), pending.take().count()), (8, 8));
    }

    #[test]
    fn released_ranges_are_not_touched_again_and_others_are_due_later() {
        let mut pending = PendingRanges::new();
        pending.stays(&(0..10), 10);
        pending.stays(&(20..30), 10);
        assert!(pending.is_due(0));
        let drop = |range: &Range<u64>| {
            let left = if range.start == 0 { 0 } else { 4 };
            Ok::<_, ()>(DroppedRange { went: 10 - left, left, start: range.end - left })
        };
        assert_eq!((pending.retry(drop), pending.bytes()), (Ok(16), 4));
        pending.tried(0, 1_000_000);
        assert!(!pending.is_due(50_000_000) && pending.is_due(51_000_000));
        assert_eq!(pending.take().map(|range| (range.start, range.end)).collect::<Vec<_>>(), [(26, 30)]);
    }
}

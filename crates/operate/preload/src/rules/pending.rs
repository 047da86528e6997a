//! Ranges of a file that should be gone, but of which pages stayed: a socket's or a pipe's queue holds them until they were sent.
//!
//! Invariant: a range is one that should be gone, or several adjacent ones; no page between two of them is touched. Ranges without a free
//! place stay.

use core::ops::Range;

use libc::c_int;

use crate::residency::{ResidencyProbe, windows};
use crate::sys::{self, Errno};

/// Ranges at a time.
const RANGES: usize = 8;
/// Nanoseconds between two attempts: at least `AGAIN`, and at least `TIMES` times the duration of the last one.
const AGAIN: u64 = 2_000_000;
const TIMES: u64 = 50;

/// The ranges of one file.
pub(super) struct Pending {
    ranges: [(u64, u64); RANGES],
    /// Their resident bytes when last seen.
    bytes: u64,
    due: u64,
}

impl Pending {
    /// No ranges.
    pub(super) const NEW: Self = Self { ranges: [(0, 0); RANGES], bytes: 0, due: 0 };

    /// Returns the bytes that stayed, as last seen.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes and returns the ranges.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Range<u64>> {
        let ranges = core::mem::replace(self, Self::NEW).ranges;
        ranges.into_iter().filter(|(start, end)| start < end).map(|(start, end)| start..end)
    }

    /// Adds a range that was dropped, or is yet to be, and of which `bytes` stay. `false`: there is no free place.
    pub(super) fn stays(&mut self, range: &Range<u64>, bytes: u64) -> bool {
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
    pub(super) fn make_due(&mut self) {
        self.due = 0;
    }

    /// Tries again if that is due; returns how many bytes went.
    pub(super) fn again(&mut self, fd: c_int, probe: &mut ResidencyProbe) -> Result<u64, Errno> {
        let now = sys::now();
        if self.bytes == 0 || now < self.due {
            return Ok(0);
        }
        self.bytes = 0;
        let mut went = 0;
        for (start, end) in &mut self.ranges {
            if start >= end {
                continue;
            }
            let there = probe.resident(fd, &(*start..*end)).unwrap_or(0);
            sys::drop_pages(fd, *start..*end)?;
            let left = probe.resident(fd, &(*start..*end)).unwrap_or(0);
            went += there.saturating_sub(left);
            match left {
                0 => (*start, *end) = (0, 0),
                left => {
                    self.bytes = self.bytes.saturating_add(left);
                    // The gone windows at its start are not touched again.
                    let range = *start..*end;
                    let gone = |window: &Range<u64>| probe.resident(fd, window) == Some(0);
                    *start = windows(&range).take_while(gone).last().map_or(range.start, |window| window.end);
                }
            }
        }
        let end = sys::now();
        self.due = end.saturating_add(AGAIN.max(end.saturating_sub(now).saturating_mul(TIMES)));
        Ok(went)
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one_and_no_others() {
        let mut pending = Pending::NEW;
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
}

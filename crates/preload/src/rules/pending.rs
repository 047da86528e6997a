//! Ranges of a file that were to go, and of which pages stayed: those that a socket's or a pipe's queue holds go once they were sent.
//!
//! Invariant: a range is one that was to go, or several of such that meet: no page between two of them is touched. What there is no
//! room for stays.

use core::ops::Range;

use libc::c_int;

use crate::residency::{ResidencyProbe, windows};
use crate::sys::{self, Errno};

/// Ranges at a time.
const RANGES: usize = 8;
/// Nanoseconds between two attempts, and so many times what the last one took.
const AGAIN: u64 = 2_000_000;
const TIMES: u64 = 50;

/// Those of one file.
pub(super) struct Pending {
    ranges: [(u64, u64); RANGES],
    /// Bytes of them that were resident when that was last seen.
    bytes: u64,
    due: u64,
}

impl Pending {
    /// None.
    pub(super) const NEW: Self = Self { ranges: [(0, 0); RANGES], bytes: 0, due: 0 };

    /// Bytes that stayed, as they were last seen.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets them: gives those that there were.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Range<u64>> {
        let ranges = core::mem::replace(self, Self::NEW).ranges;
        ranges.into_iter().filter(|(start, end)| start < end).map(|(start, end)| start..end)
    }

    /// Of a range that was dropped, or is yet to be, so many bytes stay. False: there is no room for it.
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

    /// Has the next attempt be made whenever the last one was.
    pub(super) fn make_due(&mut self) {
        self.due = 0;
    }

    /// Tries again, unless that was done just now: how many bytes went.
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
                    // What went at its begin is not touched again.
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
        // Those beyond stay.
        let taken = (0..20).filter(|nth| pending.stays(&(nth * 10..nth * 10 + 1), 1)).count();
        assert_eq!(taken, 8);
        assert_eq!((pending.bytes(), pending.take().count()), (8, 8));
    }
}

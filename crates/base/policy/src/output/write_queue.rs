//! Ranges of a file's output that are to be started, in order and in steps.
//!
//! Invariants: the oldest range comes first; adjacent ranges are one. A range that finds no room
//! displaces the oldest one.

use core::ops::Range;

/// Maximum number of ranges.
const QUEUED_RANGES_MAX: usize = 4;

/// The ranges; an empty one is a free place.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteQueue([(u64, u64); QUEUED_RANGES_MAX]);

const fn is_left(range: &(u64, u64)) -> bool {
    range.0 < range.1
}

impl WriteQueue {
    /// Returns an empty queue.
    pub const fn new() -> Self {
        Self([(0, 0); QUEUED_RANGES_MAX])
    }

    /// Adds a range. Returns the range that it displaces, which is to be started at once.
    ///
    /// ```
    /// use pagekeeper_policy::write_queue::WriteQueue;
    ///
    /// let mut queue = WriteQueue::new();
    /// for start in [0, 10, 30, 50, 70] {
    ///     assert_eq!(queue.add(&(start..start + 10)), None);
    /// }
    /// assert_eq!(queue.add(&(90..100)), Some(0..20));
    /// assert_eq!(queue.next_step(64), Some(30..40));
    /// ```
    pub fn add(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        if let Some(last) = self.0.iter_mut().find(|last| is_left(last) && last.1 == range.start) {
            last.1 = range.end;
            return None;
        }
        let [oldest, ..] = self.0;
        let displaced = self.0.iter().all(is_left).then_some(oldest.0..oldest.1);
        let left = self.0.into_iter().filter(is_left).skip(usize::from(displaced.is_some()));
        let mut kept = Self::new();
        for (place, range) in kept.0.iter_mut().zip(left.chain([(range.start, range.end)])) {
            *place = range;
        }
        *self = kept;
        displaced
    }

    /// Returns the first part, up to the next multiple of `step`.
    pub fn next_step(&self, step: u64) -> Option<Range<u64>> {
        let (start, end) = *self.0.iter().find(|range| is_left(range))?;
        let step = if step > 0 { step } else { 1 };
        Some(start..(start - start % step).saturating_add(step).min(end))
    }

    /// Records that the first range was started up to `to`, or given up if `to` is `None`.
    pub fn started(&mut self, to: Option<u64>) {
        if let Some(range) = self.0.iter_mut().find(|range| is_left(range)) {
            range.0 = to.unwrap_or(range.1);
        }
    }

    /// Cuts the ranges at the file's new end.
    pub fn truncated(&mut self, size: u64) {
        for (start, end) in &mut self.0 {
            *end = (*end).min(size.max(*start));
        }
    }

    /// Whether a part of the range is still to be started.
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.0.iter().any(|other| is_left(other) && other.0 < range.end && range.start < other.1)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_started_in_steps_and_cut_with_their_file() {
        let mut queue = WriteQueue::new();
        queue.add(&(5..25));
        queue.add(&(40..50));
        assert_eq!(queue.next_step(10), Some(5..10));
        queue.started(Some(10));
        assert!(queue.has(&(0..11)) && !queue.has(&(0..10)) && !queue.has(&(25..40)));
        queue.truncated(45);
        queue.started(None);
        assert_eq!(queue.next_step(100), Some(40..45));
        queue.truncated(0);
        assert_eq!((queue.next_step(10), queue.has(&(0..u64::MAX))), (None, false));
    }
}

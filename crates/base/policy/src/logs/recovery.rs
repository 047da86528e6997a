//! The part of a log that crash recovery would read: from its last checkpoint to the writer's
//! position.
//!
//! It serves [`Rule::ReleaseBeforeCheckpoint`](crate::Rule::ReleaseBeforeCheckpoint). Invariant:
//! unless a range is known to be useless to recovery, it counts as needed. Checkpoints only
//! advance, so an old one keeps too much of a series of files. In a ring, the checkpoint must be
//! read after the writer's position, since a writer that has gone around looks like one just behind
//! the checkpoint.

use core::ops::Range;

#[cfg(feature = "std")]
use crate::WINDOW;

/// The position from which crash recovery would read a log. Offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckpointPosition {
    /// In a log of consecutive files: recovery reads from this byte to the end of the writer's
    /// file.
    InSeries {
        /// The sequence of the checkpoint's file.
        sequence: u64,
        /// The offset in that file.
        offset: u64,
    },
    /// In a log of one file that is a ring: recovery reads from this byte to the writer's position,
    /// around the end of the file if needed.
    InRing {
        /// The offset in the file.
        offset: u64,
    },
}

/// The part of one file that recovery would read: up to two ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryRanges([(u64, u64); 2]);

impl RecoveryRanges {
    /// Nothing of the file.
    pub const NOTHING: Self = Self([(0, 0); 2]);
    /// The whole file; also used if the part is unknown.
    pub const EVERYTHING: Self = Self([(0, u64::MAX), (0, 0)]);

    /// Returns the part of the file with this sequence in a series. `checkpoint` has the sequence
    /// and the offset of the checkpoint; `writer` is the sequence of the writer's file, if known. A
    /// writer seen before the checkpoint has moved on since.
    ///
    /// ```
    /// use pagekeeper_policy::recovery::RecoveryRanges;
    ///
    /// let of = |sequence| RecoveryRanges::in_series((7, 4096), Some(9), sequence);
    /// assert_eq!(of(6), RecoveryRanges::NOTHING, "older files");
    /// assert_eq!(of(8), RecoveryRanges::EVERYTHING);
    /// assert_eq!(of(10), RecoveryRanges::NOTHING, "spare files");
    /// assert!(!of(7).overlaps(&(0..4096)) && of(7).overlaps(&(4096..8192)));
    /// ```
    pub const fn in_series(checkpoint: (u64, u64), writer: Option<u64>, sequence: u64) -> Self {
        let beyond = match writer {
            // Recycled files for later use have outdated contents.
            Some(writer) => writer >= checkpoint.0 && sequence > writer,
            None => false,
        };
        if sequence < checkpoint.0 || beyond {
            Self::NOTHING
        } else if sequence == checkpoint.0 {
            Self([(checkpoint.1, u64::MAX), (0, 0)])
        } else {
            Self::EVERYTHING
        }
    }

    /// Returns the part of a ring of `size` bytes with its checkpoint at this offset, written up to
    /// `end`, if known.
    ///
    /// ```
    /// use pagekeeper_policy::recovery::RecoveryRanges;
    ///
    /// let needed = RecoveryRanges::in_ring(8000, Some(2000), 10_000);
    /// assert!(needed.overlaps(&(8000..10_000)) && needed.overlaps(&(0..2000)));
    /// assert!(!needed.overlaps(&(2000..8000)));
    /// assert_eq!(RecoveryRanges::in_ring(8000, None, 10_000), RecoveryRanges::EVERYTHING);
    /// ```
    pub const fn in_ring(checkpoint: u64, end: Option<u64>, size: u64) -> Self {
        match end {
            Some(end) if end > checkpoint => Self([(checkpoint, end), (0, 0)]),
            Some(end) => Self([(checkpoint, size), (0, end)]),
            None => Self::EVERYTHING,
        }
    }

    /// Whether recovery would read any of the range.
    pub const fn overlaps(&self, range: &Range<u64>) -> bool {
        let [a, b] = self.0;
        (range.start < a.1 && a.0 < range.end) || (range.start < b.1 && b.0 < range.end)
    }

    /// Returns the first byte that recovery would read; `u64::MAX` if there is none.
    pub const fn start(&self) -> u64 {
        let [a, b] = self.0;
        let first = if a.0 < a.1 { a.0 } else { u64::MAX };
        if b.0 < b.1 && b.0 < first { b.0 } else { first }
    }
}

/// Returns which of two end positions in a ring of `size` bytes is further from its checkpoint, in
/// writing order.
#[cfg(feature = "std")]
pub(crate) const fn further(checkpoint: u64, size: u64, one: u64, other: u64) -> u64 {
    if distance(checkpoint, size, one) < distance(checkpoint, size, other) { other } else { one }
}

/// Whether an end position, known to the precision of a window, is so close behind the checkpoint
/// that the writer can't be there: it would have filled the ring. Engines leave more space free;
/// InnoDB leaves a tenth.
#[cfg(feature = "std")]
pub(crate) const fn is_left_behind(checkpoint: u64, size: u64, end: u64) -> bool {
    let behind = match checkpoint.checked_sub(end) {
        Some(behind) => behind,
        None => checkpoint.saturating_add(size.saturating_sub(end)),
    };
    behind < (size / 10).saturating_sub(WINDOW)
}

#[cfg(feature = "std")]
const fn distance(checkpoint: u64, size: u64, end: u64) -> u64 {
    match end.checked_sub(checkpoint) {
        Some(ahead) if ahead > 0 => ahead,
        _ => end.saturating_add(size.saturating_sub(checkpoint)),
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_is_just_full_is_needed_whole() {
        let needed = RecoveryRanges::in_ring(3000, Some(3000), 10_000);
        assert!((0..10_000).all(|at| needed.overlaps(&(at..at + 1))));
        let gone_on = RecoveryRanges::in_ring(3000, Some(2999), 10_000);
        assert!(!gone_on.overlaps(&(2999..3000)) && gone_on.overlaps(&(3000..3001)));
    }

    #[test]
    fn the_further_end_is_the_one_that_the_writer_reaches_later() {
        for (one, other, expected) in
            [(5000, 4000, 5000), (4000, 5000, 5000), (2000, 5000, 2000), (3000, 9000, 3000), (1, 2, 2)]
        {
            assert_eq!(further(3000, 10_000, one, other), expected, "{one} or {other}");
        }
    }

    #[test]
    fn an_end_just_behind_the_checkpoint_is_outdated() {
        let size = 100 * WINDOW;
        let at = |end| is_left_behind(50 * WINDOW + 7, size, end);
        assert!(at(50 * WINDOW) && at(42 * WINDOW) && !at(40 * WINDOW) && !at(51 * WINDOW) && !at(0));
        assert!(is_left_behind(WINDOW, size, 99 * WINDOW), "around the end of the file");
        assert!(!is_left_behind(5 * WINDOW, 10 * WINDOW, 4 * WINDOW), "too small to tell");
    }

    #[test]
    fn without_a_known_writer_later_files_are_needed() {
        assert_eq!(RecoveryRanges::in_series((7, 0), None, 100), RecoveryRanges::EVERYTHING);
        assert_eq!(RecoveryRanges::in_series((7, 5), None, 7).start(), 5);
        // The writer was seen before the checkpoint was read.
        assert_eq!(RecoveryRanges::in_series((7, 5), Some(6), 7).start(), 5);
        assert_eq!(RecoveryRanges::in_series((7, 5), Some(6), 8), RecoveryRanges::EVERYTHING);
        assert_eq!(RecoveryRanges::in_series((7, 5), Some(6), 6), RecoveryRanges::NOTHING);
        assert_eq!(RecoveryRanges::NOTHING.start(), u64::MAX);
        assert_eq!(RecoveryRanges::in_ring(8000, Some(2000), 10_000).start(), 0);
    }
}

//! Scattered reads: which pages to bring in for a reader that jumps around in a file, and which of
//! them to release next.
//!
//! Reads are scattered if they jump repeatedly, with less than [`LONG_RUN_BYTES`] bytes in a row
//! between two jumps. Read-ahead brings in pages that such a reader reaches much later or never, so
//! it should be off. Instead, the pages of the next piece are brought in explicitly, as many bytes
//! as the shorter of the last two pieces had. The most recently read pages are kept, since records
//! that lie together are often read one after the other; older ones are released.
//!
//! Invariants: a range to bring in does not overlap the ranges requested before for the same piece.
//! At most [`KEPT_BYTES_MAX`] per reader are kept, or the last range alone. Nothing is allocated,
//! and nothing panics for any position.

use core::ops::Range;

use crate::PAGE_BYTES;
use crate::streams::stream::OFFSET_MAX;

/// Bytes in a row from which on reads no longer count as scattered.
pub const LONG_RUN_BYTES: u64 = 8 << 20;
/// Bytes kept at a time for one reader.
pub const KEPT_BYTES_MAX: u64 = 8 << 20;
/// Maximum number of ranges kept at a time.
const KEPT_RANGES_MAX: usize = 64;
/// Number of short pieces, less the long ones among them, from which on reads count as scattered.
const SHORT_PIECES_MIN: u8 = 3;

/// The state of a reader that may turn out to be scattered: about 1 KiB.
#[derive(Debug, Clone, Copy)]
pub struct ScatteredReads {
    /// The start of the current piece, and the end of its part read so far.
    start: u64,
    next: u64,
    /// Pages were requested up to here.
    asked: u64,
    /// Length of the last piece in bytes, and of the shorter of the last two.
    last: u64,
    piece: u64,
    /// Number of short pieces, less the long ones; at most [`SHORT_PIECES_MIN`].
    short: u8,
    /// The ranges whose pages are kept, oldest first, and their total bytes.
    kept: [(u64, u64); KEPT_RANGES_MAX],
    count: usize,
    bytes: u64,
}

impl Default for ScatteredReads {
    fn default() -> Self {
        Self::new()
    }
}

impl ScatteredReads {
    /// Returns the state before the first read.
    pub const fn new() -> Self {
        Self {
            start: 0,
            next: 0,
            asked: 0,
            last: 0,
            piece: 0,
            short: 0,
            kept: [(0, 0); KEPT_RANGES_MAX],
            count: 0,
            bytes: 0,
        }
    }

    /// Records that `length` bytes at `at` are about to be read. Returns whether reads are
    /// scattered.
    ///
    /// ```
    /// use pagekeeper_policy::scattered::{LONG_RUN_BYTES, ScatteredReads};
    ///
    /// let mut reads = ScatteredReads::new();
    /// let mut read = |at, length| {
    ///     let is_scattered = reads.begin_read(at, length);
    ///     reads.end_read(at + length);
    ///     is_scattered
    /// };
    /// assert_eq!([50, 10, 90, 70, 20, 40].map(|at| read(at << 20, 4096)), [false, false, true, true, true, true]);
    /// // In order again.
    /// assert!(read((40 << 20) + 4096, LONG_RUN_BYTES / 2));
    /// assert!(!read((40 << 20) + 4096 + LONG_RUN_BYTES / 2, LONG_RUN_BYTES / 2));
    /// ```
    pub fn begin_read(&mut self, at: u64, length: u64) -> bool {
        let at = at.min(OFFSET_MAX);
        if at != self.next {
            let run = self.next.saturating_sub(self.start);
            let less = self.short.saturating_sub(1);
            self.short =
                if run < LONG_RUN_BYTES { self.short.saturating_add(1).min(SHORT_PIECES_MIN) } else { less };
            self.piece = self.last.min(run);
            self.last = run;
            (self.start, self.next, self.asked) = (at, at, at / PAGE_BYTES * PAGE_BYTES);
        }
        if at.saturating_add(length).saturating_sub(self.start) >= LONG_RUN_BYTES {
            self.short = self.short.min(SHORT_PIECES_MIN - 1);
        }
        self.short >= SHORT_PIECES_MIN
    }

    /// Records that reads came up to `end`.
    pub fn end_read(&mut self, end: u64) {
        self.next = end.min(OFFSET_MAX);
    }

    /// Returns the range of whole pages to bring in before a [scattered](Self::begin_read) reader
    /// reads `length` bytes at `at` of a file of `size` bytes. Returns `None` if it was requested
    /// before. The part of it beyond the read is to be read ahead.
    ///
    /// ```
    /// use pagekeeper_policy::scattered::ScatteredReads;
    ///
    /// let (mut reads, size) = (ScatteredReads::new(), 100 << 20);
    /// let mut asked = Vec::new();
    /// for piece in [50, 10, 90, 70, 20, 40] {
    ///     // Each by calls of 256 KiB.
    ///     for at in (piece << 20..piece + 1 << 20).step_by(256 << 10) {
    ///         if reads.begin_read(at, 256 << 10) {
    ///             asked.extend(reads.bring_in(at, 256 << 10, size));
    ///         }
    ///         reads.end_read(at + (256 << 10));
    ///     }
    /// }
    /// assert_eq!(asked, [90, 70, 20, 40].map(|piece| piece << 20..piece + 1 << 20));
    /// ```
    pub fn bring_in(&mut self, at: u64, length: u64, size: u64) -> Option<Range<u64>> {
        let (at, size) = (at.min(OFFSET_MAX), size.min(OFFSET_MAX));
        let end = at.saturating_add(length).min(size);
        if end <= self.asked {
            return None;
        }
        let run = at.saturating_sub(self.start);
        let ahead = if run == 0 { self.piece } else { run };
        let start = self.asked.max(at / PAGE_BYTES * PAGE_BYTES);
        let end = end
            .max(at.saturating_add(ahead.min(LONG_RUN_BYTES)).min(size))
            .div_ceil(PAGE_BYTES)
            .saturating_mul(PAGE_BYTES);
        self.asked = end;
        Some(start..end)
    }

    /// Whether a range is kept. If so, makes it the last to be released.
    pub fn touch(&mut self, range: &Range<u64>) -> bool {
        let is_within = |&(start, end): &(u64, u64)| start <= range.start && range.end <= end;
        let kept = self.kept.get_mut(..self.count).unwrap_or_default();
        let Some(nth) = kept.iter().rposition(is_within) else { return false };
        if let Some(rest) = kept.get_mut(nth..) {
            rest.rotate_left(1);
        }
        true
    }

    /// Keeps a range that reads brought in. Returns the oldest range if there is no room for both.
    #[must_use]
    pub fn keep(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        let oldest = if self.count == KEPT_RANGES_MAX { self.take_oldest() } else { None };
        if let Some(free) = self.kept.get_mut(self.count) {
            *free = (range.start, range.end);
            self.count += 1;
            self.bytes = self.bytes.saturating_add(range.end.saturating_sub(range.start));
        }
        oldest
    }

    /// Removes and returns the oldest range if more is kept than allowed.
    pub fn take_surplus(&mut self) -> Option<Range<u64>> {
        if self.bytes > KEPT_BYTES_MAX && self.count > 1 { self.take_oldest() } else { None }
    }

    /// Removes and returns the oldest kept range.
    pub fn take_oldest(&mut self) -> Option<Range<u64>> {
        let kept = self.kept.get_mut(..self.count).filter(|kept| !kept.is_empty())?;
        kept.rotate_left(1);
        self.count -= 1;
        let &mut (start, end) = self.kept.get_mut(self.count)?;
        self.bytes = self.bytes.saturating_sub(end.saturating_sub(start));
        Some(start..end)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn the_pages_read_last_are_kept() {
        let mut reads = ScatteredReads::new();
        let range = |nth: u64| nth * 100..nth * 100 + 10;
        for nth in 0..KEPT_RANGES_MAX as u64 {
            assert_eq!(reads.keep(&range(nth)), None);
        }
        assert!(reads.touch(&(2..5)) && !reads.touch(&(5..11)) && !reads.touch(&(50..60)));
        assert_eq!(reads.keep(&range(1000)), Some(range(1)));
        assert_eq!(reads.take_surplus(), None);
        assert_eq!(reads.keep(&(0..KEPT_BYTES_MAX)), Some(range(2)));
        let mut surplus = 0;
        while reads.take_surplus().is_some() {
            surplus += 1;
        }
        assert_eq!(surplus, KEPT_RANGES_MAX - 1);
        assert_eq!(
            (reads.take_oldest(), reads.take_oldest(), reads.bytes),
            (Some(0..KEPT_BYTES_MAX), None, 0)
        );
    }

    /// A long read counts as in order, after a read of the file's end or between jumps.
    #[test]
    fn few_jumps_are_not_scattered() {
        let mut reads = ScatteredReads::new();
        for at in [300, 0, 100, 0, 200, 0, 100, 0_u64] {
            assert!(!reads.begin_read(at << 20, 2 * LONG_RUN_BYTES));
            reads.end_read((at << 20) + 2 * LONG_RUN_BYTES);
        }
    }

    #[test]
    fn longer_pieces_are_requested_in_larger_parts() {
        let mut reads = ScatteredReads::new();
        for at in 1..10 {
            assert_eq!(reads.begin_read(at << 30, 4096), at >= 3);
            reads.end_read((at << 30) + 4096);
        }
        let (mut at, mut parts) = (1 << 40, Vec::new());
        while reads.begin_read(at, 4096) {
            parts.extend(reads.bring_in(at, 4096, u64::MAX));
            at += 4096;
            reads.end_read(at);
        }
        assert!(parts.len() < 20 && parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
        assert!(at - (1 << 40) < LONG_RUN_BYTES && parts.last().is_some_and(|part| part.end >= at));
    }

    #[test]
    fn random_positions_are_handled() {
        let odd = [0, 1, 4095, i64::MAX as u64 - 1, i64::MAX as u64, u64::MAX];
        let mut reads = ScatteredReads::new();
        for _ in 0..3 {
            for at in odd {
                for length in odd {
                    for size in odd {
                        reads.begin_read(at, length);
                        if let Some(range) = reads.bring_in(at, length, size) {
                            let _ = reads.keep(&range);
                        }
                        reads.take_surplus();
                        reads.end_read(at.saturating_add(length));
                    }
                }
            }
        }
    }
}

//! The position of output at the file offset, without a query of the offset for each write.
//!
//! Invariant: bytes are placed once, and end at the queried offset.

use core::ops::Range;

/// Bytes in small writes after which the file offset is queried.
const OFFSET_CHECK_BYTES: u64 = 64 << 10;

/// The bytes written at the file offset since it was queried.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputOffset {
    /// The offset when it was queried last.
    known: Option<u64>,
    unplaced: u64,
}

impl OutputOffset {
    /// Returns the state before the first write.
    pub const fn new() -> Self {
        Self { known: None, unplaced: 0 }
    }

    /// Records that `done` bytes were written. Returns whether the offset is to be queried now.
    pub const fn wrote(&mut self, done: u64) -> bool {
        self.unplaced = self.unplaced.saturating_add(done);
        self.known.is_none() || self.unplaced >= OFFSET_CHECK_BYTES
    }

    /// Records the offset of a file that is also read or written by calls that were not seen.
    /// Returns the bytes that were passed since the last query, or since the file was opened.
    ///
    /// ```
    /// use pagekeeper_policy::output_offset::OutputOffset;
    ///
    /// let mut output = OutputOffset::new();
    /// assert_eq!((output.passed(1000), output.passed(1500), output.passed(70)), (0..1000, 1000..1500, 70..70));
    /// ```
    pub fn passed(&mut self, end: u64) -> Range<u64> {
        self.unplaced = 0;
        self.known.replace(end).unwrap_or(0).min(end)..end
    }

    /// Whether there are bytes whose position is not known.
    pub const fn is_due(&self) -> bool {
        self.unplaced > 0
    }

    /// Records the offset, and returns the range of the bytes. If the program moved the offset
    /// meanwhile, only the `last` bytes are known to end there. If `last` is 0, the last write is
    /// long ago, and all bytes are assumed to end there.
    ///
    /// ```
    /// use pagekeeper_policy::output_offset::OutputOffset;
    ///
    /// let mut output = OutputOffset::new();
    /// assert!(output.wrote(100));
    /// assert_eq!(output.placed(1100, 100), 1000..1100);
    /// assert!(!output.wrote(50) && !output.wrote(50));
    /// assert_eq!(output.placed(1200, 0), 1100..1200);
    /// // The program moved it.
    /// assert!(!output.wrote(50) && output.wrote(64 << 10));
    /// assert_eq!(output.placed(1 << 20, 64 << 10), (1 << 20) - (64 << 10)..1 << 20);
    /// ```
    pub fn placed(&mut self, end: u64, last: u64) -> Range<u64> {
        let unplaced = core::mem::take(&mut self.unplaced);
        let expected = self.known.replace(end).map(|known| known.saturating_add(unplaced));
        let length = if expected == Some(end) || last == 0 { unplaced } else { last };
        end.saturating_sub(length)..end
    }
}

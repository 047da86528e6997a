//! The pages of one file that streams brought in: which of them may be released, and when.

use std::ops::Range;
use std::time::Duration;

/// What became of a range that was tried to be released, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReleaseOutcome {
    /// Released.
    pub released: u64,
    /// Were not resident any more before.
    pub gone: u64,
    /// Still resident.
    pub stays: u64,
}

/// Bytes, as they add up: `added == released + handed_on + gone + resident`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Brought in by streams; a page that comes twice counts twice.
    pub added: u64,
    /// Released.
    pub released: u64,
    /// Used by others, and left to them.
    pub handed_on: u64,
    /// Dropped by the kernel or by whoever truncated or removed the file.
    pub gone: u64,
    /// Yet to be released, or given up.
    pub resident: u64,
}

/// The pages of one file that streams brought in.
#[derive(Debug, Clone, Default)]
pub struct StreamPages {
    totals: StreamTotals,
}

impl StreamPages {
    /// Takes note of pages that a stream brought in. `now` is a time since any fixed moment.
    pub fn added(&mut self, _bytes: Range<u64>, _now: Duration) {}

    /// Takes note of pages that a stream has used: read or mapped.
    pub fn used(&mut self, _bytes: Range<u64>, _now: Duration) {}

    /// Takes note of pages that another process has used: they are its own from now on.
    pub fn used_by_others(&mut self, _bytes: Range<u64>) {}

    /// The ranges that are to be released now, ascending and disjoint. `sees_use`: whether uses are seen at all. `ended`: all streams
    /// that used the file have ended.
    pub fn due(&self, _now: Duration, _sees_use: bool, _ended: bool) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// When [`Self::due`] may have more to say, if no event comes before.
    pub fn next_due(&self, _now: Duration, _sees_use: bool, _ended: bool) -> Option<Duration> {
        None
    }

    /// Takes note of what became of a range that was due.
    pub fn tried(&mut self, _bytes: Range<u64>, _outcome: ReleaseOutcome, _now: Duration) {}

    /// Gives up what is left: it stays. Returns how much that is, in bytes.
    pub fn give_up(&mut self) -> u64 {
        0
    }

    /// Whether nothing is left to be released.
    pub fn is_done(&self) -> bool {
        true
    }

    /// What became of all.
    pub fn totals(&self) -> StreamTotals {
        self.totals
    }
}

//! Reads of a file whose residency cannot be seen: decides whether they are in order, and which of
//! them can be uncached.
//!
//! An uncached read drops the pages that it touched. A call that ends within a page would drop that
//! page, and the next call would read it again, with others behind it. So only calls of whole pages
//! are uncached.
//!
//! Invariant: nothing panics for any position.

use crate::streams::stream::IN_ORDER_BYTES;

/// Bytes that are read without read-ahead requests after a wait for read-ahead timed out.
const BACKOFF_BYTES: u64 = 64 << 20;

/// The state of such reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct UncachedReads {
    /// The end of the last read, and the bytes read in a row up to there.
    next: u64,
    run: u64,
    /// The offset up to which read-ahead is not asked for again.
    alone_until: u64,
    /// Whether uncached reads are not supported.
    is_plain: bool,
}

impl UncachedReads {
    /// Returns the state before the first read: all zeros.
    pub const fn new() -> Self {
        Self { next: 0, run: 0, alone_until: 0, is_plain: false }
    }

    /// Records that the next read is at `at`. Returns whether it starts elsewhere than the last
    /// one ended.
    pub fn jumps(&mut self, at: u64) -> bool {
        let jumps = at != self.next;
        if jumps {
            self.run = 0;
        }
        self.next = at;
        jumps
    }

    /// Whether reads are in order. A file that is read from its beginning is read in order.
    pub const fn are_in_order(&self) -> bool {
        self.run >= IN_ORDER_BYTES || self.next == 0
    }

    /// Whether a call of `length` bytes is uncached, with pages of `page` bytes.
    ///
    /// ```
    /// use pagekeeper_policy::uncached_reads::UncachedReads;
    ///
    /// let mut reads = UncachedReads::new();
    /// assert!(reads.are_whole(4096, 4096) && !reads.are_whole(5000, 4096) && reads.are_whole(1_000_000, 4096));
    /// reads.passed(5000);
    /// assert!(!reads.are_whole(4096, 4096), "it begins within a page");
    /// ```
    pub const fn are_whole(&self, length: u64, page: u64) -> bool {
        !self.is_plain
            && self.next.is_multiple_of(page)
            && (length.is_multiple_of(page) || length > IN_ORDER_BYTES)
    }

    /// Records that `done` bytes were read.
    pub const fn passed(&mut self, done: u64) {
        self.next = self.next.saturating_add(done);
        self.run = self.run.saturating_add(done);
    }

    /// Returns the end of the last read.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Records that a wait for read-ahead timed out.
    pub const fn timed_out(&mut self) {
        self.alone_until = self.next.saturating_add(BACKOFF_BYTES);
    }

    /// Whether to ask for read-ahead.
    ///
    /// ```
    /// use pagekeeper_policy::uncached_reads::UncachedReads;
    ///
    /// let mut reads = UncachedReads::new();
    /// reads.timed_out();
    /// assert!(!reads.may_ask() && reads.jumps(64 << 20) && reads.may_ask());
    /// ```
    pub const fn may_ask(&self) -> bool {
        self.next >= self.alone_until
    }

    /// Records that the file system does not support uncached reads.
    pub const fn mark_refused(&mut self) {
        self.is_plain = true;
    }

    /// Whether all reads are plain.
    pub const fn is_plain(&self) -> bool {
        self.is_plain
    }
}

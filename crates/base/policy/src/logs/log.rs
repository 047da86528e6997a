//! Logs as seen by the process that writes them: finds the writer's position, and the data it wrote
//! in order, from its writes alone. [`crate::allowance`] then applies the exact rule to them.
//!
//! Invariants:
//! * Only data that the writer wrote in order is due, and only where no others' data may have been
//!   before.
//! * A file whose writer overwrites parts of pages is kept, since each released page would be read
//!   again before the write.

use core::ops::Range;

use crate::logs::allowance::align_down;
use crate::{PAGE_BYTES, WINDOW};

/// Overwritten parts of pages from which on a log is kept. Fewer may belong to a header.
const PARTIAL_OVERWRITES_MIN: u8 = 8;

/// Maximum size in bytes of a header before the first record of a file.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Bytes before the run's end that its writer may rewrite: a block that was not full.
const REWRITTEN_TAIL_BYTES: u64 = 64 << 10;

/// The current run of a log file: the data its writer wrote in order.
///
/// A write elsewhere (a header, a checkpoint) does not belong to it. Two consecutive writes
/// elsewhere start a new run, as when a ring wraps around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRun {
    /// The run's byte range.
    from: u64,
    end: u64,
    begun: bool,
    /// The end of the released part.
    released: u64,
    /// The last write outside the run.
    aside: (u64, u64),
    /// Data existed up to here before the run.
    existing: u64,
    /// Whether to detect overwritten parts of pages, and the number found.
    detects: bool,
    parts: u8,
    /// The page size in bytes.
    page: u64,
    /// Whether gaps were written by others: the log has several writers.
    shared: bool,
}

impl LogRun {
    /// Creates the run of a file of `size` bytes to which nothing was written yet. With `detects`,
    /// overwritten parts of pages are counted. With `shared`, gaps between writes count as written
    /// by others. Otherwise a new run begins after a gap of more than a window, or of more than a
    /// page where data existed before.
    pub const fn new(size: u64, detects: bool, shared: bool) -> Self {
        Self {
            from: 0,
            end: 0,
            begun: false,
            released: 0,
            aside: (u64::MAX, u64::MAX),
            existing: size,
            detects,
            parts: 0,
            page: PAGE_BYTES,
            shared,
        }
    }

    /// Sets the kernel's page size in bytes; the default is 4096.
    #[must_use]
    pub const fn on_pages_of(self, page: u64) -> Self {
        Self { page, ..self }
    }

    /// Returns the run of the same file for its next writer, which has not written to it yet.
    ///
    /// ```
    /// use pagekeeper_policy::{WINDOW, log::LogRun};
    ///
    /// let mut run = LogRun::new(0, true, false);
    /// run.wrote(0..3 * WINDOW + 100);
    /// assert_eq!(run.for_next_writer().left(), None);
    /// ```
    #[must_use]
    pub fn for_next_writer(&self) -> Self {
        let existing = self.existing.max(self.end);
        Self { parts: self.parts, page: self.page, ..Self::new(existing, self.detects, self.shared) }
    }

    /// Returns the end of the run in bytes.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Whether the writer overwrites parts of pages.
    pub const fn overwrites_parts(&self) -> bool {
        self.parts >= PARTIAL_OVERWRITES_MIN
    }

    /// Records that the writer wrote these bytes. If it left a run for a new one, returns the old
    /// run: all of it may be released once it is written back.
    ///
    /// ```
    /// use pagekeeper_policy::{WINDOW, log::LogRun};
    ///
    /// let mut run = LogRun::new(0, true, false);
    /// run.wrote(0..3 * WINDOW + 100);
    /// assert_eq!(run.due(run.end()), Some(0..3 * WINDOW));
    /// ```
    pub fn wrote(&mut self, written: Range<u64>) -> Option<Range<u64>> {
        if written.start >= written.end {
            return None;
        }
        let mut left = None;
        if !self.begun {
            self.begin(written.clone());
        } else if self.goes_on(&written) {
            self.end = self.end.max(written.end);
        } else if self.aside.0 < written.start && written.start <= self.aside.1 {
            left = self.left();
            self.existing = self.existing.max(self.end);
            let start = self.aside.0;
            self.begin(start..written.end);
        } else {
            self.aside = (written.start, written.end);
            return None;
        }
        let in_parts = !written.start.is_multiple_of(self.page)
            || (!written.end.is_multiple_of(self.page) && written.end < self.existing);
        if self.detects && in_parts && written.start < self.existing {
            self.parts = self.parts.saturating_add(1);
        }
        left
    }

    fn begin(&mut self, written: Range<u64>) {
        // The first window may hold others' data unless the run covers it from its start; a header
        // before the first record may be missing.
        let aligned = align_down(written.start);
        let is_whole =
            written.start - aligned <= HEADER_BYTES_MAX || written.start >= self.existing || self.shared;
        self.from = if is_whole { aligned } else { aligned.saturating_add(WINDOW) };
        self.begun = true;
        if !self.overwrites_parts() {
            self.parts = 0;
        }
        self.released = self.from;
        self.end = written.end;
        self.aside = (u64::MAX, u64::MAX);
    }

    fn goes_on(&self, written: &Range<u64>) -> bool {
        if written.start <= self.end {
            self.end - written.start <= REWRITTEN_TAIL_BYTES
        } else {
            // Existing data may be others', and others may read its pages.
            let gap = if written.start > self.existing { WINDOW } else { self.page };
            self.shared || written.start - self.end <= gap
        }
    }

    /// Returns the part of the run to release if its pages up to `limit` may go
    /// ([`crate::allowance::ReleaseAllowance::limit`]): at least one window that was not released
    /// before, plus the window before it again. Report the release by [`LogRun::release`].
    pub fn due(&self, limit: u64) -> Option<Range<u64>> {
        let limit = align_down(limit.min(self.end));
        if self.overwrites_parts() || limit < self.released.saturating_add(WINDOW) {
            return None;
        }
        Some(self.released.saturating_sub(WINDOW).max(self.from)..limit)
    }

    /// Records that the run was released up to `to`.
    pub fn release(&mut self, to: u64) {
        self.released = self.released.max(to);
    }

    /// Returns the whole run, for use after its writer is gone. The range extends to `u64::MAX` if
    /// the run reaches the end of the file.
    pub fn left(&self) -> Option<Range<u64>> {
        if !self.begun || self.overwrites_parts() || self.end <= self.from {
            return None;
        }
        let end = if self.end >= self.existing { u64::MAX } else { align_down(self.end) };
        (self.from < end).then_some(self.from..end)
    }

    /// Records that the file was truncated or extended to `size` bytes.
    pub fn truncated(&mut self, size: u64) {
        self.existing = self.existing.min(size);
        if self.begun && size < self.end {
            *self = Self {
                parts: self.parts,
                page: self.page,
                ..Self::new(self.existing, self.detects, self.shared)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::allowance::behind_writer;

    #[test]
    fn an_appended_log_goes_but_for_its_last_window() {
        let mut run = LogRun::new(0, true, false);
        for at in (0..5 * WINDOW).step_by(100_000) {
            assert_eq!(run.wrote(at..at + 100_000), None);
        }
        let end = run.end();
        assert_eq!(run.due(behind_writer(end, WINDOW)), Some(0..4 * WINDOW));
        run.release(4 * WINDOW);
        assert_eq!(run.due(behind_writer(end, WINDOW)), None);
        assert_eq!(run.due(u64::MAX), Some(3 * WINDOW..5 * WINDOW));
        run.release(5 * WINDOW);
        assert_eq!(run.due(u64::MAX), None);
        assert_eq!(run.left(), Some(0..u64::MAX));
    }

    #[test]
    fn a_log_that_was_there_is_appended_to() {
        let mut run = LogRun::new(10 * WINDOW + 100, true, false);
        for at in (10 * WINDOW + 100..12 * WINDOW).step_by(100) {
            run.wrote(at..at + 100);
        }
        assert!(!run.overwrites_parts());
        assert_eq!(run.due(u64::MAX), Some(10 * WINDOW..12 * WINDOW));
    }

    #[test]
    fn blocks_of_8_kib_are_parts_of_larger_pages() {
        for (page, in_parts) in [(4096, false), (8192, false), (16384, true), (65536, true)] {
            let mut run = LogRun::new(10 * WINDOW, true, true).on_pages_of(page);
            for at in 0..100 {
                run.wrote(at * 8192..at * 8192 + 8192);
                run = if at == 50 { run.for_next_writer() } else { run };
            }
            assert_eq!(run.overwrites_parts(), in_parts, "{page}");
        }
    }

    #[test]
    fn a_recycled_log_is_kept_if_parts_of_its_pages_are_overwritten() {
        let mut parts = LogRun::new(10 * WINDOW, true, true);
        let mut pages = LogRun::new(10 * WINDOW, true, true);
        let mut by_rule = LogRun::new(10 * WINDOW, false, true);
        for at in 0..4 * WINDOW / 8192 {
            parts.wrote(at * 8000..at * 8000 + 8000);
            pages.wrote(at * 8192..at * 8192 + 8192);
            by_rule.wrote(at * 8000..at * 8000 + 8000);
        }
        assert!(parts.overwrites_parts() && parts.due(u64::MAX).is_none() && parts.left().is_none());
        assert_eq!(pages.due(u64::MAX), Some(0..4 * WINDOW));
        assert_eq!(pages.left(), Some(0..4 * WINDOW), "earlier pages are not the run's");
        assert_eq!(by_rule.due(u64::MAX), Some(0..3 * WINDOW));
    }

    #[test]
    fn a_ring_goes_each_time_around_and_its_header_is_left_alone() {
        let mut run = LogRun::new(0, true, false);
        let mut left = Vec::new();
        for _ in 0..3 {
            for at in (8192..4 * WINDOW).step_by(8192) {
                left.extend(run.wrote(at..at + 8192));
                if at % (1 << 20) == 0 {
                    // Two checkpoint locations.
                    assert_eq!(run.wrote(512..1024), None);
                    assert_eq!(run.wrote(1536..2048), None);
                }
            }
            assert_eq!(run.due(u64::MAX), Some(0..4 * WINDOW));
        }
        assert_eq!(left, [0..u64::MAX, 0..u64::MAX]);
    }

    #[test]
    fn random_writes_are_no_log() {
        let mut run = LogRun::new(1 << 30, true, false);
        for at in [700, 3, 9000, 10, 200_000, 77] {
            assert_eq!(run.wrote(at * 8192..at * 8192 + 8192), None);
            assert_eq!(run.due(u64::MAX), None);
        }
        assert_eq!(run.left(), None);
    }

    #[test]
    fn a_file_that_is_written_here_and_there_is_no_log() {
        // Ordered writes as of a checkpoint: the data between them is not the writer's.
        let mut run = LogRun::new(1 << 30, false, false);
        for at in (0..1 << 30).step_by(1 << 20) {
            assert_eq!(run.wrote(at..at + 8192), None);
            assert_eq!((run.due(u64::MAX), run.left()), (None, None), "{at}");
        }
        // Past the end there was no data.
        let mut run = LogRun::new(WINDOW, false, false);
        for at in (WINDOW..9 * WINDOW).step_by(1 << 20) {
            run.wrote(at..at + 8192);
        }
        assert_eq!(run.due(u64::MAX), Some(WINDOW..8 * WINDOW));
    }

    #[test]
    fn a_truncated_log_starts_again() {
        let mut run = LogRun::new(0, true, false);
        run.wrote(0..5 * WINDOW);
        run.truncated(9 * WINDOW);
        assert_eq!(run.due(u64::MAX), Some(0..5 * WINDOW));
        run.truncated(WINDOW);
        assert_eq!((run.due(u64::MAX), run.left()), (None, None));
        run.wrote(WINDOW..4 * WINDOW);
        assert_eq!(run.due(u64::MAX), Some(WINDOW..4 * WINDOW));
    }
}

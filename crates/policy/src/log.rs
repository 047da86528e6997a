//! Logs, as the process sees them that writes them: from the writes alone, where the writer is and what it wrote in order. That
//! known, the exact rule is for it: what may go is [`crate::allowance`]'s to say.
//!
//! Invariants: nothing is due that the writer did not write in order, or that others may have had there before; a file whose writer
//! overwrites parts of pages is kept: each released page would be read again before it is written.

use core::ops::Range;

use crate::WINDOW;
use crate::allowance::align_down;

/// The size of a page, in bytes, unless another is given: the smallest one.
const PAGE: u64 = 4096;
/// Overwritten parts of pages from which on a log is kept: a few may be a header's.
const PARTS: u8 = 8;

/// Bytes that may stand before the first record of a file.
const HEADER: u64 = 64 << 10;
/// Bytes before its end that a run's writer may write again: a block that was not full.
const AGAIN: u64 = 64 << 10;

/// What a writer has written of one file of a log, as far as it was in order: the run that it is in now.
///
/// A write elsewhere (a header, a checkpoint) is no part of it; two in a row there are a new run: a ring that has wrapped around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The run's bytes.
    from: u64,
    end: u64,
    begun: bool,
    /// Released up to here.
    released: u64,
    /// The last write elsewhere.
    aside: (u64, u64),
    /// There were bytes up to here before the run.
    existing: u64,
    /// Whether to detect overwritten parts of pages, and how many were.
    detects: bool,
    parts: u8,
    /// The size of a page, in bytes.
    page: u64,
    /// Whether a gap is others' writing: a log with several writers.
    shared: bool,
}

impl Run {
    /// Nothing written yet of a file of `size` bytes. With `detects`, overwritten parts of pages are counted. With `shared`, what
    /// a write leaves out was written by others; else a gap of more than a window begins a new run, and one of more than a page where there were
    /// bytes before.
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
            page: PAGE,
            shared,
        }
    }

    /// The same on a kernel whose pages have so many bytes; without this it is 4096.
    #[must_use]
    pub const fn on_pages_of(self, page: u64) -> Self {
        Self { page, ..self }
    }

    /// The same file, of which nothing was written yet by who goes on with it.
    ///
    /// ```
    /// use pagekeeper_policy::{WINDOW, log::Run};
    ///
    /// let mut run = Run::new(0, true, false);
    /// run.wrote(0..3 * WINDOW + 100);
    /// assert_eq!(run.forgotten().left(), None);
    /// ```
    #[must_use]
    pub fn forgotten(&self) -> Self {
        let existing = self.existing.max(self.end);
        Self { parts: self.parts, page: self.page, ..Self::new(existing, self.detects, self.shared) }
    }

    /// Where it ends, in bytes.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Whether parts of pages are overwritten.
    pub const fn overwrites_parts(&self) -> bool {
        self.parts >= PARTS
    }

    /// The writer wrote these bytes. What is returned is the run that it has left for another: all of it may go, once it is written.
    ///
    /// ```
    /// use pagekeeper_policy::{WINDOW, log::Run};
    ///
    /// let mut run = Run::new(0, true, false);
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
        // A window that the run is not in from its start on may be others', but for a header before the first record.
        let aligned = align_down(written.start);
        let is_whole = written.start - aligned <= HEADER || written.start >= self.existing || self.shared;
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
            self.end - written.start <= AGAIN
        } else {
            // What was there before may be others': pages that somebody else reads.
            let gap = if written.start > self.existing { WINDOW } else { self.page };
            self.shared || written.start - self.end <= gap
        }
    }

    /// What of the run is to go, if its pages up to `limit` may ([`crate::allowance::Allowance::limit`]): at least a window that has not
    /// gone yet, and the one before it again. [`Run::release`] says that it went.
    pub fn due(&self, limit: u64) -> Option<Range<u64>> {
        let limit = align_down(limit.min(self.end));
        if self.overwrites_parts() || limit < self.released.saturating_add(WINDOW) {
            return None;
        }
        Some(self.released.saturating_sub(WINDOW).max(self.from)..limit)
    }

    /// The run has gone up to there.
    pub fn release(&mut self, to: u64) {
        self.released = self.released.max(to);
    }

    /// All of the run, once its writer is gone: to the end of the file (`u64::MAX`), if it reaches there.
    pub fn left(&self) -> Option<Range<u64>> {
        if !self.begun || self.overwrites_parts() || self.end <= self.from {
            return None;
        }
        let end = if self.end >= self.existing { u64::MAX } else { align_down(self.end) };
        (self.from < end).then_some(self.from..end)
    }

    /// The file was truncated or lengthened to `size` bytes.
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
    use crate::allowance::behind_writer;

    const W: u64 = WINDOW;

    #[test]
    fn an_appended_log_goes_but_for_its_last_window() {
        let mut run = Run::new(0, true, false);
        for at in (0..5 * W).step_by(100_000) {
            assert_eq!(run.wrote(at..at + 100_000), None);
        }
        let end = run.end();
        assert_eq!(run.due(behind_writer(end, W)), Some(0..4 * W));
        run.release(4 * W);
        assert_eq!(run.due(behind_writer(end, W)), None);
        assert_eq!(run.due(u64::MAX), Some(3 * W..5 * W));
        run.release(5 * W);
        assert_eq!(run.due(u64::MAX), None);
        assert_eq!(run.left(), Some(0..u64::MAX));
    }

    #[test]
    fn a_log_that_was_there_is_appended_to() {
        let mut run = Run::new(10 * W + 100, true, false);
        for at in (10 * W + 100..12 * W).step_by(100) {
            run.wrote(at..at + 100);
        }
        assert!(!run.overwrites_parts());
        assert_eq!(run.due(u64::MAX), Some(10 * W..12 * W));
    }

    #[test]
    fn blocks_of_8_kib_are_parts_of_larger_pages() {
        for (page, in_parts) in [(4096, false), (8192, false), (16384, true), (65536, true)] {
            let mut run = Run::new(10 * W, true, true).on_pages_of(page);
            for at in 0..100 {
                run.wrote(at * 8192..at * 8192 + 8192);
                run = if at == 50 { run.forgotten() } else { run };
            }
            assert_eq!(run.overwrites_parts(), in_parts, "{page}");
        }
    }

    #[test]
    fn a_recycled_log_is_kept_if_parts_of_its_pages_are_overwritten() {
        let mut parts = Run::new(10 * W, true, true);
        let mut pages = Run::new(10 * W, true, true);
        let mut by_rule = Run::new(10 * W, false, true);
        for at in 0..4 * W / 8192 {
            parts.wrote(at * 8000..at * 8000 + 8000);
            pages.wrote(at * 8192..at * 8192 + 8192);
            by_rule.wrote(at * 8000..at * 8000 + 8000);
        }
        assert!(parts.overwrites_parts() && parts.due(u64::MAX).is_none() && parts.left().is_none());
        assert_eq!(pages.due(u64::MAX), Some(0..4 * W));
        assert_eq!(pages.left(), Some(0..4 * W), "what was there before is not the run's");
        assert_eq!(by_rule.due(u64::MAX), Some(0..3 * W));
    }

    #[test]
    fn a_ring_goes_each_time_around_and_its_header_is_left_alone() {
        let mut run = Run::new(0, true, false);
        let mut left = Vec::new();
        for _ in 0..3 {
            for at in (8192..4 * W).step_by(8192) {
                left.extend(run.wrote(at..at + 8192));
                if at % (1 << 20) == 0 {
                    // Two checkpoints' places.
                    assert_eq!(run.wrote(512..1024), None);
                    assert_eq!(run.wrote(1536..2048), None);
                }
            }
            assert_eq!(run.due(u64::MAX), Some(0..4 * W));
        }
        assert_eq!(left, [0..u64::MAX, 0..u64::MAX]);
    }

    #[test]
    fn random_writes_are_no_log() {
        let mut run = Run::new(1 << 30, true, false);
        for at in [700, 3, 9000, 10, 200_000, 77] {
            assert_eq!(run.wrote(at * 8192..at * 8192 + 8192), None);
            assert_eq!(run.due(u64::MAX), None);
        }
        assert_eq!(run.left(), None);
    }

    #[test]
    fn a_file_that_is_written_here_and_there_is_no_log() {
        // As by a checkpoint, in order: what lies between is not the writer's.
        let mut run = Run::new(1 << 30, false, false);
        for at in (0..1 << 30).step_by(1 << 20) {
            assert_eq!(run.wrote(at..at + 8192), None);
            assert_eq!((run.due(u64::MAX), run.left()), (None, None), "{at}");
        }
        // Past the end nothing was there.
        let mut run = Run::new(W, false, false);
        for at in (W..9 * W).step_by(1 << 20) {
            run.wrote(at..at + 8192);
        }
        assert_eq!(run.due(u64::MAX), Some(W..8 * W));
    }

    #[test]
    fn a_log_that_was_truncated_begins_anew() {
        let mut run = Run::new(0, true, false);
        run.wrote(0..5 * W);
        run.truncated(9 * W);
        assert_eq!(run.due(u64::MAX), Some(0..5 * W));
        run.truncated(W);
        assert_eq!((run.due(u64::MAX), run.left()), (None, None));
        run.wrote(W..4 * W);
        assert_eq!(run.due(u64::MAX), Some(W..4 * W));
    }
}

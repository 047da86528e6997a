//! The positions in a file at which streams continue.

use std::ops::Range;
use std::time::Duration;

use super::WINDOW_PAGES;
use crate::{PAGE_BYTES, READ_AHEAD, WINDOW};

/// Positions remembered per file: as many as programs have readers at work on one file. Beyond
/// this, the position that has rested longest is forgotten.
const POSITIONS_MAX: usize = 16;

/// One position, as a page number, and its newest event.
#[derive(Debug, Clone, Copy)]
struct StreamPosition {
    end: u64,
    at: Duration,
}

/// The positions at which streams continue, newest first.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamPositions {
    newest_first: Vec<StreamPosition>,
}

impl StreamPositions {
    /// Moves the position that `pages` continue to their end, or adds a new one. Events of several
    /// processors may be out of order, so `pages` may start up to a window before the position, or
    /// a read-ahead behind it.
    pub(super) fn record(&mut self, pages: &Range<u64>, now: Duration) {
        let continues = |position: &StreamPosition| {
            pages.start >= position.end.saturating_sub(WINDOW / PAGE_BYTES)
                && pages.start <= position.end.saturating_add(READ_AHEAD / PAGE_BYTES)
        };
        if let Some(found) = self.newest_first.iter().position(continues) {
            self.newest_first[..=found].rotate_right(1);
            let newest = &mut self.newest_first[0];
            newest.end = newest.end.max(pages.end);
            newest.at = now;
        } else {
            self.newest_first.truncate(POSITIONS_MAX - 1);
            self.newest_first.insert(0, StreamPosition { end: pages.end, at: now });
        }
    }

    /// Whether no event has come yet.
    pub(super) fn is_empty(&self) -> bool {
        self.newest_first.is_empty()
    }

    /// Returns the newest event of a position that has a window less than `behind` bytes before it,
    /// or less than `ahead` bytes after it.
    pub(super) fn newest_near(&self, window: u64, behind: u64, ahead: u64) -> Option<Duration> {
        let first = window * u64::from(WINDOW_PAGES);
        let end = first + u64::from(WINDOW_PAGES);
        let near = |position: &&StreamPosition| {
            end > position.end.saturating_sub(behind / PAGE_BYTES)
                && first < position.end.saturating_add(ahead / PAGE_BYTES)
        };
        self.newest_first.iter().find(near).map(|position| position.at)
    }
}

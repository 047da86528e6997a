//! Removed files that some process still has open: decides how much of one may be released.
//!
//! Nothing of a file that was changed in the last [`QUIET_AFTER`] may go, and nothing at or behind
//! the position of a reader. Pages that resist are left after `RELEASE_TRIES_MAX` attempts.

use std::time::{Duration, Instant};

use crate::WINDOW;

/// A file that was not changed for this long is not being written any more.
pub const QUIET_AFTER: Duration = Duration::from_secs(5);
/// Number of attempts after which pages that stay are left.
const RELEASE_TRIES_MAX: u32 = 3;

/// The state of a file in a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedFileStat {
    /// In bytes.
    pub size: u64,
    /// The times of its last change of content and of its status, in seconds and nanoseconds.
    pub changed: [i64; 4],
    /// The lowest position of a reader: only pages before it may go.
    pub readers: Option<u64>,
}

/// The remembered state of a file.
#[derive(Debug, Clone)]
pub struct RemovedFileState {
    size: u64,
    changed: [i64; 4],
    since: Instant,
    /// The end of what was released, or given up.
    pub released_to: u64,
    tries: u32,
}

impl RemovedFileState {
    /// Returns the state of a file that was first seen so.
    pub fn new(seen: &RemovedFileStat, now: Instant) -> Self {
        Self { size: seen.size, changed: seen.changed, since: now, released_to: 0, tries: 0 }
    }

    /// Records the state of the file. Returns whether it has changed, or is another file with the
    /// same inode number.
    pub fn see(&mut self, seen: &RemovedFileStat, now: Instant) -> bool {
        let has_changed = (self.size, self.changed) != (seen.size, seen.changed);
        if has_changed {
            *self = Self::new(seen, now);
        }
        has_changed
    }

    /// Returns up to where the file may be released now, if anywhere; `u64::MAX` for all of it.
    pub fn end(&self, seen: &RemovedFileStat, quiet: Duration, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) < quiet {
            return None;
        }
        let end = match seen.readers {
            Some(at) if at < seen.size => at / WINDOW * WINDOW,
            _ => u64::MAX,
        };
        (end > self.released_to).then_some(end)
    }

    /// Records that it was released up to `end`, or that the release was not complete. Returns
    /// whether it is given up.
    pub fn released(&mut self, end: u64, is_done: bool) -> bool {
        self.tries += 1;
        let is_left = self.tries >= RELEASE_TRIES_MAX;
        if is_done || is_left {
            (self.released_to, self.tries) = (end, 0);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(size: u64, readers: Option<u64>) -> RemovedFileStat {
        RemovedFileStat { size, changed: [0; 4], readers }
    }

    #[test]
    fn pages_behind_all_readers_are_released_once_the_file_is_quiet() {
        let now = Instant::now();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        let mut known = RemovedFileState::new(&seen(0, None), now);
        let mut end = |seen: &RemovedFileStat, second: u64| {
            known.see(seen, at(second));
            known.end(seen, QUIET_AFTER, at(second))
        };
        let size = 5 * WINDOW + 7;
        // The file's size is new at first, and again when it grows.
        assert_eq!(end(&seen(size - 1, None), 0), None);
        assert_eq!(end(&seen(size, None), 4), None);
        assert_eq!(end(&seen(size, Some(0)), 8), None);
        assert_eq!(end(&seen(size, Some(0)), 9), None);
        assert_eq!(end(&seen(size, Some(WINDOW - 1)), 9), None);
        assert_eq!(end(&seen(size, Some(3 * WINDOW + 5)), 9), Some(3 * WINDOW), "whole windows");
        assert_eq!(end(&seen(size, Some(size)), 9), Some(u64::MAX), "the reader is at the end");
        assert_eq!(end(&seen(size, None), 9), Some(u64::MAX));
        // A change that leaves the size as it is.
        assert_eq!(end(&RemovedFileStat { changed: [0, 1, 0, 1], ..seen(size, None) }, 20), None);
        known.released(3 * WINDOW, true);
        let seen = |readers| RemovedFileStat { changed: [0, 1, 0, 1], ..seen(size, Some(readers)) };
        assert_eq!(known.end(&seen(3 * WINDOW), QUIET_AFTER, at(30)), None, "that has gone");
        assert_eq!(known.end(&seen(4 * WINDOW), QUIET_AFTER, at(30)), Some(4 * WINDOW));
    }

    #[test]
    fn a_file_that_resists_repeatedly_is_given_up() {
        let now = Instant::now();
        let seen = seen(9, None);
        let mut known = RemovedFileState::new(&seen, now);
        for tried in 1..=RELEASE_TRIES_MAX {
            assert_eq!(known.end(&seen, Duration::ZERO, now), Some(u64::MAX));
            assert_eq!(known.released(u64::MAX, false), tried == RELEASE_TRIES_MAX);
        }
        assert_eq!(known.end(&seen, Duration::ZERO, now), None);
    }
}

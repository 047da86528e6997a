//! The rules that say which pages are due, and when.
//!
//! If uses are seen and the file has any, used pages are due, and pages that were read ahead wait
//! for their use. Otherwise (older kernels, and files that are only written) the additions alone
//! show where streams are.

use std::ops::Range;
use std::time::Duration;

use super::window_pages::{PageBits, WindowPages, runs};
use super::{StreamPages, WINDOW_PAGES};
use crate::{PAGE_BYTES, READ_AHEAD, WINDOW};

/// Time after its newest use for which nothing of a window is due, since a reader may be inside it.
/// This is two steps of the caller, and 20 MiB of a reader at 1 GB/s.
const RECENT_USE_AGE: Duration = Duration::from_millis(20);
/// Time without an event after which the used pages of the window of the newest use are due too.
/// It is longer than a reader usually waits for a disk, and short enough that a program that goes
/// from file to file leaves few of them waiting.
const IDLE_AFTER_USE: Duration = Duration::from_millis(50);
/// Time after which unused pages are due: counted from their addition, or from the newest use just
/// before them if that is later. A reader that has not come for so long is unlikely to come.
const UNUSED_AGE: Duration = Duration::from_secs(2);
/// Bytes of pages that may wait for their use, apart from those just ahead of a reader: eight of
/// the largest read-aheads.
const UNUSED_BYTES_MAX: u64 = 8 * READ_AHEAD;
/// Windows with pages that may wait for their use. Only scattered single pages reach this limit
/// before [`UNUSED_BYTES_MAX`].
const UNUSED_WINDOWS_MAX: usize = 4096;
/// Bytes behind additions within which a stream may still be if its uses are not seen: it reads one
/// of the largest read-aheads while the kernel brings in the next.
const UNSEEN_DISTANCE_BYTES: u64 = 2 * READ_AHEAD;
/// Time without additions near them after which pages are due if uses are not seen. A reader at 8
/// MiB/s takes this long for the largest read-ahead, during which nothing is added; a slower one
/// fetches it twice.
const UNSEEN_IDLE: Duration = Duration::from_secs(1);
/// Size of the largest range returned at once, in bytes. A single page that stays causes a retry of
/// the whole range, so ranges are short; they cost three system calls each.
const RANGE_BYTES_MAX: u64 = 8 * WINDOW;

/// A range to release now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRange {
    /// Its bytes, in whole pages.
    pub bytes: Range<u64>,
    /// The number of attempts that left pages of it, since the last addition to it or first use of
    /// it.
    pub attempts: u32,
    /// The time at which [`StreamPages::due`] returned it.
    pub asked: Duration,
}

/// The conditions that the rules depend on.
#[derive(Debug, Clone, Copy)]
struct DueConditions {
    now: Duration,
    /// Whether the file's uses decide what is due.
    by_use: bool,
    /// Whether all streams that used the file have ended.
    ended: bool,
}

/// Times from which on a window's pages are due.
#[derive(Debug, Clone, Copy)]
struct DueTimes {
    used: Duration,
    unused: Duration,
}

impl StreamPages {
    /// Returns the ranges to release now, ascending and disjoint. The same ranges are due again
    /// until [`Self::tried`] reports the result.
    ///
    /// `sees_use` says whether uses are seen at all, `ended` whether all streams that used the file
    /// have ended.
    ///
    /// | Pages | are due |
    /// |---|---|
    /// | used | 20 ms after the newest use of their window; in the window of the newest use once the file is idle for 50 ms |
    /// | not used yet | after 2 s, or the oldest if more than 64 MiB wait; 8 MiB ahead of a reader not before it rests for 2 s |
    /// | of files whose uses are not seen, or that have none | 16 MiB behind additions, or once nothing is added near them for 1 s |
    /// | of files whose streams have ended | at once |
    pub fn due(&self, now: Duration, sees_use: bool, ended: bool) -> Vec<DueRange> {
        let conditions = self.conditions(now, sees_use, ended);
        let too_old = self.too_many_unused(conditions);
        let mut ranges = Vec::new();
        for (index, window) in &self.windows {
            // Skips the many windows that wait for writeback.
            if window.retry_at > now {
                continue;
            }
            let times = self.due_times(*index, window, conditions);
            let unused_due = times.unused <= now
                || too_old.is_some_and(|time| {
                    window.added_at <= time && self.is_waiting(*index, window, conditions)
                });
            let bits = match (times.used <= now, unused_due) {
                (false, false) => continue,
                (true, false) => window.used(),
                (false, true) => window.unused(),
                (true, true) => window.pages(),
            };
            push_runs(&mut ranges, *index, &bits, window.attempts, now);
        }
        ranges
    }

    /// Returns when [`Self::due`] has a range to return if no event comes before; `None` if nothing
    /// is left.
    pub fn next_due(&self, now: Duration, sees_use: bool, ended: bool) -> Option<Duration> {
        let conditions = self.conditions(now, sees_use, ended);
        if self.too_many_unused(conditions).is_some() {
            return Some(now);
        }
        let first = |index, window: &WindowPages| {
            let times = self.due_times(index, window, conditions);
            let used = (window.used() != PageBits::default()).then_some(times.used);
            let unused = (window.unused() != PageBits::default()).then_some(times.unused);
            used.into_iter().chain(unused).min()
        };
        let firsts = self.windows.iter().filter_map(|(index, window)| first(*index, window));
        firsts.min().map(|time| time.max(now))
    }

    fn conditions(&self, now: Duration, sees_use: bool, ended: bool) -> DueConditions {
        DueConditions { now, by_use: sees_use && !self.uses.is_empty(), ended }
    }

    fn due_times(&self, index: u64, window: &WindowPages, conditions: DueConditions) -> DueTimes {
        let DueTimes { used, unused } = if conditions.ended {
            DueTimes { used: Duration::ZERO, unused: Duration::ZERO }
        } else if conditions.by_use {
            let used = if self.newest_use == Some(index) {
                self.last_event.saturating_add(IDLE_AFTER_USE)
            } else {
                window.used_at.saturating_add(RECENT_USE_AGE)
            };
            let reader = self.uses.newest_near(index, 0, READ_AHEAD).unwrap_or_default();
            let unused = window.added_at.max(window.used_at).max(reader).saturating_add(UNUSED_AGE);
            DueTimes { used, unused }
        } else {
            let near = self.additions.newest_near(index, UNSEEN_DISTANCE_BYTES, 0);
            let due = near.map_or(Duration::ZERO, |at| at.saturating_add(UNSEEN_IDLE));
            DueTimes { used: due, unused: due }
        };
        DueTimes { used: used.max(window.retry_at), unused: unused.max(window.retry_at) }
    }

    /// Whether pages of a window wait for their use. They do not if a reader is in the window or
    /// shortly before it, or if an attempt was made.
    fn is_waiting(&self, index: u64, window: &WindowPages, conditions: DueConditions) -> bool {
        let since = |time: Duration| conditions.now.saturating_sub(time);
        window.attempts == 0
            && since(window.used_at) >= RECENT_USE_AGE
            && self.uses.newest_near(index, 0, READ_AHEAD).is_none_or(|at| since(at) >= UNUSED_AGE)
            && window.unused_count() > 0
    }

    /// Returns the addition time up to which pages that wait for their use are due at once, if too
    /// many wait.
    fn too_many_unused(&self, conditions: DueConditions) -> Option<Duration> {
        if !conditions.by_use || conditions.ended {
            return None;
        }
        let mut waiting: Vec<(Duration, u32)> = self
            .windows
            .iter()
            .filter(|(index, window)| self.is_waiting(**index, window, conditions))
            .map(|(_, window)| (window.added_at, window.unused_count()))
            .collect();
        let mut pages: u64 = waiting.iter().map(|(_, unused)| u64::from(*unused)).sum();
        let mut windows = waiting.len();
        let mut too_old = None;
        if pages * PAGE_BYTES > UNUSED_BYTES_MAX || windows > UNUSED_WINDOWS_MAX {
            waiting.sort_unstable();
            for (added_at, unused) in waiting {
                if pages * PAGE_BYTES <= UNUSED_BYTES_MAX && windows <= UNUSED_WINDOWS_MAX {
                    break;
                }
                pages -= u64::from(unused);
                windows -= 1;
                too_old = Some(added_at);
            }
        }
        too_old
    }
}

/// Adds the runs of a window's pages. Joins them with the last range if they touch and have as many
/// attempts.
fn push_runs(ranges: &mut Vec<DueRange>, index: u64, bits: &PageBits, attempts: u32, now: Duration) {
    let first = index * u64::from(WINDOW_PAGES);
    for run in runs(bits) {
        let bytes = (first + u64::from(run.start)) * PAGE_BYTES
            ..(first + u64::from(run.end)).saturating_mul(PAGE_BYTES);
        match ranges.last_mut() {
            Some(last)
                if last.bytes.end == bytes.start
                    && last.attempts == attempts
                    && bytes.end - last.bytes.start <= RANGE_BYTES_MAX =>
            {
                last.bytes.end = bytes.end;
            }
            _ => ranges.push(DueRange { bytes, attempts, asked: now }),
        }
    }
}

//! The pages of one file that streams brought in: decides which of them may be released, and when.
//! Kernel events name each page that a stream adds to the page cache and, on kernels that have such
//! events, each page that somebody uses. [`StreamPages`] keeps the pages as bits in windows of 2
//! MiB ([`WINDOW`]). The kernel's folios are aligned and at most as large as a window, so pages of
//! a window that are released together are whole folios.
//!
//! # Invariants
//!
//! A page that no stream added is never due. A page that others used is not due until a stream adds
//! it again. The page at a reader's or writer's position is not due while it continues.
//! `added == released + handed_on + gone + resident` at all times.
//!
//! # Cost
//!
//! An event costs O(log n) in the number of windows, plus a few instructions for each window that
//! it touches. [`StreamPages::due`] looks at each window once. At most [`STREAM_WINDOWS_MAX`]
//! windows are kept.

mod due;
mod positions;
mod unwritten;
mod window_pages;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

pub use due::DueRange;
pub use unwritten::UnwrittenPages;

use crate::{PAGE_BYTES, WINDOW};
use positions::StreamPositions;
use window_pages::{WINDOW_PAGES, WindowPages, count, difference, mask};

/// Windows kept per file: 128 GiB of it if it is read in order, 14 MB of memory. The oldest are
/// given up beyond this.
pub const STREAM_WINDOWS_MAX: usize = 65_536;
/// Windows given up at once, so that the search for the oldest is rare.
const GIVE_UP_BATCH_WINDOWS: usize = STREAM_WINDOWS_MAX / 16;
/// Pause after the first attempt that leaves pages; each further pause is twice as long. This is
/// two steps of the caller, after which pages that were in flight or locked are free.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause between two attempts. Pages that wait for a slow disk then cost next to nothing,
/// and are still released within a second of their writeback.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The result of an attempt to release a range, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReleaseOutcome {
    /// Released.
    pub released: u64,
    /// Not resident before the attempt.
    pub gone: u64,
    /// Still resident.
    pub stays: u64,
}

/// Sums of a file's pages, in bytes: `added == released + handed_on + gone + resident`.
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
///
/// Times count from any fixed moment, and never go back. Bytes are whole pages; a part of a page
/// counts as the page.
///
/// ```
/// use pagekeeper_policy::stream_pages::{ReleaseOutcome, StreamPages};
/// use std::time::Duration;
///
/// let at = Duration::from_millis;
/// let mut pages = StreamPages::default();
/// pages.added(0..1 << 20, at(0));
/// pages.used(0..65_536, at(1));
/// assert!(pages.due(at(10), true, false).is_empty());
///
/// // The reader pauses: the pages that it has read go, those ahead of it stay.
/// let due = pages.due(at(51), true, false);
/// assert_eq!(due.len(), 1);
/// assert_eq!(due[0].bytes, 0..65_536);
/// pages.tried(&due[0], ReleaseOutcome { released: 65_536, gone: 0, stays: 0 }, at(52));
///
/// assert_eq!(pages.totals().released, 65_536);
/// assert_eq!(pages.totals().resident, (1 << 20) - 65_536);
/// ```
#[derive(Debug, Clone, Default)]
pub struct StreamPages {
    /// The windows that hold pages, by their number in the file. Boxed, since most files have one
    /// window, and a map node has room for eleven.
    windows: BTreeMap<u64, Box<WindowPages>>,
    /// The positions at which streams add pages.
    additions: StreamPositions,
    /// The positions at which streams use pages.
    uses: StreamPositions,
    /// The window of the newest use.
    newest_use: Option<u64>,
    /// The newest addition or use.
    last_event: Duration,
    added: u64,
    released: u64,
    handed_on: u64,
    gone: u64,
}

impl StreamPages {
    /// Records pages that a stream brought in at `now`. If a page is still listed, the kernel has
    /// dropped it meanwhile: it counts as gone once and added once more.
    pub fn added(&mut self, bytes: Range<u64>, now: Duration) {
        let pages = pages_of(&bytes);
        if pages.is_empty() {
            return;
        }
        self.last_event = now;
        self.additions.record(&pages, now);
        self.added = self.added.saturating_add((pages.end - pages.start).saturating_mul(PAGE_BYTES));
        // In a range larger than all windows that are kept, the start would be given up at once.
        let from =
            pages.start.max(pages.end.saturating_sub(STREAM_WINDOWS_MAX as u64 * u64::from(WINDOW_PAGES)));
        for (index, part) in parts(&(from..pages.end)) {
            let again = self.windows.entry(index).or_default().add(&mask(part), now);
            self.gone += u64::from(again) * PAGE_BYTES;
            if self.windows.len() > STREAM_WINDOWS_MAX {
                self.give_up_oldest();
            }
        }
    }

    /// Records resident pages that a stream must have brought in, though no event said so. Returns
    /// how many bytes of them were not listed.
    pub fn found(&mut self, bytes: Range<u64>, now: Duration) -> u64 {
        let mut found = 0;
        for (index, part) in parts(&pages_of(&bytes)) {
            let listed = self.windows.get(&index).map(|window| window.pages()).unwrap_or_default();
            let new = difference(&mask(part), &listed);
            if count(&new) > 0 {
                found += u64::from(count(&new)) * PAGE_BYTES;
                self.windows.entry(index).or_default().add(&new, now);
            }
            if self.windows.len() > STREAM_WINDOWS_MAX {
                self.give_up_oldest();
            }
        }
        self.added = self.added.saturating_add(found);
        found
    }

    /// Records pages that a stream read or mapped at `now`.
    pub fn used(&mut self, bytes: Range<u64>, now: Duration) {
        let pages = pages_of(&bytes);
        if pages.is_empty() {
            return;
        }
        self.last_event = now;
        self.uses.record(&pages, now);
        self.newest_use = Some((pages.end - 1) / u64::from(WINDOW_PAGES));
        for (index, window) in self.windows.range_mut(window_numbers(&pages)) {
            window.use_pages(&mask(part_of(&pages, *index)), now);
        }
    }

    /// Records pages that another process used: they no longer belong to the streams.
    pub fn used_by_others(&mut self, bytes: Range<u64>) {
        let pages = pages_of(&bytes);
        if pages.is_empty() {
            return;
        }
        let mut handed_on = 0;
        let mut empty = Vec::new();
        for (index, window) in self.windows.range_mut(window_numbers(&pages)) {
            handed_on += u64::from(window.hand_on(&mask(part_of(&pages, *index))));
            if window.is_empty() {
                empty.push(*index);
            }
        }
        self.handed_on += handed_on * PAGE_BYTES;
        self.remove(&empty);
    }

    /// Records the result of an attempt to release `range`, which [`Self::due`] returned, or a part
    /// of it. If pages stay, the range is due again after a pause: 20 ms at first, twice as long
    /// each time, up to 1 s. An addition or a first use in a window ends its pause.
    ///
    /// Windows with additions since the range was asked for are left as they are, since the attempt
    /// may have come before the addition.
    pub fn tried(&mut self, range: &DueRange, outcome: ReleaseOutcome, now: Duration) {
        let pages = pages_of(&range.bytes);
        if pages.is_empty() {
            return;
        }
        let goes = outcome.stays == 0;
        let mut stays = outcome.stays.div_ceil(PAGE_BYTES);
        let mut left = 0;
        let mut empty = Vec::new();
        // From the end: a stream's newest pages are the most likely to stay.
        for (index, window) in self.windows.range_mut(window_numbers(&pages)).rev() {
            if window.added_at > range.asked {
                continue;
            }
            let part = mask(part_of(&pages, *index));
            if goes {
                left += u64::from(window.release(&part));
                if window.is_empty() {
                    empty.push(*index);
                }
            } else {
                let kept = window.keep(&part, u32::try_from(stays).unwrap_or(u32::MAX));
                stays -= u64::from(kept.resident);
                left += u64::from(kept.left);
                window.attempts = window.attempts.saturating_add(1);
                window.retry_at = now.saturating_add(pause_after(window.attempts));
            }
        }
        let left = left * PAGE_BYTES;
        let released = outcome.released.min(left);
        self.released += released;
        self.gone += left - released;
        self.remove(&empty);
    }

    /// Gives up all remaining pages, which stay resident. Returns their size in bytes.
    pub fn give_up(&mut self) -> u64 {
        let resident: u64 = self.windows.values().map(|window| u64::from(window.resident())).sum();
        self.windows.clear();
        resident * PAGE_BYTES
    }

    /// Returns the number of windows kept.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Whether no page is left to release.
    pub fn is_done(&self) -> bool {
        self.windows.is_empty()
    }

    /// Returns the sums so far.
    pub fn totals(&self) -> StreamTotals {
        let Self { added, released, handed_on, gone, .. } = *self;
        StreamTotals { added, released, handed_on, gone, resident: added - released - handed_on - gone }
    }

    fn remove(&mut self, windows: &[u64]) {
        for index in windows {
            self.windows.remove(index);
        }
    }

    /// Gives up the windows with the oldest newest additions.
    fn give_up_oldest(&mut self) {
        let mut by_age: Vec<_> =
            self.windows.iter().map(|(index, window)| (window.added_at, *index)).collect();
        let (oldest, ..) = by_age.select_nth_unstable(GIVE_UP_BATCH_WINDOWS);
        for (_, index) in oldest {
            self.windows.remove(index);
        }
    }
}

/// Returns the pause after this many attempts that left pages.
fn pause_after(attempts: u32) -> Duration {
    let doubled = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    RETRY_PAUSE_MIN.saturating_mul(doubled).min(RETRY_PAUSE_MAX)
}

/// Returns the numbers of the pages that bytes touch.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE_BYTES..if bytes.is_empty() {
        bytes.start / PAGE_BYTES
    } else {
        bytes.end.div_ceil(PAGE_BYTES)
    }
}

/// Returns the numbers of the windows that pages touch. There is at least one page.
fn window_numbers(pages: &Range<u64>) -> std::ops::RangeInclusive<u64> {
    pages.start / u64::from(WINDOW_PAGES)..=(pages.end - 1) / u64::from(WINDOW_PAGES)
}

/// Returns the part of `pages` that lies in a window, as numbers of pages inside the window.
fn part_of(pages: &Range<u64>, window: u64) -> Range<u32> {
    let first = window * u64::from(WINDOW_PAGES);
    let inside = |page: u64| {
        u32::try_from(page.clamp(first, first + u64::from(WINDOW_PAGES)) - first)
            .expect("at most a window's pages")
    };
    inside(pages.start)..inside(pages.end)
}

/// Returns each window that pages touch, with the part that lies in it.
fn parts(pages: &Range<u64>) -> impl Iterator<Item = (u64, Range<u32>)> {
    window_numbers(pages).map(|window| (window, part_of(pages, window)))
}

/// A window's pages are those of [`WINDOW`].
const _: () = assert!(WINDOW_PAGES as u64 * PAGE_BYTES == WINDOW);

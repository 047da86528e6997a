//! The pages of one file that streams wrote and that are not known to be on disk.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::window_pages::{PageBits, count, difference, mask, runs, union};
use super::{WINDOW_PAGES, pages_of, part_of, parts, window_numbers};
use crate::PAGE_BYTES;

/// Windows kept per file. Beyond this many, which takes scattered writes over at least 8 GiB, the
/// kernel alone writes the rest.
const UNWRITTEN_WINDOWS_MAX: usize = 4096;

/// The unwritten pages of one window.
#[derive(Debug, Clone, Default)]
struct UnwrittenWindow {
    /// Dirty pages that are not in flight.
    dirty: PageBits,
    /// Pages whose writeback was requested. Pages written to since are in both sets.
    asked: PageBits,
    /// Time of the first write to a clean page.
    since: Duration,
}

impl UnwrittenWindow {
    fn pages(&self) -> u64 {
        u64::from(count(&union(&self.dirty, &self.asked)))
    }
}

/// The pages of one file that streams wrote and that are not known to be on disk.
///
/// ```
/// use pagekeeper_policy::stream_pages::UnwrittenPages;
/// use std::time::Duration;
///
/// let mut pages = UnwrittenPages::default();
/// assert_eq!(pages.dirtied(0..8192, Duration::ZERO), 8192);
/// assert_eq!(pages.dirtied(4096..12_288, Duration::ZERO), 4096);
/// assert_eq!(pages.ask(1 << 20), [0..12_288]);
///
/// // Written to while it is on its way: it stays.
/// assert_eq!(pages.dirtied(0..4096, Duration::ZERO), 0);
/// assert_eq!(pages.written(0..12_288), 8192);
/// assert_eq!(pages.bytes(), 4096);
/// ```
#[derive(Debug, Clone, Default)]
pub struct UnwrittenPages {
    windows: BTreeMap<u64, UnwrittenWindow>,
    pages: u64,
}

impl UnwrittenPages {
    /// Records a write to clean pages at `now`. Returns the bytes that became unwritten.
    pub fn dirtied(&mut self, bytes: Range<u64>, now: Duration) -> u64 {
        let pages = pages_of(&bytes);
        if pages.is_empty() {
            return 0;
        }
        let end =
            pages.end.min(pages.start.saturating_add(UNWRITTEN_WINDOWS_MAX as u64 * u64::from(WINDOW_PAGES)));
        let before = self.pages;
        for (index, part) in parts(&(pages.start..end)) {
            if self.windows.len() >= UNWRITTEN_WINDOWS_MAX && !self.windows.contains_key(&index) {
                break;
            }
            let window = self
                .windows
                .entry(index)
                .or_insert_with(|| UnwrittenWindow { since: now, ..Default::default() });
            let had = window.pages();
            window.dirty = union(&window.dirty, &mask(part));
            self.pages += window.pages() - had;
        }
        (self.pages - before) * PAGE_BYTES
    }

    /// Marks the pages of a range as in flight.
    pub fn ask_range(&mut self, bytes: &Range<u64>) {
        let pages = pages_of(bytes);
        if pages.is_empty() {
            return;
        }
        for (index, window) in self.windows.range_mut(window_numbers(&pages)) {
            let part = mask(part_of(&pages, *index));
            let dirty = difference(&window.dirty, &part);
            window.asked = union(&window.asked, &difference(&window.dirty, &dirty));
            window.dirty = dirty;
        }
    }

    /// Returns ranges that are not in flight, in file order and up to about `at_most` bytes in
    /// total, and marks them as in flight. No two of them touch.
    pub fn ask(&mut self, at_most: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut left = at_most.div_ceil(PAGE_BYTES);
        let dirty = self.windows.iter().flat_map(|(index, window)| {
            let first = index * u64::from(WINDOW_PAGES);
            runs(&window.dirty).map(move |run| first + u64::from(run.start)..first + u64::from(run.end))
        });
        for run in dirty {
            if left == 0 {
                break;
            }
            let (start, end) = (run.start * PAGE_BYTES, run.end.min(run.start + left) * PAGE_BYTES);
            left -= (end - start) / PAGE_BYTES;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        for range in &ranges {
            self.ask_range(range);
        }
        ranges
    }

    /// Records that the requested pages of a range are on disk. Returns the bytes that are no
    /// longer unwritten.
    pub fn written(&mut self, bytes: Range<u64>) -> u64 {
        let pages = pages_of(&bytes);
        if pages.is_empty() {
            return 0;
        }
        let before = self.pages;
        for (index, window) in self.windows.range_mut(window_numbers(&pages)) {
            let had = window.pages();
            window.asked = difference(&window.asked, &mask(part_of(&pages, *index)));
            self.pages -= had - window.pages();
        }
        let done = (before - self.pages) * PAGE_BYTES;
        if done > 0 {
            self.windows.retain(|_, window| window.pages() > 0);
        }
        done
    }

    /// Records that nobody writes the requested pages: they are to be requested again.
    pub fn ask_again(&mut self) {
        for window in self.windows.values_mut() {
            window.dirty = union(&window.dirty, &window.asked);
            window.asked = PageBits::default();
        }
    }

    /// Forgets everything. Returns the bytes that were unwritten.
    pub fn clear(&mut self) -> u64 {
        self.windows.clear();
        std::mem::take(&mut self.pages) * PAGE_BYTES
    }

    /// Returns the unwritten bytes.
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    /// Returns the time of the first write to a page that is not in flight.
    pub fn oldest(&self) -> Option<Duration> {
        let windows = self.windows.values().filter(|window| window.dirty != PageBits::default());
        windows.map(|window| window.since).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn pages_agree_with_a_set(
            events in proptest::collection::vec((0..4_u8, 0..1500_u64, 1..300_u64), 1..60),
        ) {
            let mut pages = UnwrittenPages::default();
            let (mut dirty, mut asked) = (BTreeSet::new(), BTreeSet::new());
            for (kind, first, length) in events {
                let (range, numbers) = (first * PAGE_BYTES..(first + length) * PAGE_BYTES, first..first + length);
                let before = pages.bytes();
                match kind {
                    0 => {
                        let more = pages.dirtied(range, Duration::ZERO);
                        prop_assert_eq!(pages.bytes() - before, more);
                        dirty.extend(numbers);
                    }
                    1 => {
                        let ranges = pages.ask(length * PAGE_BYTES);
                        let mut sum = 0;
                        prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                        for range in ranges {
                            for page in range.start / PAGE_BYTES..range.end / PAGE_BYTES {
                                prop_assert!(dirty.remove(&page));
                                asked.insert(page);
                                sum += 1;
                            }
                        }
                        prop_assert!(sum == length || (sum < length && dirty.is_empty()));
                    }
                    2 => {
                        let less = pages.written(range);
                        prop_assert_eq!(before - pages.bytes(), less);
                        asked.retain(|page| !numbers.contains(page));
                    }
                    _ => {
                        pages.ask_again();
                        dirty.append(&mut asked);
                    }
                }
                prop_assert_eq!(pages.bytes(), dirty.union(&asked).count() as u64 * PAGE_BYTES);
                prop_assert_eq!(pages.oldest().is_none(), dirty.is_empty());
            }
            prop_assert_eq!(pages.clear(), dirty.union(&asked).count() as u64 * PAGE_BYTES);
            prop_assert_eq!(pages.bytes(), 0);
        }
    }

    #[test]
    fn scattered_writes_take_bounded_memory() {
        let mut pages = UnwrittenPages::default();
        for window in 0..2 * UNWRITTEN_WINDOWS_MAX as u64 {
            pages.dirtied(window * crate::WINDOW..window * crate::WINDOW + 1, Duration::ZERO);
        }
        assert_eq!(pages.bytes(), UNWRITTEN_WINDOWS_MAX as u64 * PAGE_BYTES);
        assert_eq!(
            pages.dirtied(0..u64::MAX, Duration::ZERO),
            (UNWRITTEN_WINDOWS_MAX as u64 * u64::from(WINDOW_PAGES) - UNWRITTEN_WINDOWS_MAX as u64)
                * PAGE_BYTES
        );
    }
}

//! Sets of pages by number, compact if pages are adjacent.
//!
//! Invariant: the ranges are not empty, and neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::content::CHUNK_BYTES;

#[derive(Debug, Clone, Default)]
pub(crate) struct PageSet(BTreeMap<u64, u64>);

/// Returns the pages that overlap the range.
pub(crate) fn touched(bytes: &Range<u64>) -> Range<u64> {
    if bytes.is_empty() {
        return 0..0;
    }
    bytes.start / CHUNK_BYTES as u64..bytes.end.div_ceil(CHUNK_BYTES as u64)
}

/// Returns the byte range of pages.
pub(crate) fn bytes_of(pages: &Range<u64>) -> Range<u64> {
    pages.start.saturating_mul(CHUNK_BYTES as u64)..pages.end.saturating_mul(CHUNK_BYTES as u64)
}

impl PageSet {
    pub(crate) fn insert(&mut self, mut pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        // Includes ranges that only touch it.
        while let Some((&start, &end)) = self.0.range(..=pages.end).next_back() {
            if end < pages.start {
                break;
            }
            pages = pages.start.min(start)..pages.end.max(end);
            self.0.remove(&start);
        }
        self.0.insert(pages.start, pages.end);
    }

    pub(crate) fn remove(&mut self, pages: Range<u64>) {
        for part in self.within(pages.clone()) {
            let (&start, &end) = self.0.range(..=part.start).next_back().expect("the range around it");
            self.0.remove(&start);
            if start < part.start {
                self.0.insert(start, part.start);
            }
            if part.end < end {
                self.0.insert(part.end, end);
            }
        }
    }

    /// Returns the part of these pages that is in the set.
    pub(crate) fn within(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        if pages.is_empty() {
            return Vec::new();
        }
        let first = self.0.range(..pages.start).next_back().into_iter();
        let parts = first.chain(self.0.range(pages.start..pages.end));
        parts
            .map(|(start, end)| pages.start.max(*start)..pages.end.min(*end))
            .filter(|part| !part.is_empty())
            .collect()
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        self.0.range(..=page).next_back().is_some_and(|(_, end)| page < *end)
    }

    pub(crate) fn count(&self, pages: Range<u64>) -> u64 {
        self.within(pages).iter().map(|part| part.end - part.start).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::content::mix;

    #[test]
    fn pages_behave_like_a_set() {
        let (mut pages, mut expected) = (PageSet::default(), BTreeSet::new());
        for turn in 0..3000 {
            let random = mix(turn);
            let start = random % 100;
            let range = start..start + (random >> 32) % 12;
            if random >> 60 < 8 {
                pages.insert(range.clone());
                expected.extend(range);
            } else {
                pages.remove(range.clone());
                expected.retain(|page| !range.contains(page));
            }
            assert!((0..120).all(|page| pages.contains(page) == expected.contains(&page)), "{pages:?}");
            assert_eq!(pages.count(10..60), expected.range(10..60).count() as u64);
            assert_eq!(pages.count(0..u64::MAX), expected.len() as u64);
            let ranges: Vec<_> = pages.0.iter().collect();
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "they touch: {pages:?}");
        }
    }

    #[test]
    fn pages_have_bytes() {
        assert_eq!(touched(&(0..1)), 0..1);
        assert_eq!(touched(&(4095..4097)), 0..2);
        assert_eq!(touched(&(4096..4096)), 0..0);
        assert_eq!(bytes_of(&(1..3)), 4096..12_288);
    }
}

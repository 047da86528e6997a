//! The pages of one window, as bits.

use std::array;
use std::ops::Range;
use std::time::Duration;

/// Pages in a window.
pub(super) const WINDOW_PAGES: u32 = 512;
const BIT_WORDS: usize = WINDOW_PAGES as usize / 64;

/// One bit for each page of a window, lowest page first.
pub(super) type PageBits = [u64; BIT_WORDS];

/// Returns the bits of a range of pages inside a window.
pub(super) fn mask(pages: Range<u32>) -> PageBits {
    let below =
        |end: u32, word: usize| match end.saturating_sub(64 * u32::try_from(word).expect("eight words")) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
    array::from_fn(|word| below(pages.end, word) & !below(pages.start, word))
}

/// Returns the runs of set bits, ascending, as page numbers inside the window.
pub(super) fn runs(bits: &PageBits) -> impl Iterator<Item = Range<u32>> + '_ {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = next_page(bits, from, true)?;
        let end = next_page(bits, start, false).unwrap_or(WINDOW_PAGES);
        from = end;
        Some(start..end)
    })
}

/// Returns the first page at or after `from` whose bit equals `set`.
fn next_page(bits: &PageBits, from: u32, set: bool) -> Option<u32> {
    let mut page = from;
    while page < WINDOW_PAGES {
        let word = if set { bits[page as usize / 64] } else { !bits[page as usize / 64] };
        let rest = word >> (page % 64);
        if rest != 0 {
            return Some(page + rest.trailing_zeros());
        }
        page = (page / 64 + 1) * 64;
    }
    None
}

pub(super) fn count(bits: &PageBits) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

fn intersection(one: &PageBits, other: &PageBits) -> PageBits {
    array::from_fn(|word| one[word] & other[word])
}

pub(super) fn union(one: &PageBits, other: &PageBits) -> PageBits {
    array::from_fn(|word| one[word] | other[word])
}

pub(super) fn difference(bits: &PageBits, other: &PageBits) -> PageBits {
    array::from_fn(|word| bits[word] & !other[word])
}

/// The number of pages that an attempt left resident, and of those that have left the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptPages {
    pub(super) resident: u32,
    pub(super) left: u32,
}

/// The streams' pages of one window.
#[derive(Debug, Clone, Default)]
pub(super) struct WindowPages {
    pages: PageBits,
    /// The part of `pages` that a stream used since it was added.
    used: PageBits,
    /// The number of `pages` that have left the page cache in attempts that do not say which.
    absent: u32,
    /// The newest addition.
    pub(super) added_at: Duration,
    /// The newest use.
    pub(super) used_at: Duration,
    /// The end of the pause after the last attempt.
    pub(super) retry_at: Duration,
    /// Attempts that left pages, since the last addition or first use.
    pub(super) attempts: u32,
}

impl WindowPages {
    pub(super) fn is_empty(&self) -> bool {
        self.pages == [0; BIT_WORDS]
    }

    /// Returns the number of resident pages, as far as is known.
    pub(super) fn resident(&self) -> u32 {
        count(&self.pages) - self.absent
    }

    /// Returns the used pages.
    pub(super) fn used(&self) -> PageBits {
        self.used
    }

    /// Returns the unused pages.
    pub(super) fn unused(&self) -> PageBits {
        difference(&self.pages, &self.used)
    }

    /// Returns all pages.
    pub(super) fn pages(&self) -> PageBits {
        self.pages
    }

    /// Returns the number of unused pages.
    pub(super) fn unused_count(&self) -> u32 {
        count(&self.unused())
    }

    /// Adds pages. Returns how many of them were thought to be resident.
    pub(super) fn add(&mut self, mask: &PageBits, now: Duration) -> u32 {
        let again = count(&intersection(&self.pages, mask));
        let were_absent = again.min(self.absent);
        self.absent -= were_absent;
        self.pages = union(&self.pages, mask);
        self.used = difference(&self.used, mask);
        self.added_at = now;
        self.forget_attempts();
        again - were_absent
    }

    /// Marks those of the pages as used that belong to the streams.
    pub(super) fn use_pages(&mut self, mask: &PageBits, now: Duration) {
        self.used_at = now;
        let first_used = intersection(&self.unused(), mask);
        if first_used != [0; BIT_WORDS] {
            self.used = union(&self.used, &first_used);
            self.forget_attempts();
        }
    }

    /// Removes pages that others use. Returns how many of them were resident, assuming that as many
    /// as possible were.
    pub(super) fn hand_on(&mut self, mask: &PageBits) -> u32 {
        let pages = count(&intersection(&self.pages, mask));
        let handed_on = pages.min(self.resident());
        self.remove(mask, pages - handed_on);
        handed_on
    }

    /// Removes pages that are no longer resident. Returns how many of them were, as far as was
    /// known.
    pub(super) fn release(&mut self, mask: &PageBits) -> u32 {
        let pages = count(&intersection(&self.pages, mask));
        let absent = pages.min(self.absent);
        self.remove(mask, absent);
        pages - absent
    }

    /// Keeps pages of which at most `stays` are still resident, without knowing which.
    pub(super) fn keep(&mut self, mask: &PageBits, stays: u32) -> KeptPages {
        let pages = count(&intersection(&self.pages, mask));
        let before = pages - pages.min(self.absent);
        let resident = before.min(stays);
        self.absent += before - resident;
        KeptPages { resident, left: before - resident }
    }

    fn remove(&mut self, mask: &PageBits, absent: u32) {
        self.pages = difference(&self.pages, mask);
        self.used = difference(&self.used, mask);
        self.absent -= absent;
    }

    fn forget_attempts(&mut self) {
        self.attempts = 0;
        self.retry_at = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_the_ranges_that_were_set(pages in proptest::collection::vec(any::<bool>(), WINDOW_PAGES as usize)) {
            let mut bits = [0; BIT_WORDS];
            for (page, _) in (0..WINDOW_PAGES).zip(&pages).filter(|(_, set)| **set) {
                bits[page as usize / 64] |= 1 << (page % 64);
            }
            let found: Vec<_> = runs(&bits).collect();
            for run in &found {
                prop_assert!(!run.is_empty() && (run.end == WINDOW_PAGES || !pages[run.end as usize]));
            }
            let listed: Vec<u32> = found.into_iter().flatten().collect();
            let set: Vec<u32> = (0..WINDOW_PAGES).filter(|page| pages[*page as usize]).collect();
            prop_assert_eq!(listed, set);
        }

        #[test]
        fn a_mask_has_the_bits_of_its_pages(start in 0..=WINDOW_PAGES, length in 0..=WINDOW_PAGES) {
            let end = (start + length).min(WINDOW_PAGES);
            let bits = mask(start..end);
            let mut found = runs(&bits);
            prop_assert_eq!(found.next(), (start < end).then_some(start..end));
            prop_assert_eq!(found.next(), None);
        }
    }
}

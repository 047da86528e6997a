//! A sample of the pages of files: one page of each group of neighbours, chosen by a hash of the
//! inode and the group (as SHARDS does, Waldspurger et al., FAST 2015).
//!
//! Invariants: a page is in the sample or not, whoever uses it and whenever. Each group of
//! [`PageSample::weight`] pages that begins at a multiple of that number has one page in it.

use core::ops::RangeInclusive;

/// Factors of the hash.
pub const SAMPLE_FACTORS: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// The most pages of one event that are counted: the kernel reports a long read again for each
/// batch of at most 31 folios (`PAGEVEC_SIZE`), with all pages that are left.
pub const COUNTED_PAGES_MAX: u64 = 31;

/// The largest logarithm of a sample's weight.
const WEIGHT_LOG2_MAX: u32 = 16;

/// A sample of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSample {
    weight_log2: u32,
}

impl PageSample {
    /// Returns the sample of one page in `2^weight_log2`, at most one in 65,536.
    pub const fn one_in_power(weight_log2: u32) -> Self {
        Self { weight_log2: if weight_log2 > WEIGHT_LOG2_MAX { WEIGHT_LOG2_MAX } else { weight_log2 } }
    }

    /// Returns the number of pages that each page of the sample stands for.
    pub const fn weight(self) -> u64 {
        1 << self.weight_log2
    }

    /// Returns the logarithm of [`Self::weight`].
    pub const fn weight_log2(self) -> u32 {
        self.weight_log2
    }

    /// Returns the page of a group that is in the sample.
    pub const fn page_of_group(self, ino: u64, group: u64) -> u64 {
        if self.weight_log2 == 0 {
            return group;
        }
        let [first, second, third] = SAMPLE_FACTORS;
        let mixed = ino.wrapping_mul(first).wrapping_add(group).wrapping_mul(second);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(third);
        (group << self.weight_log2) + (mixed >> (u64::BITS - self.weight_log2))
    }

    /// Returns the pages of a range that are in the sample, ascending.
    pub fn pages(self, ino: u64, pages: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
        let groups = (pages.start() >> self.weight_log2)..=(pages.end() >> self.weight_log2);
        groups.map(move |group| self.page_of_group(ino, group)).filter(move |page| pages.contains(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_one_page_and_all_places_are_used() {
        let sample = PageSample::one_in_power(5);
        let mut places = [0_u32; 32];
        for ino in 1..100 {
            for group in 0..100 {
                let page = sample.page_of_group(ino, group);
                assert_eq!(page / 32, group);
                places[usize::try_from(page % 32).unwrap()] += 1;
            }
        }
        assert!(places.iter().all(|count| (200..450).contains(count)), "{places:?}");
    }

    #[test]
    fn pages_of_a_range_are_those_of_its_groups() {
        let sample = PageSample::one_in_power(4);
        let all: Vec<u64> = sample.pages(7, 0..=999).collect();
        assert_eq!(all.len(), 62 + usize::from(sample.page_of_group(7, 62) <= 999));
        for (first, last) in [(0, 0), (5, 40), (16, 31), (900, 999)] {
            let part: Vec<u64> = sample.pages(7, first..=last).collect();
            let expected: Vec<u64> =
                all.iter().copied().filter(|page| (first..=last).contains(page)).collect();
            assert_eq!(part, expected);
        }
        let every: Vec<u64> = PageSample::one_in_power(0).pages(7, 3..=9).collect();
        assert_eq!(every, (3..=9).collect::<Vec<u64>>());
    }
}

//! The cache's own replacement rule, simulated over page numbers: the real cache should match it, except for the cost
//! of its concurrency.
//!
//! The rule is S3-FIFO with three changes:
//!
//! - An evicted page keeps a stamp instead of a place in a ghost queue: the queue it left, and how many had left that
//!   queue before.
//! - The size of the small queue follows the misses: a page that has just left a queue would still be there if the
//!   queue were a little longer.
//! - Pages that were read again once move on to the main queue only where most of them are missed otherwise.
//!
//! Invariants: at most `frames` pages; a hit only raises the frequency; everything else happens at misses.

use std::collections::VecDeque;

use super::peers::Policy;

/// The position of a page.
#[derive(Debug, Clone, Copy)]
enum PageRecord {
    Never,
    Resident,
    /// Evicted from the small queue as its n-th.
    LeftSmall(u64),
    /// Evicted from the small queue as its n-th, after it was read again once.
    LeftSmallReadOnce(u64),
    LeftMain(u64),
}

/// The replacement rule. Sizes are in pages.
#[derive(Debug)]
pub(super) struct Ours {
    free: usize,
    /// Frames freed at once.
    batch: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    left_small: u64,
    left_main: u64,
    /// A page goes to main if fewer evictions than this followed its own from small.
    remembered: u64,
    /// A page counts for a longer queue if fewer evictions than this followed its own.
    edge: u64,
    /// The target size of small, in quarters of a page, and its bounds.
    target: usize,
    bounds: (usize, usize),
    /// The step by which it changes, in pages.
    step: usize,
    /// The balance of pages that left small after they were read again once; above zero, too few of them are missed.
    unmissed: i64,
    most_unmissed: i64,
    /// The number of such pages that moved on, modulo [`SAMPLED`].
    moved_on: u32,
    place: Vec<PageRecord>,
    frequency: Vec<u8>,
}

const QUARTERS: usize = 4;
const MOST: u8 = 3;
/// A missed page of this kind weighs as much as this many that are not missed.
const RETURN_WEIGHT: i64 = 2;
/// One in this many pages that would move on is evicted anyway, as a control sample.
const SAMPLED: u32 = 8;
/// A page that was read again this often always moves on from small to main.
const MOVES_ON_AT: u8 = 2;

impl Ours {
    pub(super) fn new(pages: usize, frames: usize) -> Self {
        let least = (frames / 100).max(1) * QUARTERS;
        let most = (frames / 2).max(1) * QUARTERS;
        let most_unmissed = (frames as u64 / 16).max(16).cast_signed() * RETURN_WEIGHT;
        Self {
            free: frames,
            batch: (frames / 128).clamp(1, 256),
            small: VecDeque::new(),
            main: VecDeque::new(),
            left_small: 0,
            left_main: 0,
            remembered: (frames + frames / 4) as u64,
            edge: (frames / 64).max(32) as u64,
            target: (frames * QUARTERS / 10).clamp(least, most),
            bounds: (least, most),
            step: (frames / 4096).max(1),
            unmissed: most_unmissed,
            most_unmissed,
            moved_on: 0,
            place: vec![PageRecord::Never; pages],
            frequency: vec![0; pages],
        }
    }

    fn lengthen_small(&mut self) {
        self.target = (self.target + 4 * self.step).min(self.bounds.1);
    }

    /// Shrinks small, a little faster than it grows: most traces are better off with a short one.
    fn shorten_small(&mut self) {
        self.target = self.target.saturating_sub(5 * self.step).max(self.bounds.0);
    }

    fn count_unmissed(&mut self, more: i64) {
        self.unmissed = (self.unmissed + more).clamp(-self.most_unmissed, self.most_unmissed);
    }

    /// Whether a page moves on from small to main.
    fn moves_on(&mut self, frequency: u8) -> bool {
        match frequency {
            0 => false,
            1..MOVES_ON_AT if self.unmissed > 0 => false,
            1..MOVES_ON_AT => {
                self.moved_on = (self.moved_on + 1) % SAMPLED;
                self.moved_on != 0
            }
            _ => true,
        }
    }

    fn evict_one(&mut self) {
        loop {
            if self.small.len() * QUARTERS >= self.target || self.main.is_empty() {
                let Some(page) = self.small.pop_front() else { return };
                let index = page as usize;
                if !self.moves_on(self.frequency[index]) {
                    self.place[index] = if self.frequency[index] == 1 {
                        self.count_unmissed(1);
                        PageRecord::LeftSmallReadOnce(self.left_small)
                    } else {
                        PageRecord::LeftSmall(self.left_small)
                    };
                    self.left_small += 1;
                    break;
                }
                self.frequency[index] = 0;
                self.main.push_back(page);
            } else {
                let Some(page) = self.main.pop_front() else { return };
                let index = page as usize;
                if self.frequency[index] == 0 {
                    self.place[index] = PageRecord::LeftMain(self.left_main);
                    self.left_main += 1;
                    break;
                }
                self.frequency[index] -= 1;
                self.main.push_back(page);
            }
        }
        self.free += 1;
    }
}

impl Policy for Ours {
    fn read(&mut self, page: u32) -> bool {
        let index = page as usize;
        let mut to_main = false;
        match self.place[index] {
            PageRecord::Resident => {
                self.frequency[index] = MOST.min(self.frequency[index] + 1);
                return true;
            }
            place @ (PageRecord::LeftSmall(stamp) | PageRecord::LeftSmallReadOnce(stamp)) => {
                let since = self.left_small - stamp;
                to_main = since < self.remembered;
                if to_main && matches!(place, PageRecord::LeftSmallReadOnce(_)) {
                    self.count_unmissed(-RETURN_WEIGHT);
                }
                if since < self.edge {
                    self.lengthen_small();
                }
            }
            PageRecord::LeftMain(stamp) => {
                if self.left_main - stamp < self.edge {
                    self.shorten_small();
                }
            }
            PageRecord::Never => {}
        }
        if self.free == 0 {
            while self.free < self.batch {
                self.evict_one();
            }
        }
        // While the cache fills, no page is on probation for lack of room.
        to_main |= self.left_small + self.left_main == 0 && self.small.len() * QUARTERS >= self.target;
        self.free -= 1;
        self.place[index] = PageRecord::Resident;
        self.frequency[index] = 0;
        if to_main {
            self.main.push_back(page);
        } else {
            self.small.push_back(page);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::peers::hits;
    use super::*;

    /// Creates a cache of a hundred frames full of pages read once, with 0 the oldest, all in small because there was
    /// an eviction before.
    fn full() -> Ours {
        let mut cache = Ours::new(1000, 100);
        cache.left_small = 1;
        assert_eq!(hits(&mut cache, &(0..100).collect::<Vec<u32>>()), 0);
        cache
    }

    #[test]
    fn a_page_that_was_read_again_twice_moves_to_main_and_its_frequency_begins_anew() {
        let mut cache = full();
        assert!(cache.read(0) && cache.read(0));
        cache.read(100);
        assert_eq!((cache.main.len(), cache.frequency[0], cache.small.len()), (1, 0, 99));
        assert!(matches!(cache.place[1], PageRecord::LeftSmall(1)));
    }

    #[test]
    fn pages_that_were_read_again_once_move_on_where_they_are_missed() {
        let mut cache = full();
        assert!(cache.read(0));
        cache.read(100);
        assert!(matches!(cache.place[0], PageRecord::LeftSmallReadOnce(1)));
        let before = cache.unmissed;
        cache.read(0);
        assert_eq!(cache.unmissed, before - RETURN_WEIGHT);
        cache.count_unmissed(-1000);
        assert_eq!((0..SAMPLED).filter(|_| cache.moves_on(1)).count(), SAMPLED as usize - 1);
        cache.count_unmissed(1000);
        assert!(!cache.moves_on(1) && cache.moves_on(2));
    }

    #[test]
    fn a_page_that_left_small_not_long_ago_comes_back_to_main() {
        // Page 0 is evicted first. In the second case it is the 125th eviction before the next, and no longer remembered.
        for (newest, back_in_main) in [(223, 1), (224, 0)] {
            let mut cache = full();
            hits(&mut cache, &(100..=newest).collect::<Vec<u32>>());
            cache.read(0);
            assert_eq!(cache.main.len(), back_in_main, "{newest}");
        }
    }

    #[test]
    fn a_page_that_left_main_comes_back_to_small() {
        let mut cache = full();
        for _ in 0..2 {
            hits(&mut cache, &(0..100).collect::<Vec<u32>>());
        }
        // 91 pages move to main, until small is shorter than 10; then 0 is evicted from main.
        cache.read(100);
        assert!(matches!(cache.place[0], PageRecord::LeftMain(0)));
        assert_eq!((cache.main.len(), cache.small.len()), (90, 10));
        // The target of small is now 8.75: two more pages move, and 1 is evicted.
        cache.read(0);
        assert_eq!((cache.main.len(), cache.small.len()), (91, 9));
        assert_eq!(cache.small.back(), Some(&0));
    }

    #[test]
    fn the_small_queue_grows_when_it_was_too_short_by_little_and_shrinks_when_main_was() {
        let mut cache = full();
        assert_eq!(cache.target, 40);
        cache.read(100);
        cache.read(0);
        assert_eq!(cache.target, 44);
        // 33 evictions later, it is no longer at the edge.
        hits(&mut cache, &(101..134).collect::<Vec<u32>>());
        cache.read(1);
        assert_eq!(cache.target, 44);

        let mut cache = full();
        for _ in 0..2 {
            hits(&mut cache, &(0..100).collect::<Vec<u32>>());
        }
        cache.read(100);
        cache.read(0);
        assert_eq!(cache.target, 35);
        for _ in 0..1000 {
            cache.shorten_small();
        }
        assert_eq!(cache.target, 4);
        for _ in 0..1000 {
            cache.lengthen_small();
        }
        assert_eq!(cache.target, 200);
    }

    #[test]
    fn frames_are_freed_in_batches() {
        let mut cache = Ours::new(3000, 1280);
        hits(&mut cache, &(0..1280).collect::<Vec<u32>>());
        assert_eq!(cache.free, 0);
        cache.read(1280);
        assert_eq!((cache.free, cache.small.len() + cache.main.len()), (9, 1271));
    }

    #[test]
    fn until_the_first_eviction_small_is_no_longer_than_wished() {
        let mut cache = Ours::new(1000, 100);
        hits(&mut cache, &(0..100).collect::<Vec<u32>>());
        assert_eq!((cache.small.len(), cache.main.len()), (10, 90));
        cache.read(100);
        assert_eq!((cache.small.len(), cache.main.len()), (10, 90));
    }
}

//! The peers: published replacement policies, simulated over page numbers.
//!
//! Invariants: a policy holds at most `frames` pages after each read, and its answers depend on the reads alone. Each
//! is checked against hand-computed cases, LRU against a plain model, too. Nothing here fails.

use std::collections::VecDeque;

use super::lists::Lists;

/// A cache that only counts.
pub(super) trait Policy {
    /// Reads a page, which is in the cache afterwards; returns whether it was before.
    fn read(&mut self, page: u32) -> bool;
}

/// Returns the number of hits, from an empty cache on.
pub(super) fn hits(policy: &mut dyn Policy, reads: &[u32]) -> u64 {
    reads.iter().map(|&page| u64::from(policy.read(page))).sum()
}

/// Exact least recently used.
#[derive(Debug)]
pub(super) struct Lru {
    frames: usize,
    queue: Lists<1>,
}

impl Lru {
    pub(super) fn new(pages: usize, frames: usize) -> Self {
        Self { frames, queue: Lists::new(pages) }
    }
}

impl Policy for Lru {
    fn read(&mut self, page: u32) -> bool {
        let hit = self.queue.list_of(page).is_some();
        if hit {
            self.queue.remove(page);
        } else if self.queue.len(0) == self.frames {
            self.queue.pop_back(0);
        }
        self.queue.push_front(0, page);
        hit
    }
}

/// The clock with a two-bit frequency: the hand decrements it on each page it spares.
#[derive(Debug)]
pub(super) struct Clock {
    frames: usize,
    /// The hand's next page comes first.
    ring: VecDeque<u32>,
    /// `None` for absent pages.
    frequency: Vec<Option<u8>>,
}

/// The largest value of two bits.
const MOST: u8 = 3;

impl Clock {
    pub(super) fn new(pages: usize, frames: usize) -> Self {
        Self { frames, ring: VecDeque::with_capacity(frames), frequency: vec![None; pages] }
    }
}

impl Policy for Clock {
    fn read(&mut self, page: u32) -> bool {
        if let Some(frequency) = &mut self.frequency[page as usize] {
            *frequency = MOST.min(*frequency + 1);
            return true;
        }
        if self.ring.len() == self.frames {
            while let Some(oldest) = self.ring.pop_front() {
                let frequency = &mut self.frequency[oldest as usize];
                let Some(less) = frequency.and_then(|count| count.checked_sub(1)) else {
                    *frequency = None;
                    break;
                };
                *frequency = Some(less);
                self.ring.push_back(oldest);
            }
        }
        self.frequency[page as usize] = Some(0);
        self.ring.push_back(page);
        false
    }
}

/// SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024).
#[derive(Debug)]
pub(super) struct Sieve {
    frames: usize,
    queue: Lists<1>,
    visited: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub(super) fn new(pages: usize, frames: usize) -> Self {
        Self { frames, queue: Lists::new(pages), visited: vec![false; pages], hand: None }
    }

    fn evict(&mut self) {
        let mut at = self.hand.or_else(|| self.queue.back(0));
        while let Some(page) = at {
            let newer = self.queue.newer(page);
            if !std::mem::take(&mut self.visited[page as usize]) {
                self.hand = newer;
                self.queue.remove(page);
                return;
            }
            at = newer.or_else(|| self.queue.back(0));
        }
    }
}

impl Policy for Sieve {
    fn read(&mut self, page: u32) -> bool {
        if self.queue.list_of(page).is_some() {
            self.visited[page as usize] = true;
            return true;
        }
        if self.queue.len(0) == self.frames {
            self.evict();
        }
        self.queue.push_front(0, page);
        false
    }
}

/// The position of a page in S3-FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueuePosition {
    Absent,
    Small,
    Main,
    /// Absent, but remembered by this entry of the ghost queue.
    Ghost(u32),
}

/// S3-FIFO (Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023), as in `libCacheSim`, which the
/// authors maintain. Small has 10 % of the cache, main the rest, and the ghost queue as many entries as main. Until the
/// first eviction, pages that do not fit into small go to main.
#[derive(Debug)]
pub(super) struct S3Fifo {
    frames: usize,
    small_size: usize,
    /// The frequency at which a page moves from small to main.
    promoted_at: u8,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Includes entries whose page has been read again meanwhile.
    ghosts: VecDeque<(u32, u32)>,
    /// Number of valid ghost entries.
    ghosts_live: usize,
    ghost_number: u32,
    place: Vec<QueuePosition>,
    frequency: Vec<u8>,
    evicted: bool,
}

impl S3Fifo {
    /// Creates a cache. `promoted_at` is 2 in the paper's algorithm ("freq > 1") and in `libCacheSim`, 1 in the paper's
    /// text ("accessed more than once", counting the first read).
    pub(super) fn new(pages: usize, frames: usize, promoted_at: u8) -> Self {
        Self {
            frames,
            small_size: (frames / 10).max(1),
            promoted_at,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            ghosts_live: 0,
            ghost_number: 0,
            place: vec![QueuePosition::Absent; pages],
            frequency: vec![0; pages],
            evicted: false,
        }
    }

    fn main_size(&self) -> usize {
        self.frames - self.small_size
    }

    fn evict(&mut self) {
        self.evicted = true;
        if self.small.is_empty() || self.main.len() > self.main_size() {
            self.evict_from_main();
        } else {
            self.evict_from_small();
        }
    }

    /// Evicts from small. May move all of small to main without an eviction, which leaves main too large.
    fn evict_from_small(&mut self) {
        while let Some(page) = self.small.pop_front() {
            let index = page as usize;
            if self.frequency[index] >= self.promoted_at {
                self.frequency[index] = 0;
                self.place[index] = QueuePosition::Main;
                self.main.push_back(page);
            } else {
                self.ghost_number += 1;
                self.place[index] = QueuePosition::Ghost(self.ghost_number);
                self.ghosts.push_back((page, self.ghost_number));
                self.ghosts_live += 1;
                while self.ghosts_live > self.main_size() {
                    self.forget_oldest_ghost();
                }
                return;
            }
        }
    }

    fn forget_oldest_ghost(&mut self) {
        if let Some((page, number)) = self.ghosts.pop_front()
            && self.place[page as usize] == QueuePosition::Ghost(number)
        {
            self.place[page as usize] = QueuePosition::Absent;
            self.ghosts_live -= 1;
        }
    }

    fn evict_from_main(&mut self) {
        while let Some(page) = self.main.pop_front() {
            let frequency = &mut self.frequency[page as usize];
            if *frequency == 0 {
                self.place[page as usize] = QueuePosition::Absent;
                return;
            }
            *frequency -= 1;
            self.main.push_back(page);
        }
    }
}

impl Policy for S3Fifo {
    fn read(&mut self, page: u32) -> bool {
        let index = page as usize;
        let remembered = match self.place[index] {
            QueuePosition::Small | QueuePosition::Main => {
                self.frequency[index] = MOST.min(self.frequency[index] + 1);
                return true;
            }
            QueuePosition::Ghost(_) => {
                self.place[index] = QueuePosition::Absent;
                self.ghosts_live -= 1;
                true
            }
            QueuePosition::Absent => false,
        };
        while self.small.len() + self.main.len() >= self.frames {
            self.evict();
        }
        self.frequency[index] = 0;
        if remembered || !self.evicted && self.small.len() >= self.small_size {
            self.place[index] = QueuePosition::Main;
            self.main.push_back(page);
        } else {
            self.place[index] = QueuePosition::Small;
            self.small.push_back(page);
        }
        false
    }
}

/// ARC (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003), figure 4 there.
#[derive(Debug)]
pub(super) struct Arc {
    frames: usize,
    lists: Lists<4>,
    /// The target size of T1, in pages.
    target: f64,
}

/// Pages read once recently, pages read more often, and the ghosts of both.
const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

impl Arc {
    pub(super) fn new(pages: usize, frames: usize) -> Self {
        Self { frames, lists: Lists::new(pages), target: 0.0 }
    }

    fn moved(&mut self, from: usize, to: usize) {
        if let Some(page) = self.lists.pop_back(from) {
            self.lists.push_front(to, page);
        }
    }

    /// Evicts one page into its ghost list.
    fn replace(&mut self, remembered_in_b2: bool) {
        let recent = self.lists.len(T1) as f64;
        let from_recent = recent > self.target || remembered_in_b2 && recent >= self.target;
        if self.lists.len(T2) == 0 || self.lists.len(T1) > 0 && from_recent {
            self.moved(T1, B1);
        } else {
            self.moved(T2, B2);
        }
    }

    fn make_room_for_a_new_page(&mut self) {
        let len = |list| self.lists.len(list);
        let (recent, all) = (len(T1) + len(B1), len(T1) + len(T2) + len(B1) + len(B2));
        if recent == self.frames {
            if len(T1) == self.frames {
                self.lists.pop_back(T1);
            } else {
                self.lists.pop_back(B1);
                self.replace(false);
            }
        } else if all >= self.frames {
            if all == 2 * self.frames {
                self.lists.pop_back(B2);
            }
            self.replace(false);
        }
    }
}

impl Policy for Arc {
    fn read(&mut self, page: u32) -> bool {
        let list = self.lists.list_of(page);
        let (b1, b2) = (self.lists.len(B1) as f64, self.lists.len(B2) as f64);
        match list {
            None => {
                self.make_room_for_a_new_page();
                self.lists.push_front(T1, page);
                return false;
            }
            Some(B1) => {
                self.target = (self.target + (b2 / b1).max(1.0)).min(self.frames as f64);
                self.replace(false);
            }
            Some(B2) => {
                self.target = (self.target - (b1 / b2).max(1.0)).max(0.0);
                self.replace(true);
            }
            Some(_) => {}
        }
        self.lists.remove(page);
        self.lists.push_front(T2, page);
        matches!(list, Some(T1 | T2))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ours::Ours;
    use super::*;
    use crate::rounds::Random;

    /// Returns the positions of the reads that hit.
    fn hit_at(policy: &mut dyn Policy, reads: &[u32]) -> Vec<usize> {
        reads.iter().enumerate().filter(|&(_, &page)| policy.read(page)).map(|(at, _)| at).collect()
    }

    #[test]
    fn lru_evicts_what_was_not_read_for_longest() {
        // 2 is evicted when 3 comes, 1 when 2 comes back.
        assert_eq!(hit_at(&mut Lru::new(4, 2), &[1, 2, 1, 3, 1, 2, 3, 2]), [2, 4, 7]);
    }

    #[test]
    fn lru_does_as_a_plain_model_does() {
        let mut random = Random::new(7);
        for frames in [1, 2, 3, 10, 50] {
            let mut lru = Lru::new(64, frames);
            let mut model: Vec<u32> = Vec::new();
            for _ in 0..5000 {
                let page = u32::try_from(random.below(8).max(random.below(64))).unwrap();
                let at = model.iter().position(|&other| other == page);
                assert_eq!(lru.read(page), at.is_some());
                if let Some(at) = at {
                    model.remove(at);
                } else if model.len() == frames {
                    model.remove(0);
                }
                model.push(page);
            }
        }
    }

    #[test]
    fn the_clock_spares_a_page_as_often_as_it_was_read_again() {
        // 0 was read again twice, 1 once. For 2, the hand lowers 0 to one, 1 to none, 0 to none, and evicts 1.
        assert_eq!(hit_at(&mut Clock::new(4, 2), &[0, 1, 0, 0, 1, 2, 0]), [2, 3, 4, 6]);
        // So 3 evicts 0.
        assert_eq!(hit_at(&mut Clock::new(4, 2), &[0, 1, 0, 0, 1, 2, 3, 2, 0]), [2, 3, 4, 7]);
    }

    #[test]
    fn a_frequency_stops_at_three() {
        // Five more reads spare page 0 three times, when 2, 3 and 4 come, but not when 5 does.
        let reads = [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0];
        assert_eq!(hit_at(&mut Clock::new(6, 2), &reads), [1, 2, 3, 4, 5, 10]);
        let reads = [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 0];
        assert_eq!(hit_at(&mut Clock::new(6, 2), &reads), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_hand_of_sieve_stays_where_it_is() {
        // The queue from the oldest: 0 1 2, of which 0 and 2 were read again. For 3 the hand clears 0 and evicts 1. For
        // 4 it goes on at 2, clears it, and evicts 3, although 3 is newer than 0. So 0 and 2 stay, 1 and 3 do not.
        let reads = [0, 1, 2, 0, 2, 3, 4, 0, 2, 4, 3];
        assert_eq!(hit_at(&mut Sieve::new(5, 3), &reads), [3, 4, 7, 8, 9]);
    }

    #[test]
    fn s3_fifo_lets_a_scan_pass_through_its_small_queue() {
        // Ten frames, one of them small. 0 goes to small; the others go to main until the first eviction.
        let mut cache = S3Fifo::new(100, 10, 2);
        let first: Vec<u32> = (0..10).collect();
        assert_eq!(hits(&mut cache, &first), 0);
        // The scan evicts 0, then itself.
        let scan: Vec<u32> = (20..60).collect();
        assert_eq!(hits(&mut cache, &scan), 0);
        assert_eq!(hits(&mut cache, &first[1..]), 9);
        assert!(!cache.read(0), "0 was in small");
    }

    #[test]
    fn s3_fifo_remembers_what_left_its_small_queue() {
        let mut cache = S3Fifo::new(100, 10, 2);
        hits(&mut cache, &(0..12).collect::<Vec<u32>>());
        // 0 and 10 are ghosts now, 11 is in small. 10 enters main in place of 11, and then survives a scan.
        assert_eq!(cache.place[10], QueuePosition::Ghost(2));
        assert!(!cache.read(10));
        assert_eq!((cache.place[10], cache.place[11]), (QueuePosition::Main, QueuePosition::Ghost(3)));
        // Nine ghosts are kept: of thirteen the first four are forgotten, among them 0 and 11, and 10 no longer counts.
        hits(&mut cache, &(20..31).collect::<Vec<u32>>());
        assert_eq!((cache.place[0], cache.place[11]), (QueuePosition::Absent, QueuePosition::Absent));
        let ghosts = cache.place.iter().filter(|place| matches!(place, QueuePosition::Ghost(_))).count();
        assert_eq!((ghosts, cache.ghosts_live), (9, 9));
    }

    #[test]
    fn s3_fifo_promotes_at_the_frequency_asked_for() {
        for (promoted_at, stays) in [(1, true), (2, false)] {
            let mut cache = S3Fifo::new(100, 10, promoted_at);
            hits(&mut cache, &(0..10).collect::<Vec<u32>>());
            cache.read(0);
            hits(&mut cache, &[20, 21, 22]);
            assert_eq!(cache.place[0] == QueuePosition::Main, stays);
        }
    }

    #[test]
    fn arc_shifts_towards_what_it_misses() {
        // Two frames: 0 and 1 are in T1; 0 moves to T2 when read again; 2 evicts 1 into B1. 1 returns from B1, which
        // raises the target to 1. T1, with 2 in it, is no longer above the target, so 0 leaves T2 for B2, and 1 goes to
        // T2.
        let mut cache = Arc::new(4, 2);
        assert_eq!(hit_at(&mut cache, &[0, 1, 0, 2, 1]), [2]);
        assert!((cache.target - 1.0).abs() < f64::EPSILON);
        let places = [0, 1, 2, 3].map(|page| cache.lists.list_of(page));
        assert_eq!(places, [Some(B2), Some(T2), Some(T1), None]);
        // 0 returns from B2: the target falls to 0, T1 is above it, and 2 is evicted.
        assert!(!cache.read(0));
        assert!(cache.target < f64::EPSILON);
        assert_eq!([0, 1, 2].map(|page| cache.lists.list_of(page)), [Some(T2), Some(T2), Some(B1)]);
    }

    #[test]
    fn no_policy_holds_more_than_its_frames_or_less_than_the_page_just_read() {
        const PAGES: u32 = 40;
        for frames in [1, 2, 7, 20] {
            let pages = PAGES as usize;
            let mut policies: [(&str, Box<dyn Policy>); 7] = [
                ("ours", Box::new(Ours::new(pages, frames))),
                ("LRU", Box::new(Lru::new(pages, frames))),
                ("clock", Box::new(Clock::new(pages, frames))),
                ("SIEVE", Box::new(Sieve::new(pages, frames))),
                ("S3-FIFO at 1", Box::new(S3Fifo::new(pages, frames, 1))),
                ("S3-FIFO at 2", Box::new(S3Fifo::new(pages, frames, 2))),
                ("ARC", Box::new(Arc::new(pages, frames))),
            ];
            let mut random = Random::new(3);
            for (name, policy) in &mut policies {
                for _ in 0..200 {
                    for _ in 0..20 {
                        let page = random.below(40).min(random.below(40));
                        let page = u32::try_from(page).unwrap();
                        policy.read(page);
                        assert!(policy.read(page), "{name}");
                    }
                    // In a pass over all pages, at most those can hit that were there before.
                    let all: Vec<u32> = (0..PAGES).collect();
                    assert!(hits(policy.as_mut(), &all) <= frames as u64, "{name} with {frames} frames");
                }
            }
        }
    }
}

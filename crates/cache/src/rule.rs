//! What to keep and what to evict: S3-FIFO (Yang et al., SOSP 2023) without a ghost queue, and with a small queue whose
//! size follows the hits that a little more of either queue would have brought. Plain numbers: no frames, no locks.
//!
//! A page that is loaded goes to the back of the small queue. At its front, one that was read again moves on to the main
//! queue, any other is evicted, and its entry keeps a stamp: the small queue's clock, which counts these evictions. A page
//! that is missed while its stamp is young is loaded into the main queue. In the main queue each pass costs a page one
//! of its frequency; without any left it is evicted, stamped by the main queue's own clock. Until the first eviction what
//! the small queue has no room for goes to the main queue at once.
//!
//! A miss on a stamp that is younger than [`Rule::edge`] would have been a hit had that queue been that much longer: the
//! wished size of the small queue ([`Rule::target`]) moves a step towards it, up for the small, down for the main queue.
//!
//! Invariants: all is O(1); the target stays within 1 % and 50 % of the frames; a hit changes nothing here. Which
//! parameters, and how well they do, was found on published traces: `bench/README.md` shows how it is measured again.

use crate::word::{Queue, STAMPS, Word};

/// The target is kept in parts of a page, so that a step down can be 5/4 of a step up.
const PARTS: u64 = 4;

/// The rule's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Frames to share out.
    frames: u64,
    /// Evictions from the small queue, modulo [`STAMPS`].
    small_clock: u32,
    /// Evictions from the main queue, modulo [`STAMPS`].
    main_clock: u32,
    /// Wished size of the small queue, in parts of a page.
    target: u64,
    /// Nothing was evicted yet: all that is loaded has room.
    filling: bool,
}

/// How many evictions from `clock`'s queue came after the one stamped `stamp`.
fn age(clock: u32, stamp: u32) -> u64 {
    u64::from(clock.wrapping_sub(stamp) % STAMPS)
}

impl Rule {
    pub(crate) fn new(frames: u32) -> Self {
        let frames = u64::from(frames);
        // The first stamp is 1.
        let mut rule = Self { frames, small_clock: 1, main_clock: 1, target: 0, filling: true };
        rule.set_target(frames * PARTS / 10);
        rule
    }

    /// There are `frames` frames to share out from now on.
    pub(crate) fn set_frames(&mut self, frames: u32) {
        self.frames = u64::from(frames);
        self.set_target(self.target);
    }

    fn set_target(&mut self, parts: u64) {
        let least = (self.frames / 100).max(1) * PARTS;
        let most = (self.frames / 2).max(1) * PARTS;
        self.target = parts.clamp(least, most.max(least));
    }

    /// How many evictions long a stamp of the small queue speaks for its page.
    fn memory(&self) -> u64 {
        self.frames * 5 / 4
    }

    /// How much longer a queue is imagined to be, in evictions, when the target is moved.
    fn edge(&self) -> u64 {
        (self.frames / 64).max(32)
    }

    fn step(&self) -> u64 {
        (self.frames / 4096).max(1)
    }

    /// How many frames to free at once: a heavy barrier for each batch, and few frames that lie idle.
    pub(crate) fn batch(&self) -> usize {
        usize::try_from((self.frames / 128).clamp(1, 256)).unwrap_or(1)
    }

    /// Which queue a page that is missed goes to, by what its entry remembers, while the small queue has `small` pages.
    pub(crate) fn admit(&mut self, evicted: Option<(Queue, u32)>, small: usize) -> Queue {
        match evicted {
            Some((Queue::Small, stamp)) => {
                let age = age(self.small_clock, stamp);
                if age < self.edge() {
                    self.set_target(self.target + self.step() * PARTS);
                }
                if age < self.memory() { Queue::Main } else { Queue::Small }
            }
            Some((Queue::Main, stamp)) => {
                if age(self.main_clock, stamp) < self.edge() {
                    self.set_target(self.target.saturating_sub(self.step() * (PARTS + 1)));
                }
                Queue::Small
            }
            // While the cache fills, nobody is on probation for want of room.
            None if self.filling && small as u64 * PARTS >= self.target => Queue::Main,
            None => Queue::Small,
        }
    }

    /// Which queue to take from, by the lengths of both.
    pub(crate) fn victim(&self, small: usize, main: usize) -> Queue {
        if small > 0 && (main == 0 || small as u64 * PARTS >= self.target) {
            Queue::Small
        } else {
            Queue::Main
        }
    }

    /// The entry of a page that is evicted from `queue` now.
    pub(crate) fn evict(&mut self, queue: Queue) -> Word {
        self.filling = false;
        let clock = match queue {
            Queue::Small => &mut self.small_clock,
            Queue::Main => &mut self.main_clock,
        };
        let word = Word::evicted(queue, *clock);
        *clock = (*clock + 1) % STAMPS;
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::State;

    fn stamp(rule: &mut Rule, queue: Queue) -> Option<(Queue, u32)> {
        match rule.evict(queue).state() {
            State::Absent(evicted) => evicted,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_never_seen_is_on_probation() {
        assert_eq!(Rule::new(1000).admit(None, 99), Queue::Small);
    }

    #[test]
    fn while_the_cache_fills_the_small_queue_is_no_longer_than_wished() {
        let mut rule = Rule::new(1000);
        assert_eq!(rule.admit(None, 100), Queue::Main);
        rule.evict(Queue::Main);
        assert_eq!(rule.admit(None, 100), Queue::Small);
    }

    #[test]
    fn a_page_evicted_from_the_small_queue_is_remembered_for_a_while() {
        let mut rule = Rule::new(1000);
        let evicted = stamp(&mut rule, Queue::Small);
        for _ in 1..1249 {
            rule.evict(Queue::Small);
        }
        assert_eq!(rule.clone().admit(evicted, 0), Queue::Main);
        rule.evict(Queue::Small);
        assert_eq!(rule.admit(evicted, 0), Queue::Small);
    }

    #[test]
    fn a_page_evicted_from_the_main_queue_starts_anew() {
        let mut rule = Rule::new(1000);
        let evicted = stamp(&mut rule, Queue::Main);
        assert_eq!(rule.admit(evicted, 0), Queue::Small);
    }

    #[test]
    fn the_small_queue_grows_with_its_near_misses_and_shrinks_with_the_main_ones() {
        let mut rule = Rule::new(1000);
        let start = rule.target;
        let evicted = stamp(&mut rule, Queue::Small);
        rule.admit(evicted, 0);
        assert_eq!(rule.target, start + 4);
        let evicted = stamp(&mut rule, Queue::Main);
        rule.admit(evicted, 0);
        assert_eq!(rule.target, start - 1);
        // What is far past the edge moves nothing.
        let evicted = stamp(&mut rule, Queue::Small);
        for _ in 0..40 {
            rule.evict(Queue::Small);
        }
        rule.admit(evicted, 0);
        assert_eq!(rule.target, start - 1);
    }

    #[test]
    fn the_target_stays_within_its_bounds() {
        for frames in [1, 2, 64, 1000, 1 << 20] {
            let mut rule = Rule::new(frames);
            for queue in [Queue::Small, Queue::Main] {
                for _ in 0..3000 {
                    let evicted = stamp(&mut rule, queue);
                    rule.admit(evicted, 0);
                }
                let pages = rule.target / PARTS;
                assert!(pages >= 1 && pages <= u64::from(frames.max(2)) / 2, "{pages} of {frames}");
            }
        }
    }

    #[test]
    fn the_small_queue_gives_when_it_is_over_its_target() {
        let rule = Rule::new(1000);
        assert_eq!(rule.victim(100, 900), Queue::Small);
        assert_eq!(rule.victim(99, 901), Queue::Main);
        assert_eq!(rule.victim(10, 0), Queue::Small);
        assert_eq!(rule.victim(0, 10), Queue::Main);
    }

    #[test]
    fn clocks_go_round() {
        let mut rule = Rule::new(64);
        rule.small_clock = STAMPS - 2;
        let before = stamp(&mut rule, Queue::Small);
        for _ in 0..4 {
            rule.evict(Queue::Small);
        }
        assert_eq!(rule.admit(before, 0), Queue::Main);
    }
}

//! What to keep and what to evict: S3-FIFO (Yang et al., SOSP 2023) without a ghost queue, and with a small queue whose
//! size follows the hits that a little more of either queue would have brought. Plain numbers: no frames, no locks.
//!
//! A page that is loaded goes to the back of the small queue. At its front, one that was read again moves on to the main
//! queue, any other is evicted, and its entry keeps a stamp: the small queue's clock, which counts these evictions. A page
//! that is missed while its stamp is young is loaded into the main queue. In the main queue each pass costs a page one
//! of its frequency; without any left it is evicted, stamped by the main queue's own clock. Until the first eviction what
//! the small queue has no room for goes to the main queue at once.
//!
//! A miss on a stamp that is younger than [`S3Fifo::edge`] would have been a hit had that queue been that much longer: the
//! target size of the small queue ([`S3Fifo::target`]) moves a step towards it, up for the small, down for the main queue.
//!
//! Invariants: all is O(1); the target stays within 1 % and 50 % of the frames; a hit changes nothing here. Which
//! parameters, and how well they do, was found on published traces: `bench/README.md` shows how it is measured again.

use crate::entry::{PageEntry, Queue, STAMPS};

/// The target is kept in parts of a page, so that a step down can be 5/4 of a step up.
const PARTS: u64 = 4;

/// The state of the algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct S3Fifo {
    /// Frames to share out.
    frames: u64,
    /// Evictions from the small queue, modulo [`STAMPS`].
    small_clock: u32,
    /// Evictions from the main queue, modulo [`STAMPS`].
    main_clock: u32,
    /// Target size of the small queue, in parts of a page.
    target: u64,
    /// Nothing was evicted yet: all that is loaded has room.
    filling: bool,
}

/// How many evictions from `clock`'s queue came after the one stamped `stamp`.
fn age(clock: u32, stamp: u32) -> u64 {
    u64::from(clock.wrapping_sub(stamp) % STAMPS)
}

impl S3Fifo {
    pub(crate) fn new(frames: u32) -> Self {
        let frames = u64::from(frames);
        // The first stamp is 1.
        let mut s3fifo = Self { frames, small_clock: 1, main_clock: 1, target: 0, filling: true };
        s3fifo.set_target(frames * PARTS / 10);
        s3fifo
    }

    /// There are `frames` frames to share out from now on.
    pub(crate) fn set_frames(&mut self, frames: u32) {
        self.frames = u64::from(frames);
        self.set_target(self.target);
    }

    fn set_target(&mut self, parts: u64) {
        let min = (self.frames / 100).max(1) * PARTS;
        let max = (self.frames / 2).max(1) * PARTS;
        self.target = parts.clamp(min, max.max(min));
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
        (self.frames / 128).clamp(1, 256) as usize
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
    pub(crate) fn evict(&mut self, queue: Queue) -> PageEntry {
        self.filling = false;
        let clock = match queue {
            Queue::Small => &mut self.small_clock,
            Queue::Main => &mut self.main_clock,
        };
        let entry = PageEntry::evicted(queue, *clock);
        *clock = (*clock + 1) % STAMPS;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::EntryState;

    fn stamp(s3fifo: &mut S3Fifo, queue: Queue) -> Option<(Queue, u32)> {
        match s3fifo.evict(queue).state() {
            EntryState::Absent(evicted) => evicted,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_never_seen_is_on_probation() {
        assert_eq!(S3Fifo::new(1000).admit(None, 99), Queue::Small);
    }

    #[test]
    fn while_the_cache_fills_the_small_queue_is_no_longer_than_wished() {
        let mut s3fifo = S3Fifo::new(1000);
        assert_eq!(s3fifo.admit(None, 100), Queue::Main);
        s3fifo.evict(Queue::Main);
        assert_eq!(s3fifo.admit(None, 100), Queue::Small);
    }

    #[test]
    fn a_page_evicted_from_the_small_queue_is_remembered_for_a_while() {
        let mut s3fifo = S3Fifo::new(1000);
        let evicted = stamp(&mut s3fifo, Queue::Small);
        for _ in 1..1249 {
            s3fifo.evict(Queue::Small);
        }
        assert_eq!(s3fifo.clone().admit(evicted, 0), Queue::Main);
        s3fifo.evict(Queue::Small);
        assert_eq!(s3fifo.admit(evicted, 0), Queue::Small);
    }

    #[test]
    fn a_page_evicted_from_the_main_queue_starts_anew() {
        let mut s3fifo = S3Fifo::new(1000);
        let evicted = stamp(&mut s3fifo, Queue::Main);
        assert_eq!(s3fifo.admit(evicted, 0), Queue::Small);
    }

    #[test]
    fn the_small_queue_grows_with_its_near_misses_and_shrinks_with_the_main_ones() {
        let mut s3fifo = S3Fifo::new(1000);
        let start = s3fifo.target;
        let evicted = stamp(&mut s3fifo, Queue::Small);
        s3fifo.admit(evicted, 0);
        assert_eq!(s3fifo.target, start + 4);
        let evicted = stamp(&mut s3fifo, Queue::Main);
        s3fifo.admit(evicted, 0);
        assert_eq!(s3fifo.target, start - 1);
        // What is far past the edge moves nothing.
        let evicted = stamp(&mut s3fifo, Queue::Small);
        for _ in 0..40 {
            s3fifo.evict(Queue::Small);
        }
        s3fifo.admit(evicted, 0);
        assert_eq!(s3fifo.target, start - 1);
    }

    #[test]
    fn the_target_stays_within_its_bounds() {
        for frames in [1, 2, 64, 1000, 1 << 20] {
            let mut s3fifo = S3Fifo::new(frames);
            for queue in [Queue::Small, Queue::Main] {
                for _ in 0..3000 {
                    let evicted = stamp(&mut s3fifo, queue);
                    s3fifo.admit(evicted, 0);
                }
                let pages = s3fifo.target / PARTS;
                assert!(pages >= 1 && pages <= u64::from(frames.max(2)) / 2, "{pages} of {frames}");
            }
        }
    }

    #[test]
    fn the_small_queue_gives_when_it_is_over_its_target() {
        let s3fifo = S3Fifo::new(1000);
        assert_eq!(s3fifo.victim(100, 900), Queue::Small);
        assert_eq!(s3fifo.victim(99, 901), Queue::Main);
        assert_eq!(s3fifo.victim(10, 0), Queue::Small);
        assert_eq!(s3fifo.victim(0, 10), Queue::Main);
    }

    #[test]
    fn clocks_go_round() {
        let mut s3fifo = S3Fifo::new(64);
        s3fifo.small_clock = STAMPS - 2;
        let before = stamp(&mut s3fifo, Queue::Small);
        for _ in 0..4 {
            s3fifo.evict(Queue::Small);
        }
        assert_eq!(s3fifo.admit(before, 0), Queue::Main);
    }
}

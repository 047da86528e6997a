//! The replacement policy: S3-FIFO (Yang et al., SOSP 2023) without a ghost queue. Its small queue
//! adapts in two ways. Its size follows the hits that a slightly longer small or main queue would
//! have had. It keeps pages that were read again once, if such pages proved useful. Plain numbers:
//! no frames, no locks.
//!
//! A loaded page goes to the back of the small queue. At the front, a page that was read again
//! often enough moves on to the main queue. Any other page is evicted, and its entry keeps a stamp:
//! the small queue's clock, which counts these evictions. A page that is missed while its stamp is
//! young is loaded into the main queue. In the main queue each pass reduces a page's frequency by
//! one. A page with frequency 0 is evicted, stamped by the main queue's own clock. Until the first
//! eviction, pages that exceed the small queue's target go to the main queue at once.
//!
//! A miss on a stamp that is younger than [`S3Fifo::edge`] would have been a hit with a queue
//! longer by that much. The target size of the small queue ([`S3Fifo::target`]) moves a step up if
//! the page left the small queue, and down if it left the main queue.
//!
//! Pages that were read again once are evicted at first, and an account is kept of those that are
//! missed soon after. While at least half of them are ([`RETURN_WEIGHT`]), such pages move on too,
//! except every eighth one, which keeps the account current.
//!
//! Invariants: all operations are O(1); the target stays within 1 % and 50 % of the frames; a hit
//! changes nothing here. The parameters were chosen on published traces; `bench/README.md` shows
//! how to measure them again.

use crate::entry::{EvictionOrigin, PageEntry, QueueKind, STAMP_MODULUS};

/// A page that was read again this many times always moves on from the small queue.
const PROMOTED_FREQUENCY: u32 = 2;

/// Pages that were read again once move on while at least one in this many of those evicted is
/// missed soon: a miss subtracts this from the account, to which each eviction adds 1.
const RETURN_WEIGHT: i64 = 2;

/// While pages that were read again once move on, one in this many does not, as a sample.
const SAMPLED_ONE_IN: u32 = 8;

/// Units of the target per page, so that a step down can be 5/4 of a step up.
const TARGET_UNITS_PER_PAGE: u64 = 4;

/// The state of the algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct S3Fifo {
    /// Number of frames in use.
    frames: u64,
    /// Evictions from the small queue, modulo [`STAMP_MODULUS`].
    small_clock: u32,
    /// Evictions from the main queue, modulo [`STAMP_MODULUS`].
    main_clock: u32,
    /// Target size of the small queue, in `TARGET_UNITS_PER_PAGE`ths of a page.
    target: u64,
    /// Whether nothing was evicted yet: all loaded pages have room.
    filling: bool,
    /// The account of evicted pages that were read again once. Above 0, too few of them are missed.
    unmissed: i64,
    /// Number of such pages that moved on, modulo [`SAMPLED_ONE_IN`].
    moved_on: u32,
}

/// Returns the number of evictions from `clock`'s queue after the one stamped `stamp`.
fn age(clock: u32, stamp: u32) -> u64 {
    u64::from(clock.wrapping_sub(stamp) % STAMP_MODULUS)
}

impl S3Fifo {
    pub(crate) fn new(frames: u32) -> Self {
        let frames = u64::from(frames);
        // The first stamp is 1.
        let mut s3fifo = Self {
            frames,
            small_clock: 1,
            main_clock: 1,
            target: 0,
            filling: true,
            unmissed: 0,
            moved_on: 0,
        };
        s3fifo.count_unmissed(s3fifo.most_unmissed());
        s3fifo.set_target(frames * TARGET_UNITS_PER_PAGE / 10);
        s3fifo
    }

    /// Sets the number of frames.
    pub(crate) fn set_frames(&mut self, frames: u32) {
        self.frames = u64::from(frames);
        self.set_target(self.target);
    }

    fn set_target(&mut self, parts: u64) {
        let min = (self.frames / 100).max(1) * TARGET_UNITS_PER_PAGE;
        let max = (self.frames / 2).max(1) * TARGET_UNITS_PER_PAGE;
        self.target = parts.clamp(min, max.max(min));
    }

    /// Returns the number of evictions for which a stamp of the small queue stays valid.
    fn memory(&self) -> u64 {
        (self.frames * 5 / 4).min(u64::from(STAMP_MODULUS / 4 * 3))
    }

    /// Returns the bound of the account in both directions, so that it can change sign again.
    fn most_unmissed(&self) -> i64 {
        (self.frames / 16).max(16).cast_signed() * RETURN_WEIGHT
    }

    fn count_unmissed(&mut self, more: i64) {
        let most = self.most_unmissed();
        self.unmissed = (self.unmissed + more).clamp(-most, most);
    }

    /// Returns by how much a queue is imagined to be longer, in evictions, when the target is
    /// adapted.
    fn edge(&self) -> u64 {
        (self.frames / 64).max(32)
    }

    fn step(&self) -> u64 {
        (self.frames / 4096).max(1)
    }

    /// Returns the number of frames to free at once. It balances a heavy barrier for each batch
    /// against idle frames.
    pub(crate) fn batch(&self) -> usize {
        (self.frames / 128).clamp(1, 256) as usize
    }

    /// Returns the queue for a missed page, given what its entry remembers and `small`, the length
    /// of the small queue.
    pub(crate) fn admit(&mut self, evicted: Option<(EvictionOrigin, u32)>, small: usize) -> QueueKind {
        match evicted {
            Some((origin @ (EvictionOrigin::Small | EvictionOrigin::SmallReadOnce), stamp)) => {
                let age = age(self.small_clock, stamp);
                if age < self.edge() {
                    self.set_target(self.target + self.step() * TARGET_UNITS_PER_PAGE);
                }
                if age >= self.memory() {
                    return QueueKind::Small;
                }
                if origin == EvictionOrigin::SmallReadOnce {
                    self.count_unmissed(-RETURN_WEIGHT);
                }
                QueueKind::Main
            }
            Some((EvictionOrigin::Main, stamp)) => {
                if age(self.main_clock, stamp) < self.edge() {
                    self.set_target(self.target.saturating_sub(self.step() * (TARGET_UNITS_PER_PAGE + 1)));
                }
                QueueKind::Small
            }
            // While the cache fills, pages beyond the target go to the main queue.
            None if self.filling && small as u64 * TARGET_UNITS_PER_PAGE >= self.target => QueueKind::Main,
            None => QueueKind::Small,
        }
    }

    /// Returns the frequency of a page that stays although its turn has come; `None` if the page is
    /// evicted.
    pub(crate) fn spare(&mut self, queue: QueueKind, frequency: u32) -> Option<u32> {
        if queue == QueueKind::Main {
            return frequency.checked_sub(1);
        }
        let moves_on = match frequency {
            0 => false,
            1..PROMOTED_FREQUENCY if self.unmissed > 0 => false,
            1..PROMOTED_FREQUENCY => {
                self.moved_on = (self.moved_on + 1) % SAMPLED_ONE_IN;
                self.moved_on != 0
            }
            _ => true,
        };
        moves_on.then_some(0)
    }

    /// Returns the queue to evict from, by the lengths of both.
    pub(crate) fn victim(&self, small: usize, main: usize) -> QueueKind {
        if small > 0 && (main == 0 || small as u64 * TARGET_UNITS_PER_PAGE >= self.target) {
            QueueKind::Small
        } else {
            QueueKind::Main
        }
    }

    /// Returns the entry of a page that is evicted from `queue` now, given its frequency.
    pub(crate) fn evict(&mut self, queue: QueueKind, frequency: u32) -> PageEntry {
        self.filling = false;
        let origin = match queue {
            QueueKind::Small if frequency == 1 => EvictionOrigin::SmallReadOnce,
            QueueKind::Small => EvictionOrigin::Small,
            QueueKind::Main => EvictionOrigin::Main,
        };
        if origin == EvictionOrigin::SmallReadOnce {
            self.count_unmissed(1);
        }
        let clock = match queue {
            QueueKind::Small => &mut self.small_clock,
            QueueKind::Main => &mut self.main_clock,
        };
        let entry = PageEntry::evicted(origin, *clock);
        *clock = (*clock + 1) % STAMP_MODULUS;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::EntryState;

    fn evicted(entry: PageEntry) -> Option<(EvictionOrigin, u32)> {
        match entry.state() {
            EntryState::Absent(evicted) => evicted,
            other => panic!("{other:?}"),
        }
    }

    fn stamp(s3fifo: &mut S3Fifo, queue: QueueKind) -> Option<(EvictionOrigin, u32)> {
        evicted(s3fifo.evict(queue, 0))
    }

    #[test]
    fn a_page_never_seen_is_on_probation() {
        assert_eq!(S3Fifo::new(1000).admit(None, 99), QueueKind::Small);
    }

    #[test]
    fn while_the_cache_fills_the_small_queue_is_no_longer_than_wished() {
        let mut s3fifo = S3Fifo::new(1000);
        assert_eq!(s3fifo.admit(None, 100), QueueKind::Main);
        s3fifo.evict(QueueKind::Main, 0);
        assert_eq!(s3fifo.admit(None, 100), QueueKind::Small);
    }

    #[test]
    fn a_page_evicted_from_the_small_queue_is_remembered_for_a_while() {
        let mut s3fifo = S3Fifo::new(1000);
        let evicted = stamp(&mut s3fifo, QueueKind::Small);
        for _ in 1..1249 {
            s3fifo.evict(QueueKind::Small, 0);
        }
        assert_eq!(s3fifo.clone().admit(evicted, 0), QueueKind::Main);
        s3fifo.evict(QueueKind::Small, 0);
        assert_eq!(s3fifo.admit(evicted, 0), QueueKind::Small);
    }

    #[test]
    fn a_page_evicted_from_the_main_queue_starts_as_new() {
        let mut s3fifo = S3Fifo::new(1000);
        let evicted = stamp(&mut s3fifo, QueueKind::Main);
        assert_eq!(s3fifo.admit(evicted, 0), QueueKind::Small);
    }

    #[test]
    fn the_small_queue_grows_with_its_near_misses_and_shrinks_with_the_main_ones() {
        let mut s3fifo = S3Fifo::new(1000);
        let start = s3fifo.target;
        let evicted = stamp(&mut s3fifo, QueueKind::Small);
        s3fifo.admit(evicted, 0);
        assert_eq!(s3fifo.target, start + 4);
        let evicted = stamp(&mut s3fifo, QueueKind::Main);
        s3fifo.admit(evicted, 0);
        assert_eq!(s3fifo.target, start - 1);
        // A stamp far past the edge does not move the target.
        let evicted = stamp(&mut s3fifo, QueueKind::Small);
        for _ in 0..40 {
            s3fifo.evict(QueueKind::Small, 0);
        }
        s3fifo.admit(evicted, 0);
        assert_eq!(s3fifo.target, start - 1);
    }

    #[test]
    fn the_target_stays_within_its_bounds() {
        for frames in [1, 2, 64, 1000, 1 << 20] {
            let mut s3fifo = S3Fifo::new(frames);
            for queue in [QueueKind::Small, QueueKind::Main] {
                for _ in 0..3000 {
                    let evicted = stamp(&mut s3fifo, queue);
                    s3fifo.admit(evicted, 0);
                }
                let pages = s3fifo.target / TARGET_UNITS_PER_PAGE;
                assert!(pages >= 1 && pages <= u64::from(frames.max(2)) / 2, "{pages} of {frames}");
            }
        }
    }

    #[test]
    fn pages_are_spared_by_queue_and_frequency() {
        let mut s3fifo = S3Fifo::new(1000);
        let mut spared = |queue| [0, 1, 2, 3].map(|frequency| s3fifo.spare(queue, frequency));
        assert_eq!(spared(QueueKind::Small), [None, None, Some(0), Some(0)]);
        assert_eq!(spared(QueueKind::Main), [None, Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn pages_that_were_read_again_once_move_on_where_they_are_missed_and_no_more_where_they_are_not() {
        let mut s3fifo = S3Fifo::new(1000);
        let moves_on = |s3fifo: &mut S3Fifo| {
            (0..SAMPLED_ONE_IN).filter(|_| s3fifo.spare(QueueKind::Small, 1).is_some()).count()
        };
        for _ in 0..2 {
            assert_eq!(moves_on(&mut s3fifo), 0);
            // Each page is missed at once, and goes to the main queue like other such pages.
            for _ in 0..200 {
                let evicted = evicted(s3fifo.evict(QueueKind::Small, 1));
                assert_eq!(s3fifo.admit(evicted, 0), QueueKind::Main);
            }
            assert_eq!(moves_on(&mut s3fifo), SAMPLED_ONE_IN as usize - 1);
            // One in four is missed.
            for number in 0..2000 {
                let evicted = evicted(s3fifo.evict(QueueKind::Small, 1));
                if number % 4 == 0 {
                    s3fifo.admit(evicted, 0);
                }
            }
        }
        // Pages that were never read again do not change the account.
        let before = s3fifo.unmissed;
        let evicted = evicted(s3fifo.evict(QueueKind::Small, 0));
        s3fifo.admit(evicted, 0);
        assert_eq!(s3fifo.unmissed, before);
    }

    #[test]
    fn the_small_queue_gives_when_it_is_over_its_target() {
        let s3fifo = S3Fifo::new(1000);
        assert_eq!(s3fifo.victim(100, 900), QueueKind::Small);
        assert_eq!(s3fifo.victim(99, 901), QueueKind::Main);
        assert_eq!(s3fifo.victim(10, 0), QueueKind::Small);
        assert_eq!(s3fifo.victim(0, 10), QueueKind::Main);
    }

    #[test]
    fn clocks_go_round() {
        let mut s3fifo = S3Fifo::new(64);
        s3fifo.small_clock = STAMP_MODULUS - 2;
        let before = stamp(&mut s3fifo, QueueKind::Small);
        for _ in 0..4 {
            s3fifo.evict(QueueKind::Small, 0);
        }
        assert_eq!(s3fifo.admit(before, 0), QueueKind::Main);
    }
}

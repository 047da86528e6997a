//! The disks that this process writes to: what is known of each, whose turn it is, and how much of all that may be unwritten is a
//! writer's.
//!
//! Invariants: what a writer counted here it takes off again ([`Share`]); nobody waits. A turn ends by itself, since its writer may not
//! come back to say so. What is known of a disk is a few words that two threads may change at once: any mixture of them is valid
//! ([`Pacer`]).

use core::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_policy::pacer::{Pacer, WORDS, WrittenPart};
use pagekeeper_policy::write_behind::Pace;

/// Disks at a time; further ones share the last place.
const DISKS: usize = 8;
/// Nanoseconds of a turn at least, and at most; in between, some prices of a part.
const TURN_MIN: u64 = 20_000_000;
const TURN_MAX: u64 = 1_000_000_000;
const TURN_PRICES: u64 = 4;

struct Disk {
    /// One more than the device's number; 0 where there is none.
    device: AtomicU64,
    /// Writers that have more than a step.
    writers: AtomicU64,
    /// Until when nothing is to be begun, and until when it is one writer's turn.
    pause_until: AtomicU64,
    turn_until: AtomicU64,
    pacer: [AtomicU64; WORDS],
}

static DISKS_WRITTEN: [Disk; DISKS] = [const {
    Disk {
        device: AtomicU64::new(0),
        writers: AtomicU64::new(0),
        pause_until: AtomicU64::new(0),
        turn_until: AtomicU64::new(0),
        pacer: [const { AtomicU64::new(0) }; WORDS],
    }
}; DISKS];
/// Writers of all disks that have more than a step.
static WRITERS: AtomicU64 = AtomicU64::new(0);

impl Disk {
    fn of(device: u64) -> Option<&'static Self> {
        let name = device.wrapping_add(1);
        let is_it = |disk: &&Self| {
            let taken = disk.device.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok() || taken == Err(name)
        };
        DISKS_WRITTEN.iter().find(is_it).or(DISKS_WRITTEN.last())
    }

    fn pacer(&self) -> Pacer {
        let mut words = [0; WORDS];
        for (word, kept) in words.iter_mut().zip(&self.pacer) {
            *word = kept.load(Ordering::Relaxed);
        }
        Pacer::from_words(words)
    }
}

/// A writer's share of its disk.
pub(crate) struct Share {
    disk: Option<&'static Disk>,
    /// Whether it is counted as a writer.
    is_counted: bool,
}

impl Share {
    /// None yet.
    pub(crate) const NONE: Self = Self { disk: None, is_counted: false };

    /// The share of a writer to that device.
    pub(crate) fn of(device: u64) -> Self {
        Self { disk: Disk::of(device), ..Self::NONE }
    }

    /// Whether it is known which disk.
    pub(crate) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    fn pacer(&self) -> Pacer {
        self.disk.map_or(Pacer::NEW, Disk::pacer)
    }

    /// The pace of this writer, in a process whose writers may have `budget` bytes unwritten, for calls of `length` bytes.
    pub(crate) fn pace(&self, budget: u64, length: u64, release: bool) -> Pace {
        let pacer = self.pacer();
        let others = |writers: &AtomicU64| {
            let counted = writers.load(Ordering::Relaxed);
            counted.saturating_add(u64::from(!self.is_counted)).max(1)
        };
        let on_disk = self.disk.map_or(1, |disk| others(&disk.writers));
        let backlog = (pacer.backlog() / on_disk).min(budget / others(&WRITERS));
        Pace::of(pacer.piece(), backlog, length, release)
    }

    /// It is a writer that has more than a step.
    pub(crate) fn count(&mut self) {
        if let (false, Some(disk)) = (self.is_counted, self.disk) {
            self.is_counted = true;
            disk.writers.fetch_add(1, Ordering::Relaxed);
            WRITERS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nanoseconds that a part of a piece is expected to take; 0 if that is unknown.
    pub(crate) fn price(&self) -> u64 {
        self.pacer().price()
    }

    /// Nanoseconds until something may be begun.
    pub(crate) fn pause(&self, now: u64) -> u64 {
        self.disk.map_or(0, |disk| disk.pause_until.load(Ordering::Relaxed).saturating_sub(now))
    }

    /// Whether a part of `bytes` may be begun, with which `in_flight` bytes of this writer would be on their way; if so, it is its turn.
    pub(crate) fn may_begin(&self, in_flight: u64, bytes: u64, now: u64) -> bool {
        let Some(disk) = self.disk else { return true };
        let pacer = disk.pacer();
        let is_first = in_flight <= bytes;
        if self.pause(now) > 0 || (!is_first && in_flight > pacer.piece()) {
            return false;
        }
        let turn = pacer.price().saturating_mul(TURN_PRICES).saturating_add(TURN_MIN).min(TURN_MAX);
        let until = now.saturating_add(turn);
        if !is_first {
            disk.turn_until.fetch_max(until, Ordering::Relaxed);
            return true;
        }
        let seen = disk.turn_until.load(Ordering::Relaxed);
        seen <= now
            && disk.turn_until.compare_exchange(seen, until, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// A part was written; `is_last`: and nothing of this writer is on its way.
    pub(crate) fn written(&self, part: WrittenPart, is_last: bool, now: u64) {
        let Some(disk) = self.disk else { return };
        let mut pacer = disk.pacer();
        let pause = pacer.written(part);
        for (word, kept) in pacer.to_words().into_iter().zip(&disk.pacer) {
            kept.store(word, Ordering::Relaxed);
        }
        disk.pause_until.fetch_max(now.saturating_add(pause), Ordering::Relaxed);
        if is_last {
            disk.turn_until.store(now, Ordering::Relaxed);
        }
    }

    /// It is no writer any more, until it writes again.
    pub(crate) fn clear(&mut self) {
        if core::mem::take(&mut self.is_counted)
            && let Some(disk) = self.disk
        {
            disk.writers.fetch_sub(1, Ordering::Relaxed);
            WRITERS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// In a child of fork: its parent's writer is counted by its parent.
    pub(crate) fn forget(&mut self) {
        self.is_counted = false;
    }
}

impl Drop for Share {
    // What is known of a descriptor that was closed behind our back is replaced.
    fn drop(&mut self) {
        self.clear();
    }
}

/// In a child of fork, whose writers have forgotten all.
pub(crate) fn after_fork() {
    for disk in &DISKS_WRITTEN {
        for word in [&disk.writers, &disk.pause_until, &disk.turn_until] {
            word.store(0, Ordering::Relaxed);
        }
    }
    WRITERS.store(0, Ordering::Relaxed);
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn part(took: u64) -> WrittenPart {
        WrittenPart { bytes: MIB, in_flight: MIB, took_min: took, took_max: took, busy: Some(took) }
    }

    #[test]
    fn writers_share_what_their_disk_may_have_unwritten() {
        let [mut one, mut other] = [7, 7].map(|number| Share::of(u64::MAX - number));
        let of = |share: &Share, budget| {
            let pace = share.pace(budget, 1, true);
            pace.budget + pace.step
        };
        let alone = of(&one, 256 * MIB);
        one.count();
        other.count();
        assert_eq!(of(&one, 256 * MIB), alone / 2);
        // Of other tests there may be more writers at this moment.
        assert!(of(&Share::of(u64::MAX - 8), 3 * MIB) <= MIB);
        drop(other);
        assert_eq!(of(&one, 256 * MIB), alone);
    }

    #[test]
    fn one_writer_at_a_time_has_a_piece_on_its_way() {
        let [one, other, elsewhere] = [9, 9, 10].map(|number| Share::of(u64::MAX - number));
        let now = 1_000_000_000;
        assert!(one.may_begin(MIB / 8, MIB / 8, now) && one.may_begin(MIB / 4, MIB / 8, now));
        assert!(!one.may_begin(MIB / 2, MIB / 8, now), "longer than a piece");
        assert!(!other.may_begin(MIB / 8, MIB / 8, now) && elsewhere.may_begin(MIB / 8, MIB / 8, now));
        one.written(part(3_000_000), true, now + 1);
        assert!(other.may_begin(MIB / 8, MIB / 8, now + 1));
        // One that never says that it is done has its turn for a while.
        assert!(
            !one.may_begin(MIB / 8, MIB / 8, now + 2) && one.may_begin(MIB / 8, MIB / 8, now + TURN_MAX + 2)
        );
    }

    #[test]
    fn after_a_late_part_nobody_begins_for_a_while() {
        let [one, other, elsewhere] = [11, 11, 12].map(|number| Share::of(u64::MAX - number));
        one.written(part(3_000_000), true, 0);
        one.written(part(30_000_000), true, 0);
        assert!(!one.may_begin(1, 1, 59_000_000) && !other.may_begin(1, 1, 59_000_000));
        assert!(elsewhere.may_begin(1, 1, 0) && other.may_begin(1, 1, 60_000_000));
        assert_eq!((other.price(), elsewhere.price()), (one.price(), 0));
    }
}

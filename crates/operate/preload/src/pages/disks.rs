//! The disks that this process writes to: the pacing state of each, the writer whose turn it is,
//! and each writer's share of the bytes that may be unwritten.
//!
//! Invariants: a writer takes off what it counted here ([`DiskShare`]); nobody waits. A turn ends
//! by itself, since its writer may never come back to end it. Only its holder ends it earlier or
//! prolongs it. The state of a disk is a few words that two threads may change at once: any mixture
//! of them is valid ([`Pacer`]).

use core::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_policy::disk_turn::{TurnAnswer, TurnClaim, TurnRequest, answer};
use pagekeeper_policy::pacer::{Pacer, WORDS, WrittenPart};
use pagekeeper_policy::write_behind::WritePace;

use crate::sys;

/// Disks followed at a time; further ones share the last place.
const DISKS_MAX: usize = 8;
struct WrittenDisk {
    /// The device number plus one; 0 in a free place.
    device: AtomicU64,
    /// Writers that have written more than one step.
    writers: AtomicU64,
    /// No writer begins a part before this time.
    pause_until: AtomicU64,
    /// The writer whose turn it is, and one that waits for its turn: [`TurnClaim`]s.
    turn: AtomicU64,
    waiting: AtomicU64,
    pacer: [AtomicU64; WORDS],
}

// SAFETY: the struct has only numbers, and zero is valid for each.
static DISKS_WRITTEN: [WrittenDisk; DISKS_MAX] = unsafe { core::mem::zeroed() };
/// Writers of all disks that have written more than one step.
static ALL_WRITERS: AtomicU64 = AtomicU64::new(0);
/// The number of the next share.
static NEXT_WRITER: AtomicU64 = AtomicU64::new(0);

impl WrittenDisk {
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

    fn turn(&self) -> TurnClaim {
        TurnClaim::of_word(self.turn.load(Ordering::Relaxed))
    }

    /// Replaces the turn, unless somebody changed it since `seen`.
    fn change_turn(&self, seen: TurnClaim, to: TurnClaim) -> bool {
        let (seen, to) = (seen.to_word(), to.to_word());
        self.turn.compare_exchange(seen, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A writer's share of its disk.
pub(crate) struct DiskShare {
    disk: Option<&'static WrittenDisk>,
    /// Whether it is counted as a writer.
    is_counted: bool,
    /// Its number among the writers of this process, which identifies its turns.
    writer: u64,
}

impl DiskShare {
    /// A share without a disk.
    pub(crate) const NONE: Self = Self { disk: None, is_counted: false, writer: 0 };

    /// Returns the share of a new writer to that device.
    pub(crate) fn of(device: u64) -> Self {
        let number = NEXT_WRITER.fetch_add(1, Ordering::Relaxed);
        let writer = number % TurnClaim::WRITERS_MAX + 1;
        Self { disk: WrittenDisk::of(device), is_counted: false, writer }
    }

    /// Whether the disk is known.
    pub(crate) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    fn pacer(&self) -> Pacer {
        self.disk.map_or(Pacer::new(), WrittenDisk::pacer)
    }

    /// Returns the pace of this writer for calls of `length` bytes, in a process whose writers
    /// together may have `budget` bytes unwritten.
    pub(crate) fn pace(&self, budget: u64, length: u64, release: bool) -> WritePace {
        let pacer = self.pacer();
        let others = |writers: &AtomicU64| {
            let counted = writers.load(Ordering::Relaxed);
            counted.saturating_add(u64::from(!self.is_counted)).max(1)
        };
        let on_disk = self.disk.map_or(1, |disk| others(&disk.writers));
        let backlog = (pacer.backlog() / on_disk).min(budget / others(&ALL_WRITERS));
        WritePace::of(pacer.part(), backlog, length, release)
    }

    /// Counts this writer as one that has written more than one step.
    pub(crate) fn count(&mut self) {
        if let (false, Some(disk)) = (self.is_counted, self.disk) {
            self.is_counted = true;
            disk.writers.fetch_add(1, Ordering::Relaxed);
            ALL_WRITERS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the nanoseconds that a part of a piece is expected to take; 0 if unknown.
    pub(crate) fn price(&self) -> u64 {
        self.pacer().price()
    }

    /// Returns the nanoseconds until a part may be begun.
    pub(crate) fn pause(&self, now: u64) -> u64 {
        self.disk.map_or(0, |disk| disk.pause_until.load(Ordering::Relaxed).saturating_sub(now))
    }

    /// Whether a part of `bytes` may be begun, after which `in_flight` bytes of this writer would
    /// be in flight. If so, it takes the turn.
    pub(crate) fn may_begin(&self, in_flight: u64, bytes: u64, now: u64) -> bool {
        let Some(disk) = self.disk else { return true };
        let pacer = disk.pacer();
        let is_first = in_flight <= bytes;
        if self.pause(now) > 0 || (!is_first && in_flight > pacer.piece()) {
            return false;
        }
        let (held, waiting) = (disk.turn(), TurnClaim::of_word(disk.waiting.load(Ordering::Relaxed)));
        match answer(held, waiting, TurnRequest { writer: self.writer, is_first, price: pacer.price(), now })
        {
            TurnAnswer::Begin => true,
            TurnAnswer::Take(turn) => disk.change_turn(held, turn),
            TurnAnswer::Wait(waiting) => {
                disk.waiting.store(waiting.to_word(), Ordering::Relaxed);
                false
            }
            TurnAnswer::Leave => false,
        }
    }

    /// Ends this writer's turn, if it has it.
    pub(crate) fn end_turn(&self, now: u64) {
        if let Some(disk) = self.disk {
            let held = disk.turn();
            if held.writer == self.writer && held.until > now {
                disk.change_turn(held, TurnClaim { until: 0, ..held });
            }
        }
    }

    /// Records that a part was written. `is_last`: nothing more of this writer is in flight.
    pub(crate) fn written(&self, part: WrittenPart, is_last: bool, now: u64) {
        let Some(disk) = self.disk else { return };
        let mut pacer = disk.pacer();
        let pause = pacer.written(part);
        for (word, kept) in pacer.to_words().into_iter().zip(&disk.pacer) {
            kept.store(word, Ordering::Relaxed);
        }
        disk.pause_until.fetch_max(now.saturating_add(pause), Ordering::Relaxed);
        if is_last {
            self.end_turn(now);
        }
    }

    /// Stops counting this writer, and ends its turn, until it writes again.
    pub(crate) fn clear(&mut self) {
        let Some(disk) = self.disk else { return };
        self.end_turn(sys::now());
        if core::mem::take(&mut self.is_counted) {
            decrease(&disk.writers);
            decrease(&ALL_WRITERS);
        }
    }

    /// Forgets that it was counted, in a child of fork: its parent counts its own writer.
    pub(crate) fn forget(&mut self) {
        self.is_counted = false;
    }
}

/// Counts one writer less, but not below 0: a child of fork begins at 0, and a writer of its parent
/// may still be marked as counted.
fn decrease(writers: &AtomicU64) {
    let less = |count: u64| count.checked_sub(1);
    let _ = writers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

impl Drop for DiskShare {
    // The state of a descriptor that the program closed by a call we do not see is replaced, and so
    // dropped.
    fn drop(&mut self) {
        self.clear();
    }
}

/// Resets all counts and turns in a child of fork, whose writers have forgotten that they were
/// counted.
pub(crate) fn after_fork() {
    for disk in &DISKS_WRITTEN {
        for word in [&disk.writers, &disk.pause_until, &disk.turn, &disk.waiting] {
            word.store(0, Ordering::Relaxed);
        }
    }
    ALL_WRITERS.store(0, Ordering::Relaxed);
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use pagekeeper_policy::disk_turn::{TURN_MAX_NS, WAITING_NS};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn part(took: u64) -> WrittenPart {
        WrittenPart { bytes: MIB, in_flight: MIB, took_min: took, took_max: took, busy: Some(took) }
    }

    #[test]
    fn writers_share_the_dirty_limit_of_their_disk() {
        let [mut one, mut other] = [7, 7].map(|number| DiskShare::of(u64::MAX - number));
        let of = |share: &DiskShare, budget| {
            let pace = share.pace(budget, 1, true);
            pace.budget + pace.step
        };
        let alone = of(&one, 256 * MIB);
        one.count();
        other.count();
        assert_eq!(of(&one, 256 * MIB), alone / 2);
        // Other tests may have more writers at this moment.
        assert!(of(&DiskShare::of(u64::MAX - 8), 3 * MIB) <= MIB);
        drop(other);
        assert_eq!(of(&one, 256 * MIB), alone);
    }

    #[test]
    fn one_writer_at_a_time_has_a_piece_in_flight() {
        let [one, other, elsewhere] = [9, 9, 10].map(|number| DiskShare::of(u64::MAX - number));
        let now = 1_000_000_000;
        assert!(one.may_begin(MIB / 8, MIB / 8, now) && one.may_begin(MIB / 4, MIB / 8, now));
        assert!(!one.may_begin(MIB / 2, MIB / 8, now), "longer than a piece");
        assert!(!other.may_begin(MIB / 8, MIB / 8, now) && elsewhere.may_begin(MIB / 8, MIB / 8, now));
        one.written(part(3_000_000), true, now + 1);
        assert!(other.may_begin(MIB / 8, MIB / 8, now + 1));
        // A writer that never says that it is done holds its turn for a while.
        assert!(
            !one.may_begin(MIB / 8, MIB / 8, now + 2)
                && one.may_begin(MIB / 8, MIB / 8, now + TURN_MAX_NS + 2)
        );
    }

    #[test]
    fn a_writer_lets_the_one_that_waits_begin_next() {
        let [one, other] = [13, 13].map(|number| DiskShare::of(u64::MAX - number));
        let (step, mut now) = (MIB / 8, 1_000_000_000);
        for _ in 0..10 {
            assert!(one.may_begin(step, step, now) && !other.may_begin(step, step, now));
            assert!(one.may_begin(2 * step, step, now), "the rest of the piece");
            now += 3_000_000;
            assert!(!other.may_begin(step, step, now));
            one.written(part(3_000_000), true, now);
            assert!(!one.may_begin(step, step, now) && other.may_begin(step, step, now));
            now += 3_000_000;
            other.written(part(3_000_000), true, now);
        }
        // A writer that was refused and went away is not waited for.
        assert!(one.may_begin(step, step, now) && !other.may_begin(step, step, now));
        one.written(part(3_000_000), true, now);
        assert!(!one.may_begin(step, step, now) && one.may_begin(step, step, now + WAITING_NS + 1000));
        // An unused rest of a turn ends with its writer.
        one.end_turn(now + WAITING_NS + 2000);
        assert!(other.may_begin(step, step, now + WAITING_NS + 2000));
    }

    #[test]
    fn the_turn_of_another_writer_is_not_ended() {
        let [one, other, third] = [14, 14, 14].map(|number| DiskShare::of(u64::MAX - number));
        let now = 1_000_000_000;
        assert!(one.may_begin(1, 1, now) && other.may_begin(1, 1, now + TURN_MAX_NS + 1000));
        one.written(part(3_000_000), true, now + TURN_MAX_NS + 2000);
        assert!(!third.may_begin(1, 1, now + TURN_MAX_NS + 3000));
    }

    #[test]
    fn after_a_late_part_nobody_begins_for_a_while() {
        let [one, other, elsewhere] = [11, 11, 12].map(|number| DiskShare::of(u64::MAX - number));
        one.written(part(3_000_000), true, 0);
        one.written(part(30_000_000), true, 0);
        assert!(!one.may_begin(1, 1, 59_000_000) && !other.may_begin(1, 1, 59_000_000));
        assert!(elsewhere.may_begin(1, 1, 0) && other.may_begin(1, 1, 60_000_000));
        assert_eq!((other.price(), elsewhere.price()), (one.price(), 0));
    }
}

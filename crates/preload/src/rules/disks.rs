//! The disks that this process writes to: what is in flight on each, and how far its writers may be ahead.
//!
//! Invariants: what a writer counted here it takes off again ([`Share`]); nobody waits. What is known of a disk is a few words
//! that two threads may change at once: any mixture of them is valid ([`Lead`]).

use core::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_policy::lead::{Lead, Timed, WORDS};

/// Disks at a time; further ones share the last place.
const DISKS: usize = 8;

struct Disk {
    /// One more than the device's number; 0 where there is none.
    device: AtomicU64,
    /// Writers that have more than a step, and what is in flight of all, in bytes.
    writers: AtomicU64,
    in_flight: AtomicU64,
    lead: [AtomicU64; WORDS],
}

static DISKS_WRITTEN: [Disk; DISKS] = [const {
    Disk {
        device: AtomicU64::new(0),
        writers: AtomicU64::new(0),
        in_flight: AtomicU64::new(0),
        lead: [const { AtomicU64::new(0) }; WORDS],
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

    fn lead(&self) -> Lead {
        let mut words = [0; WORDS];
        for (word, kept) in words.iter_mut().zip(&self.lead) {
            *word = kept.load(Ordering::Relaxed);
        }
        Lead::from_words(words)
    }
}

/// A writer's share of what may be unwritten on its disk.
pub(super) struct Share {
    disk: Option<&'static Disk>,
    /// Whether it is counted as a writer, and what is counted of it.
    is_counted: bool,
    in_flight: u64,
}

impl Share {
    /// None yet.
    pub(super) const NONE: Self = Self { disk: None, is_counted: false, in_flight: 0 };

    /// Whether it is known which disk.
    pub(super) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Its file is on that device.
    pub(super) fn set_disk(&mut self, device: u64) {
        self.clear();
        self.disk = Disk::of(device);
    }

    /// Bytes that all writers to the disk may have unwritten.
    pub(super) fn lead(&self, budget: u64) -> u64 {
        self.disk.map_or(Lead::NEW, Disk::lead).bytes(budget)
    }

    /// Bytes of these, and of the process's budget, for this writer.
    pub(super) fn bytes(&self, lead: u64, budget: u64) -> u64 {
        let others = |writers: &AtomicU64| {
            let counted = writers.load(Ordering::Relaxed);
            counted.saturating_add(u64::from(!self.is_counted)).max(1)
        };
        let on_disk = self.disk.map_or(1, |disk| others(&disk.writers));
        (lead / on_disk).min(budget / others(&WRITERS))
    }

    /// So many bytes of this writer are in flight; of all of its disk's writers: how many.
    pub(super) fn set_in_flight(&mut self, bytes: u64) -> u64 {
        let Some(disk) = self.disk else { return bytes };
        if bytes == 0 && !self.is_counted {
            return disk.in_flight.load(Ordering::Relaxed);
        }
        let change = bytes.wrapping_sub(core::mem::replace(&mut self.in_flight, bytes));
        let all = disk.in_flight.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        if !core::mem::replace(&mut self.is_counted, true) {
            disk.writers.fetch_add(1, Ordering::Relaxed);
            WRITERS.fetch_add(1, Ordering::Relaxed);
        }
        all
    }

    /// Writeback to the disk was timed.
    pub(super) fn timed(&self, timed: Timed, budget: u64) {
        let Some(disk) = self.disk else { return };
        let mut lead = disk.lead();
        lead.timed(timed, budget);
        for (word, kept) in lead.to_words().into_iter().zip(&disk.lead) {
            kept.store(word, Ordering::Relaxed);
        }
    }

    /// It is no writer any more, until it writes again.
    pub(super) fn clear(&mut self) {
        if core::mem::take(&mut self.is_counted)
            && let Some(disk) = self.disk
        {
            disk.in_flight.fetch_sub(core::mem::take(&mut self.in_flight), Ordering::Relaxed);
            disk.writers.fetch_sub(1, Ordering::Relaxed);
            WRITERS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// In a child of fork: its parent's writer is counted by its parent.
    pub(super) fn forget(&mut self) {
        (self.is_counted, self.in_flight) = (false, 0);
    }
}

impl Drop for Share {
    // What is known of a descriptor that was closed behind our back is replaced.
    fn drop(&mut self) {
        self.clear();
    }
}

/// In a child of fork, whose writers have forgotten all.
pub(super) fn after_fork() {
    for disk in &DISKS_WRITTEN {
        disk.writers.store(0, Ordering::Relaxed);
        disk.in_flight.store(0, Ordering::Relaxed);
    }
    WRITERS.store(0, Ordering::Relaxed);
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn writers_share_what_their_disk_may_have_unwritten() {
        let (mut one, mut other, mut elsewhere) = (Share::NONE, Share::NONE, Share::NONE);
        one.set_disk(u64::MAX - 7);
        other.set_disk(u64::MAX - 7);
        elsewhere.set_disk(u64::MAX - 8);
        assert_eq!(one.set_in_flight(5), 5);
        assert_eq!(other.set_in_flight(7), 12);
        assert_eq!(elsewhere.set_in_flight(1), 1);
        assert_eq!(one.set_in_flight(2), 9);
        assert_eq!(one.bytes(2 * MIB, 256 * MIB), MIB);
        assert_eq!(elsewhere.bytes(2 * MIB, 256 * MIB), 2 * MIB);
        // Of other tests there may be more writers at this moment.
        assert!(elsewhere.bytes(2 * MIB, 3 * MIB) <= MIB);
        drop(other);
        assert_eq!((one.bytes(2 * MIB, 256 * MIB), one.set_in_flight(2)), (2 * MIB, 2));
    }

    #[test]
    fn what_is_timed_is_known_of_that_disk() {
        let (mut one, mut other) = (Share::NONE, Share::NONE);
        one.set_disk(u64::MAX - 9);
        other.set_disk(u64::MAX - 10);
        let before = other.lead(256 * MIB);
        // The first MiB, and then twice as much in the same time.
        for in_flight in [MIB, 2 * MIB] {
            let lead = one.lead(256 * MIB);
            let timed = Timed { lead, in_flight, took: 40_000_000, waited: true, is_exact: false };
            one.timed(timed, 256 * MIB);
        }
        assert!(one.lead(256 * MIB) > 16 * MIB && other.lead(256 * MIB) == before);
        let mut later = Share::NONE;
        later.set_disk(u64::MAX - 9);
        assert_eq!(later.lead(256 * MIB), one.lead(256 * MIB));
    }
}

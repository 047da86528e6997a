//! State that threads with one open file share: what is known of the file, for threads that find
//! its state busy, and what these did meanwhile, for the next thread that has the state.
//!
//! Invariants: nobody waits; all bits may be zero. A read without a free place is lost, and the
//! thread that leaves it is notified. A thread that is ended in the middle takes one place with it.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use crate::sys;

/// Ranges that can be left for the next thread with the state.
const MISSED_MAX: usize = 12;
/// Places of a file that are read at a time.
pub const PLACES_MAX: usize = 8;
/// The length of a place that is being filled in.
const LENGTH_TAKEN: u64 = u64::MAX;

/// A range: its start and its length.
struct SharedRange {
    at: AtomicU64,
    length: AtomicU64,
}

/// The shared state of one open file.
pub struct Shared {
    /// The thread that began the last read, the number of reads in progress, and whether several
    /// threads read at a time.
    thread: AtomicUsize,
    reads: AtomicU32,
    is_by_many: AtomicBool,
    is_uncached: AtomicBool,
    /// Bytes that were read at the file offset.
    bytes: AtomicU64,
    missed: [SharedRange; MISSED_MAX],
    known: [SharedRange; PLACES_MAX],
}

impl Shared {
    /// Forgets everything.
    pub fn forget(&self) {
        self.thread.store(0, Ordering::Relaxed);
        self.reads.store(0, Ordering::Relaxed);
        self.is_by_many.store(false, Ordering::Relaxed);
        self.is_uncached.store(false, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        for place in self.missed.iter().chain(&self.known) {
            place.length.store(0, Ordering::Relaxed);
        }
    }

    /// Begins a read by this thread. A thread whose handler jumped out of a read does not count as
    /// another one.
    pub fn comes(&self) {
        let before = self.thread.swap(sys::thread(), Ordering::Relaxed);
        if self.reads.fetch_add(1, Ordering::Relaxed) > 0 && before != sys::thread() {
            self.meets();
        }
    }

    /// Ends a read.
    pub fn goes(&self) {
        let fewer = |reads: u32| reads.checked_sub(1);
        // The begin of a few calls was not seen.
        let _ = self.reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    /// Records that the state was busy.
    pub fn meets(&self) {
        self.is_by_many.store(true, Ordering::Relaxed);
    }

    /// Whether several threads read at a time.
    pub fn is_shared(&self) -> bool {
        self.is_by_many.load(Ordering::Relaxed)
    }

    /// Publishes what is known at one of the places, and whether the file is to be read uncached.
    pub fn knows(&self, place: usize, known: &Range<u64>, is_uncached: bool) {
        if let Some(place) = self.known.get(place) {
            place.length.store(0, Ordering::Relaxed);
            place.at.store(known.start, Ordering::Relaxed);
            place.length.store(known.end.saturating_sub(known.start), Ordering::Relaxed);
        }
        self.is_uncached.store(is_uncached, Ordering::Relaxed);
    }

    /// Whether the file is to be read uncached.
    pub fn is_uncached(&self) -> bool {
        self.is_uncached.load(Ordering::Relaxed)
    }

    /// Whether the range that is read there is known; at the file offset, whether any place is.
    pub fn is_known(&self, at: Option<u64>, length: u64) -> bool {
        self.is_uncached()
            || self.known.iter().any(|place| {
                let (from, known) = (place.at.load(Ordering::Relaxed), place.length.load(Ordering::Relaxed));
                known > 0
                    && at.is_none_or(|at| {
                        at >= from && at.saturating_add(length) <= from.saturating_add(known)
                    })
            })
    }

    /// Leaves a read of `done` bytes, there or at the file offset, for the thread that has the
    /// state. Returns `false` if there is no free place.
    pub fn leave(&self, at: Option<u64>, done: u64) -> bool {
        let Some(at) = at else {
            self.bytes.fetch_add(done, Ordering::Relaxed);
            return true;
        };
        for place in &self.missed {
            if place.length.compare_exchange(0, LENGTH_TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                place.at.store(at, Ordering::Relaxed);
                place.length.store(done.min(LENGTH_TAKEN - 1), Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Whether something is left. Called by a thread that has given up the state, or has left
    /// something.
    pub fn has_missed(&self) -> bool {
        // Either this thread sees what was left, or the one that left it sees that the state is
        // free.
        fence(Ordering::SeqCst);
        self.bytes.load(Ordering::Relaxed) > 0
            || self
                .missed
                .iter()
                .any(|place| !matches!(place.length.load(Ordering::Relaxed), 0 | LENGTH_TAKEN))
    }

    /// Takes the bytes left at the file offset. Only for the next thread that has the state.
    pub fn take_bytes(&self) -> u64 {
        if self.bytes.load(Ordering::Relaxed) == 0 { 0 } else { self.bytes.swap(0, Ordering::Relaxed) }
    }

    /// Takes the reads that were left: their offsets and lengths.
    pub fn take(&self) -> impl Iterator<Item = (u64, u64)> {
        self.missed.iter().filter_map(|place| {
            let length = place.length.load(Ordering::Acquire);
            if matches!(length, 0 | LENGTH_TAKEN) {
                return None;
            }
            let at = place.at.load(Ordering::Relaxed);
            place.length.store(0, Ordering::Release);
            Some((at, length))
        })
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    // SAFETY: numbers and flags.
    const NEW: Shared = unsafe { core::mem::zeroed() };

    #[test]
    fn each_leftover_is_taken_once() {
        let shared = NEW;
        assert!(!shared.has_missed() && shared.leave(None, 5) && shared.leave(None, 6));
        for at in 0..MISSED_MAX as u64 {
            assert!(shared.leave(Some(at), 1 + at));
        }
        assert!(shared.has_missed() && !shared.leave(Some(77), 1));
        assert_eq!((shared.take_bytes(), shared.take_bytes()), (11, 0));
        let taken: Vec<_> = shared.take().collect();
        assert_eq!(taken, (0..MISSED_MAX as u64).map(|at| (at, 1 + at)).collect::<Vec<_>>());
        assert!(!shared.has_missed() && shared.leave(Some(3), 4));
        assert_eq!(shared.take().collect::<Vec<_>>(), [(3, 4)]);
    }

    #[test]
    fn known_bytes_are_found_by_their_range() {
        let shared = NEW;
        assert!(!shared.is_known(None, 0));
        shared.knows(1, &(10..20), false);
        shared.knows(2, &(50..60), false);
        assert!(shared.is_known(None, 100) && shared.is_known(Some(10), 10) && shared.is_known(Some(55), 2));
        assert!(!shared.is_known(Some(15), 10) && !shared.is_known(Some(30), 1));
        shared.knows(1, &(0..0), true);
        assert!(shared.is_known(Some(15), 10));
        shared.forget();
        assert!(!shared.is_known(None, 0) && !shared.is_shared());
    }

    #[test]
    fn a_second_thread_is_seen_that_reads_meanwhile() {
        let shared = NEW;
        let by_another = || {
            std::thread::scope(|scope| scope.spawn(|| shared.comes()).join()).unwrap();
            shared.goes();
        };
        for _ in 0..2 {
            shared.comes();
        }
        shared.goes();
        shared.goes();
        shared.goes();
        by_another();
        assert!(!shared.is_shared(), "one after the other");
        shared.comes();
        by_another();
        assert!(shared.is_shared());
    }
}

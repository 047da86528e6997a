//! What threads that use one open file leave each other: what is known of it, for those that find somebody at work on it, and what these
//! did meanwhile, for the next one at work.
//!
//! Invariants: nobody waits; all bits may be zero; what there is no room for is lost, and whoever leaves it is notified. A thread that is
//! ended in the middle takes one place with it.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use crate::sys;

/// Ranges that are left for the next one at work.
const MISSED: usize = 12;
/// Places of a file that are read at a time.
pub const PLACES: usize = 8;
/// The length of one that is being noted.
const TAKEN: u64 = u64::MAX;

/// A range: where it begins, and its length.
struct Place {
    at: AtomicU64,
    length: AtomicU64,
}

impl Place {
    #[allow(clippy::declare_interior_mutable_const, reason = "what a place begins with")]
    const NONE: Self = Self { at: AtomicU64::new(0), length: AtomicU64::new(0) };
}

/// See the module.
pub struct Shared {
    /// The thread that read last; whether several do.
    thread: AtomicUsize,
    is_by_many: AtomicBool,
    is_uncached: AtomicBool,
    /// Bytes that were read at the file's position.
    bytes: AtomicU64,
    missed: [Place; MISSED],
    known: [Place; PLACES],
}

impl Shared {
    /// Nothing yet.
    #[allow(clippy::declare_interior_mutable_const, reason = "what a slot begins with")]
    pub const NEW: Self = Self {
        thread: AtomicUsize::new(0),
        is_by_many: AtomicBool::new(false),
        is_uncached: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        missed: [Place::NONE; MISSED],
        known: [Place::NONE; PLACES],
    };

    /// Forgets all.
    pub fn forget(&self) {
        self.thread.store(0, Ordering::Relaxed);
        self.is_by_many.store(false, Ordering::Relaxed);
        self.is_uncached.store(false, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        for place in self.missed.iter().chain(&self.known) {
            place.length.store(0, Ordering::Relaxed);
        }
    }

    /// This thread is about to read.
    pub fn comes(&self) {
        let thread = sys::thread();
        // Most are read by one thread: a load is cheaper than a swap.
        if self.thread.load(Ordering::Relaxed) != thread {
            let before = self.thread.swap(thread, Ordering::Relaxed);
            if before != 0 {
                self.is_by_many.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether several threads were seen.
    pub fn is_shared(&self) -> bool {
        self.is_by_many.load(Ordering::Relaxed)
    }

    /// Says what is known at one of the places, and whether it is to be read uncached.
    pub fn knows(&self, place: usize, known: &Range<u64>, is_uncached: bool) {
        if let Some(place) = self.known.get(place) {
            place.length.store(0, Ordering::Relaxed);
            place.at.store(known.start, Ordering::Relaxed);
            place.length.store(known.end.saturating_sub(known.start), Ordering::Relaxed);
        }
        self.is_uncached.store(is_uncached, Ordering::Relaxed);
    }

    /// Whether it is to be read uncached.
    pub fn is_uncached(&self) -> bool {
        self.is_uncached.load(Ordering::Relaxed)
    }

    /// Whether something is known of what is read there; at the file's position, of any place.
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

    /// So much was read there, or at the file's position, while somebody else was at work: leaves it. False where there is no room.
    pub fn leave(&self, at: Option<u64>, done: u64) -> bool {
        let Some(at) = at else {
            self.bytes.fetch_add(done, Ordering::Relaxed);
            return true;
        };
        for place in &self.missed {
            if place.length.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                place.at.store(at, Ordering::Relaxed);
                place.length.store(done.min(TAKEN - 1), Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Whether something is left: asked by who has given up the file, or has left something.
    pub fn has_missed(&self) -> bool {
        // Either this one sees what was left, or who left it sees that nobody is at work.
        fence(Ordering::SeqCst);
        self.bytes.load(Ordering::Relaxed) > 0
            || self.missed.iter().any(|place| !matches!(place.length.load(Ordering::Relaxed), 0 | TAKEN))
    }

    /// Takes what was left at the file's position. By who is at work alone, as the next one.
    pub fn take_bytes(&self) -> u64 {
        if self.bytes.load(Ordering::Relaxed) == 0 { 0 } else { self.bytes.swap(0, Ordering::Relaxed) }
    }

    /// Takes what was left: where, and how much.
    pub fn take(&self) -> impl Iterator<Item = (u64, u64)> {
        self.missed.iter().filter_map(|place| {
            let length = place.length.load(Ordering::Acquire);
            if matches!(length, 0 | TAKEN) {
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

    #[test]
    fn what_is_left_is_taken_once() {
        let shared = Shared::NEW;
        assert!(!shared.has_missed() && shared.leave(None, 5) && shared.leave(None, 6));
        for at in 0..MISSED as u64 {
            assert!(shared.leave(Some(at), 1 + at));
        }
        assert!(shared.has_missed() && !shared.leave(Some(77), 1));
        assert_eq!((shared.take_bytes(), shared.take_bytes()), (11, 0));
        let taken: Vec<_> = shared.take().collect();
        assert_eq!(taken, (0..MISSED as u64).map(|at| (at, 1 + at)).collect::<Vec<_>>());
        assert!(!shared.has_missed() && shared.leave(Some(3), 4));
        assert_eq!(shared.take().collect::<Vec<_>>(), [(3, 4)]);
    }

    #[test]
    fn what_is_known_is_known_by_place() {
        let shared = Shared::NEW;
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
    fn a_second_thread_is_seen() {
        let shared = Shared::NEW;
        shared.comes();
        shared.comes();
        assert!(!shared.is_shared());
        std::thread::scope(|scope| scope.spawn(|| shared.comes()).join()).unwrap();
        assert!(shared.is_shared());
    }
}

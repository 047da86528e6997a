//! Who is reading: how an evictor learns that nobody reads a frame any more, without a lock or a locked instruction
//! on any hit.
//!
//! Each thread that reads through a cache has a [`Slot`], which it alone writes. There are two ways to keep a frame:
//!
//! - A *section* lasts for one load of an entry and one copy. [`Slot::enter`] makes the slot's count odd,
//!   [`Slot::leave`] makes it even: two plain stores. It holds all frames, so it must be short.
//! - A *hold* names one frame, for as long as a guard lives. It is made within a section ([`Slot::hold`]), so that the
//!   frame can't go before it is named.
//!
//! An evictor takes frames out of their entries, then asks for a [`GracePeriod`]: a heavy barrier, and a note of every slot
//! whose count is odd. When each of these counts has changed ([`GracePeriod::is_over`]), whoever could have found the frames
//! has left its section, and either named a frame ([`Readers::held`]) or is done with it.
//!
//! Invariants:
//! 1. A reader's store that makes its count odd, a light barrier, its load of the entry; an evictor's store to the entry, a
//!    heavy barrier, its load of the count: one of the two loads sees the other's store (see `sys::barrier`). So a reader
//!    that is not noted does not find what was taken out.
//! 2. A hold is stored before the count that ends its section (release), and the grace period reads that count (acquire): when
//!    a grace period is over, all holds of frames that were taken out before it began can be seen.
//! 3. The load that sees a count changed or a hold gone acquires what its reader released: the reader's copy happened
//!    before the frame is loaded into again.
//!
//! A reader that is stopped within a section delays the frames that were taken out since; it delays nobody who
//! reads or loads: the cache goes on without those frames, and past itself if it runs out (see `load`).

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Barrier, Mutex, MutexGuard, Ordering};

/// Guards that one thread can hold by its slot; more of them pin their frames.
pub(crate) const HOLDS: usize = 16;

/// What one thread announces. Only that thread writes it.
///
/// 128 bytes: two cache lines, since processors prefetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    /// Odd within a section. Half of it counts the sections that ended.
    count: AtomicU64,
    /// Sections that were no hits.
    uncounted: AtomicU64,
    /// Frame number + 1, or 0.
    holds: [AtomicU32; HOLDS],
    /// Whether a thread has it.
    taken: AtomicBool,
}

/// A section; pass it back to [`Slot::leave`].
#[derive(Debug)]
#[must_use = "a section that is not left holds all frames"]
pub(crate) struct Section(u64);

/// A hold; pass it back to [`Slot::release`].
#[derive(Debug)]
#[must_use = "a hold that is not released keeps its frame"]
pub(crate) struct Hold(usize);

impl Slot {
    fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
            holds: std::array::from_fn(|_| AtomicU32::new(0)),
            taken: AtomicBool::new(true),
        }
    }

    /// Begins a section. Sections don't nest.
    #[inline]
    pub(crate) fn enter(&self, barrier: Barrier) -> Section {
        let section = self.announce();
        barrier.light();
        section
    }

    /// Begins a section, with the light barrier left to the caller.
    #[inline]
    pub(crate) fn announce(&self) -> Section {
        let count = self.count.load(Ordering::Relaxed);
        debug_assert!(count.is_multiple_of(2), "sections don't nest");
        // Released: who reads this count sees what was done under those before it.
        self.count.store(count + 1, Ordering::Release);
        Section(count)
    }

    /// Ends a section.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a section ends once")]
    pub(crate) fn leave(&self, section: Section) {
        self.count.store(section.0 + 2, Ordering::Release);
    }

    /// Ends a section that was no hit.
    pub(crate) fn leave_uncounted(&self, section: Section) {
        self.uncounted.store(self.uncounted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.leave(section);
    }

    /// Names a frame; `None` if this thread holds [`HOLDS`] already. Within a section in which the frame was found, or
    /// by whoever loads the frame, before its entry says that it can be read.
    #[inline]
    pub(crate) fn hold(&self, frame: u32) -> Option<Hold> {
        let is_free = |hold: &AtomicU32| hold.load(Ordering::Relaxed) == 0;
        // Most threads hold one page at a time.
        let free = if is_free(&self.holds[0]) { 0 } else { self.holds.iter().position(is_free)? };
        // Released: who reads this hold sees that the one before it was released.
        self.holds[free].store(frame + 1, Ordering::Release);
        Some(Hold(free))
    }

    /// The frame is no longer read.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a hold is released once")]
    pub(crate) fn release(&self, hold: Hold) {
        self.holds[hold.0].store(0, Ordering::Release);
    }

    /// Gives the slot back for another thread, unless a guard was forgotten that still holds by it.
    pub(crate) fn give_back(&self) {
        if self.holds.iter().all(|hold| hold.load(Ordering::Relaxed) == 0) {
            self.taken.store(false, Ordering::Release);
        }
    }
}

/// All threads that read through one cache.
#[derive(Debug)]
pub(crate) struct Readers {
    barrier: Barrier,
    /// Slots stay until the cache goes.
    slots: Mutex<Vec<Arc<Slot>>>,
}

/// Waits for the sections that were under way when it began.
#[derive(Debug, Default)]
pub(crate) struct GracePeriod(Vec<(Arc<Slot>, u64)>);

impl GracePeriod {
    /// Whether all of them have ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.0.retain(|(slot, count)| slot.count.load(Ordering::Acquire) == *count);
        self.0.is_empty()
    }
}

impl Readers {
    pub(crate) fn new(barrier: Barrier) -> Self {
        Self { barrier, slots: Mutex::new(Vec::new()) }
    }

    #[inline]
    pub(crate) fn barrier(&self) -> Barrier {
        self.barrier
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        ignore_poison(self.slots.lock())
    }

    /// A slot for the calling thread.
    pub(crate) fn register(&self) -> Arc<Slot> {
        let mut slots = self.slots();
        // Acquired: what the thread before did with it has happened.
        if let Some(free) = slots.iter().find(|slot| !slot.taken.load(Ordering::Acquire)) {
            free.taken.store(true, Ordering::Relaxed);
            return Arc::clone(free);
        }
        let slot = Arc::new(Slot::new());
        slots.push(Arc::clone(&slot));
        slot
    }

    /// Begins to wait for whoever could have found what has been taken out of its entry up to now. `None` if that can't be known.
    pub(crate) fn start_grace_period(&self) -> Option<GracePeriod> {
        if !self.barrier.heavy() {
            return None;
        }
        let slots = self.slots();
        let within = slots.iter().filter_map(|slot| {
            let count = slot.count.load(Ordering::Acquire);
            (!count.is_multiple_of(2)).then(|| (Arc::clone(slot), count))
        });
        Some(GracePeriod(within.collect()))
    }

    /// The frames that guards hold now, sorted.
    pub(crate) fn held(&self) -> Vec<u32> {
        let slots = self.slots();
        let holds = slots.iter().flat_map(|slot| slot.holds.iter());
        let mut held: Vec<u32> =
            holds.filter_map(|hold| hold.load(Ordering::Acquire).checked_sub(1)).collect();
        held.sort_unstable();
        held
    }

    /// Sections that were hits, of all threads up to now.
    pub(crate) fn hits(&self) -> u64 {
        let slots = self.slots();
        let hits = slots.iter().map(|slot| {
            let uncounted = slot.uncounted.load(Ordering::Relaxed);
            (slot.count.load(Ordering::Relaxed) / 2).saturating_sub(uncounted)
        });
        hits.sum()
    }
}

//! The readers of frames: an evictor learns that nobody reads a frame any more, without a lock or a
//! locked instruction on any hit.
//!
//! Each thread that reads through a cache has a [`ReaderSlot`], which only that thread writes.
//! There are two ways to keep a frame:
//!
//! - A *section* lasts for one load of an entry and one copy. [`ReaderSlot::enter`] makes the
//!   slot's count odd, [`ReaderSlot::leave`] makes it even: two plain stores. A section keeps all
//!   frames, so it must be short.
//! - A *hold* names one frame, for as long as a guard lives. It is made within a section
//!   ([`ReaderSlot::hold`]), so that the frame can't be reused before it is named.
//!
//! An evictor takes frames out of their entries, then asks for a [`GracePeriod`]: a heavy barrier,
//! and a list of all slots whose count is odd. When each of these counts has changed
//! ([`GracePeriod::is_over`]), every reader that could have found the frames has left its section.
//! It has either named a frame ([`ReaderRegistry::held`]) or no longer uses it.
//!
//! Invariants:
//! 1. A reader stores its odd count, makes a light barrier and loads the entry; an evictor stores
//!    to the entry, makes a heavy barrier and loads the count. One of the two loads sees the
//!    other's store (see `sys::barrier`). So a reader that is not listed does not find the frames
//!    that were taken out.
//! 2. A hold is stored before the count that ends its section (release), and the grace period reads
//!    that count (acquire). So when a grace period is over, all holds of frames that were taken out
//!    before it began are visible.
//! 3. The load that sees a changed count or a released hold acquires what its reader released: the
//!    reader's copy happens before the frame is loaded into again.
//!
//! A reader that is stopped within a section delays the reuse of frames that were taken out since.
//! It does not delay readers or loads: the cache continues without those frames, and reads past
//! itself if it runs out (see `load`).

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, BarrierPair, Mutex, MutexGuard, Ordering};

/// Guards that one thread can hold by its slot; further guards pin their frames.
pub(crate) const HOLDS_PER_SLOT_MAX: usize = 16;

/// The announcements of one thread. Only that thread writes them.
///
/// 128 bytes: two cache lines, since processors prefetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ReaderSlot {
    /// Odd within a section. Half of it is the number of sections that ended.
    count: AtomicU64,
    /// Number of sections that do not count as hits.
    uncounted: AtomicU64,
    /// Frame number + 1, or 0 if unused.
    holds: [AtomicU32; HOLDS_PER_SLOT_MAX],
    /// Whether a thread owns the slot.
    taken: AtomicBool,
}

/// A section; pass it back to [`ReaderSlot::leave`].
#[derive(Debug)]
#[must_use = "a section that is not left holds all frames"]
pub(crate) struct ReadSection(u64);

/// A hold; pass it back to [`ReaderSlot::release`].
#[derive(Debug)]
#[must_use = "a hold that is not released keeps its frame"]
pub(crate) struct FrameHold(usize);

impl ReaderSlot {
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
    pub(crate) fn enter(&self, barrier: BarrierPair) -> ReadSection {
        let section = self.announce();
        barrier.light();
        section
    }

    /// Begins a section; the caller makes the light barrier.
    #[inline]
    pub(crate) fn announce(&self) -> ReadSection {
        let count = self.count.load(Ordering::Relaxed);
        debug_assert!(count.is_multiple_of(2), "sections don't nest");
        // Released: a reader of this count sees what was done in earlier sections.
        self.count.store(count + 1, Ordering::Release);
        ReadSection(count)
    }

    /// Ends a section.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a section ends once")]
    pub(crate) fn leave(&self, section: ReadSection) {
        self.count.store(section.0 + 2, Ordering::Release);
    }

    /// Ends a section that does not count as a hit.
    pub(crate) fn leave_uncounted(&self, section: ReadSection) {
        self.uncounted.store(self.uncounted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.leave(section);
    }

    /// Names a frame; `None` if this thread has [`HOLDS_PER_SLOT_MAX`] holds already.
    /// Called within the section in which the frame was found, or by the loader of the frame before
    /// its entry becomes readable.
    #[inline]
    pub(crate) fn hold(&self, frame: u32) -> Option<FrameHold> {
        let is_free = |hold: &AtomicU32| hold.load(Ordering::Relaxed) == 0;
        // Most threads hold one page at a time.
        let free = if is_free(&self.holds[0]) { 0 } else { self.holds.iter().position(is_free)? };
        // Released: a reader of this hold sees that the one before it was released.
        self.holds[free].store(frame + 1, Ordering::Release);
        Some(FrameHold(free))
    }

    /// Releases a hold: the frame is no longer read.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a hold is released once")]
    pub(crate) fn release(&self, hold: FrameHold) {
        self.holds[hold.0].store(0, Ordering::Release);
    }

    /// Returns the slot for use by another thread, unless a forgotten guard still holds a frame by
    /// it.
    pub(crate) fn give_back(&self) {
        if self.holds.iter().all(|hold| hold.load(Ordering::Relaxed) == 0) {
            self.taken.store(false, Ordering::Release);
        }
    }
}

/// All threads that read through one cache.
#[derive(Debug)]
pub(crate) struct ReaderRegistry {
    barrier: BarrierPair,
    /// The slots, which live as long as the cache.
    slots: Mutex<Vec<Arc<ReaderSlot>>>,
}

/// A wait for the sections that were in progress when it began.
#[derive(Debug, Default)]
pub(crate) struct GracePeriod(Vec<(Arc<ReaderSlot>, u64)>);

impl GracePeriod {
    /// Whether all these sections have ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.0.retain(|(slot, count)| slot.count.load(Ordering::Acquire) == *count);
        self.0.is_empty()
    }
}

impl ReaderRegistry {
    pub(crate) fn new(barrier: BarrierPair) -> Self {
        Self { barrier, slots: Mutex::new(Vec::new()) }
    }

    #[inline]
    pub(crate) fn barrier(&self) -> BarrierPair {
        self.barrier
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<ReaderSlot>>> {
        ignore_poison(self.slots.lock())
    }

    /// Returns a slot for the calling thread.
    pub(crate) fn register(&self) -> Arc<ReaderSlot> {
        let mut slots = self.slots();
        // Acquired: all that the previous thread did with the slot has happened.
        if let Some(free) = slots.iter().find(|slot| !slot.taken.load(Ordering::Acquire)) {
            free.taken.store(true, Ordering::Relaxed);
            return Arc::clone(free);
        }
        let slot = Arc::new(ReaderSlot::new());
        slots.push(Arc::clone(&slot));
        slot
    }

    /// Begins to wait for all readers that may have found the frames taken out up to now. `None` if
    /// these readers can't be determined.
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

    /// Returns the frames that guards hold now, sorted.
    pub(crate) fn held(&self) -> Vec<u32> {
        let slots = self.slots();
        let holds = slots.iter().flat_map(|slot| slot.holds.iter());
        let mut held: Vec<u32> =
            holds.filter_map(|hold| hold.load(Ordering::Acquire).checked_sub(1)).collect();
        held.sort_unstable();
        held
    }

    /// Returns the number of sections that were hits, of all threads up to now.
    pub(crate) fn hits(&self) -> u64 {
        let slots = self.slots();
        let hits = slots.iter().map(|slot| {
            let uncounted = slot.uncounted.load(Ordering::Relaxed);
            (slot.count.load(Ordering::Relaxed) / 2).saturating_sub(uncounted)
        });
        hits.sum()
    }
}

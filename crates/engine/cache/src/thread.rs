//! Finds the calling thread's [`ReaderSlot`] in a cache by two loads and a comparison.
//!
//! Invariants: the address in `LAST_USED_SLOT` belongs to the cache whose number is stored with it.
//! It is NULL only with number 0, which no cache has. Numbers are never reused, and the slots of a
//! cache live as long as the cache. So the address is valid while the number is that of a living
//! cache. A thread gives its slots back when it ends.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::readers::{ReaderRegistry, ReaderSlot};
use crate::sync::BarrierPair;

/// The slots of all threads in one cache.
#[derive(Debug)]
pub(crate) struct ThreadSlots {
    number: u64,
    readers: ReaderRegistry,
}

/// Gives a thread's slots back when it ends.
#[derive(Default)]
struct CurrentThreadSlots(Vec<(u64, Arc<ReaderSlot>)>);

impl Drop for CurrentThreadSlots {
    fn drop(&mut self) {
        for (_, slot) in &self.0 {
            slot.give_back();
        }
        LAST_USED_SLOT.set((0, std::ptr::null()));
    }
}

thread_local! {
    /// The cache used last, and the slot in it.
    static LAST_USED_SLOT: Cell<(u64, *const ReaderSlot)> = const { Cell::new((0, std::ptr::null())) };
    static CURRENT_THREAD_SLOTS: RefCell<CurrentThreadSlots> = RefCell::default();
}

/// Returns the calling thread's slot in the cache of that number, which is not 0, if the thread
/// used that cache last. The slot is valid as long as the cache lives.
#[inline]
pub(crate) fn current(number: u64) -> Option<NonNull<ReaderSlot>> {
    let (current, slot) = LAST_USED_SLOT.with(Cell::get);
    debug_assert_ne!(number, 0, "no cache has this number");
    // SAFETY: an address accompanies every number that is not 0.
    (current == number).then(|| unsafe { NonNull::new_unchecked(slot.cast_mut()) })
}

impl ThreadSlots {
    pub(crate) fn new(readers: ReaderRegistry) -> Self {
        static NEXT_CACHE_NUMBER: AtomicU64 = AtomicU64::new(1);
        Self { number: NEXT_CACHE_NUMBER.fetch_add(1, Ordering::Relaxed), readers }
    }

    /// Returns the number to pass to [`current`]; a number of no thread if a light barrier is an
    /// instruction.
    pub(crate) fn number_if_asymmetric(&self) -> u64 {
        if self.readers.barrier() == BarrierPair::Asymmetric { self.number } else { u64::MAX }
    }

    pub(crate) fn readers(&self) -> &ReaderRegistry {
        &self.readers
    }

    /// Returns the calling thread's slot.
    #[inline]
    pub(crate) fn mine(&self) -> &ReaderSlot {
        let (number, slot) = LAST_USED_SLOT.with(Cell::get);
        if number == self.number {
            // SAFETY: the address is that of a slot of this very cache (numbers are never reused),
            // and the slots of a cache are kept alive by its `ReaderRegistry`, which is borrowed
            // here.
            unsafe { &*slot }
        } else {
            self.find()
        }
    }

    #[cold]
    fn find(&self) -> &ReaderSlot {
        let found = CURRENT_THREAD_SLOTS.try_with(|mine| {
            let mine = &mut mine.borrow_mut().0;
            // Slots of a cache that is gone have no other owner.
            mine.retain(|(_, slot)| Arc::strong_count(slot) > 1);
            if let Some((_, slot)) = mine.iter().find(|(number, _)| *number == self.number) {
                return Arc::as_ptr(slot);
            }
            let slot = self.readers.register();
            let address = Arc::as_ptr(&slot);
            mine.push((self.number, slot));
            address
        });
        // The thread is ending, and its slots are given back. It gets a slot that is never
        // returned, so no other thread gets it.
        let slot = found.unwrap_or_else(|_| Arc::as_ptr(&self.readers.register()));
        LAST_USED_SLOT.set((self.number, slot));
        // SAFETY: a slot that `readers` has registered; it keeps all of them alive, and is borrowed
        // for as long.
        unsafe { &*slot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> ThreadSlots {
        ThreadSlots::new(ReaderRegistry::new(BarrierPair::probe()))
    }

    #[test]
    fn a_thread_keeps_its_slot_in_each_of_several_caches() {
        let (one, other) = (slots(), slots());
        let (first, second) = (std::ptr::from_ref(one.mine()), std::ptr::from_ref(other.mine()));
        assert_ne!(first, second);
        for _ in 0..3 {
            assert!(std::ptr::eq(one.mine(), first));
            assert!(std::ptr::eq(other.mine(), second));
        }
    }

    #[test]
    fn threads_have_slots_of_their_own_and_give_them_back() {
        let slots = slots();
        let mine = std::ptr::from_ref(slots.mine()) as usize;
        let first = std::thread::scope(|scope| {
            scope.spawn(|| std::ptr::from_ref(slots.mine()) as usize).join().unwrap()
        });
        let second = std::thread::scope(|scope| {
            scope.spawn(|| std::ptr::from_ref(slots.mine()) as usize).join().unwrap()
        });
        assert_ne!(mine, first);
        assert_eq!(first, second);
    }

    #[test]
    fn a_thread_that_ends_can_still_read() {
        struct Late(Arc<ThreadSlots>);
        impl Drop for Late {
            fn drop(&mut self) {
                let slot = self.0.mine();
                slot.leave(slot.enter(self.0.readers().barrier()));
            }
        }
        thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
        let slots = Arc::new(slots());
        let shared = Arc::clone(&slots);
        std::thread::spawn(move || {
            // Set before the slot is taken, so dropped after the slot was given back.
            LATE.set(Some(Late(Arc::clone(&shared))));
            shared.leave_one();
        })
        .join()
        .unwrap();
        assert_eq!(slots.readers().hits(), 2);
    }

    impl ThreadSlots {
        fn leave_one(&self) {
            let slot = self.mine();
            slot.leave(slot.enter(self.readers.barrier()));
        }
    }
}

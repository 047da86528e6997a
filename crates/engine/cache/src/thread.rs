//! The calling thread's [`Slot`] in a cache, found by two loads and a comparison.
//!
//! Invariants: the address kept in `CURRENT` belongs to the cache whose number stands beside it, and is NULL only beside 0, which is no
//! cache's number; numbers are never given twice, and the slots of a cache live as long as the cache: so while the number is that of a living cache, the
//! address is good. A thread gives its slots back when it ends.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::readers::{Readers, Slot};
use crate::sync::Barrier;

/// The slots of all threads in one cache.
#[derive(Debug)]
pub(crate) struct Slots {
    number: u64,
    readers: Readers,
}

/// Gives the slots of a thread back when it ends.
#[derive(Default)]
struct Mine(Vec<(u64, Arc<Slot>)>);

impl Drop for Mine {
    fn drop(&mut self) {
        for (_, slot) in &self.0 {
            slot.give_back();
        }
        CURRENT.set((0, std::ptr::null()));
    }
}

thread_local! {
    /// The cache used last, and the slot in it.
    static CURRENT: Cell<(u64, *const Slot)> = const { Cell::new((0, std::ptr::null())) };
    static MINE: RefCell<Mine> = RefCell::default();
}

/// The calling thread's slot in the cache of that number, which is not 0, if it used that cache last. It is good as long as the cache
/// lives.
#[inline]
pub(crate) fn current(number: u64) -> Option<NonNull<Slot>> {
    let (current, slot) = CURRENT.with(Cell::get);
    debug_assert_ne!(number, 0, "no cache has this number");
    // SAFETY: beside a number that is not 0 there is an address.
    (current == number).then(|| unsafe { NonNull::new_unchecked(slot.cast_mut()) })
}

impl Slots {
    pub(crate) fn new(readers: Readers) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), readers }
    }

    /// What [`current`] is asked with; a number that no thread has where a light barrier is an instruction.
    pub(crate) fn number_if_asymmetric(&self) -> u64 {
        if self.readers.barrier() == Barrier::Asymmetric { self.number } else { u64::MAX }
    }

    pub(crate) fn readers(&self) -> &Readers {
        &self.readers
    }

    /// The calling thread's slot.
    #[inline]
    pub(crate) fn mine(&self) -> &Slot {
        let (number, slot) = CURRENT.with(Cell::get);
        if number == self.number {
            // SAFETY: the address was taken of a slot of this very cache (numbers are never given twice), and the slots
            // of a cache are kept alive by its `Readers`, which is borrowed here.
            unsafe { &*slot }
        } else {
            self.find()
        }
    }

    #[cold]
    fn find(&self) -> &Slot {
        let found = MINE.try_with(|mine| {
            let mine = &mut mine.borrow_mut().0;
            // Those whose cache is gone have no other owner.
            mine.retain(|(_, slot)| Arc::strong_count(slot) > 1);
            if let Some((_, slot)) = mine.iter().find(|(number, _)| *number == self.number) {
                return Arc::as_ptr(slot);
            }
            let slot = self.readers.register();
            let address = Arc::as_ptr(&slot);
            mine.push((self.number, slot));
            address
        });
        // The thread is ending, and its slots are given back: one that no other thread gets, since it is not returned.
        let slot = found.unwrap_or_else(|_| Arc::as_ptr(&self.readers.register()));
        CURRENT.set((self.number, slot));
        // SAFETY: a slot that `readers` has registered; it keeps all of them alive, and is borrowed for as long.
        unsafe { &*slot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        Slots::new(Readers::new(Barrier::probe()))
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
        struct Late(Arc<Slots>);
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
            // Set before the slot is taken, so dropped after it was given back.
            LATE.set(Some(Late(Arc::clone(&shared))));
            shared.leave_one();
        })
        .join()
        .unwrap();
        assert_eq!(slots.readers().hits(), 2);
    }

    impl Slots {
        fn leave_one(&self) {
            let slot = self.mine();
            slot.leave(slot.enter(self.readers.barrier()));
        }
    }
}

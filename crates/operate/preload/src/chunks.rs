//! Static arrays whose memory is allocated one chunk at a time, on first use, and never freed. A
//! process without rules therefore has no such memory to lock (`mlockall(2)`) or to account for
//! (`vm.overcommit_memory`).
//!
//! Invariants:
//! 1. A chunk's pointer is null, or points to memory that is never freed. It is set once, to memory
//!    that is all zero.
//! 2. Allocating a chunk never waits and calls no allocator. A signal handler that interrupts an
//!    allocation allocates its own chunk, and the first to publish wins.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::sys;

/// An array of up to `CHUNKS` chunks of `EACH` values.
pub struct Chunks<T, const EACH: usize, const CHUNKS: usize>([AtomicPtr<[T; EACH]>; CHUNKS]);

impl<T: Sync, const EACH: usize, const CHUNKS: usize> Chunks<T, EACH, CHUNKS> {
    /// Creates an array without memory.
    ///
    /// # Safety
    ///
    /// A `T` with all bits zero is valid, needs no drop, and is aligned to at most a page.
    pub const unsafe fn new() -> Self {
        Self([const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS])
    }

    /// Returns the value at the index; `None` if its chunk is not allocated or the index is out of
    /// range.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        let chunk = self.0.get(index / EACH)?.load(Ordering::Acquire);
        // SAFETY: null, or a chunk that is never freed, and whose memory was seen with the pointer
        // (invariant 1).
        unsafe { chunk.as_ref() }?.get(index % EACH)
    }

    /// Returns the value at the index and allocates its chunk if necessary. `None` if there is no
    /// memory or the index is out of range.
    pub fn take(&self, index: usize) -> Option<&T> {
        if self.get(index).is_none() {
            Self::take_chunk(self.0.get(index / EACH)?);
        }
        self.get(index)
    }

    #[cold]
    fn take_chunk(pointer: &AtomicPtr<[T; EACH]>) {
        let size = size_of::<[T; EACH]>();
        let Ok(memory) = sys::take_memory(size, libc::MAP_PRIVATE) else { return };
        let set = pointer.compare_exchange(
            core::ptr::null_mut(),
            memory.cast(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if set.is_err() {
            // SAFETY: this memory was taken above, and nobody else knows it.
            unsafe { sys::give_back(memory, size) };
        }
    }

    /// Iterates over the values of all allocated chunks, with their indices.
    pub fn taken(&self) -> impl Iterator<Item = (usize, &T)> {
        (0..CHUNKS).flat_map(|chunk| {
            let from = chunk * EACH;
            (from..from + EACH).map_while(|index| Some((index, self.get(index)?)))
        })
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn memory_is_there_once_it_is_needed() {
        // SAFETY: a number.
        let numbers = unsafe { Chunks::<AtomicU64, 100, 8>::new() };
        assert!(numbers.get(0).is_none() && numbers.taken().next().is_none());
        numbers.take(799).unwrap().store(7, Ordering::Relaxed);
        assert!(numbers.take(800).is_none() && numbers.get(usize::MAX).is_none());
        assert_eq!(numbers.get(799).map(|number| number.load(Ordering::Relaxed)), Some(7));
        numbers.take(150).unwrap();
        let taken: Vec<_> = numbers.taken().map(|(index, _)| index).collect();
        assert_eq!(taken, (100..200).chain(700..800).collect::<Vec<_>>());
    }

    #[test]
    fn the_second_process_uses_the_firsts_memory() {
        // SAFETY: a number.
        let numbers = unsafe { Chunks::<AtomicU64, 512, 64>::new() };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in 0..512 * 64 {
                        numbers.take(index).unwrap().fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(numbers.taken().all(|(_, number)| number.load(Ordering::Relaxed) == 4));
        assert_eq!(numbers.taken().count(), 512 * 64);
    }
}

//! Replaces `sync`: loom's atomics and locks.

use loom::sync::atomic;

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
// Not loom's: the reference count of a value is not checked, and each step would multiply the
// orders.
pub(crate) use std::sync::Arc;

/// Both halves as fences, which is the effect of membarrier(2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct BarrierPair;

impl BarrierPair {
    #[expect(clippy::unused_self, reason = "as the real one")]
    pub(crate) fn light(self) {
        atomic::fence(Ordering::SeqCst);
    }

    #[expect(clippy::unused_self, reason = "as the real one")]
    pub(crate) fn heavy(self) -> bool {
        atomic::fence(Ordering::SeqCst);
        true
    }
}

/// Returns `len` counters that are 0.
pub(crate) fn counters(len: usize) -> Box<[AtomicU32]> {
    (0..len).map(|_| AtomicU32::new(0)).collect()
}

/// Loom's atomic, with one difference.
///
/// Loom does not know that no store comes between the value that a compare-and-swap found and the
/// value it stored. It would let the frequency that a hit raises overwrite a plain store that the
/// hit had not seen. Such stores meet in the entries of tables, so they are swaps here, which loom
/// puts in one order.
#[derive(Debug)]
pub(crate) struct AtomicU32 {
    atomic: atomic::AtomicU32,
    swaps: bool,
}

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> Self {
        Self { atomic: atomic::AtomicU32::new(value), swaps: false }
    }

    /// Creates the entry of a table.
    pub(crate) fn entry() -> Self {
        Self { atomic: atomic::AtomicU32::new(0), swaps: true }
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.atomic.load(order)
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        if self.swaps {
            self.atomic.swap(value, order);
        } else {
            self.atomic.store(value, order);
        }
    }

    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.atomic.swap(value, order)
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        self.atomic.compare_exchange(current, new, success, failure)
    }

    pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.atomic.fetch_add(value, order)
    }

    pub(crate) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.atomic.fetch_sub(value, order)
    }
}

//! Replaces `sync` in the models: loom's atomics and locks, and memory that loom watches.

#![allow(unsafe_code)]

use loom::cell::UnsafeCell;

pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use loom::sync::{Mutex, MutexGuard};
// This one is not loom's: the models do not check reference counts, and each step would multiply
// the orders.
pub(super) use std::sync::Arc;

pub(super) use std::sync::TryLockError;

pub(super) use super::event_count::EventCount;

use super::super::memory;

/// Bytes that are watched as one unit. The models access no less.
const CELL_BYTES: usize = 1024;

/// The real memory, with a cell for each chunk by which loom watches accesses.
#[derive(Debug)]
pub(super) struct UncheckedMemory {
    memory: memory::UncheckedMemory,
    cells: Vec<UnsafeCell<()>>,
}

// SAFETY: as for the real memory. Loom's cells are shared on purpose: loom detects conflicting
// accesses through them.
unsafe impl Send for UncheckedMemory {}
// SAFETY: as above.
unsafe impl Sync for UncheckedMemory {}

impl UncheckedMemory {
    pub(super) fn new(len: usize) -> Self {
        Self {
            memory: memory::UncheckedMemory::new(len),
            cells: (0..len / CELL_BYTES).map(|_| UnsafeCell::new(())).collect(),
        }
    }

    pub(super) fn populate(&self, range: std::ops::Range<usize>) -> bool {
        self.memory.populate(range)
    }

    fn cells(&self, at: usize, len: usize) -> &[UnsafeCell<()>] {
        assert!(at.is_multiple_of(CELL_BYTES) && len.is_multiple_of(CELL_BYTES));
        &self.cells[at / CELL_BYTES..(at + len) / CELL_BYTES]
    }

    /// # Safety
    ///
    /// As for the real memory; loom fails the model if a condition is violated.
    pub(super) unsafe fn write(&self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        for cell in self.cells(at, bytes.len()) {
            cell.with_mut(|_| ());
        }
        // SAFETY: as the caller promises.
        unsafe { self.memory.write(at, bytes) };
    }

    /// # Safety
    ///
    /// As for the real memory; loom fails the model if a condition is violated.
    pub(super) unsafe fn read(&self, at: usize, len: usize) -> &[u8] {
        for cell in self.cells(at, len) {
            cell.with(|_| ());
        }
        // SAFETY: as the caller promises.
        unsafe { self.memory.read(at, len) }
    }
}

//! Replaces `sync` in the models: loom's atomics and locks, and memory that loom watches.

#![allow(unsafe_code)]

use loom::cell::UnsafeCell;

pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
// This one is not loom's: the models do not check reference counts, and each step would multiply the orders.
pub(super) use std::sync::Arc;

use super::super::memory;

/// Bytes that are watched as one unit. The models access no less.
const CELL: usize = 1024;

/// The real memory, with a cell for each chunk by which loom watches accesses.
#[derive(Debug)]
pub(super) struct Memory {
    memory: memory::Memory,
    cells: Vec<UnsafeCell<()>>,
}

// SAFETY: as for the real memory. Loom's cells are shared on purpose: loom detects conflicting accesses through
// them.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(len: usize) -> Self {
        Self {
            memory: memory::Memory::new(len),
            cells: (0..len / CELL).map(|_| UnsafeCell::new(())).collect(),
        }
    }

    fn cells(&self, at: usize, len: usize) -> &[UnsafeCell<()>] {
        assert!(at.is_multiple_of(CELL) && len.is_multiple_of(CELL));
        &self.cells[at / CELL..(at + len) / CELL]
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

/// An event count made of a lock and a condition variable.
#[derive(Debug, Default)]
pub(super) struct EventCount {
    notified: Mutex<u32>,
    condition: Condvar,
}

impl EventCount {
    pub(super) fn count(&self) -> u32 {
        *self.notified.lock().unwrap()
    }

    pub(super) fn wait(&self, count: u32, _: Option<std::time::Duration>) {
        let notified = self.notified.lock().unwrap();
        if *notified == count {
            drop(self.condition.wait(notified).unwrap());
        }
    }

    pub(super) fn notify_all(&self) {
        *self.notified.lock().unwrap() += 1;
        self.condition.notify_all();
    }

    pub(super) fn notify_one(&self) {
        *self.notified.lock().unwrap() += 1;
        self.condition.notify_one();
    }
}

//! The bytes of the log buffer, written by many threads at once and read by one.
//!
//! The exclusive access of threads to bytes is not checked here: the log buffer guarantees it.
//! Memory is allocated as it is touched or populated.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::Advice;

use super::mapping::Mapping;

/// Aligned memory without access checks.
#[derive(Debug)]
pub(super) struct UncheckedMemory {
    start: NonNull<u8>,
    len: usize,
    /// Owns the memory that `start` points to, and is not touched until the drop.
    _owner: Mapping,
}

// SAFETY: plain memory that it owns; the caller of each access rules out conflicts.
unsafe impl Send for UncheckedMemory {}
// SAFETY: as above.
unsafe impl Sync for UncheckedMemory {}

impl UncheckedMemory {
    pub(super) fn new(len: usize) -> Self {
        let mut owner = Mapping::of_small_pages(len);
        Self { start: NonNull::from(&mut owner[..]).cast(), len, _owner: owner }
    }

    /// Makes the kernel allocate the pages of a range, which changes no byte. Returns whether it did
    /// (`MADV_POPULATE_WRITE`, Linux 5.14).
    pub(super) fn populate(&self, range: Range<usize>) -> bool {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds; the advice reads and writes no byte.
        let done = unsafe {
            let start = self.start.add(range.start).as_ptr().cast();
            rustix::mm::madvise(start, range.len(), Advice::LinuxPopulateWrite)
        };
        done.is_ok()
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Safety
    ///
    /// They fit, and nobody else reads or writes that range meanwhile.
    pub(super) unsafe fn write(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.len);
        // SAFETY: in bounds and without concurrent access, as the caller promises.
        unsafe {
            self.start.add(at).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
    }

    /// Returns the `len` bytes at `at`.
    ///
    /// # Safety
    ///
    /// They are in bounds, and nobody writes to that range as long as they are borrowed.
    pub(super) unsafe fn read(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at + len <= self.len);
        // SAFETY: in bounds, initialised from the start, and not written to, as the caller
        // promises.
        unsafe { NonNull::slice_from_raw_parts(self.start.add(at), len).as_ref() }
    }
}

//! A read-only shared mapping of a byte range of a file, used only as a handle for mincore(2) and
//! madvise(2).
//!
//! Invariant: this process never dereferences the mapped memory, so truncating a mapped file can't
//! raise SIGBUS here. Mapping touches no page (no `MAP_POPULATE`).

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::cachestat::last_errno;
use crate::page_size;

/// The mapping; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct FileMapping {
    start: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: the mapping is plain address space owned by this value; the kernel calls made on it
// (mincore, madvise, munmap) may come from any thread.
unsafe impl Send for FileMapping {}
// SAFETY: as above; all methods take the address range by shared reference and the kernel
// serialises them.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `len` bytes from `off`, which must be a multiple of the page size; `len` must not be 0.
    pub(crate) fn new(file: impl AsFd, off: u64, len: usize) -> Result<Self, Errno> {
        // SAFETY: a fresh address range is asked for (null hint, no MAP_FIXED), so no existing
        // memory is affected, and nothing in this process reads or writes the new one.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, off)?
        };
        NonNull::new(start).map(|start| Self { start, len }).ok_or(Errno::NOMEM)
    }

    /// Returns one byte per page, with bit 0 set if it is resident. Only for files that the caller
    /// owns or may write; otherwise the kernel claims that all are resident (mincore(2), Linux
    /// 5.2).
    pub(crate) fn mincore(&self, pages: &mut Vec<u8>) -> Result<(), Errno> {
        pages.clear();
        pages.resize(self.len.div_ceil(page_size_usize()), 0);
        // SAFETY: the range is this value's own live mapping, and `pages` has one byte for each of
        // its pages, as mincore(2) asks.
        let result = unsafe { libc::mincore(self.start.as_ptr(), self.len, pages.as_mut_ptr()) };
        if result == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Reads all pages of the mapping, and waits for them: `MADV_POPULATE_READ` (Linux 5.14).
    pub(crate) fn populate_read(&self) -> Result<(), Errno> {
        loop {
            // SAFETY: the range is this value's own live mapping; the advice faults pages in and
            // changes no content.
            match unsafe { rustix::mm::madvise(self.start.as_ptr(), self.len, Advice::LinuxPopulateRead) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                other => return other,
            }
        }
    }

    /// Requests large folios and, on a fault, read-ahead in their size (2 MiB and the next one on
    /// x86-64) regardless of the device's `read_ahead_kb`: `MADV_HUGEPAGE`. Fails with EINVAL on
    /// kernels without transparent huge pages.
    pub(crate) fn advise_huge(&self) -> Result<(), Errno> {
        // SAFETY: the range is this value's own live mapping; the advice changes how pages are read
        // in, no content.
        unsafe { rustix::mm::madvise(self.start.as_ptr(), self.len, Advice::LinuxHugepage) }
    }

    /// Disables read-ahead, so that faults read only what they need: `MADV_RANDOM`.
    pub(crate) fn advise_random(&self) -> Result<(), Errno> {
        // SAFETY: the range is this value's own live mapping; the advice changes how pages are read
        // in, no content.
        unsafe { rustix::mm::madvise(self.start.as_ptr(), self.len, Advice::Random) }
    }

    /// Withdraws the advice, which also affects how the pages are unmapped: `MADV_NORMAL`.
    pub(crate) fn advise_normal(&self) -> Result<(), Errno> {
        // SAFETY: as for `advise_random`.
        unsafe { rustix::mm::madvise(self.start.as_ptr(), self.len, Advice::Normal) }
    }

    /// Locks the pages in memory (mlock(2)), reading them first; they stay locked while this value
    /// lives.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the range is this value's own live mapping; locking changes no content and ends
        // with munmap.
        unsafe { rustix::mm::mlock(self.start.as_ptr(), self.len) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping, unmapped exactly once; no reference into
        // it was ever made. munmap of a whole mapping fails only for arguments that were never
        // valid, so there is nothing to report.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}

/// Returns the page size as a `usize`.
fn page_size_usize() -> usize {
    usize::try_from(page_size()).expect("a page fits in memory")
}

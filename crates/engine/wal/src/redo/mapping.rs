//! Large memory: allocated as it is touched, for reading a log in huge pages if the kernel has them.
//! Touching a small page for the first time takes as long as reading it from a fast disk, touching a
//! huge one up to milliseconds.
//!
//! Invariant: a mapping is `len` bytes from `start` on, mapped here and used by nobody else,
//! readable and writable, zero at first. Without memory the process aborts, as with all of the
//! standard library's collections.

#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use pagekeeper_io::AlignedBuf;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of a huge page if small ones have 4 KiB. On other kernels it is an alignment like any
/// other.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Exclusive memory, aligned to [`AlignedBuf::ALIGN`], or to huge pages if it is at least that
/// large.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// The whole mapping: the usable bytes and the bytes that align them.
    base: NonNull<u8>,
    mapped: usize,
}

// SAFETY: it owns its memory, as a Vec does.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates `len` bytes, at least one, all zero, in huge pages if there are any.
    pub(super) fn new(len: usize) -> Self {
        Self::advised(len, Advice::LinuxHugepage)
    }

    /// Allocates `len` bytes, at least one, all zero, in small pages.
    pub(super) fn of_small_pages(len: usize) -> Self {
        Self::advised(len, Advice::LinuxNoHugepage)
    }

    fn advised(len: usize, advice: Advice) -> Self {
        let align = if len >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { AlignedBuf::ALIGN };
        let fail = || handle_alloc_error(Layout::from_size_align(len, align).unwrap_or(Layout::new::<u8>()));
        let Some(mapped) = len.checked_add(align).filter(|_| len > 0) else { fail() };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, placed by the kernel where nothing is.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) };
        let Some(base) = base.ok().and_then(|base| NonNull::new(base.cast::<u8>())) else { fail() };
        let skipped = base.as_ptr().addr().next_multiple_of(align) - base.as_ptr().addr();
        // SAFETY: less than `align` bytes further: within the mapping, which is longer than `len`
        // by `align`.
        let start = unsafe { base.add(skipped) };
        if len >= HUGE_PAGE_BYTES {
            // SAFETY: the range was just mapped, and this advice changes no byte. It fails if there
            // are no huge pages; small ones suffice.
            let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, advice) };
        }
        Self { start, len, base, mapped }
    }

    /// Makes the kernel allocate the memory, if there are huge pages.
    ///
    /// Concurrent disk requests that share an unallocated huge page would each allocate and zero
    /// one, and all but one would be discarded.
    pub(super) fn touch(&mut self) {
        self.chunks_mut(HUGE_PAGE_BYTES).for_each(|page| page[0] = 0);
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: by the invariant, and nobody writes while it is borrowed.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_ref() }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: by the invariant, and the borrow is exclusive.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_mut() }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the same mapping that `new` created, and nobody has a reference to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_zero_and_as_long_as_asked() {
        for len in [1, 4096, 100_000, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES + 4096] {
            let mut map = Mapping::new(len);
            let align = if len >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 4096 };
            assert!(map.as_ptr().addr().is_multiple_of(align));
            assert!(map.len() == len && map.iter().all(|byte| *byte == 0));
            map.fill(7);
            assert!(std::thread::spawn(move || map.iter().all(|byte| *byte == 7)).join().unwrap());
        }
    }
}

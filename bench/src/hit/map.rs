//! Memory that the kernel maps for a subject: a file's populated pages, or an arena of huge pages.
//!
//! One of the few places of the benchmarks with `unsafe` code. Invariants: a mapping is alive, readable and of its
//! length as long as its value; a mapped file is in the run's own scratch directory, where nobody truncates or writes
//! it. Fails with the kernel's error.

#![expect(unsafe_code, reason = "memory maps have no safe interface")]

use std::fs::File;
use std::ptr::NonNull;

use anyhow::{Context, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Alignment of a transparent huge page, in bytes (x86-64, and aarch64 with pages of 4 KiB).
const HUGE: usize = 2 << 20;

/// A mapping, which is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Map {
    /// The mapped range.
    start: NonNull<u8>,
    mapped: usize,
    /// Offset of the first byte in the mapping.
    skip: usize,
    len: usize,
    writable: bool,
}

// SAFETY: plain memory that this value owns; no part of it is bound to a thread.
unsafe impl Send for Map {}
// SAFETY: shared references only read; writing needs an exclusive one.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of a file for reading and fills the page tables (`MAP_POPULATE`), so that no later
    /// access faults.
    pub(crate) fn file(file: &File, len: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a fresh address range (null hint, no MAP_FIXED), so no existing memory is
        // affected.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) };
        Self::checked(start, len, false).context("can't map the file")
    }

    /// Maps `len` zero bytes aligned to a huge page and requests transparent huge pages (`MADV_HUGEPAGE`). The pages
    /// are small where the kernel has no huge ones.
    pub(crate) fn arena(len: usize) -> Result<Self> {
        let mapped = len + HUGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above; the memory is private to this process.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, protection, MapFlags::PRIVATE)
        };
        let mut map = Self::checked(start, mapped, true).context("can't map memory")?;
        map.skip = map.start.as_ptr().align_offset(HUGE);
        map.len = len;
        // SAFETY: the range is this value's own live mapping; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(map.start.as_ptr().cast(), mapped, Advice::LinuxHugepage) };
        Ok(map)
    }

    fn checked(
        start: rustix::io::Result<*mut std::ffi::c_void>,
        mapped: usize,
        writable: bool,
    ) -> rustix::io::Result<Self> {
        let start = NonNull::new(start?.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, mapped, skip: 0, len: mapped, writable })
    }

    /// Returns the bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `skip + len <= mapped` (an arena's mapping is larger by the largest skip), all of it is mapped for
        // reading while `self` lives, and it is initialised: zeros, or a file's bytes, which nobody changes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.skip), self.len) }
    }

    /// Returns the bytes of an arena for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.writable, "a mapped file is only read");
        // SAFETY: as in `bytes`; the mapping is writable, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(self.skip), self.len) }
    }

    /// Returns a pointer to `len` bytes of an arena, for a caller that tracks reads and writes itself.
    #[inline]
    pub(crate) fn frame(&self, at: usize, len: usize) -> *mut u8 {
        assert!(self.writable && at + len <= self.len, "that is no part of an arena");
        // SAFETY: `skip + at + len` is within the mapping, by the line above.
        unsafe { self.start.as_ptr().add(self.skip + at) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping and is unmapped exactly once; the borrow checker ensures that
        // no reference into it is left. The call fails only for arguments that were never valid.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_begins_at_a_huge_page_and_holds_what_is_written() {
        let mut arena = Map::arena(3 << 20).unwrap();
        assert_eq!(arena.bytes().as_ptr().align_offset(HUGE), 0);
        assert_eq!(arena.bytes().len(), 3 << 20);
        arena.bytes_mut().fill(7);
        assert!(arena.bytes().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_mapped_file_has_its_bytes() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        std::fs::write(file.path(), [1, 2, 3]).unwrap();
        let map = Map::file(file.as_file(), 3).unwrap();
        assert_eq!(map.bytes(), [1, 2, 3]);
    }
}

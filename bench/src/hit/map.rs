//! Memory that the kernel maps for a subject: a file's pages, populated, or a huge-page arena of its own.
//!
//! One of the few places of the benchmarks with `unsafe` code. Invariants: a mapping is alive,
//! readable and of its length as long as its value; a mapped file lies in the run's own scratch directory, where nothing
//! cuts or writes it. Fails with the kernel's error.

#![expect(unsafe_code, reason = "memory maps have no safe interface")]

use std::fs::File;
use std::ptr::NonNull;

use anyhow::{Context, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Alignment of a transparent huge page, in bytes (x86-64, and aarch64 with pages of 4 KiB).
const HUGE: usize = 2 << 20;

/// A mapping; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Map {
    /// What was mapped.
    start: NonNull<u8>,
    mapped: usize,
    /// Where the bytes begin in it.
    skip: usize,
    len: usize,
    writable: bool,
}

// SAFETY: plain memory that this value owns; nothing about it belongs to a thread.
unsafe impl Send for Map {}
// SAFETY: shared references only read; writing takes an exclusive one.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of a file for reading, and populates the page tables: `MAP_POPULATE`, so that no later
    /// access faults.
    pub(crate) fn file(file: &File, len: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh address range is asked for (null hint, no MAP_FIXED), so no existing memory is affected.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) };
        Self::checked(start, len, false).context("can't map the file")
    }

    /// Maps `len` bytes of zeros that begin at a huge page, and asks for transparent huge pages (`MADV_HUGEPAGE`); where
    /// the kernel has none they are small.
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

    /// The bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `skip + len <= mapped` (an arena is mapped larger by the most that is skipped), all of it is mapped for
        // reading while `self` lives, and is initialised: zeros, or a file's bytes, which nothing changes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.skip), self.len) }
    }

    /// The bytes, to be filled; only of an arena.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.writable, "a mapped file is only read");
        // SAFETY: as in `bytes`; the mapping is writable, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(self.skip), self.len) }
    }

    /// Where `len` bytes of an arena begin, for who keeps its own account of which of them are read and written.
    #[inline]
    pub(crate) fn frame(&self, at: usize, len: usize) -> *mut u8 {
        assert!(self.writable && at + len <= self.len, "that is no part of an arena");
        // SAFETY: `skip + at + len` is within what was mapped, by the line above.
        unsafe { self.start.as_ptr().add(self.skip + at) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping, unmapped exactly once; the borrow checker saw to it that no
        // reference into it is left. It fails only for arguments that were never valid.
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

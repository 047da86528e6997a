//! Memory that the kernel maps for a subject: a file's populated pages, a file to change, or an
//! arena of huge pages.
//!
//! One of the few places of the benchmarks with `unsafe` code. Invariants: a mapping is alive and
//! of its length as long as its value; a mapped file is in the run's own scratch directory, where
//! nobody truncates it. References are given out to a file that is only read, which nobody writes,
//! and to an arena; a file to change is copied to and from. Fails with the kernel's error.

#![expect(unsafe_code, reason = "memory maps have no safe interface")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use anyhow::{Context, Result};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};

/// Alignment of a transparent huge page, in bytes (x86-64, and aarch64 with pages of 4 KiB).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The use of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MappingUse {
    /// A file, for reading only.
    Read,
    /// A file, for changes.
    Change,
    /// Private memory.
    Arena,
}

/// A mapping, which is unmapped on drop.
#[derive(Debug)]
pub(crate) struct MemoryMap {
    /// The mapped range.
    start: NonNull<u8>,
    mapped: usize,
    /// Offset of the first byte in the mapping.
    skip: usize,
    len: usize,
    purpose: MappingUse,
}

// SAFETY: plain memory that this value owns; no part of it is bound to a thread.
unsafe impl Send for MemoryMap {}
// SAFETY: shared references only read; writing needs an exclusive one.
unsafe impl Sync for MemoryMap {}

impl MemoryMap {
    /// Maps the first `len` bytes of a file for reading and fills the page tables (`MAP_POPULATE`),
    /// so that no later access faults.
    pub(crate) fn file(file: &File, len: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a fresh address range (null hint, no MAP_FIXED), so no
        // existing memory is affected.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) };
        Self::checked(start, len, MappingUse::Read).context("can't map the file")
    }

    /// Maps the whole file for changes.
    pub(crate) fn to_change(file: &File) -> Result<Self> {
        let len = usize::try_from(file.metadata()?.len())?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Self::checked(start, len, MappingUse::Change).context("can't map the file")
    }

    /// Maps `len` zero bytes aligned to a huge page and requests transparent huge pages
    /// (`MADV_HUGEPAGE`). The pages are small where the kernel has no huge ones.
    pub(crate) fn arena(len: usize) -> Result<Self> {
        let mapped = len + HUGE_PAGE_BYTES;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above; the memory is private to this process.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, protection, MapFlags::PRIVATE)
        };
        let mut map = Self::checked(start, mapped, MappingUse::Arena).context("can't map memory")?;
        map.skip = map.start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        map.len = len;
        // The pages stay small where it fails.
        let _ = map.advise(0..len, Advice::LinuxHugepage);
        Ok(map)
    }

    fn checked(
        start: rustix::io::Result<*mut std::ffi::c_void>,
        mapped: usize,
        purpose: MappingUse,
    ) -> rustix::io::Result<Self> {
        let start = NonNull::new(start?.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, mapped, skip: 0, len: mapped, purpose })
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let start = self.at(&range);
        // SAFETY: the range is within this value's own live mapping; none of the advice used here
        // changes content.
        unsafe { rustix::mm::madvise(start.cast(), range.len(), advice)? }
        Ok(())
    }

    /// Returns a pointer to the begin of a range.
    #[inline]
    fn at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a map of {}", self.len);
        // SAFETY: `skip + len <= mapped`, and the range ends within `len`, by the line above.
        unsafe { self.start.as_ptr().add(self.skip + range.start) }
    }

    /// Returns the bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(self.purpose != MappingUse::Change, "a file to change is copied");
        // SAFETY: `skip + len <= mapped` (an arena's mapping is larger by the largest skip), all of
        // it is mapped for reading while `self` lives, and it is initialised: zeros, or a file's
        // bytes, which nobody changes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.skip), self.len) }
    }

    /// Returns the bytes of an arena for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.purpose == MappingUse::Arena, "that is no arena");
        // SAFETY: as in `bytes`; the mapping is writable, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(self.skip), self.len) }
    }

    /// Returns a pointer to `len` bytes of an arena, for a caller that tracks reads and writes
    /// itself.
    #[inline]
    pub(crate) fn frame(&self, at: usize, len: usize) -> *mut u8 {
        assert!(self.purpose == MappingUse::Arena, "that is no arena");
        self.at(&(at..at + len))
    }

    /// Makes faults read only their own page, without read-around.
    pub(crate) fn expect_random(&self) -> io::Result<()> {
        self.advise(0..self.len, Advice::Random)
    }

    /// Requests pages without waiting for them; whole pages.
    pub(crate) fn will_need(&self, range: Range<usize>) -> io::Result<()> {
        self.advise(range, Advice::WillNeed)
    }

    /// Writes bytes to a file.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(self.purpose == MappingUse::Change, "that is no file to change");
        let to = self.at(&(offset..offset + bytes.len()));
        // SAFETY: `at` checks the range, and the file is as long (see the module); `bytes` does not
        // overlap the mapping, to which no reference is ever given out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes of a file.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(&(offset..offset + bytes.len()));
        // SAFETY: as in `write`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Makes all changes of a file durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is this value's own live mapping; msync changes nothing in memory.
        unsafe { rustix::mm::msync(self.start.as_ptr().cast(), self.mapped, MsyncFlags::SYNC)? }
        Ok(())
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping and is unmapped exactly once; the borrow
        // checker ensures that no reference into it is left. The call fails only for arguments that
        // were never valid.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_begins_at_a_huge_page_and_keeps_written_bytes() {
        let mut arena = MemoryMap::arena(3 << 20).unwrap();
        assert_eq!(arena.bytes().as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
        arena.bytes_mut().fill(7);
        assert!(arena.bytes().len() == 3 << 20 && arena.bytes().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn bytes_written_through_a_map_are_in_the_file() {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(3 * 4096).unwrap();
        let mut map = MemoryMap::to_change(&file).unwrap();
        map.expect_random().unwrap();
        map.will_need(4096..8192).unwrap();
        map.write(4095, b"xyz");
        map.sync().unwrap();
        let mut found = [0; 5];
        map.read(4094, &mut found);
        assert_eq!(&found, b"\0xyz\0");
        assert_eq!(MemoryMap::file(&file, 8192).unwrap().bytes()[4094..4099], found);
    }

    #[test]
    #[should_panic(expected = "of a map of 4096")]
    fn nothing_behind_the_end_is_touched() {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(4096).unwrap();
        MemoryMap::to_change(&file).unwrap().write(4090, &[0; 7]);
    }
}

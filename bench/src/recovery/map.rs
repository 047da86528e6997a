//! A mapped file for changes, like a store that leaves its pages to the kernel.
//!
//! Invariants: a mapping lives as long as its value, and nothing outside it is touched. The file is the run's own and
//! must not be truncated meanwhile, because that would end the process by SIGBUS. Fails as mmap(2), madvise(2) and
//! msync(2) do.

#![expect(unsafe_code, reason = "mappings are memory that the compiler does not know")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

/// A mapping, which is unmapped on drop.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<u8>,
    len: usize,
}

impl Map {
    /// Maps the whole file, shared.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a fresh address range (null hint, no MAP_FIXED), so no existing memory is
        // affected.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Makes faults read only their own page, without read-around.
    pub(super) fn expect_random(&self) -> io::Result<()> {
        // SAFETY: the range is this value's own live mapping; this advice changes no content.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::Random)? }
        Ok(())
    }

    /// Requests pages without waiting for them; whole pages.
    pub(super) fn will_need(&self, range: Range<usize>) -> io::Result<()> {
        self.require(&range);
        // SAFETY: the range is within this value's own live mapping; this advice changes no content.
        unsafe { madvise(self.start.as_ptr().add(range.start).cast(), range.len(), Advice::WillNeed)? }
        Ok(())
    }

    /// Writes bytes.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.require(&(offset..offset + bytes.len()));
        // SAFETY: the range is within the mapping, by the line above, and the file is as long (see the module); `bytes`
        // does not overlap the mapping, to which no reference is ever given out.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len());
        }
    }

    /// Copies bytes out.
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.require(&(offset..offset + bytes.len()));
        // SAFETY: as in `write`, in the other direction.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Makes all changes durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is this value's own live mapping; msync changes nothing in memory.
        unsafe { msync(self.start.as_ptr().cast(), self.len, MsyncFlags::SYNC)? }
        Ok(())
    }

    fn require(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a map of {}", self.len);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping, unmapped exactly once; no reference into it outlives a call.
        // munmap of a whole mapping fails only for arguments that were never valid, so there is nothing to report.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_through_a_map_is_in_the_file() {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(3 * 4096).unwrap();
        let mut map = Map::new(&file).unwrap();
        map.expect_random().unwrap();
        map.will_need(4096..8192).unwrap();
        map.write(4095, b"xyz");
        map.sync().unwrap();
        let mut found = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 4094).unwrap();
        assert_eq!(&found, b"\0xyz\0");
        map.read(4094, &mut found);
        assert_eq!(&found, b"\0xyz\0");
    }

    #[test]
    #[should_panic(expected = "of a map of 4096")]
    fn nothing_behind_the_end_is_touched() {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(4096).unwrap();
        Map::new(&file).unwrap().write(4090, &[0; 7]);
    }
}

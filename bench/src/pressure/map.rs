//! Mapped memory for two subjects: a file for reads at random places, and fresh memory to touch page by page.
//!
//! Invariants: a mapping lives as long as its value, and nothing outside it is touched. The mapped file is the run's
//! own and must not be truncated meanwhile, because that would end the process by SIGBUS. Fails as mmap(2) and
//! madvise(2) do.

#![expect(unsafe_code, reason = "mappings are memory that the compiler does not know")]

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapping, which is unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(start: *mut std::ffi::c_void, len: usize) -> io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is this value's own live mapping; the advice given here (random access, small pages)
        // changes no content.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, advice)? }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping, unmapped exactly once; no reference into it outlives a call.
        // munmap of a whole mapping fails only for arguments that were never valid, so there is nothing to report.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A file, mapped for reading at random places (`MADV_RANDOM`).
#[derive(Debug)]
pub(super) struct FileMap(Mapping);

// SAFETY: the mapping is plain address space that this value owns; it is only read, through `read_at`.
unsafe impl Send for FileMap {}
// SAFETY: as above; many threads may read it at once, and none writes.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps the whole file.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        // SAFETY: the kernel chooses a fresh address range (null hint, no MAP_FIXED), so no existing memory is
        // affected.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let mapping = Mapping::new(start, len)?;
        mapping.advise(Advice::Random)?;
        Ok(Self(mapping))
    }

    /// Copies bytes at an offset; returns fewer than requested at the end.
    pub(super) fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len);
        let len = buf.len().min(self.0.len - offset);
        // SAFETY: `offset + len` is within the mapping by the two lines above, and the file is as long as the mapping
        // (see the module); `buf` has `len` bytes and does not overlap the mapping, to which nobody has a `&mut`.
        unsafe { std::ptr::copy_nonoverlapping(self.0.start.as_ptr().add(offset), buf.as_mut_ptr(), len) };
        len
    }
}

/// Fresh memory in pages of 4 KiB, none of which is allocated yet.
#[derive(Debug)]
pub(super) struct FreshMemory(Mapping);

impl FreshMemory {
    /// Bytes of a page.
    pub(super) const PAGE: usize = 4096;

    /// Creates memory of this many pages.
    pub(super) fn new(pages: usize) -> io::Result<Self> {
        let len = pages * Self::PAGE;
        // SAFETY: the kernel chooses a fresh address range (null hint, no MAP_FIXED), so no existing memory is
        // affected.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let mapping = Mapping::new(start, len)?;
        match mapping.advise(Advice::LinuxNoHugepage) {
            // A kernel without huge pages has no such advice and does not need it.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
            _ => Ok(Self(mapping)),
        }
    }

    /// Writes to a page, which makes the kernel allocate it.
    pub(super) fn touch(&mut self, page: usize) {
        let at = page * Self::PAGE;
        assert!(at < self.0.len, "no such page");
        // SAFETY: the byte lies within this value's own writable mapping (the line above), and `&mut self` makes this the
        // only access.
        unsafe { self.0.start.as_ptr().add(at).write_volatile(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_the_bytes_of_the_file_and_ends_with_it() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        std::fs::write(&path, &bytes).unwrap();
        let map = FileMap::new(&File::open(&path).unwrap()).unwrap();
        let mut buf = [0; 500];
        for (offset, len) in [(0, 500), (4000, 500), (9_700, 300), (10_000, 0), (u64::MAX, 0)] {
            assert_eq!(map.read_at(offset, &mut buf), len);
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            assert_eq!(buf[..len], bytes[from..from + len]);
        }
    }

    #[test]
    fn fresh_memory_can_be_touched_to_its_last_page() {
        let mut memory = FreshMemory::new(16).unwrap();
        (0..16).for_each(|page| memory.touch(page));
        let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.touch(16)));
        assert!(beyond.is_err());
    }
}

//! Alternatives to a user-space cache: the kernel's page cache by pread and by mmap; and the limit
//! of any cache.
//!
//! Invariant: none of them waits for a disk while the file is resident, which the caller ensures.
//! After creation only pread can fail, which the read reports.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::Result;

use super::reader::{PAGE_BYTES, PageReader};
use crate::map::MemoryMap;
use crate::pattern;
use crate::rounds::SplitMix;

/// The kernel's page cache, by pread(2).
#[derive(Debug)]
pub(crate) struct PreadFile(pub(crate) File);

impl PageReader for PreadFile {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        self.0.read_at(buf, page * PAGE_BYTES as u64 + at as u64).is_ok_and(|len| len == buf.len())
    }
}

/// The kernel's page cache, by a mapping with filled page tables.
#[derive(Debug)]
pub(crate) struct MappedFile(MemoryMap);

impl MappedFile {
    /// Maps this many pages of a file.
    pub(crate) fn new(file: &File, pages: u64) -> Result<Self> {
        Ok(Self(MemoryMap::file(file, usize::try_from(pages)? * PAGE_BYTES)?))
    }
}

impl PageReader for MappedFile {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        copy_at(self.0.bytes(), page, at, buf)
    }
}

/// The limit: an array of each page's frame, and a copy from huge pages. It cannot evict, load or
/// close.
#[derive(Debug)]
pub(crate) struct ArrayLimit {
    frames: Vec<u32>,
    arena: MemoryMap,
}

impl ArrayLimit {
    /// Puts the pages of a pattern's file into frames in random order.
    pub(crate) fn new(pages: u64, seed: u64, random: &mut SplitMix) -> Result<Self> {
        let mut frames: Vec<u32> = (0..u32::try_from(pages)?).collect();
        random.shuffle(&mut frames);
        let mut arena = MemoryMap::arena(usize::try_from(pages)? * PAGE_BYTES)?;
        let mut page_of = vec![0; frames.len()];
        for (page, frame) in (0_u64..).zip(&frames) {
            page_of[*frame as usize] = page;
        }
        for (frame, page) in arena.bytes_mut().chunks_mut(PAGE_BYTES).zip(page_of) {
            pattern::fill(seed, page * PAGE_BYTES as u64, frame);
        }
        Ok(Self { frames, arena })
    }
}

impl PageReader for Arc<ArrayLimit> {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        (**self).read(page, at, buf)
    }
}

impl PageReader for ArrayLimit {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        let frame = usize::try_from(page).ok().and_then(|page| self.frames.get(page));
        frame.is_some_and(|&frame| copy_at(self.arena.bytes(), u64::from(frame), at, buf))
    }
}

/// Copies from `at` in page `page`; returns false beyond the end.
#[inline]
fn copy_at(bytes: &[u8], page: u64, at: usize, buf: &mut [u8]) -> bool {
    let start = usize::try_from(page).unwrap_or(usize::MAX).saturating_mul(PAGE_BYTES).saturating_add(at);
    match bytes.get(start..start.saturating_add(buf.len())) {
        Some(found) => {
            buf.copy_from_slice(found);
            true
        }
        None => false,
    }
}

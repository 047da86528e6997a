//! Alternatives to a user-space cache: the kernel's page cache by pread and by mmap; and the limit of any cache.
//!
//! Invariant: none of them waits for a disk while the file is resident, which the caller ensures. After creation only
//! pread can fail, which the read reports.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::Result;

use super::map::Map;
use super::reader::{PAGE, Reader};
use crate::pattern;
use crate::rounds::Random;

/// The kernel's page cache, by pread(2).
#[derive(Debug)]
pub(crate) struct Pread(pub(crate) File);

impl Reader for Pread {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        self.0.read_at(buf, page * PAGE as u64 + at as u64).is_ok_and(|len| len == buf.len())
    }
}

/// The kernel's page cache, by a mapping with filled page tables.
#[derive(Debug)]
pub(crate) struct Mapped(Map);

impl Mapped {
    /// Maps this many pages of a file.
    pub(crate) fn new(file: &File, pages: u64) -> Result<Self> {
        Ok(Self(Map::file(file, usize::try_from(pages)? * PAGE)?))
    }
}

impl Reader for Mapped {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        copy_at(self.0.bytes(), page, at, buf)
    }
}

/// The limit: an array of each page's frame, and a copy from huge pages. It cannot evict, load or close.
#[derive(Debug)]
pub(crate) struct Limit {
    frames: Vec<u32>,
    arena: Map,
}

impl Limit {
    /// Puts `held` of the `pages` pages of a pattern's file into frames in random choice and order; reads of the others
    /// miss.
    pub(crate) fn new(pages: u64, held: u64, seed: u64, random: &mut Random) -> Result<Self> {
        let mut frames: Vec<u32> = (0..u32::try_from(pages)?).collect();
        random.shuffle(&mut frames);
        let mut arena = Map::arena(usize::try_from(held)? * PAGE)?;
        let mut page_of = vec![0; usize::try_from(held)?];
        for (page, frame) in (0_u64..).zip(&mut frames) {
            match page_of.get_mut(*frame as usize) {
                Some(place) => *place = page,
                None => *frame = Self::NOWHERE,
            }
        }
        for (frame, page) in arena.bytes_mut().chunks_mut(PAGE).zip(page_of) {
            pattern::fill(seed, page * PAGE as u64, frame);
        }
        Ok(Self { frames, arena })
    }

    /// The frame number of a page without a frame, which is beyond the end of any arena.
    const NOWHERE: u32 = u32::MAX;
}

impl Reader for Arc<Limit> {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        (**self).read(page, at, buf)
    }
}

impl Reader for Limit {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        let frame = usize::try_from(page).ok().and_then(|page| self.frames.get(page));
        frame.is_some_and(|&frame| copy_at(self.arena.bytes(), u64::from(frame), at, buf))
    }
}

/// Copies from `at` in page `page`; returns false beyond the end.
#[inline]
fn copy_at(bytes: &[u8], page: u64, at: usize, buf: &mut [u8]) -> bool {
    let start = usize::try_from(page).unwrap_or(usize::MAX).saturating_mul(PAGE).saturating_add(at);
    match bytes.get(start..start.saturating_add(buf.len())) {
        Some(found) => {
            buf.copy_from_slice(found);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::{SEED, verify};
    use super::*;
    use crate::data::MIB;

    const PAGES: u64 = MIB / PAGE as u64;

    #[test]
    fn each_has_every_page_and_none_beyond() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        pattern::make_file(&path, MIB, SEED).unwrap();
        let open = || File::open(&path).unwrap();
        let subjects: [Box<dyn Reader>; 3] = [
            Box::new(Pread(open())),
            Box::new(Mapped::new(&open(), PAGES).unwrap()),
            Box::new(Limit::new(PAGES, PAGES, SEED, &mut Random::new(1)).unwrap()),
        ];
        for subject in subjects {
            verify(&*subject, PAGES).unwrap();
            assert!(!subject.read(PAGES, 0, &mut [0; 8]));
        }
    }
}

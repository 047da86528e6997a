//! The file for old versions of pages. It has no name, so that it ends with the process, and is no
//! part of the store.
//!
//! Invariants: a place in the file is reused once no version has it. A version that is read back is
//! compared with its page and commit.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pagekeeper_io::{AlignedBuf, Io, IoFile, WriteMode};
use pagekeeper_kernel::mutex::lock;

use crate::Error;
use crate::buffers::BufferPool;
use crate::data::{FileUse, open_file};
use crate::format::page;
use crate::names::VERSIONS_NAME;
use crate::version::{PageId, WholePage};

/// Maximum number of pages of one write.
const WRITE_PAGES_MAX: usize = 16;

/// The file, with as many places as it has pages.
pub(crate) struct VersionFile {
    file: Arc<dyn IoFile>,
    page_size: usize,
    places: Mutex<FilePlaces>,
}

#[derive(Default)]
struct FilePlaces {
    /// All places from here on are unused.
    end: u64,
    /// Other unused places.
    free: Vec<u64>,
}

/// A version in the file.
pub(crate) struct MovedPage {
    file: Arc<VersionFile>,
    place: u64,
}

impl VersionFile {
    pub(crate) fn create(io: &dyn Io, directory: &Path, page_size: usize) -> Result<Arc<Self>, Error> {
        let path = directory.join(VERSIONS_NAME);
        match io.remove(&path) {
            Err(error) if error.errno() == Some(libc::ENOENT) => {}
            removed => removed?,
        }
        let file = open_file(io, &path, FileUse::Make)?;
        io.remove(&path)?;
        Ok(Arc::new(Self { file, page_size, places: Mutex::default() }))
    }

    /// Takes places for this many pages, or fewer if the file may not have more than `max` pages.
    fn take(self: &Arc<Self>, count: usize, max: u64) -> Vec<MovedPage> {
        let mut places = lock(&self.places);
        let FilePlaces { end, free } = &mut *places;
        free.sort_unstable();
        let mut taken: Vec<_> = free.drain(..count.min(free.len())).collect();
        while taken.len() < count && *end < max {
            taken.push(*end);
            *end += 1;
        }
        drop(places);
        taken.into_iter().map(|place| MovedPage { file: Arc::clone(self), place }).collect()
    }

    /// Writes as many of the pages as there are places for, and returns those places.
    pub(crate) fn write(self: &Arc<Self>, pages: &[WholePage], max: u64) -> Result<Vec<MovedPage>, Error> {
        let moved = self.take(pages.len(), max);
        let mut pages = pages.iter();
        let runs = moved.chunk_by(|one, next| one.place + 1 == next.place);
        for run in runs.flat_map(|run| run.chunks(WRITE_PAGES_MAX)) {
            let mut bytes = AlignedBuf::new(run.len() * self.page_size);
            for (room, page) in bytes.chunks_mut(self.page_size).zip(&mut pages) {
                room.copy_from_slice(page.bytes());
            }
            self.file.write_at(run[0].offset(), &bytes, WriteMode::Plain)?;
        }
        Ok(moved)
    }

    /// Returns the bytes of the versions in it.
    pub(crate) fn bytes(&self) -> u64 {
        let places = lock(&self.places);
        (places.end - places.free.len() as u64) * self.page_size as u64
    }
}

impl MovedPage {
    fn offset(&self) -> u64 {
        self.place * self.file.page_size as u64
    }

    /// Reads the page back.
    pub(crate) fn read(&self, buffers: &Arc<BufferPool>, id: &PageId) -> Result<WholePage, Error> {
        let mut bytes = AlignedBuf::new(self.file.page_size);
        let got = self.file.file.read_at(self.offset(), &mut bytes)?;
        match page::check(&bytes[..got], id.page, id.store) {
            Ok(header) if header.seq == id.seq => Ok(WholePage::new(header.kind, buffers.copy(&bytes))),
            Ok(_) | Err(_) => Err(id.damaged("its copy for old snapshots is not what was written there")),
        }
    }
}

impl Drop for MovedPage {
    fn drop(&mut self) {
        lock(&self.file.places).free.push(self.place);
    }
}

impl fmt::Debug for MovedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MovedPage").field("place", &self.place).finish_non_exhaustive()
    }
}

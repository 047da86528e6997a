//! pagekeeper's cache as a subject.
//!
//! Invariant: only hits were measured; [`OurCache::require_hits_only`] checks that. Fails with the
//! cache's own errors.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use pagekeeper_cache::{CachedFile, PageCache, ReadRequest};

use super::reader::{PAGE_BYTES, PageReader, ReadPlace};
use crate::data::MIB;

/// A cache with a file in it.
pub(crate) struct OurCache {
    cache: PageCache,
    /// The file.
    pub(crate) file: CachedFile,
    /// Misses and evictions after loading.
    loaded: (u64, u64),
}

/// Creates a cache with room for this many bytes of files.
pub(crate) fn cache_for(bytes: u64) -> Result<PageCache> {
    // Includes translation and bookkeeping.
    let memory = bytes + bytes / 16 + 32 * MIB;
    // Tables are allocated at open, so that no page has to make way for them while a file is
    // loaded.
    let options = PageCache::options().memory(memory).page_size(PAGE_BYTES).reserve_tables(true);
    options.build().context("can't make the cache")
}

/// Opens a file of this many bytes in a cache and reads all of it.
pub(crate) fn load(cache: &PageCache, path: &Path, len: u64) -> Result<CachedFile> {
    let file = cache.open(path)?;
    ensure!(file.len() == len, "the file has {} bytes instead of {len}", file.len());
    let mut buf = vec![0; 1 << 20];
    for offset in (0..len).step_by(buf.len()) {
        let count = file.read_at(offset, &mut buf)?;
        ensure!(count == buf.len(), "only {count} bytes could be read at {offset}");
    }
    let resident = file.resident_pages();
    ensure!(
        resident == len / PAGE_BYTES as u64,
        "{resident} pages of {} are cached",
        len / PAGE_BYTES as u64
    );
    Ok(file)
}

impl OurCache {
    /// Creates a cache that holds a whole file of this many bytes.
    pub(crate) fn holding(path: &Path, len: u64) -> Result<Self> {
        let cache = cache_for(len)?;
        let file = load(&cache, path, len)?;
        let stats = cache.stats();
        Ok(Self { cache, file, loaded: (stats.misses, stats.evictions) })
    }

    /// Fails if any page was loaded or lost since the file was loaded.
    pub(crate) fn require_hits_only(&self) -> Result<()> {
        let stats = self.cache.stats();
        ensure!((stats.misses, stats.evictions) == self.loaded, "not all reads were hits: {stats}");
        Ok(())
    }
}

impl PageReader for CachedFile {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        self.read_at(page * PAGE_BYTES as u64 + at as u64, buf).is_ok_and(|len| len == buf.len())
    }
}

/// The same file, read by lists.
pub(super) struct ListReader(pub(super) CachedFile);

impl PageReader for ListReader {
    const READS_PER_CALL: usize = 32;

    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        self.0.read(page, at, buf)
    }

    #[inline]
    fn read_many<'a>(&self, places: &[ReadPlace], bufs: impl Iterator<Item = &'a mut [u8]>) -> bool {
        let reads = places.iter().zip(bufs).map(|(place, buf)| ReadRequest::new(place.offset(), buf));
        self.0.read_many(&mut reads.collect::<Vec<_>>()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::{FILE_SEED, verify};
    use super::*;
    use crate::pattern;

    #[test]
    fn all_pages_are_hits_and_a_loaded_one_is_reported() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        pattern::make_file(&path, 4 * MIB, FILE_SEED).unwrap();
        pattern::make_file(&other, MIB, FILE_SEED).unwrap();
        let ours = OurCache::holding(&path, 4 * MIB).unwrap();
        verify(&ours.file, 4 * MIB / PAGE_BYTES as u64).unwrap();
        ours.require_hits_only().unwrap();
        load(&ours.cache, &other, MIB).unwrap();
        assert!(ours.require_hits_only().unwrap_err().to_string().contains("not all reads were hits"));
        ours.file.close();
        assert!(!ours.file.read(0, 0, &mut [0; 8]));
    }
}

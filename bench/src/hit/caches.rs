//! The caches that engines use today, each holding pages of 4 KiB by file and page number.
//!
//! Invariants: each is used as its documentation recommends, and a hit keeps the page alive while it is copied. Each
//! has room for a quarter more pages than it is given, so that an uneven spread over its shards evicts nothing. A cache
//! that this program was built without is named as missing. None of them fails: the read detects a missing page.

use std::sync::Arc;

use anyhow::Result;

use super::reader::{PAGE, Reader, SEED};
use crate::pattern;

/// A page, as caches own it.
type Page = [u8; PAGE];

/// A cache of pages by number.
pub(crate) trait Cache: Send + Sync + Sized {
    /// Its name in tables.
    const NAME: &'static str;
    /// Creates an empty cache with room for this many pages.
    fn with_room_for(pages: u64) -> Result<Self>;
    /// Inserts a page.
    fn insert(&self, key: u64, page: &Page) -> Result<()>;
    /// Copies a part of a page; returns whether the page was there.
    fn copy(&self, key: u64, at: usize, buf: &mut [u8]) -> bool;
    /// Removes a page.
    fn remove(&self, key: u64);
    /// Finishes deferred work.
    fn settle(&self) {}
}

/// Returns the room that a cache gets for this many pages.
pub(crate) fn room(pages: u64) -> u64 {
    pages + pages / 4
}

/// The pages of one file in a cache.
#[derive(Debug)]
pub(crate) struct FileIn<C> {
    /// The cache.
    pub(crate) cache: Arc<C>,
    /// The file's number.
    pub(crate) file: u32,
}

impl<C: Cache> FileIn<C> {
    /// Puts this many pages of the pattern's file into the cache.
    pub(crate) fn fill(cache: &Arc<C>, file: u32, pages: u64) -> Result<Self> {
        let filled = Self { cache: Arc::clone(cache), file };
        let mut bytes = [0; PAGE];
        for page in 0..pages {
            pattern::fill(SEED, page * PAGE as u64, &mut bytes);
            cache.insert(filled.key(page), &bytes)?;
        }
        cache.settle();
        Ok(filled)
    }

    /// Returns the key of a page.
    #[inline]
    pub(crate) fn key(&self, page: u64) -> u64 {
        u64::from(self.file) << 32 | page
    }
}

impl<C: Cache> Reader for FileIn<C> {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        self.cache.copy(self.key(page), at, buf)
    }
}

/// Copies a part of a page.
#[inline]
fn copy_out(page: &[u8], at: usize, buf: &mut [u8]) -> bool {
    buf.copy_from_slice(&page[at..at + buf.len()]);
    true
}

/// `quick_cache`, with the page behind an `Arc`.
pub(crate) struct QuickCache(quick_cache::sync::Cache<u64, Arc<Page>>);

impl Cache for QuickCache {
    const NAME: &'static str = "quick_cache";

    fn with_room_for(pages: u64) -> Result<Self> {
        Ok(Self(quick_cache::sync::Cache::new(usize::try_from(room(pages))?)))
    }

    fn insert(&self, key: u64, page: &Page) -> Result<()> {
        self.0.insert(key, Arc::new(*page));
        Ok(())
    }

    #[inline]
    fn copy(&self, key: u64, at: usize, buf: &mut [u8]) -> bool {
        self.0.get(&key).is_some_and(|page| copy_out(&*page, at, buf))
    }

    fn remove(&self, key: u64) {
        self.0.remove(&key);
    }
}

/// `moka`'s synchronous cache, with the page behind an `Arc`.
#[cfg(feature = "moka")]
pub(crate) struct Moka(moka::sync::Cache<u64, Arc<Page>>);

#[cfg(feature = "moka")]
impl Cache for Moka {
    const NAME: &'static str = "moka";

    fn with_room_for(pages: u64) -> Result<Self> {
        Ok(Self(moka::sync::Cache::new(room(pages))))
    }

    fn insert(&self, key: u64, page: &Page) -> Result<()> {
        self.0.insert(key, Arc::new(*page));
        Ok(())
    }

    #[inline]
    fn copy(&self, key: u64, at: usize, buf: &mut [u8]) -> bool {
        self.0.get(&key).is_some_and(|page| copy_out(&*page, at, buf))
    }

    fn remove(&self, key: u64) {
        self.0.invalidate(&key);
    }

    fn settle(&self) {
        self.0.run_pending_tasks();
    }
}

/// foyer's cache in memory, with S3-FIFO and the page in the entry.
#[cfg(feature = "foyer")]
pub(crate) struct Foyer(foyer_memory::Cache<u64, Page>);

#[cfg(feature = "foyer")]
impl Cache for Foyer {
    const NAME: &'static str = "foyer, S3-FIFO";

    fn with_room_for(pages: u64) -> Result<Self> {
        // More than its default of 8, in which two threads would often collide.
        const SHARDS: usize = 64;
        let builder = foyer_memory::CacheBuilder::new(usize::try_from(room(pages))?)
            .with_shards(SHARDS)
            .with_eviction_config(foyer_memory::S3FifoConfig::default());
        Ok(Self(builder.build()))
    }

    fn insert(&self, key: u64, page: &Page) -> Result<()> {
        self.0.insert(key, *page);
        Ok(())
    }

    #[inline]
    fn copy(&self, key: u64, at: usize, buf: &mut [u8]) -> bool {
        self.0.get(&key).is_some_and(|entry| copy_out(entry.value(), at, buf))
    }

    fn remove(&self, key: u64) {
        self.0.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::verify;
    use super::*;

    fn holds_what_it_is_given<C: Cache>() {
        const PAGES: u64 = 3000;
        let cache = Arc::new(C::with_room_for(2 * PAGES).unwrap());
        let kept = FileIn::fill(&cache, 1, PAGES).unwrap();
        let removed = FileIn::fill(&cache, 2, PAGES).unwrap();
        verify(&kept, PAGES).unwrap();
        verify(&removed, PAGES).unwrap();
        let mut buf = [0; 500];
        assert!(kept.read(7, 8, &mut buf));
        pattern::check(SEED, 7 * PAGE as u64 + 8, &buf).unwrap();
        for page in 0..PAGES {
            cache.remove(removed.key(page));
        }
        cache.settle();
        assert!((0..PAGES).all(|page| !removed.read(page, 0, &mut buf)));
        verify(&kept, PAGES).unwrap();
    }

    #[test]
    fn quick_cache_holds_what_it_is_given() {
        holds_what_it_is_given::<QuickCache>();
    }

    #[cfg(feature = "moka")]
    #[test]
    fn moka_holds_what_it_is_given() {
        holds_what_it_is_given::<Moka>();
    }

    #[cfg(feature = "foyer")]
    #[test]
    fn foyer_holds_what_it_is_given() {
        holds_what_it_is_given::<Foyer>();
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn the_caches_of_rocksdb_hold_what_they_are_given() {
        holds_what_it_is_given::<super::super::rocksdb::Lru>();
        holds_what_it_is_given::<super::super::rocksdb::HyperClock>();
    }
}

//! The counters of one file. They change where its pages do, under the pool's lock, or beside a read
//! past the cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one file up to now. Hits are not counted for each file: a hit writes nothing that
/// threads share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FileStats {
    /// Pages loaded because a reader found them absent, including pages read past the cache.
    pub misses: u64,
    /// Pages loaded ahead of any reader.
    pub prefetched: u64,
    /// Pages read past the cache.
    pub bypassed: u64,
    /// Pages evicted to make room for others.
    pub evictions: u64,
    /// Number of pages that are in the cache or being loaded; 0 once the file is closed.
    pub resident_pages: u64,
}

/// The counters of a file.
#[derive(Debug, Default)]
pub(crate) struct FileCounts {
    loads: AtomicU64,
    prefetched: AtomicU64,
    bypassed: AtomicU64,
    evictions: AtomicU64,
}

impl FileCounts {
    pub(crate) fn add_load(&self, is_prefetch: bool) {
        let counter = if is_prefetch { &self.prefetched } else { &self.loads };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_bypass(&self) {
        self.bypassed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_eviction(&self) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters of a file of which so many pages are in the cache.
    pub(crate) fn stats(&self, resident_pages: u64) -> FileStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FileStats {
            misses: of(&self.loads) + of(&self.bypassed),
            prefetched: of(&self.prefetched),
            bypassed: of(&self.bypassed),
            evictions: of(&self.evictions),
            resident_pages,
        }
    }
}

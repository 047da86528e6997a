//! The cache's counters. Hits are derived from the readers' section counters (see `readers`), so a
//! hit costs nothing extra.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::PoolCounts;

/// The counters of a cache up to now, and how full it is. The figures are read one after the other
/// while other threads continue, so they may be slightly inconsistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// Lookups that found their page. A read across three pages counts as three.
    pub hits: u64,
    /// Pages loaded because a reader found them absent, including pages read past the cache.
    pub misses: u64,
    /// Lookups that waited for a page that another caller was already loading.
    pub coalesced: u64,
    /// Pages loaded ahead of any reader.
    pub prefetched: u64,
    /// Pages read past the cache. They were read into their own memory, since all frames were held
    /// or waiting. Or a part of the page was read from the kernel's page cache alone, since all
    /// pages of this cache are in use as well.
    pub bypassed: u64,
    /// Loads and reads past the cache that failed: device errors, changed files, pages that the
    /// verifier rejected. Also prefetched pages whose file was closed before they arrived.
    pub failures: u64,
    /// Pages evicted to make room.
    pub evictions: u64,
    /// Pages that their owner rewrote, and whose new content replaced the old. Not loads.
    pub installed: u64,
    /// Reads that went to the device; neighbours that are missed together count as one.
    pub device_reads: u64,
    /// Bytes read from the device.
    pub device_bytes: u64,
    /// Number of pages in frames.
    pub resident_pages: u64,
    /// Number of pages that the cache has room for.
    pub capacity_pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
}

impl CacheStats {
    /// Collects the counters; the pool tells how full the cache is.
    pub(crate) fn counted(hits: u64, counts: PoolCounts, device: &DeviceCounts) -> Self {
        let prefetched = counts.prefetched;
        let bypassed = device.bypassed.load(Ordering::Relaxed);
        Self {
            hits,
            misses: counts.loads - prefetched + bypassed,
            coalesced: counts.coalesced,
            prefetched,
            bypassed,
            failures: counts.failures + device.bypass_failures.load(Ordering::Relaxed),
            evictions: counts.evictions,
            installed: counts.installed,
            device_reads: device.reads.load(Ordering::Relaxed),
            device_bytes: device.bytes.load(Ordering::Relaxed),
            ..Self::default()
        }
    }

    /// Returns the share of hits among all lookups: 0 to 1; 0 if nothing was read.
    pub fn hit_ratio(&self) -> f64 {
        let lookups = self.hits + self.misses + self.coalesced;
        if lookups == 0 { 0.0 } else { self.hits as f64 / lookups as f64 }
    }
}

impl fmt::Display for CacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} hits, {} misses ({:.1} % hits), {} waited for others' loads, {} prefetched, {} past the cache, \
             {} failed; {} evicted; {} installed; {} reads of {} bytes from the device; {} of {} pages of {} bytes in use",
            self.hits,
            self.misses,
            self.hit_ratio() * 100.0,
            self.coalesced,
            self.prefetched,
            self.bypassed,
            self.failures,
            self.evictions,
            self.installed,
            self.device_reads,
            self.device_bytes,
            self.resident_pages,
            self.capacity_pages,
            self.page_size,
        )
    }
}

/// Counters outside the pool's lock, for reads of the device.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounts {
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) bypassed: AtomicU64,
    pub(crate) bypass_failures: AtomicU64,
}

impl DeviceCounts {
    /// Counts one read of `bytes` bytes.
    pub(crate) fn add(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

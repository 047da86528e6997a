//! What a cache counts. Hits are derived from the readers' section counters (see `readers`), so a hit pays nothing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::Counts;

/// What a cache counted up to now, and how full it is. The figures are read one after the other while others go on, so
/// they may differ by what happened in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Lookups that found their page: a read across three pages counts three.
    pub hits: u64,
    /// Pages loaded because a reader found them absent; pages read past the cache included.
    pub misses: u64,
    /// Lookups of a page that another caller was loading already, and that were waited for.
    pub coalesced: u64,
    /// Pages loaded ahead of any reader.
    pub prefetched: u64,
    /// Pages read past the cache: into memory of their own, since all frames were held or waiting; or, of files that are read
    /// through the kernel's page cache, in part and from there alone, since all pages of this one are in use as well.
    pub bypassed: u64,
    /// Loads and reads past the cache that failed: device errors, files that changed, pages that the verifier rejected; and
    /// prefetched pages whose file was closed before they came.
    pub failures: u64,
    /// Pages evicted to make room.
    pub evictions: u64,
    /// Pages that their owner rewrote, and whose new content replaced the old: no loads.
    pub installed: u64,
    /// Reads that went to the device; neighbours that are missed together are one.
    pub device_reads: u64,
    /// Bytes that came from the device.
    pub device_bytes: u64,
    /// Pages in frames.
    pub resident_pages: u64,
    /// Pages that there is room for.
    pub capacity_pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
}

impl Stats {
    /// What was counted; how full the cache is comes from the pool.
    pub(crate) fn counted(hits: u64, counts: Counts, device: &DeviceCounts) -> Self {
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

    /// Hits among all lookups: 0 to 1; 0 if nothing was read.
    pub fn hit_ratio(&self) -> f64 {
        let lookups = self.hits + self.misses + self.coalesced;
        if lookups == 0 { 0.0 } else { self.hits as f64 / lookups as f64 }
    }
}

impl fmt::Display for Stats {
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

/// What is counted outside the pool's lock, on the way to the device.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounts {
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) bypassed: AtomicU64,
    pub(crate) bypass_failures: AtomicU64,
}

impl DeviceCounts {
    /// One read of so many bytes.
    pub(crate) fn add(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

//! `RocksDB`'s two block caches, through the C++ source beside this file.
//!
//! Invariants: all pages have the length of a page, and copies lie within one. Fails where `RocksDB` cannot create the
//! cache or rejects a page.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_char;
use std::ptr::NonNull;

use anyhow::{Context, Result, ensure};

use super::caches::{Cache, room};
use super::reader::PAGE;

/// `bench_cache` of the C++ source.
#[repr(C)]
struct Opaque {
    private: [u8; 0],
}

// SAFETY: these are the signatures of rocksdb.cc, with `bool` and `size_t` as Rust has them. The requirements of each
// function's pointers are stated where it is called.
unsafe extern "C" {
    fn bench_cache_new(hyper_clock: bool, capacity: usize, page: usize) -> *mut Opaque;
    fn bench_cache_delete(cache: *mut Opaque);
    fn bench_cache_insert(cache: *mut Opaque, number: u64, bytes: *const c_char, len: usize) -> bool;
    fn bench_cache_copy(cache: *mut Opaque, number: u64, at: usize, into: *mut c_char, len: usize) -> bool;
    fn bench_cache_remove(cache: *mut Opaque, number: u64);
    fn bench_rocksdb_version() -> u32;
}

/// Returns the version of the headers this was built with.
pub(crate) fn version() -> String {
    // SAFETY: takes nothing, returns a constant.
    let version = unsafe { bench_rocksdb_version() };
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// A block cache of either kind.
struct BlockCache(NonNull<Opaque>);

// SAFETY: rocksdb/cache.h: a Cache "has internal synchronization and may be safely accessed concurrently from multiple
// threads"; only `drop` frees the value behind the pointer.
unsafe impl Send for BlockCache {}
// SAFETY: as above.
unsafe impl Sync for BlockCache {}

impl BlockCache {
    fn new(hyper_clock: bool, pages: u64) -> Result<Self> {
        // Includes the charge of an entry's own bookkeeping.
        const ENTRY: usize = 256;
        let capacity = usize::try_from(room(pages))? * (PAGE + ENTRY);
        // SAFETY: takes no pointer.
        let cache = unsafe { bench_cache_new(hyper_clock, capacity, PAGE) };
        NonNull::new(cache).map(Self).context("RocksDB can't make the cache")
    }

    fn insert(&self, key: u64, page: &[u8; PAGE]) -> Result<()> {
        // SAFETY: the cache is alive, and `PAGE` bytes are read from `page` before the call returns.
        let taken = unsafe { bench_cache_insert(self.0.as_ptr(), key, page.as_ptr().cast(), PAGE) };
        ensure!(taken, "RocksDB does not take the page");
        Ok(())
    }

    #[inline]
    fn copy(&self, key: u64, at: usize, buf: &mut [u8]) -> bool {
        assert!(at <= PAGE && buf.len() <= PAGE - at, "beyond the page");
        // SAFETY: the cache is alive, all its values have `PAGE` bytes, of which `at..at + len` are read as was checked,
        // and `len` bytes are written to `buf`, before the call returns.
        unsafe { bench_cache_copy(self.0.as_ptr(), key, at, buf.as_mut_ptr().cast(), buf.len()) }
    }

    fn remove(&self, key: u64) {
        // SAFETY: the cache is alive.
        unsafe { bench_cache_remove(self.0.as_ptr(), key) }
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        // SAFETY: made by `bench_cache_new`, freed exactly once, and no call is running, because `self` is borrowed
        // exclusively.
        unsafe { bench_cache_delete(self.0.as_ptr()) }
    }
}

/// `LRUCache`, with its default number of shards.
pub(crate) struct Lru(BlockCache);

/// `HyperClockCache`, with its default number of shards.
pub(crate) struct HyperClock(BlockCache);

macro_rules! cache {
    ($kind:ident, $name:literal, $hyper_clock:literal) => {
        impl Cache for $kind {
            const NAME: &'static str = $name;

            fn with_room_for(pages: u64) -> Result<Self> {
                BlockCache::new($hyper_clock, pages).map(Self)
            }

            fn insert(&self, key: u64, page: &[u8; PAGE]) -> Result<()> {
                self.0.insert(key, page)
            }

            #[inline]
            fn copy(&self, key: u64, at: usize, buf: &mut [u8]) -> bool {
                self.0.copy(key, at, buf)
            }

            fn remove(&self, key: u64) {
                self.0.remove(key);
            }
        }
    };
}

cache!(Lru, "RocksDB LRUCache", false);
cache!(HyperClock, "RocksDB HyperClockCache", true);

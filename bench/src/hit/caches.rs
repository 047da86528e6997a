//! `quick_cache`, which engines use today, holding pages of 4 KiB by page number.
//!
//! Invariants: a hit keeps the page alive while it is copied. It has room for a quarter more pages
//! than it is given, so that an uneven spread over its shards evicts nothing. It does not fail: the
//! read detects a missing page.

use std::sync::Arc;

use anyhow::Result;
use quick_cache::sync::Cache;

use super::reader::{FILE_SEED, PAGE_BYTES, PageReader};
use crate::pattern;

/// A cache with the page behind an `Arc`.
pub(super) struct QuickCache(Cache<u64, Arc<[u8; PAGE_BYTES]>>);

impl QuickCache {
    /// Creates a cache with this many pages of the pattern's file.
    pub(super) fn holding(pages: u64) -> Result<Self> {
        let cache = Cache::new(usize::try_from(pages + pages / 4)?);
        let mut bytes = [0; PAGE_BYTES];
        for page in 0..pages {
            pattern::fill(FILE_SEED, page * PAGE_BYTES as u64, &mut bytes);
            cache.insert(page, Arc::new(bytes));
        }
        Ok(Self(cache))
    }
}

impl PageReader for QuickCache {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        let found = self.0.get(&page);
        found.is_some_and(|page| {
            buf.copy_from_slice(&page[at..at + buf.len()]);
            true
        })
    }
}

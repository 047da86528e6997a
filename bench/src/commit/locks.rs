//! A lock per page, for stores whose transactions do not read: it is held from the read of a value
//! to the synced write.
//!
//! Invariant: pages are locked in ascending order, so threads cannot deadlock. Fails for a page
//! that does not exist.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

/// One lock per page.
pub(super) struct PageLocks(Vec<Mutex<()>>);

impl PageLocks {
    pub(super) fn new(pages: u64) -> Self {
        Self((0..pages).map(|_| Mutex::new(())).collect())
    }

    /// Returns the number of pages.
    pub(super) fn pages(&self) -> u64 {
        self.0.len() as u64
    }

    /// Locks pages, which are given in ascending order.
    pub(super) fn hold(&self, pages: &[u64]) -> Result<Vec<MutexGuard<'_, ()>>> {
        let hold = |&page: &u64| {
            let lock = self.0.get(usize::try_from(page)?).context("no such page")?;
            Ok(lock.lock().unwrap_or_else(PoisonError::into_inner))
        };
        pages.iter().map(hold).collect()
    }
}

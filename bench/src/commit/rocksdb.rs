//! `RocksDB`: values by page number; each commit is a batch that is synced through its write-ahead
//! log.
//!
//! Its plain batches do not read, so each committer holds a page's lock between reading and putting
//! its value, as `TransactionDB` would. Fails where `RocksDB` does, with its message.

use std::path::Path;

use anyhow::Result;

use super::content::{STORED_VALUE_BYTES, fresh};
use super::load::{PageChange, PageCheck, PageStore, StoreCommitter, StoreKind, StoreSize};
use super::locks::PageLocks;
use crate::rocksdb::RocksDbValues;

/// The subject.
pub(super) const ROCKSDB_STORE: StoreKind =
    StoreKind { name: "RocksDB, synced WAL", open: |dir, room| Ok(Box::new(RocksDbStore::open(dir, room)?)) };

/// Pages written per batch when the database is filled.
const ROCKSDB_FILL_PAGES: u64 = 1024;

struct RocksDbStore {
    values: RocksDbValues,
    locks: PageLocks,
}

impl RocksDbStore {
    fn open(dir: &Path, room: StoreSize) -> Result<Self> {
        Ok(Self { values: RocksDbValues::open(dir, room.memory, None)?, locks: PageLocks::new(room.pages) })
    }
}

impl PageStore for RocksDbStore {
    fn fill(&self) -> Result<()> {
        let all = self.locks.pages();
        for start in (0..all).step_by(usize::try_from(ROCKSDB_FILL_PAGES)?) {
            let pages: Vec<u64> = (start..all.min(start + ROCKSDB_FILL_PAGES)).collect();
            let values: Vec<u8> = pages.iter().flat_map(|&page| fresh(page)).collect();
            self.values.put(&pages, &values, false)?;
        }
        self.values.flush()?;
        self.settle()
    }

    fn committer(&self) -> Result<Box<dyn StoreCommitter + '_>> {
        Ok(Box::new(RocksDbCommitter { store: self, values: Vec::new() }))
    }

    fn settle(&self) -> Result<()> {
        self.values.wait_until_idle();
        Ok(())
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut PageCheck<'_>) -> Result<()> {
        let mut value = [0; STORED_VALUE_BYTES];
        for page in pages {
            self.values.get(page, &mut value)?;
            see(page, &value)?;
        }
        Ok(())
    }
}

struct RocksDbCommitter<'a> {
    store: &'a RocksDbStore,
    values: Vec<u8>,
}

impl StoreCommitter for RocksDbCommitter<'_> {
    fn commit(&mut self, pages: &[u64], change: &mut PageChange<'_>) -> Result<()> {
        let held = self.store.locks.hold(pages)?;
        self.values.resize(pages.len() * STORED_VALUE_BYTES, 0);
        for (&page, value) in pages.iter().zip(self.values.chunks_exact_mut(STORED_VALUE_BYTES)) {
            self.store.values.get(page, value)?;
            change(page, value)?;
        }
        self.store.values.put(pages, &self.values, true)?;
        drop(held);
        Ok(())
    }
}

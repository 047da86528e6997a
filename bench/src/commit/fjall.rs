//! fjall: a keyspace of values by page number; each commit is a synced batch
//! (`PersistMode::SyncData`).
//!
//! Its transactions run one at a time, or fail on conflicts. So each committer holds a page's lock
//! between reading and putting its value, as with `RocksDB`. Reads use a snapshot. Fails where
//! fjall does.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use super::content::{STORED_VALUE_BYTES, fresh};
use super::load::{PageChange, PageCheck, PageStore, StoreCommitter, StoreKind, StoreSize};
use super::locks::PageLocks;

/// The subject.
pub(super) const FJALL_STORE: StoreKind =
    StoreKind { name: "fjall", open: |dir, room| Ok(Box::new(FjallStore::open(dir, room)?)) };

/// Pages written per batch when the database is filled.
const FJALL_FILL_PAGES: u64 = 1024;

struct FjallStore {
    database: Database,
    values: Keyspace,
    locks: PageLocks,
}

impl FjallStore {
    fn open(dir: &Path, room: StoreSize) -> Result<Self> {
        let database = Database::builder(dir.join("fjall")).cache_size(room.memory).open()?;
        let values =
            database.keyspace("pages", || KeyspaceCreateOptions::default().expect_point_read_hits(true))?;
        Ok(Self { database, values, locks: PageLocks::new(room.pages) })
    }
}

/// Returns a key whose order is that of the page numbers.
fn key(page: u64) -> [u8; 8] {
    page.to_be_bytes()
}

impl PageStore for FjallStore {
    fn fill(&self) -> Result<()> {
        let all = self.locks.pages();
        for start in (0..all).step_by(usize::try_from(FJALL_FILL_PAGES)?) {
            let mut batch = self.database.batch();
            for page in start..all.min(start + FJALL_FILL_PAGES) {
                batch.insert(&self.values, key(page), fresh(page));
            }
            batch.commit()?;
        }
        self.database.persist(PersistMode::SyncAll)?;
        self.values.rotate_memtable_and_wait()?;
        self.settle()
    }

    fn committer(&self) -> Result<Box<dyn StoreCommitter + '_>> {
        Ok(Box::new(self))
    }

    fn settle(&self) -> Result<()> {
        while self.database.outstanding_flushes() > 0 || self.database.active_compactions() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut PageCheck<'_>) -> Result<()> {
        let snapshot = self.database.snapshot();
        for page in pages {
            let found = snapshot.get(&self.values, key(page))?;
            see(page, &found.with_context(|| format!("page {page} is missing"))?)?;
        }
        Ok(())
    }
}

impl StoreCommitter for &FjallStore {
    fn commit(&mut self, pages: &[u64], change: &mut PageChange<'_>) -> Result<()> {
        let held = self.locks.hold(pages)?;
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for &page in pages {
            let found = self.values.get(key(page))?.with_context(|| format!("page {page} is missing"))?;
            let mut value = Vec::with_capacity(STORED_VALUE_BYTES);
            value.extend_from_slice(&found);
            change(page, &mut value)?;
            batch.insert(&self.values, key(page), value);
        }
        batch.commit()?;
        drop(held);
        Ok(())
    }
}

//! `RocksDB`: values by page number; each commit is a batch that is synced through its write-ahead log.
//!
//! Its plain batches do not read, so each committer holds a page's lock between reading and putting its value, as
//! `TransactionDB` would. Fails where `RocksDB` does, with its message.

use std::path::Path;

use anyhow::Result;

use super::content::{VALUE, fresh};
use super::load::{Change, Check, Committer, Kind, Pages, Room};
use super::locks::PageLocks;
use crate::rocksdb::Values;

/// The subject.
pub(super) const KIND: Kind =
    Kind { name: "RocksDB, synced WAL", open: |dir, room| Ok(Box::new(RocksDb::open(dir, room)?)) };

/// Pages written per batch when the database is filled.
const BATCH: u64 = 1024;

struct RocksDb {
    values: Values,
    locks: PageLocks,
}

impl RocksDb {
    fn open(dir: &Path, room: Room) -> Result<Self> {
        Ok(Self { values: Values::open(dir, room.memory, None)?, locks: PageLocks::new(room.pages) })
    }
}

impl Pages for RocksDb {
    fn fill(&self) -> Result<()> {
        let all = self.locks.pages();
        for start in (0..all).step_by(usize::try_from(BATCH)?) {
            let pages: Vec<u64> = (start..all.min(start + BATCH)).collect();
            let values: Vec<u8> = pages.iter().flat_map(|&page| fresh(page)).collect();
            self.values.put(&pages, &values, false)?;
        }
        self.values.flush()?;
        self.settle()
    }

    fn committer(&self) -> Result<Box<dyn Committer + '_>> {
        Ok(Box::new(Thread { store: self, values: Vec::new() }))
    }

    fn settle(&self) -> Result<()> {
        self.values.wait_until_idle();
        Ok(())
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut Check<'_>) -> Result<()> {
        let mut value = [0; VALUE];
        for page in pages {
            self.values.get(page, &mut value)?;
            see(page, &value)?;
        }
        Ok(())
    }
}

struct Thread<'a> {
    store: &'a RocksDb,
    values: Vec<u8>,
}

impl Committer for Thread<'_> {
    fn commit(&mut self, pages: &[u64], change: &mut Change<'_>) -> Result<()> {
        let held = self.store.locks.hold(pages)?;
        self.values.resize(pages.len() * VALUE, 0);
        for (&page, value) in pages.iter().zip(self.values.chunks_exact_mut(VALUE)) {
            self.store.values.get(page, value)?;
            change(page, value)?;
        }
        self.store.values.put(pages, &self.values, true)?;
        drop(held);
        Ok(())
    }
}

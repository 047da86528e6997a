//! The page store by bare pages: a value's number is its page's number, so nothing is searched. The difference to
//! `tree` is the cost of an ordered map.
//!
//! Each commit uses `Durability::Sync`. Fails where the store does.

use std::path::Path;

use anyhow::{Context, Result};
use pagekeeper_store::{Durability, Store, StoreOptions};

use super::content::{VALUE, fresh};
use super::load::{Change, Check, Committer, Kind, Pages, Reader, Room};

/// The subject.
pub(super) const KIND: Kind =
    Kind { name: "pagekeeper-store, bare pages", open: |dir, room| Ok(Box::new(Ours::open(dir, room)?)) };

/// Pages written per commit when the store is filled.
const BATCH: u64 = 1024;

/// A store whose root is the first of as many pages as there are values.
pub(super) struct Ours {
    pub(super) store: Store,
    first: u64,
    pages: u64,
}

impl Ours {
    /// Opens the store, or creates one with unwritten pages in a row.
    pub(super) fn open(dir: &Path, room: Room) -> Result<Self> {
        Self::open_with(Store::options(), dir, room)
    }

    /// Opens the store with these options and the given memory.
    pub(super) fn open_with(options: StoreOptions, dir: &Path, room: Room) -> Result<Self> {
        let store = options.memory(room.memory).open(&dir.join("store"))?;
        let found = store.begin_read()?.root();
        let first = if let Some(first) = found {
            first
        } else {
            let mut txn = store.begin()?;
            let first = txn.allocate_run(room.pages)?;
            txn.set_root(Some(first));
            txn.commit(Durability::Sync)?;
            first
        };
        Ok(Self { store, first, pages: room.pages })
    }
}

impl Pages for Ours {
    fn fill(&self) -> Result<()> {
        let mut payload = vec![0; self.store.payload_size()];
        for start in (0..self.pages).step_by(usize::try_from(BATCH)?) {
            let mut txn = self.store.begin()?;
            for page in start..self.pages.min(start + BATCH) {
                payload[..VALUE].copy_from_slice(&fresh(page));
                txn.write(self.first + page, &payload)?;
            }
            txn.commit(Durability::None)?;
        }
        self.settle()
    }

    fn committer(&self) -> Result<Box<dyn Committer + '_>> {
        Ok(Box::new(self))
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(self))
    }

    fn settle(&self) -> Result<()> {
        Ok(self.store.sync()?)
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut Check<'_>) -> Result<()> {
        let txn = self.store.begin_read()?;
        for page in pages {
            txn.read_with(self.first + page, |payload| {
                see(page, payload.get(..VALUE).context("a page is too short")?)
            })??;
        }
        Ok(())
    }
}

impl Reader for &Ours {
    fn read(&mut self, pages: &[u64], see: &mut Check<'_>) -> Result<()> {
        let txn = self.store.begin_read()?;
        for &page in pages {
            txn.read_with(self.first + page, |payload| {
                see(page, payload.get(..VALUE).context("a page is too short")?)
            })??;
        }
        Ok(())
    }
}

impl Committer for &Ours {
    fn commit(&mut self, pages: &[u64], change: &mut Change<'_>) -> Result<()> {
        let mut txn = self.store.begin()?;
        for &page in pages {
            let payload = txn.page_mut(self.first + page)?;
            change(page, payload.get_mut(..VALUE).context("a page is too short")?)?;
        }
        txn.commit(Durability::Sync)?;
        Ok(())
    }
}

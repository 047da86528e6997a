//! redb: a table of values by page number, each commit with `Durability::Immediate`.
//!
//! A commit leaves no background work. Fails where redb does.

use std::path::Path;

use anyhow::{Context, Result};
use redb::{AccessGuard, Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use super::content::{STORED_VALUE_BYTES, fresh};
use super::load::{PageChange, PageCheck, PageStore, StoreCommitter, StoreKind, StoreSize};

/// The subject.
pub(super) const REDB_STORE: StoreKind =
    StoreKind { name: "redb", open: |dir, room| Ok(Box::new(RedbStore::open(dir, room)?)) };

const PAGES_TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("pages");
/// Pages written per commit when the table is filled.
const REDB_FILL_PAGES: u64 = 8192;

/// A function that makes a page's value from its previous one, if there is one.
type ValueMaker<'a> = dyn FnMut(u64, Option<&[u8]>, &mut Vec<u8>) -> Result<()> + 'a;

struct RedbStore {
    database: Database,
    pages: u64,
}

impl RedbStore {
    fn open(dir: &Path, room: StoreSize) -> Result<Self> {
        let database = Database::builder()
            .set_cache_size(usize::try_from(room.memory)?)
            .create(dir.join("pages.redb"))?;
        Ok(Self { database, pages: room.pages })
    }

    /// Replaces each value in turn with one made from the value before, in one commit.
    fn write(&self, pages: impl Iterator<Item = u64>, make: &mut ValueMaker<'_>) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut table = transaction.open_table(PAGES_TABLE)?;
            let mut value = Vec::with_capacity(STORED_VALUE_BYTES);
            for page in pages {
                value.clear();
                make(page, table.get(page)?.as_ref().map(AccessGuard::value), &mut value)?;
                table.insert(page, &*value)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

impl PageStore for RedbStore {
    fn fill(&self) -> Result<()> {
        for start in (0..self.pages).step_by(usize::try_from(REDB_FILL_PAGES)?) {
            self.write(start..self.pages.min(start + REDB_FILL_PAGES), &mut |page, _, value| {
                value.extend_from_slice(&fresh(page));
                Ok(())
            })?;
        }
        Ok(())
    }

    fn committer(&self) -> Result<Box<dyn StoreCommitter + '_>> {
        Ok(Box::new(self))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut PageCheck<'_>) -> Result<()> {
        let table = self.database.begin_read()?.open_table(PAGES_TABLE)?;
        for entry in table.range(pages)? {
            let (page, value) = entry?;
            see(page.value(), value.value())?;
        }
        Ok(())
    }
}

impl StoreCommitter for &RedbStore {
    fn commit(&mut self, pages: &[u64], change: &mut PageChange<'_>) -> Result<()> {
        self.write(pages.iter().copied(), &mut |page, found, value| {
            value.extend_from_slice(found.with_context(|| format!("page {page} is missing"))?);
            change(page, value)
        })
    }
}

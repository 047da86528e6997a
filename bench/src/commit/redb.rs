//! redb: a table of values by page number, each commit with `Durability::Immediate`.
//!
//! A commit leaves no background work. Fails where redb does.

use std::path::Path;

use anyhow::{Context, Result};
use redb::{AccessGuard, Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use super::content::{VALUE, fresh};
use super::load::{Change, Check, Committer, Kind, Pages, Room};

/// The subject.
pub(super) const KIND: Kind = Kind { name: "redb", open: |dir, room| Ok(Box::new(Redb::open(dir, room)?)) };

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("pages");
/// Pages written per commit when the table is filled.
const BATCH: u64 = 8192;

/// A function that makes a page's value from its previous one, if there is one.
type Make<'a> = dyn FnMut(u64, Option<&[u8]>, &mut Vec<u8>) -> Result<()> + 'a;

struct Redb {
    database: Database,
    pages: u64,
}

impl Redb {
    fn open(dir: &Path, room: Room) -> Result<Self> {
        let database = Database::builder()
            .set_cache_size(usize::try_from(room.memory)?)
            .create(dir.join("pages.redb"))?;
        Ok(Self { database, pages: room.pages })
    }

    /// Replaces each value in turn with one made from the value before, in one commit.
    fn write(&self, pages: impl Iterator<Item = u64>, make: &mut Make<'_>) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            let mut value = Vec::with_capacity(VALUE);
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

impl Pages for Redb {
    fn fill(&self) -> Result<()> {
        for start in (0..self.pages).step_by(usize::try_from(BATCH)?) {
            self.write(start..self.pages.min(start + BATCH), &mut |page, _, value| {
                value.extend_from_slice(&fresh(page));
                Ok(())
            })?;
        }
        Ok(())
    }

    fn committer(&self) -> Result<Box<dyn Committer + '_>> {
        Ok(Box::new(self))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut Check<'_>) -> Result<()> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        for entry in table.range(pages)? {
            let (page, value) = entry?;
            see(page.value(), value.value())?;
        }
        Ok(())
    }
}

impl Committer for &Redb {
    fn commit(&mut self, pages: &[u64], change: &mut Change<'_>) -> Result<()> {
        self.write(pages.iter().copied(), &mut |page, found, value| {
            value.extend_from_slice(found.with_context(|| format!("page {page} is missing"))?);
            change(page, value)
        })
    }
}

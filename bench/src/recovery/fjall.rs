//! fjall: a value per page, in synced batches (`PersistMode::SyncData`). Opening loads its journal into memory.
//!
//! Fails where fjall does.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::Engine;
use super::changes::{BODY, Load};
use super::peer::{Peer, engine};

/// The engine.
pub(super) const ENGINE: Engine = engine::<Fjall>("fjall", "fjall");

pub(super) struct Fjall {
    database: Database,
    values: Keyspace,
}

impl Peer for Fjall {
    fn open(dir: &Path, _: &Load) -> Result<Self> {
        let database = Database::builder(dir.join("fjall")).open()?;
        let values =
            database.keyspace("pages", || KeyspaceCreateOptions::default().expect_point_read_hits(true))?;
        Ok(Self { database, values })
    }

    fn put(&self, pages: &[u64], bodies: &[u8], durably: bool) -> Result<()> {
        let mut batch = self.database.batch().durability(durably.then_some(PersistMode::SyncData));
        for (page, body) in pages.iter().zip(bodies.chunks(BODY)) {
            batch.insert(&self.values, page.to_be_bytes(), body);
        }
        Ok(batch.commit()?)
    }

    fn settle(&self) -> Result<()> {
        self.database.persist(PersistMode::SyncAll)?;
        self.values.rotate_memtable_and_wait()?;
        while self.database.outstanding_flushes() > 0 || self.database.active_compactions() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn get(&self, page: u64) -> Result<Vec<u8>> {
        let found = self.values.get(page.to_be_bytes())?;
        Ok(found.with_context(|| format!("there is no page {page}"))?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_committed_is_recovered_in_each_round() {
        super::super::peer::recovers_what_was_committed_in_each_round::<super::Fjall>();
    }
}

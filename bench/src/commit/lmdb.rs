//! LMDB, by heed: a database of values by integer key; each commit is synced (LMDB's default).
//!
//! A commit leaves no background work. Values are read in LMDB's mapping. Fails where LMDB does.

#![expect(unsafe_code, reason = "a file that is mapped")]

use std::path::Path;

use anyhow::{Context, Result};
use heed::byteorder::NativeEndian;
use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvOpenOptions, IntegerComparator};

use super::content::{STORED_VALUE_BYTES, fresh};
use super::load::{PageChange, PageCheck, PageStore, StoreCommitter, StoreKind, StoreSize};

/// The subject.
pub(super) const LMDB_STORE: StoreKind =
    StoreKind { name: "LMDB", open: |dir, room| Ok(Box::new(LmdbStore::open(dir, room)?)) };

/// Pages written per commit when the database is filled.
const LMDB_FILL_PAGES: u64 = 8192;
/// Threads that read at the same time, at most.
const LMDB_READERS_MAX: u32 = 256;
/// Bytes of address space, and so of the file at most, per byte of pages.
const MAP_BYTES_PER_BYTE: u64 = 4;
/// Address space on top of that, in bytes.
const MAP_EXTRA_BYTES: u64 = 64 << 20;

struct LmdbStore {
    env: Env,
    database: Database<U64<NativeEndian>, Bytes, IntegerComparator>,
    pages: u64,
}

impl LmdbStore {
    fn open(dir: &Path, room: StoreSize) -> Result<Self> {
        let bytes = room.pages * super::STORE_PAGE_BYTES * MAP_BYTES_PER_BYTE + MAP_EXTRA_BYTES;
        let mut options = EnvOpenOptions::new();
        options.map_size(usize::try_from(bytes)?).max_readers(LMDB_READERS_MAX);
        // SAFETY: nobody else touches the files of this directory, which belongs to this run alone.
        let env = unsafe { options.open(dir)? };
        let mut txn = env.write_txn()?;
        let options = env.database_options().types::<U64<NativeEndian>, Bytes>();
        let database = options.key_comparator::<IntegerComparator>().create(&mut txn)?;
        txn.commit()?;
        Ok(Self { env, database, pages: room.pages })
    }
}

impl PageStore for LmdbStore {
    fn fill(&self) -> Result<()> {
        for start in (0..self.pages).step_by(usize::try_from(LMDB_FILL_PAGES)?) {
            let mut txn = self.env.write_txn()?;
            for page in start..self.pages.min(start + LMDB_FILL_PAGES) {
                self.database.put(&mut txn, &page, &fresh(page))?;
            }
            txn.commit()?;
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
        let txn = self.env.read_txn()?;
        for entry in self.database.range(&txn, &pages)? {
            let (page, value) = entry?;
            see(page, value)?;
        }
        Ok(())
    }
}

impl StoreCommitter for &LmdbStore {
    fn commit(&mut self, pages: &[u64], change: &mut PageChange<'_>) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        let mut value = Vec::with_capacity(STORED_VALUE_BYTES);
        for &page in pages {
            value.clear();
            let found = self.database.get(&txn, &page)?;
            value.extend_from_slice(found.with_context(|| format!("page {page} is missing"))?);
            change(page, &mut value)?;
            self.database.put(&mut txn, &page, &value)?;
        }
        txn.commit()?;
        Ok(())
    }
}

//! `SQLite`: a table of blobs by integer key, in WAL mode with `synchronous=FULL` and one
//! connection per thread.
//!
//! A thread that finds another writing waits in `SQLite`'s busy handler. One more connection stays
//! open, so that the WAL is never removed by the last close. Fails where `SQLite` does.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rusqlite::{Connection, params};

use super::content::{STORED_VALUE_BYTES, fresh};
use super::load::{PageChange, PageCheck, PageStore, StoreCommitter, StoreKind, StoreSize};

/// The subject.
pub(super) const SQLITE_STORE: StoreKind =
    StoreKind { name: "SQLite, WAL", open: |dir, room| Ok(Box::new(SqliteStore::open(dir, room)?)) };

/// A deadline longer than any thread waits for its turn.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

struct SqliteStore {
    path: PathBuf,
    pages: u64,
    kept: Mutex<Connection>,
}

/// Returns the version of the library.
pub(super) fn version() -> String {
    rusqlite::version().to_owned()
}

impl SqliteStore {
    fn open(dir: &Path, room: StoreSize) -> Result<Self> {
        let path = dir.join("pages.sqlite");
        let kept = connect(&path)?;
        kept.execute_batch("CREATE TABLE IF NOT EXISTS pages (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")?;
        Ok(Self { path, pages: room.pages, kept: Mutex::new(kept) })
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "page_size", 4096)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

fn key(page: u64) -> i64 {
    page.cast_signed()
}

impl PageStore for SqliteStore {
    fn fill(&self) -> Result<()> {
        let mut connection = self.kept();
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare("INSERT INTO pages VALUES (?, ?)")?;
            for page in 0..self.pages {
                insert.execute(params![key(page), fresh(page)])?;
            }
        }
        transaction.commit()?;
        drop(connection);
        self.settle()
    }

    fn committer(&self) -> Result<Box<dyn StoreCommitter + '_>> {
        Ok(Box::new(SqliteCommitter {
            connection: connect(&self.path)?,
            value: Vec::with_capacity(STORED_VALUE_BYTES),
        }))
    }

    fn settle(&self) -> Result<()> {
        self.kept().query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        Ok(())
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut PageCheck<'_>) -> Result<()> {
        let connection = connect(&self.path)?;
        let mut all =
            connection.prepare("SELECT id, value FROM pages WHERE id >= ? AND id < ? ORDER BY id")?;
        let mut rows = all.query(params![key(pages.start), key(pages.end)])?;
        while let Some(row) = rows.next()? {
            see(row.get::<_, i64>(0)?.cast_unsigned(), row.get_ref(1)?.as_blob()?)?;
        }
        Ok(())
    }
}

struct SqliteCommitter {
    connection: Connection,
    value: Vec<u8>,
}

impl StoreCommitter for SqliteCommitter {
    fn commit(&mut self, pages: &[u64], change: &mut PageChange<'_>) -> Result<()> {
        let Self { connection, value } = self;
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        {
            let mut select = connection.prepare_cached("SELECT value FROM pages WHERE id = ?")?;
            let mut update = connection.prepare_cached("UPDATE pages SET value = ? WHERE id = ?")?;
            for &page in pages {
                let mut rows = select.query([key(page)])?;
                let row = rows.next()?.with_context(|| format!("page {page} is missing"))?;
                value.clear();
                value.extend_from_slice(row.get_ref(0)?.as_blob()?);
                drop(rows);
                change(page, value)?;
                update.execute(params![&*value, key(page)])?;
            }
        }
        connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

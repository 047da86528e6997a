//! `SQLite` in WAL mode: a row per page, updated in synced transactions, without a checkpoint before the kill.
//!
//! It opens a database only at the first request, so its opening ends with the first answer, which needs no changed
//! row. Fails where `SQLite` does.

use std::any::Any;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use rusqlite::{Connection, OpenFlags, params};

use super::changes::{BODY, Load, PER_COMMIT};
use super::{Engine, Recovered};

/// The engine.
pub(super) const ENGINE: Engine = Engine {
    name: "SQLite, WAL",
    word: "sqlite",
    prepare,
    recover: |_, dir, load| recover(dir, load),
    check,
};

/// Rows of a transaction that fills the table.
const FILL: u64 = 20_000;
const UPDATE: &str = "UPDATE page SET body = ?2 WHERE number = ?1";

/// Returns its version.
pub(super) fn version() -> &'static str {
    rusqlite::version()
}

fn open(dir: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let connection = Connection::open_with_flags(dir.join("pages.db"), flags)?;
    connection.pragma_update(None, "page_size", 4096)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(connection)
}

fn prepare(dir: &Path, load: &Load) -> Result<Box<dyn Any>> {
    let mut connection = open(dir)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    if !connection.table_exists(None, "page")? {
        fill(&mut connection, load)?;
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    let mut body = vec![0; BODY];
    for pages in load.changed().chunks(PER_COMMIT) {
        let transaction = connection.transaction()?;
        for page in pages {
            load.expected(*page, &mut body);
            let changed =
                transaction.prepare_cached(UPDATE)?.execute(params![i64::try_from(*page)?, body])?;
            ensure!(changed == 1, "there is no row {page}");
        }
        transaction.commit()?;
    }
    Ok(Box::new(connection))
}

/// Inserts a row for each page.
fn fill(connection: &mut Connection, load: &Load) -> Result<()> {
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.execute("CREATE TABLE page (number INTEGER PRIMARY KEY, body BLOB NOT NULL)", ())?;
    let mut body = vec![0; BODY];
    for first in (0..load.pages).step_by(usize::try_from(FILL)?) {
        let transaction = connection.transaction()?;
        for page in first..load.pages.min(first + FILL) {
            load.base(page, &mut body);
            let mut insert = transaction.prepare_cached("INSERT INTO page VALUES (?1, ?2)")?;
            insert.execute(params![i64::try_from(page)?, body])?;
        }
        transaction.commit()?;
        checkpoint(connection)?;
    }
    Ok(())
}

fn checkpoint(connection: &Connection) -> Result<()> {
    let busy: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
    ensure!(busy == 0, "the checkpoint did not come to its end");
    Ok(())
}

fn recover(dir: &Path, load: &Load) -> Result<Recovered> {
    let changed = load.changed();
    let began = Instant::now();
    let connection = open(dir)?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get::<_, i64>(0))?;
    let open = began.elapsed().as_secs_f64() * 1e3;
    let body = read(&connection, changed[0])?;
    let first = began.elapsed().as_secs_f64() * 1e3;
    load.check(changed[0], &body)?;
    checkpoint(&connection)?;
    let applied = began.elapsed().as_secs_f64() * 1e3;
    Ok(Recovered { open, first, applied: Some(applied), ours: None })
}

fn read(connection: &Connection, page: u64) -> Result<Vec<u8>> {
    let mut select = connection.prepare_cached("SELECT body FROM page WHERE number = ?1")?;
    Ok(select.query_row([i64::try_from(page)?], |row| row.get(0))?)
}

fn check(dir: &Path, load: &Load) -> Result<()> {
    let connection = open(dir)?;
    for page in load.changed() {
        load.check(page, &read(&connection, page)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_committed_is_recovered_in_each_round() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        for round in 0..2 {
            let load = Load { pages: 300, changes: 60, seed: 3, round };
            drop(prepare(dir.path(), &load).unwrap());
            let recovered = recover(dir.path(), &load).unwrap();
            assert!(recovered.first >= recovered.open);
            check(dir.path(), &load).unwrap();
            assert!(check(dir.path(), &Load { round: 2, ..load }).is_err());
        }
    }
}

//! redb: a value per page, changed in synced transactions.
//!
//! By default redb reads the whole database after a crash, which takes many minutes on a slow disk. So it keeps what it
//! needs for an immediate opening (`set_quick_repair`), which makes its commits dearer. Commits are in place, so
//! nothing is left to apply. Fails where redb does.

use std::any::Any;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use redb::{Database, Durability, ReadableDatabase, TableDefinition, WriteTransaction};

use super::changes::{BODY, Load, PER_COMMIT};
use super::{Engine, Recovered};

/// The engine.
pub(super) const ENGINE: Engine = Engine {
    name: "redb, quick repair",
    word: "redb",
    prepare,
    recover: |_, dir, load| recover(dir, load),
    check,
};

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("page");
/// Values of a transaction that fills the table.
const FILL: u64 = 20_000;

fn write(database: &Database) -> Result<WriteTransaction> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

fn put(
    transaction: &WriteTransaction,
    pages: impl Iterator<Item = u64>,
    body: impl Fn(u64, &mut [u8]),
) -> Result<()> {
    let mut table = transaction.open_table(TABLE)?;
    let mut bytes = vec![0; BODY];
    for page in pages {
        body(page, &mut bytes);
        table.insert(page, &*bytes)?;
    }
    Ok(())
}

fn prepare(dir: &Path, load: &Load) -> Result<Box<dyn Any>> {
    let path = dir.join("pages.redb");
    let is_new = !path.exists();
    let database = Database::create(path)?;
    if is_new {
        for first in (0..load.pages).step_by(usize::try_from(FILL)?) {
            let transaction = write(&database)?;
            put(&transaction, first..load.pages.min(first + FILL), |page, body| load.base(page, body))?;
            transaction.commit()?;
        }
    }
    for pages in load.changed().chunks(PER_COMMIT) {
        let transaction = write(&database)?;
        put(&transaction, pages.iter().copied(), |page, body| load.expected(page, body))?;
        transaction.commit()?;
    }
    Ok(Box::new(database))
}

fn recover(dir: &Path, load: &Load) -> Result<Recovered> {
    let changed = load.changed();
    let began = Instant::now();
    let database = Database::open(dir.join("pages.redb"))?;
    let open = began.elapsed().as_secs_f64() * 1e3;
    let body = read(&database, changed[0])?;
    let first = began.elapsed().as_secs_f64() * 1e3;
    load.check(changed[0], &body)?;
    Ok(Recovered { open, first, applied: None, ours: None })
}

fn read(database: &Database, page: u64) -> Result<Vec<u8>> {
    let table = database.begin_read()?.open_table(TABLE)?;
    let value = table.get(page)?.with_context(|| format!("there is no page {page}"))?;
    Ok(value.value().to_vec())
}

fn check(dir: &Path, load: &Load) -> Result<()> {
    let database = Database::open(dir.join("pages.redb"))?;
    for page in load.changed() {
        load.check(page, &read(&database, page)?)?;
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

//! The end of the demo: a page store with a table of rows is killed while it commits, opened again,
//! and checked.
//!
//! Invariants: a commit's changes follow from its number alone, and numbers are consecutive, so
//! every byte follows from the number of commits. Figures are shown only for a recovery that lost
//! nothing. Fails with what was lost.

use std::convert::Infallible;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::{Context, ensure};
use pagekeeper_store::{Create, Durability, PageNo, ReadTxn, Store};
use pagekeeper_text::escaped;
use pagekeeper_tree::{Pages, Tree};
use serde_json::{Value, json};

use super::engine::random_bytes;
use crate::output;

const STORE_ROWS: u64 = 64 << 10;
/// Size of each row: with their keys four rows fill a page of 4 KiB.
const ROW_BYTES: usize = 960;
/// Rows of one commit while the store is filled: they are journaled, too.
const ROWS_PER_FILL: usize = 4096;
const ROWS_PER_COMMIT: usize = 4;
/// Bytes that a commit changes in a row, behind its number.
const CHANGE_BYTES: usize = 96;
const NUMBER_BYTES: usize = 8;
/// The limit of the journal, and so of the bytes that a recovery reads.
const JOURNAL_BYTES: u64 = 128 << 20;
/// The memory budget, part of which holds committed changes that are not yet in the data file.
const STORE_MEMORY_BYTES: u64 = 512 << 20;
const STORE_COMMITTERS: usize = 8;

/// Fills a store in `dir`, then commits until the demo kills it. Each thread prints the number of
/// each commit as it is durable; the first one that fails ends all.
pub(super) fn run(dir: &Path) -> anyhow::Result<()> {
    let store = make(dir).with_context(|| format!("can't make a store in {}", escaped(dir)))?;
    let store = Arc::new(store);
    let (ended, end) = mpsc::channel();
    for _ in 0..STORE_COMMITTERS {
        let (store, ended) = (Arc::clone(&store), ended.clone());
        std::thread::spawn(move || {
            let Err(error) = commit_for_ever(&store);
            // Only the first failure is received.
            let _ = ended.send(error);
        });
    }
    Err(end.recv()?)
}

fn commit_for_ever(store: &Store) -> anyhow::Result<Infallible> {
    loop {
        let number = commit(store)?;
        output::print(|out| writeln!(out, "{number}"))?;
    }
}

/// Returns a store with all its rows in the data file. Later commits are applied to the data file
/// only when the journal has reached its limit, so that a recovery has much to do.
fn make(dir: &Path) -> anyhow::Result<Store> {
    let options = Store::options().create(Create::New).journal_bytes(JOURNAL_BYTES);
    let store = options.memory(STORE_MEMORY_BYTES).background_apply(false).open(dir)?;
    let mut txn = store.begin_write()?;
    let tree = Tree::create(&mut txn)?;
    txn.set_root(Some(tree.root()));
    txn.commit(Durability::None)?;
    for first in (0..STORE_ROWS).step_by(ROWS_PER_FILL) {
        let mut txn = store.begin_write()?;
        for row in (first..STORE_ROWS).take(ROWS_PER_FILL) {
            tree.insert(&mut txn, &row.to_be_bytes(), &first_value(row))?;
        }
        txn.commit(Durability::None)?;
    }
    store.sync()?;
    Ok(store)
}

/// Returns the table of a transaction with this root page.
fn table(txn: &impl Pages, root: Option<PageNo>) -> anyhow::Result<Tree> {
    Ok(Tree::open(txn, root.context("the store has no root page")?)?)
}

/// Makes one durable commit, and returns its number.
fn commit(store: &Store) -> anyhow::Result<u64> {
    let mut txn = store.begin_write()?;
    let tree = table(&txn, txn.root())?;
    let number = number_of(txn.metadata()) + 1;
    for row in rows_of(number) {
        let value = tree.get(&txn, &row.to_be_bytes())?;
        let mut value = value.with_context(|| format!("row {row} is missing"))?.into_vec();
        change(number, row, &mut value);
        tree.insert(&mut txn, &row.to_be_bytes(), &value)?;
    }
    txn.set_metadata(&number.to_le_bytes())?;
    txn.commit(Durability::Sync)?;
    Ok(number)
}

/// Returns the number of the commit that left this metadata; 0 before the first.
fn number_of(metadata: &[u8]) -> u64 {
    metadata.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the rows that a commit changes; the same row may occur twice.
fn rows_of(number: u64) -> impl Iterator<Item = u64> {
    let bytes = random_bytes(ROWS_PER_COMMIT * 8, &mut seed(number, 0));
    let row = move |at: usize| bytes[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (0..ROWS_PER_COMMIT).map(move |at| row(at) % STORE_ROWS)
}

/// Returns a row's contents before its first change.
fn first_value(row: u64) -> Vec<u8> {
    random_bytes(ROW_BYTES, &mut seed(0, row))
}

/// Applies a commit's change to a row: its number, and some bytes at a random offset.
fn change(number: u64, row: u64, value: &mut [u8]) {
    let mut random = seed(number, row + 1);
    let bytes = random_bytes(CHANGE_BYTES, &mut random);
    let places = value.len() - NUMBER_BYTES - bytes.len();
    let at = NUMBER_BYTES + usize::try_from(random % places as u64).expect("less than a length");
    value[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    value[at..at + bytes.len()].copy_from_slice(&bytes);
}

/// Returns a seed that is never 0, and differs between neighbours: the finaliser of Appleby's
/// `MurmurHash3` (2011).
fn seed(number: u64, row: u64) -> u64 {
    let mut mixed = number.wrapping_mul(STORE_ROWS + 1) + row + 1;
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53, 1] {
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(factor);
    }
    mixed | 1
}

/// Checks that the table is sound, and that every byte of every row is as commits 1 to `last` left
/// it.
fn check(read: &ReadTxn<'_>, last: u64) -> anyhow::Result<()> {
    let tree = table(read, read.root())?;
    tree.check(read)?;
    let mut expected: Vec<Vec<u8>> = (0..STORE_ROWS).map(first_value).collect();
    for number in 1..=last {
        for row in rows_of(number) {
            change(number, row, &mut expected[usize::try_from(row)?]);
        }
    }
    let mut found = tree.iter(read);
    for (row, expected) in (0_u64..).zip(&expected) {
        let (key, value) = found.next().with_context(|| format!("rows from {row} on are missing"))??;
        ensure!(key == row.to_be_bytes(), "row {row} is missing");
        ensure!(value[..] == **expected, "row {row} is not as the {last} commits left it");
    }
    ensure!(found.next().is_none(), "there are more than {STORE_ROWS} rows");
    Ok(())
}

/// Opens the store in `dir`, whose process was killed after it had reported `acknowledged` commits,
/// checks it, and returns the figures of its recovery.
pub(super) fn recover(dir: &Path, acknowledged: u64) -> anyhow::Result<Value> {
    let found = open_and_check(dir, acknowledged);
    found.with_context(|| format!("the store in {} was killed, and its recovery failed", escaped(dir)))
}

fn open_and_check(dir: &Path, acknowledged: u64) -> anyhow::Result<Value> {
    let options = Store::options().create(Create::Never).memory(STORE_MEMORY_BYTES);
    let begun = Instant::now();
    let store = options.open(dir)?;
    let opened = Instant::now();
    let read = store.begin_read()?;
    let commits = number_of(read.metadata());
    let row = rows_of(commits).next().unwrap_or_default();
    let reading = Instant::now();
    table(&read, read.root())?.get(&read, &row.to_be_bytes())?;
    let first_read = reading.elapsed();
    store.sync()?;
    let applied = opened.elapsed();
    let opening = store.stats().opening;
    ensure!(
        commits >= acknowledged,
        "commit {acknowledged} was acknowledged, and the store has only {commits}"
    );
    let verified = store.verify()?;
    ensure!(verified.is_sound(), "{verified}");
    check(&read, commits)?;
    drop(read);
    let pages = store.stats().pages;
    let data_bytes = pages * store.page_size() as u64;
    store.close()?;
    Ok(json!({
        "data_bytes": data_bytes,
        "commits_acknowledged": acknowledged,
        // Commits after the acknowledged ones were in progress.
        "commits_found": commits,
        "open_seconds": (opened - begun).as_secs_f64(),
        "journal_bytes": opening.journal_bytes,
        "commits_in_journal": opening.commits,
        "pages_to_apply": opening.pages,
        "first_read_seconds": first_read.as_secs_f64(),
        // From the opening until the data file has all changes durably.
        "applied_seconds": applied.as_secs_f64(),
        "pages_verified": pages,
        "rows_checked": STORE_ROWS,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_commit_is_found() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = dir.path().join("store");
        let store = make(&dir).unwrap();
        for number in 1..=20 {
            assert_eq!(commit(&store).unwrap(), number);
        }
        for wrong in [19, 21] {
            let error = check(&store.begin_read().unwrap(), wrong).unwrap_err().to_string();
            assert!(error.contains("is not as the"), "{error}");
        }
        drop(store);
        let found = recover(&dir, 19).unwrap();
        assert_eq!((&found["commits_acknowledged"], &found["commits_found"]), (&19.into(), &20.into()));
        assert_eq!((&found["commits_in_journal"], &found["rows_checked"]), (&20.into(), &STORE_ROWS.into()));
        assert!(found["pages_to_apply"].as_u64() > Some(20), "{found}");
        let error = format!("{:#}", recover(&dir, 21).unwrap_err());
        assert!(error.ends_with("commit 21 was acknowledged, and the store has only 20"), "{error}");
    }
}

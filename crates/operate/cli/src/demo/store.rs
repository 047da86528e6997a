//! The demo's page store: a table of rows in its ordered map, threads that commit changes of random rows until
//! they are killed, and the check of each row afterwards.
//!
//! Invariant: a commit's changes follow from its number alone, and numbers are consecutive, so every byte follows
//! from the number of commits. Fails permanently when the first thread fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, ensure};
use pagekeeper_kernel::text::escaped;
use pagekeeper_store::tree::{Pages, Tree};
use pagekeeper_store::{Create, Durability, PageNo, ReadTxn, Store};
use serde::{Deserialize, Serialize};

use super::engine::start;
use super::transaction::fill;
use super::{config, send_line};

/// Rows of one commit while the store is filled: they are journaled, too.
const ROWS_PER_FILL: u64 = 4096;
/// Bytes of the number of the last commit, at the start of a row.
const NUMBER: usize = 8;

/// Interval at which the process reports its durable commits to its parent.
const TELL_EACH: Duration = Duration::from_millis(10);

/// Its report.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Report {
    /// All commits up to this number are durable.
    pub(super) acknowledged: u64,
}

/// Returns the store's directory.
pub(super) fn place(dir: &Path) -> PathBuf {
    dir.join("store")
}

/// Fills a store in `dir`, then commits until it is killed.
pub(super) fn run(dir: &Path) -> anyhow::Result<()> {
    let dir = place(dir);
    let store = make(&dir).with_context(|| format!("can't make a store in {}", escaped(&dir)))?;
    let store = Arc::new(store);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let (failed, failure) = mpsc::channel();
    for committer in 0..config::COMMITTERS {
        let (store, acknowledged) = (Arc::clone(&store), Arc::clone(&acknowledged));
        start(&format!("commit-{committer}"), &failed, move || {
            loop {
                let number = commit(&store)?;
                acknowledged.fetch_max(number, Ordering::Relaxed);
            }
        })?;
    }
    loop {
        if let Ok(error) = failure.recv_timeout(TELL_EACH) {
            return Err(error);
        }
        if !send_line(&Report { acknowledged: acknowledged.load(Ordering::Relaxed) })? {
            return Ok(());
        }
    }
}

/// Returns a store with all its rows in the data file. Later commits are applied to the data file only when the
/// journal has reached its limit, so that a recovery has much to do.
pub(super) fn make(dir: &Path) -> anyhow::Result<Store> {
    let options = Store::options().create(Create::New).journal_bytes(config::STORE_JOURNAL_BYTES);
    let store = options.memory(config::STORE_MEMORY_BYTES).background_apply(false).open(dir)?;
    let mut txn = store.begin()?;
    let tree = Tree::create(&mut txn)?;
    txn.set_root(Some(tree.root()));
    txn.commit(Durability::None)?;
    let mut value = [0; config::STORE_ROW_BYTES];
    for first in (0..config::STORE_ROWS).step_by(usize::try_from(ROWS_PER_FILL)?) {
        let mut txn = store.begin()?;
        for row in first..config::STORE_ROWS.min(first + ROWS_PER_FILL) {
            begin_row(row, &mut value);
            tree.insert(&mut txn, &key(row), &value)?;
        }
        txn.commit(Durability::None)?;
    }
    store.sync()?;
    Ok(store)
}

/// Returns the table of a transaction with this root page.
pub(super) fn table(txn: &impl Pages, root: Option<PageNo>) -> anyhow::Result<Tree> {
    Ok(Tree::open(txn, root.context("the store has no root page")?)?)
}

/// Returns a row's key; keys sort by row number.
pub(super) fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

/// Makes one durable commit, and returns its number.
pub(super) fn commit(store: &Store) -> anyhow::Result<u64> {
    let mut txn = store.begin()?;
    let tree = table(&txn, txn.root())?;
    let number = number_of(txn.metadata()) + 1;
    for row in rows_of(number) {
        let value = tree.get(&txn, &key(row))?;
        let mut value = value.with_context(|| format!("row {row} is missing"))?.into_vec();
        change(number, row, &mut value);
        tree.insert(&mut txn, &key(row), &value)?;
    }
    txn.set_metadata(&number.to_le_bytes())?;
    txn.commit(Durability::Sync)?;
    Ok(number)
}

/// Returns the number of the commit that left this metadata; 0 before the first.
pub(super) fn number_of(metadata: &[u8]) -> u64 {
    metadata.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the rows that a commit changes; the same row may occur twice.
pub(super) fn rows_of(number: u64) -> [u64; config::STORE_ROWS_PER_COMMIT] {
    let mut random = seed(number, 0);
    let mut bytes = [0; config::STORE_ROWS_PER_COMMIT * 8];
    fill(&mut bytes, &mut random);
    let mut rows = [0; config::STORE_ROWS_PER_COMMIT];
    for (row, bytes) in rows.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *row = u64::from_le_bytes(*bytes) % config::STORE_ROWS;
    }
    rows
}

/// Writes a row's contents before its first change.
fn begin_row(row: u64, value: &mut [u8]) {
    fill(value, &mut seed(0, row));
}

/// Applies a commit's change to a row: its number, and some bytes at a random offset.
fn change(number: u64, row: u64, value: &mut [u8]) {
    let mut random = seed(number, row + 1);
    let mut bytes = [0; config::STORE_CHANGE_BYTES];
    fill(&mut bytes, &mut random);
    let places = value.len() - NUMBER - bytes.len();
    let at = NUMBER + usize::try_from(random % places as u64).expect("less than a length");
    value[..NUMBER].copy_from_slice(&number.to_le_bytes());
    value[at..at + bytes.len()].copy_from_slice(&bytes);
}

/// Returns a seed that is never 0, and differs much between neighbours: the finaliser of Appleby's `MurmurHash3`
/// (2011).
fn seed(number: u64, row: u64) -> u64 {
    let mut mixed =
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ row.wrapping_add(1).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed ^ (mixed >> 33)) | 1
}

/// Checks that the table is sound, and that every byte of every row is as commits 1 to `last` left it.
pub(super) fn check(read: &ReadTxn<'_>, last: u64) -> anyhow::Result<()> {
    let tree = table(read, read.root())?;
    tree.check(read)?;
    let mut commits = vec![Vec::new(); usize::try_from(config::STORE_ROWS)?];
    for number in 1..=last {
        for row in rows_of(number) {
            commits[usize::try_from(row)?].push(number);
        }
    }
    let mut found = tree.iter(read);
    let mut expected = [0; config::STORE_ROW_BYTES];
    for (row, commits) in (0..).zip(&commits) {
        let (found, value) = found.next().with_context(|| format!("rows from {row} on are missing"))??;
        ensure!(found == key(row), "row {row} is missing");
        begin_row(row, &mut expected);
        for number in commits {
            change(*number, row, &mut expected);
        }
        ensure!(value[..] == expected, "row {row} is not as the {last} commits left it");
    }
    ensure!(found.next().is_none(), "there are more than {} rows", config::STORE_ROWS);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_holds_what_its_commits_say_and_a_lost_one_is_found() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = make(&place(dir.path())).unwrap();
        for number in 1..=50 {
            assert_eq!(commit(&store).unwrap(), number);
        }
        let read = store.begin_read().unwrap();
        assert_eq!(number_of(read.metadata()), 50);
        check(&read, 50).unwrap();
        for wrong in [49, 51] {
            assert!(check(&read, wrong).unwrap_err().to_string().contains("is not as the"), "{wrong}");
        }
    }
}

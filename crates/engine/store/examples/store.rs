//! Counters in pages: each commit is there as a whole, a reader keeps its snapshot, and a store
//! that was not closed opens with all that was committed.
//!
//! Run it by `cargo run -p pagekeeper-store --example store`.

use std::error::Error;
use std::path::Path;

use pagekeeper_store::{Durability, PageNo, ReadTxn, Store};

const COUNTERS: usize = 100;

fn open(dir: &Path) -> Result<Store, pagekeeper_store::Error> {
    Store::options().memory(16 << 20).journal_bytes(4 << 20).open(dir) // caps the recovery
}

/// Makes pages of counters; the root page lists them.
fn create(store: &Store) -> Result<(), pagekeeper_store::Error> {
    let mut txn = store.begin_write()?;
    let root = txn.allocate()?;
    for at in (0..COUNTERS).map(|number| 8 * number) {
        let page = txn.allocate()?;
        txn.page_mut(root)?[at..at + 8].copy_from_slice(&page.get().to_le_bytes());
    }
    txn.set_root(Some(root));
    txn.commit(Durability::Sync)?;
    Ok(())
}

/// Returns the pages that the root lists.
fn pages(txn: &ReadTxn<'_>) -> Result<Vec<PageNo>, Box<dyn Error>> {
    let root = txn.read(txn.root().ok_or("no root")?)?;
    let numbers = root[..8 * COUNTERS].chunks_exact(8);
    Ok(numbers
        .map(|bytes| bytes.try_into().map(|bytes| PageNo::new(u64::from_le_bytes(bytes))))
        .collect::<Result<_, _>>()?)
}

/// Adds up all counters of one snapshot.
fn sum(txn: &ReadTxn<'_>) -> Result<u64, Box<dyn Error>> {
    let read = |page| Ok(u64::from_le_bytes(txn.read(page)?[..8].try_into()?));
    pages(txn)?.into_iter().map(read).sum()
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let temp = tempfile::tempdir_in(".")?;
    let dir = temp.path().join("store");
    let store = open(&dir)?;
    create(&store)?;
    let before = store.begin_read()?;
    let mut txn = store.begin_write()?;
    for (page, count) in pages(&before)?.into_iter().zip(1_u64..) {
        txn.page_mut(page)?[..8].copy_from_slice(&count.to_le_bytes());
    }
    txn.commit(Durability::Sync)?; // of all counters, or of none
    assert_eq!(sum(&before)?, 0); // its snapshot
    drop(before);
    drop(store);

    let store = open(&dir)?; // reads the journal, and no page of the data
    let found = sum(&store.begin_read()?)?;
    assert_eq!(found, 5_050);
    println!("opened as after a crash: the counters sum up to {found}");
    store.close()?;
    Ok(())
}

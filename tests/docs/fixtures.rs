//! Files in the directory where documented commands run: `data`, files like a database's, all
//! resident and clean; `store`, a page store with commits that are not yet in its data
//! file.

use std::fs::{self, File};
use std::path::Path;

use pagekeeper_store::{Create, Durability, PageNo, Store};

use crate::support::MIB;

/// Creates all fixtures.
pub(crate) fn make(directory: &Path) {
    let data = directory.join("data");
    fs::create_dir(&data).expect("make a directory");
    for (name, bytes) in [("orders.db", 8 * MIB), ("customers.db", 2 * MIB)] {
        write(&data.join(name), &content(bytes));
    }
    for (name, bytes) in [("binlog.000001", 4 * MIB), ("binlog.000002", MIB)] {
        write(&data.join(name), &content(bytes));
    }
    write(&data.join("binlog.index"), b"./binlog.000001\n./binlog.000002\n");
    store(&directory.join("store")).expect("make a store");
}

/// Returns bytes that no file system can compress.
fn content(bytes: u64) -> Vec<u8> {
    let mut word = 0x9E37_79B9_7F4A_7C15_u64;
    let words = (0..bytes / 8).map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.flatten().collect()
}

fn write(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("write a file");
    File::open(path).and_then(|file| file.sync_all()).expect("sync a file");
}

/// Creates a store of 64 pages with the root in the first; the last commit stays in the journal.
fn store(path: &Path) -> Result<(), pagekeeper_store::Error> {
    let store = Store::options().create(Create::New).journal_bytes(MIB).background_apply(false).open(path)?;
    let mut txn = store.begin_write()?;
    for page in 0..64_u32 {
        let allocated = txn.allocate()?;
        txn.page_mut(allocated)?[..4].copy_from_slice(&page.to_le_bytes());
    }
    let root = PageNo::new(0);
    txn.page_mut(root)?[..7].copy_from_slice(b"balance");
    txn.set_root(Some(root));
    txn.set_metadata(b"balances 1")?;
    txn.commit(Durability::Sync)?;
    let mut txn = store.begin_write()?;
    txn.free(PageNo::new(5))?;
    txn.commit(Durability::Sync)?;
    store.close()
}

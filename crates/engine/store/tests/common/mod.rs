//! A store on a simulated disk that counts its commits in page 0.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_simdisk::SimDisk;
use pagekeeper_store::{Durability, PageNo, Store, StoreOptions};

/// Returns its directory.
pub(crate) fn dir() -> &'static Path {
    Path::new("/store")
}

/// Returns options for a small store without threads.
pub(crate) fn options(disk: &SimDisk, journal_bytes: u64) -> StoreOptions {
    let options = Store::options().io(Arc::new(disk.clone())).memory(1 << 20).journal_bytes(journal_bytes);
    options.warm(false).without_threads()
}

/// Makes one more commit, which writes its number to page 0.
pub(crate) fn commit(store: &Store) {
    let mut txn = store.begin_write().unwrap();
    if txn.pages() == 0 {
        txn.allocate().unwrap();
    }
    let seq = store.stats().seq + 1;
    txn.page_mut(PageNo::new(0)).unwrap()[..8].copy_from_slice(&seq.get().to_le_bytes());
    assert_eq!(txn.commit(Durability::Sync).unwrap(), seq);
}

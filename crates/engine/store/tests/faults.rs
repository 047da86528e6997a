//! A store on a simulated disk that is full, corrupt, or lies about a sync.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Io, WriteMode};
use pagekeeper_simdisk::{Persistence, SimDisk, Times, WriteFault};
use pagekeeper_store::{Durability, Error, FullPageImages, PageNo, Store, StoreOptions};

fn dir() -> &'static Path {
    Path::new("/store")
}

fn options(disk: &SimDisk) -> StoreOptions {
    Store::options().io(Arc::new(disk.clone())).memory(1 << 20).warm(false).without_threads()
}

/// Makes a store with two pages that begin with 7.
fn store(disk: &SimDisk) -> Store {
    let store = options(disk).open(dir()).unwrap();
    let mut txn = store.begin_write().unwrap();
    for number in 0..2 {
        let page = txn.allocate().unwrap();
        assert_eq!(page.get(), number);
        txn.page_mut(page).unwrap()[0] = 7;
    }
    txn.commit(Durability::Sync).unwrap();
    store
}

fn change(store: &Store, page: u64, byte: u8) {
    let mut txn = store.begin_write().unwrap();
    txn.page_mut(PageNo::new(page)).unwrap()[0] = byte;
    txn.commit(Durability::Sync).unwrap();
}

fn first_byte(store: &Store, page: u64) -> Result<u8, Error> {
    Ok(store.begin_read()?.read(PageNo::new(page))?[0])
}

#[test]
fn a_sync_that_fails_for_lack_of_space_is_final() {
    let disk = SimDisk::new();
    let store = store(&disk);
    disk.inject("/store/data", 0..u64::MAX, WriteFault::Sync(libc::ENOSPC), Times::Once).unwrap();
    store.sync().unwrap_err();
    assert!(matches!(store.sync(), Err(Error::Poisoned { .. })));
    assert!(matches!(store.begin_write(), Err(Error::Poisoned { .. })));
    let store = options(&disk.after_power_cut(Persistence::None, 1)).open(dir()).unwrap();
    assert_eq!((first_byte(&store, 0).unwrap(), store.stats().checkpoint_seq.get()), (7, 0));
}

#[test]
fn a_transaction_that_was_open_when_the_store_was_poisoned_is_not_committed() {
    let disk = SimDisk::new();
    let store = store(&disk);
    let mut txn = store.begin_write().unwrap();
    txn.page_mut(PageNo::new(0)).unwrap()[0] = 8;
    disk.inject("/store/data", 0..u64::MAX, WriteFault::SYNC_EIO, Times::Once).unwrap();
    store.sync().unwrap_err();
    assert!(matches!(txn.commit(Durability::None), Err(Error::Poisoned { .. })));
    assert_eq!(first_byte(&store, 0).unwrap(), 7);
}

#[test]
fn a_full_device_fails_only_the_refused_operations() {
    let disk = SimDisk::new();
    let store = store(&disk);
    disk.inject("/store/data", 0..u64::MAX, WriteFault::NO_SPACE, Times::Once).unwrap();
    assert_eq!(store.sync().unwrap_err().errno(), Some(libc::ENOSPC));
    change(&store, 1, 9);
    store.sync().unwrap();
    let store = options(&disk.after_power_cut(Persistence::None, 1)).open(dir()).unwrap();
    assert_eq!([0, 1].map(|page| first_byte(&store, page).unwrap()), [7, 9]);
}

#[test]
fn a_data_file_that_can_not_grow_costs_one_transaction() {
    let disk = SimDisk::new();
    let store = store(&disk);
    disk.inject("/store/data", 0..u64::MAX, WriteFault::Allocate(libc::ENOSPC), Times::Once).unwrap();
    let mut txn = store.begin_write().unwrap();
    let full = (0..10_000).find_map(|_| txn.allocate().err()).unwrap();
    assert_eq!(full.errno(), Some(libc::ENOSPC));
    drop(txn);
    change(&store, 0, 8);
    assert_eq!(store.begin_read().unwrap().pages(), 2);
    let mut txn = store.begin_write().unwrap();
    assert_eq!(txn.allocate().unwrap(), PageNo::new(2));
}

#[test]
fn a_data_file_that_would_be_too_large_costs_one_transaction() {
    let disk = SimDisk::new();
    let store = store(&disk);
    disk.inject("/store/data", 0..u64::MAX, WriteFault::Allocate(libc::EFBIG), Times::Once).unwrap();
    let mut txn = store.begin_write().unwrap();
    let refused = (0..10_000).find_map(|_| txn.allocate().err()).unwrap();
    assert_eq!(refused.errno(), Some(libc::EFBIG));
    drop(txn);
    change(&store, 0, 8);

    // More than ext4 allows. A file system that allows it shows nothing here.
    let temp = pagekeeper_testing::disk_dir();
    let options = Store::options().page_size(64 << 10).memory(8 << 20).journal_bytes(1 << 20);
    let store = options.open(temp.path().join("store")).unwrap();
    let mut txn = store.begin_write().unwrap();
    let refused = txn.allocate_run((1 << 32) - 2).err();
    drop(txn);
    if let Some(refused) = refused {
        assert_eq!(refused.errno(), Some(libc::EFBIG), "{refused}");
    }
    let mut txn = store.begin_write().unwrap();
    txn.allocate().unwrap();
    txn.commit(Durability::Sync).unwrap();
}

#[test]
fn a_damaged_page_affects_no_other_and_can_be_rewritten() {
    let disk = SimDisk::builder().atomic_writes(64 << 10).build();
    let store = store(&disk);
    store.sync().unwrap();
    assert!(!store.stats().full_page_images);
    change(&store, 0, 8);
    store.close().unwrap();
    let file = disk.open_writable("/store/data".as_ref(), Access::Buffered, Create::Never).unwrap();
    file.write_at(100, b"rot", WriteMode::Plain).unwrap();
    file.sync_all().unwrap();
    drop(file);

    let store = options(&disk).open(dir()).unwrap();
    let is_of_first = |error: Error| matches!(error, Error::Damaged { page, .. } if page.get() == 0);
    assert!(first_byte(&store, 0).is_err_and(is_of_first));
    assert!(store.sync().is_err_and(is_of_first));
    assert!(!store.verify().unwrap().is_sound());
    change(&store, 1, 9);
    let mut txn = store.begin_write().unwrap();
    txn.write(PageNo::new(0), &vec![5; store.payload_size()]).unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    assert_eq!([0, 1].map(|page| first_byte(&store, page).unwrap()), [5, 9]);
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{found}");
}

#[test]
fn an_old_snapshot_outlives_the_data_page_it_is_based_on() {
    let disk = SimDisk::builder().atomic_writes(64 << 10).build();
    let before = store(&disk);
    before.sync().unwrap();
    change(&before, 0, 8);
    before.close().unwrap();

    let store = options(&disk).full_page_images(FullPageImages::Always).open(dir()).unwrap();
    let old = store.begin_read().unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.write(PageNo::new(0), &vec![9; store.payload_size()]).unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    assert_eq!((old.read(PageNo::new(0)).unwrap()[0], first_byte(&store, 0).unwrap()), (8, 9));
}

#[test]
fn a_store_that_relies_on_atomic_writes_is_not_applied_where_there_are_none() {
    let disk = SimDisk::builder().atomic_writes(64 << 10).build();
    let before = store(&disk);
    before.sync().unwrap();
    change(&before, 0, 8);
    before.close().unwrap();
    let plain = SimDisk::new();
    for name in [
        "superblock",
        "data",
        "map",
        "journal/control",
        "journal/redo.000",
        "journal/redo.001",
        "journal/redo.002",
        "journal/redo.003",
    ] {
        let path = dir().join(name);
        let file = disk.open(&path, Access::Buffered).unwrap();
        let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        plain.create(&path, bytes).unwrap();
    }
    assert!(matches!(options(&plain).open(dir()), Err(Error::NotAtomic { .. })));
}

#[test]
fn page_numbers_stay_within_the_caches_range() {
    let disk = SimDisk::new();
    let store = options(&disk).open(dir()).unwrap();
    let mut txn = store.begin_write().unwrap();
    assert!(matches!(txn.allocate_run(1 << 32), Err(Error::Setting { .. })));
    txn.allocate_run((1 << 32) - 2).unwrap();
    assert!(matches!(txn.allocate(), Err(Error::Setting { .. })));
}

/// Commits change all pages alike. If the sync of the data file fails, some of the writes before it
/// are on the disk and some are not: no reader may see that.
#[test]
fn a_sync_that_fails_shows_no_reader_old_pages_beside_new_ones() {
    for keeps_old in [false, true] {
        reads_after_a_failed_sync(keeps_old);
    }
}

fn reads_after_a_failed_sync(keeps_old: bool) {
    // More than the cache holds.
    const PAGES: u64 = 3000;
    let disk = SimDisk::new();
    let store = options(&disk).journal_bytes(64 << 20).memory(16 << 20).open(dir()).unwrap();
    let write_all = |byte: u8| {
        let mut txn = store.begin_write().unwrap();
        if txn.pages() == 0 {
            txn.allocate_run(PAGES).unwrap();
        }
        let payload = vec![byte; store.payload_size()];
        (0..PAGES).for_each(|page| txn.write(PageNo::new(page), &payload).unwrap());
        txn.commit(Durability::Sync).unwrap();
    };
    write_all(1);
    store.sync().unwrap();
    let old = keeps_old.then(|| store.begin_read().unwrap());
    write_all(2);
    disk.inject("/store/data", 0..u64::MAX, WriteFault::SyncDrop(libc::EIO), Times::Once).unwrap();
    store.sync().unwrap_err();
    let new = store.begin_read().unwrap();
    for (read, byte) in old.into_iter().map(|old| (old, 1)).chain([(new, 2)]) {
        for page in (0..PAGES).map(PageNo::new) {
            match read.read(page) {
                Ok(found) => assert_eq!(found[0], byte, "page {page}"),
                Err(error) => assert!(byte == 1 && matches!(error, Error::SnapshotTooOld), "{error}"),
            }
        }
    }
}

#[test]
fn a_close_reports_that_the_end_of_the_journal_could_not_be_noted() {
    for sync in [false, true] {
        let disk = SimDisk::new();
        let store = store(&disk);
        if sync {
            store.sync().unwrap();
        }
        disk.inject("/store/journal/control", 0..u64::MAX, WriteFault::EIO, Times::Once).unwrap();
        let closed = store.close();
        assert!(matches!(closed, Err(Error::Journal(_))), "{closed:?}");
        // Nothing is lost by it, and the store is no longer open.
        let store = options(&disk).open(dir()).unwrap();
        assert_eq!(first_byte(&store, 1).unwrap(), 7);
        store.close().unwrap();
    }
}

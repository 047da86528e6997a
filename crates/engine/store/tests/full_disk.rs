//! A closed store whose disk is full now, or whose user has an exhausted quota: it opens for
//! writing, reads, refuses only what has no room, and continues when there is room. On a simulated
//! disk and on real file systems.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_simdisk::SimDisk;
use pagekeeper_store::{Durability, Error, PageNo, Seq, Store, StoreOptions};
use pagekeeper_testing::{Mounted, as_nobody, is_out_of_space};

const PAGES: u64 = 4;

fn small() -> StoreOptions {
    Store::options().memory(1 << 20).journal_bytes(64 << 10).background_apply(false).warm(false)
}

fn on(disk: &SimDisk) -> StoreOptions {
    small().io(Arc::new(disk.clone())).without_threads()
}

/// Makes pages 0 to 3 begin with 7, in the data file; then page 0 begins with 8, only in the
/// journal.
fn make(store: &Store) {
    let mut txn = store.begin_write().unwrap();
    let first = txn.allocate_run(PAGES).unwrap();
    PageNo::each(first..first + PAGES)
        .for_each(|page| txn.write(page, &vec![7; store.payload_size()]).unwrap());
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    change(store, 0, 8).unwrap();
}

fn change(store: &Store, page: u64, byte: u8) -> Result<Seq, Error> {
    let mut txn = store.begin_write()?;
    txn.page_mut(PageNo::new(page))?[0] = byte;
    txn.commit(Durability::Sync)
}

fn first_bytes(store: &Store) -> Vec<u8> {
    let read = store.begin_read().unwrap();
    (0..PAGES).map(|page| read.read(PageNo::new(page)).unwrap()[0]).collect()
}

/// Runs a transaction that needs more pages than the file has room for.
fn grow(store: &Store) -> Result<Seq, Error> {
    let mut txn = store.begin_write()?;
    for _ in 0..200 {
        txn.allocate()?;
    }
    txn.commit(Durability::Sync)
}

#[test]
fn a_store_on_a_full_disk_opens_and_writes_once_there_is_room() {
    for atomic in [false, true] {
        let disk = SimDisk::builder().atomic_writes(if atomic { 64 << 10 } else { 0 }).build();
        let store = on(&disk).open(dir()).unwrap();
        make(&store);
        store.close().unwrap();

        disk.fill_up_at(0);
        let store = on(&disk).open(dir()).unwrap();
        assert_eq!(first_bytes(&store), [8, 7, 7, 7]);
        assert!(store.verify().unwrap().is_sound());
        assert_eq!(grow(&store).unwrap_err().errno(), Some(libc::ENOSPC));
        // The journal has its room, even on a full disk.
        change(&store, 1, 9).unwrap();
        if atomic {
            // There is no space to test whether pages can be written atomically.
            assert_eq!(store.sync().unwrap_err().errno(), Some(libc::ENOSPC));
            let full = (10..200).find_map(|byte| change(&store, 2, byte).err()).unwrap();
            assert_eq!(full.errno(), Some(libc::ENOSPC), "{full}");
            store.close().unwrap();
            let store = on(&disk).open(dir()).unwrap();
            assert_eq!(first_bytes(&store)[..2], [8, 9]);
            disk.make_room();
            store.sync().unwrap();
        } else {
            store.sync().unwrap();
            disk.make_room();
        }
        let store = on(&disk.after_kill()).open(dir()).unwrap();
        change(&store, 2, 5).unwrap();
        grow(&store).unwrap();
        store.sync().unwrap();
        assert_eq!(first_bytes(&store), [8, 9, 5, 7]);
        assert!(store.verify().unwrap().is_sound());
        store.close_and_sync().unwrap();
    }
}

fn refuses_only_operations_that_need_space(mounted: &Mounted) {
    let dir = mounted.path().join("store");
    let store = small().open(&dir).unwrap();
    make(&store);
    // Free pages at the end, and a hole.
    grow(&store).unwrap();
    let mut txn = store.begin_write().unwrap();
    (100..PAGES + 200).for_each(|page| txn.free(PageNo::new(page)).unwrap());
    txn.commit(Durability::Sync).unwrap();
    store.close().unwrap();
    mounted.fill("full");

    let store = small().open(&dir).unwrap();
    assert_eq!(first_bytes(&store), [8, 7, 7, 7]);
    assert!(store.compact().unwrap().pages < PAGES + 110);
    mounted.fill("fuller");
    let refused = (0..100).find_map(|_| grow(&store).err()).unwrap();
    assert!(is_out_of_space(refused.errno()), "{refused}");
    change(&store, 1, 9).unwrap();
    store.sync().unwrap();
    store.close().unwrap();
    let store = small().open(&dir).unwrap();
    std::fs::remove_file(mounted.path().join("full")).unwrap();
    grow(&store).unwrap();
    store.sync().unwrap();
    assert_eq!(first_bytes(&store), [8, 9, 7, 7]);
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_full_ext4_refuses_only_operations_that_need_space() {
    Mounted::new("ext4").iter().for_each(refuses_only_operations_that_need_space);
}

#[test]
fn a_full_xfs_refuses_only_operations_that_need_space() {
    Mounted::new("xfs").iter().for_each(refuses_only_operations_that_need_space);
}

#[test]
fn a_full_tmpfs_refuses_only_operations_that_need_space() {
    Mounted::new("tmpfs").iter().for_each(refuses_only_operations_that_need_space);
}

fn with_an_exhausted_quota(kind: &str) {
    let Some(mounted) = Mounted::with_quota(kind) else { return };
    as_nobody(|| refuses_only_operations_that_need_space(&mounted));
}

#[test]
#[ignore = "needs a kernel with quotas for users: make test-kernels"]
fn an_exhausted_quota_of_a_user_refuses_only_operations_that_need_space() {
    ["ext4", "xfs"].into_iter().for_each(with_an_exhausted_quota);
}

fn dir() -> &'static Path {
    Path::new("/store")
}

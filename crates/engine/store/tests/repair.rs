//! Repairs of stores on real file systems that lost single writes: a page in use never becomes
//! free.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagekeeper_store::{Durability, Error, PageNo, Repair, Store, StoreOptions};
use pagekeeper_testing::disk_dir;

const PAGE: u64 = 4096;

fn options() -> StoreOptions {
    Store::options().memory(32 << 20).journal_bytes(1 << 20).warm(false).without_threads()
}

fn filled(dir: &Path, pages: u64) -> Store {
    let store = options().open(dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    for _ in 0..pages {
        txn.allocate().unwrap();
    }
    txn.commit(Durability::Sync).unwrap();
    store
}

/// A page of the data file, for writing back later, as if the writes in between had been lost.
struct Stale {
    data: File,
    page: u64,
    bytes: Vec<u8>,
}

impl Stale {
    fn of(dir: &Path, page: u64) -> Self {
        let data = File::options().read(true).write(true).open(dir.join("data")).unwrap();
        let mut bytes = vec![0; usize::try_from(PAGE).unwrap()];
        data.read_exact_at(&mut bytes, page * PAGE).unwrap();
        Self { data, page, bytes }
    }

    fn write_back(self) {
        self.data.write_all_at(&self.bytes, self.page * PAGE).unwrap();
        self.data.sync_all().unwrap();
    }
}

fn pages_of(findings: &[pagekeeper_store::PageFinding]) -> Vec<u64> {
    findings.iter().map(|finding| finding.page.get()).collect()
}

/// Makes a store in which page 2 was free and then became the root, and that write to the data file
/// is lost.
fn with_a_root_that_was_free(dir: &Path) {
    let store = filled(dir, 5);
    let mut txn = store.begin_write().unwrap();
    // A trunk, which lists the other one.
    txn.free(PageNo::new(1)).unwrap();
    txn.free(PageNo::new(2)).unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    let stale = Stale::of(dir, 2);
    let mut txn = store.begin_write().unwrap();
    assert_eq!(txn.allocate().unwrap(), PageNo::new(2));
    txn.page_mut(PageNo::new(2)).unwrap()[0] = 42;
    txn.set_root(Some(PageNo::new(2)));
    txn.commit(Durability::Sync).unwrap();
    store.close_and_sync().unwrap();
    stale.write_back();
}

fn has_lost_its_root(repair: &Repair, to: &Path) {
    assert_eq!(pages_of(&repair.lost), [2], "{repair:?}");
    assert!(repair.doubtful.is_empty(), "{repair:?}");
    let store = options().open(to).unwrap();
    let read = store.begin_read().unwrap();
    let root = PageNo::new(2);
    assert_eq!(read.root(), Some(root));
    assert!(matches!(read.read(root), Err(Error::Damaged { page, .. }) if page == root));
    let mut txn = store.begin_write().unwrap();
    let allocated: Vec<_> = (0..3).map(|_| txn.allocate().unwrap()).collect();
    assert!(!allocated.contains(&root), "the root was given away: {allocated:?}");
    drop(txn);
    assert_eq!(store.verify().unwrap().faults, 1);
}

#[test]
fn a_page_in_use_that_reads_as_a_free_one_is_lost() {
    let temp = disk_dir();
    let (dir, to) = (temp.path().join("store"), temp.path().join("repaired"));
    with_a_root_that_was_free(&dir);
    let repair = options().repair(&dir, &to).unwrap();
    has_lost_its_root(&repair, &to);
}

/// The last write of a page is unknown then, but the whole free list is known.
#[test]
fn a_page_that_reads_as_free_and_is_not_on_the_list_is_lost_without_the_map_too() {
    let temp = disk_dir();
    let (dir, to) = (temp.path().join("store"), temp.path().join("repaired"));
    with_a_root_that_was_free(&dir);
    std::fs::remove_file(dir.join("map")).unwrap();
    let repair = options().repair(&dir, &to).unwrap();
    has_lost_its_root(&repair, &to);
}

/// The intact map then shows the last write of each page.
#[test]
fn pages_without_superblock_and_commits_are_judged_by_the_map() {
    let temp = disk_dir();
    let (dir, to) = (temp.path().join("store"), temp.path().join("repaired"));
    let store = filled(&dir, 6);
    store.sync().unwrap();
    let stale = Stale::of(&dir, 2);
    let mut txn = store.begin_write().unwrap();
    txn.page_mut(PageNo::new(2)).unwrap()[0] = 9;
    txn.commit(Durability::Sync).unwrap();
    store.close_and_sync().unwrap();
    stale.write_back();
    std::fs::remove_file(dir.join("superblock")).unwrap();
    let repair = options().repair(&dir, &to).unwrap();
    assert_eq!(pages_of(&repair.doubtful), [2], "{repair:?}");
    assert!(repair.lost.is_empty() && repair.data_pages == 6, "{repair:?}");
    assert!(repair.notes[0].contains("superblock: gone"), "{repair:?}");
}

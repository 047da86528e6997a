//! A store in version 2 of the format that a killed process left: all later versions must open it.
//! One of version 1, from before the first release, is refused in plain words.
//!
//! [`make`] wrote `tests/fixture/v2`;
//! `PAGEKEEPER_MAKE_FIXTURE=DIR cargo test -p pagekeeper-store --test fixture` makes another one,
//! for a new version.

use std::path::{Path, PathBuf};

use pagekeeper_store::{Create, Durability, Error, PageNo, Store};

const PAGES: u64 = 12;

/// Makes a store with pages that are applied and synced, in the journal as full images, changed in
/// part, and free.
fn make(dir: &Path) {
    let store = Store::options()
        .journal_bytes(64 << 10)
        .memory(1 << 20)
        .background_apply(false)
        .warm(false)
        .open(dir)
        .unwrap();
    let mut txn = store.begin_write().unwrap();
    for number in 0..PAGES {
        let page = txn.allocate().unwrap();
        assert_eq!(page.get(), number);
        txn.write(page, &payload(number, store.payload_size())).unwrap();
    }
    txn.set_root(Some(PageNo::new(3)));
    txn.set_metadata(b"made by version 2").unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    for round in 0..2 {
        let mut txn = store.begin_write().unwrap();
        for page in (0..3).map(PageNo::new) {
            txn.page_mut(page).unwrap()[1000 + round] = 77;
        }
        if round == 1 {
            txn.free(PageNo::new(10)).unwrap();
            txn.free(PageNo::new(11)).unwrap();
        }
        txn.commit(Durability::Sync).unwrap();
    }
    store.close().unwrap();
}

/// Returns a payload of mostly zeros, so that the fixture is small.
fn payload(page: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| if at < 200 { (page * 37 + at as u64 * 11).to_le_bytes()[0] } else { 0 }).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_store_of_version_2_is_opened_and_written() {
    if let Some(dir) = std::env::var_os("PAGEKEEPER_MAKE_FIXTURE") {
        make(Path::new(&dir));
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let temp = pagekeeper_testing::disk_dir();
    let dir = temp.path().join("store");
    copy(&root.join("tests/fixture/v2"), &dir);

    let store = Store::options().create(Create::Never).background_apply(false).open(&dir).unwrap();
    let opening = store.stats().opening;
    assert_eq!((opening.commits, opening.pages), (2, 5));
    let check = |store: &Store| {
        let read = store.begin_read().unwrap();
        assert_eq!(
            (read.root(), read.metadata(), read.pages()),
            (Some(PageNo::new(3)), &b"made by version 2"[..], PAGES)
        );
        for page in 0..10 {
            let mut expected = payload(page, store.payload_size());
            if page < 3 {
                expected[1000..1002].fill(77);
            }
            assert_eq!(read.read(PageNo::new(page)).unwrap()[..], expected, "page {page}");
        }
        for page in (10..12).map(PageNo::new) {
            assert!(matches!(read.read(page), Err(Error::NotAllocated { .. })));
        }
        let found = store.verify().unwrap();
        assert!(found.is_sound(), "{found}");
    };
    check(&store);
    store.close_and_sync().unwrap();
    let store = Store::options().create(Create::Never).open(&dir).unwrap();
    assert_eq!(store.stats().opening.commits, 0);
    check(&store);
    let mut txn = store.begin_write().unwrap();
    let mut again = [0; 3].map(|_| txn.allocate().unwrap().get());
    again.sort_unstable();
    assert_eq!(again, [10, 11, PAGES]);
}

#[test]
fn a_store_of_before_the_first_release_is_refused_and_left_as_it_is() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixture/v1/superblock");
    let temp = pagekeeper_testing::disk_dir();
    let dir = temp.path().join("store");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(&root, dir.join("superblock")).unwrap();
    let error = Store::options().open(&dir).map(drop).unwrap_err();
    assert!(matches!(error, Error::OldVersion { version: 1, .. }), "{error}");
    assert_eq!(std::fs::read(dir.join("superblock")).unwrap(), std::fs::read(root).unwrap());
}

//! Stories of a store's user, on a real disk.

#[path = "../examples/store.rs"]
mod example;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_store::{Create, Durability, Error, PageNo, Seq, Store};
use pagekeeper_testing::{disk_dir, skip};
use tempfile::TempDir;

/// Returns a directory on the build's disk, since /tmp may be a tmpfs.
fn dir() -> (TempDir, PathBuf) {
    let temp = disk_dir();
    let path = temp.path().join("store");
    (temp, path)
}

#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}

#[test]
fn commits_are_there_after_a_close_and_after_a_sync() {
    let (_temp, dir) = dir();
    let store = Store::options().memory(8 << 20).open(&dir).unwrap();
    let payload = store.payload_size();
    let mut txn = store.begin_write().unwrap();
    let pages: Vec<_> = (0..100).map(|_| txn.allocate().unwrap()).collect();
    for (page, byte) in pages.iter().zip(0..) {
        txn.write(*page, &vec![byte; payload]).unwrap();
    }
    txn.set_root(Some(pages[3]));
    txn.set_metadata(b"the tree").unwrap();
    assert_eq!(txn.commit(Durability::Sync).unwrap(), Seq::new(1));
    for byte in 0..50 {
        let mut txn = store.begin_write().unwrap();
        txn.page_mut(pages[usize::from(byte)]).unwrap()[100] = 200 + byte;
        txn.commit(if byte % 2 == 0 { Durability::Group } else { Durability::None }).unwrap();
    }
    store.close().unwrap();

    let check = |store: &Store| {
        let read = store.begin_read().unwrap();
        assert_eq!((read.root(), read.metadata(), read.seq().get()), (Some(pages[3]), &b"the tree"[..], 51));
        for (page, byte) in pages.iter().zip(0..) {
            let found = read.read(*page).unwrap();
            let mut expected = vec![byte; payload];
            if byte < 50 {
                expected[100] = 200 + byte;
            }
            assert_eq!(found[..], expected, "page {page}");
        }
        let out_of_range = read.read(PageNo::new(100));
        assert!(matches!(out_of_range, Err(Error::OutOfRange { page, pages: 100 }) if page.get() == 100));
        let found = store.verify().unwrap();
        assert!(found.is_sound(), "{found}");
        assert_eq!(found.data_pages, 100);
    };
    let store = Store::options().background_apply(false).open(&dir).unwrap();
    assert_eq!((store.stats().opening.commits, store.stats().opening.pages), (51, 100));
    check(&store);
    store.close_and_sync().unwrap();
    let store = Store::options().create(Create::Never).open(&dir).unwrap();
    assert_eq!((store.stats().opening.commits, store.stats().journal_bytes), (0, 0));
    check(&store);
}

#[test]
fn pages_that_are_freed_are_used_again_and_snapshots_keep_theirs() {
    let (_temp, dir) = dir();
    let store = Store::options().memory(128 << 20).open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let pages: Vec<_> = (0..2000).map(|_| txn.allocate().unwrap()).collect();
    txn.page_mut(pages[7]).unwrap()[0] = 7;
    txn.commit(Durability::Sync).unwrap();
    let old = store.begin_read().unwrap();

    let mut txn = store.begin_write().unwrap();
    for page in &pages {
        txn.free(*page).unwrap();
    }
    let is_free = |error: Error| matches!(error, Error::NotAllocated { page } if page == pages[7]);
    assert!(txn.free(pages[7]).is_err_and(is_free));
    assert!(txn.page_mut(pages[7]).is_err_and(is_free));
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    let stat = store.stats();
    assert_eq!((stat.pages, stat.free_pages), (2000, 2000));
    let now = store.begin_read().unwrap();
    assert!(now.read(pages[7]).is_err_and(is_free));
    assert_eq!(old.read(pages[7]).unwrap()[0], 7);

    let mut txn = store.begin_write().unwrap();
    let mut again: Vec<_> = (0..2000).map(|_| txn.allocate().unwrap()).collect();
    again.sort_unstable();
    assert_eq!(again, pages);
    assert_eq!(txn.read(pages[7]).unwrap()[0], 0);
    txn.commit(Durability::Sync).unwrap();
    assert_eq!(old.read(pages[7]).unwrap()[0], 7);
    drop((old, now));
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{found}");
    assert_eq!((found.data_pages, found.free_pages), (2000, 0));
}

#[test]
fn a_run_takes_no_room_before_it_is_written() {
    let (_temp, dir) = dir();
    let store = Store::options().memory(8 << 20).open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let first = txn.allocate_run(1 << 20).unwrap();
    txn.write(first + 999_999, &vec![9; store.payload_size()]).unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    let read = store.begin_read().unwrap();
    assert_eq!(read.read(first + 999_999).unwrap()[5], 9);
    assert!(matches!(read.read(first), Err(Error::NeverWritten { page }) if page == first));
    let data = std::fs::metadata(dir.join("data")).unwrap();
    assert!(data.len() >= 4 << 30 && data.blocks() * 512 < 1 << 20, "{} blocks", data.blocks());
}

#[test]
fn writers_beside_readers_and_checkpoints_never_show_half_a_commit() {
    let (_temp, dir) = dir();
    let store = Store::options().memory(64 << 20).journal_bytes(1 << 20).open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let pages: Vec<_> = (0..3000).map(|_| txn.allocate().unwrap()).collect();
    for chunk in pages.chunks(100) {
        for page in chunk {
            txn.page_mut(*page).unwrap()[..8].copy_from_slice(&0_u64.to_le_bytes());
        }
        txn.commit(Durability::None).unwrap();
        txn = store.begin_write().unwrap();
    }
    drop(txn);
    // Each commit gives a pair of pages the same number.
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (store, pages) = (&store, &pages);
            scope.spawn(move || {
                for round in 0..400_u64 {
                    let pair = usize::try_from((round * 7919 + thread * 31) % 1500).unwrap();
                    let mut txn = store.begin_write().unwrap();
                    for page in [pages[pair], pages[pair + 1500]] {
                        let bytes = txn.page_mut(page).unwrap();
                        bytes[..8].copy_from_slice(&(round + 1).to_le_bytes());
                        bytes[4000..4008].copy_from_slice(&(round + 1).to_le_bytes());
                    }
                    txn.commit(Durability::Sync).unwrap();
                }
            });
        }
        for _ in 0..2 {
            let (store, pages) = (&store, &pages);
            scope.spawn(move || {
                for _ in 0..40 {
                    let read = store.begin_read().unwrap();
                    for pair in (0..1500).step_by(11) {
                        let [left, right] =
                            [pages[pair], pages[pair + 1500]].map(|page| read.read(page).unwrap());
                        assert_eq!(left[..8], right[..8]);
                        assert_eq!(left[..8], left[4000..4008]);
                    }
                }
            });
        }
    });
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{found}");
    let stat = store.stats();
    assert!(stat.checkpoint_seq > Seq::default() && stat.journal_bytes <= stat.max_journal_bytes, "{stat:?}");
}

#[test]
fn a_snapshot_that_takes_too_much_memory_is_ended_and_commits_continue() {
    let (_temp, dir) = dir();
    let options = Store::options().memory(4 << 20).journal_bytes(4 << 20).snapshot_bytes(0);
    let store = options.open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let first = txn.allocate_run(2000).unwrap();
    txn.commit(Durability::Sync).unwrap();
    let mut old = None;
    for round in 0..3 {
        for page in PageNo::each(first..first + 2000) {
            let mut txn = store.begin_write().unwrap();
            txn.write(page, &vec![round; store.payload_size()]).unwrap();
            txn.commit(Durability::None).unwrap();
        }
        old = old.or_else(|| store.begin_read().ok());
    }
    let old = old.unwrap();
    assert!(matches!(old.read(first), Err(Error::SnapshotTooOld)));
    assert_eq!(store.begin_read().unwrap().read(first).unwrap()[0], 2);
    assert!(store.stats().unapplied_bytes <= 2 << 20, "{:?}", store.stats());
}

#[test]
fn a_file_that_is_not_a_store_is_named_and_left_alone() {
    let (temp, dir) = dir();
    let error = |options: pagekeeper_store::StoreOptions, dir: &std::path::Path| {
        options.open(dir).map(drop).unwrap_err().to_string()
    };
    let none = error(Store::options().create(Create::Never), &dir);
    assert!(none.ends_with("store: no store here"), "{none}");
    assert!(error(Store::options().page_size(5000), &dir).starts_with("a page size of 5000: give"));
    assert!(!dir.exists());

    let store = Store::options().page_size(16 << 10).open(&dir).unwrap();
    assert!(error(Store::options(), &dir).ends_with("lock: locked, in use by another"));
    let mut txn = store.begin_write().unwrap();
    let run = txn.allocate_run(40_000).unwrap();
    let payload = vec![1; store.payload_size()];
    assert!(matches!(txn.write(run, &payload[1..]), Err(Error::PayloadSize { .. })));
    assert!(matches!(txn.set_metadata(&[0; 1025]), Err(Error::MetadataTooLong { given: 1025, max: 1024 })));
    let mut pages = PageNo::each(run..run + 20_000);
    let too_large = pages.try_for_each(|page| txn.write(page, &payload)).unwrap_err();
    assert!(matches!(too_large, Error::TransactionTooLarge { .. }), "{too_large}");
    assert!(matches!(txn.commit(Durability::Sync), Err(Error::TransactionTooLarge { .. })));
    assert_eq!((store.begin_read().unwrap().pages(), store.stats().seq.get()), (0, 0));
    drop(store);
    let other = error(Store::options().page_size(4096), &dir);
    assert!(other.ends_with("store: pages of 16384 bytes, not of 4096"), "{other}");
    assert!(error(Store::options().create(Create::New), &dir).contains("not empty"));

    let foreign = temp.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter"), b"dear").unwrap();
    assert!(
        error(Store::options(), &foreign)
            .contains("not empty, so that no store can be made here: it has letter")
    );
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1);

    let mut superblock = std::fs::read(dir.join("superblock")).unwrap();
    superblock[100] ^= 1;
    superblock[4196] ^= 1;
    std::fs::write(dir.join("data"), b"something").unwrap();
    std::fs::write(dir.join("superblock"), superblock).unwrap();
    assert!(error(Store::options(), &dir).contains("slot 1: its checksum does not hold"));
}

#[test]
fn an_unfinished_store_is_recreated_and_foreign_files_are_left() {
    let (temp, dir) = dir();
    Store::options().open(&dir).unwrap().close().unwrap();
    // The superblock does not have its name yet.
    std::fs::rename(dir.join("superblock"), dir.join("superblock.new")).unwrap();
    let never = Store::options().create(Create::Never).open(&dir).unwrap_err();
    assert!(matches!(never, Error::Unfinished { .. }), "{never}");
    let store = Store::options().open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.allocate().unwrap();
    txn.commit(Durability::Sync).unwrap();
    drop(store);
    // There was one, and it is lost, so that the data file is useless.
    std::fs::remove_file(dir.join("superblock")).unwrap();
    let data = std::fs::metadata(dir.join("data")).unwrap().len();
    let lost = Store::options().open(&dir).unwrap_err();
    assert!(matches!(lost, Error::LostSuperblock { .. }), "{lost}");
    assert_eq!(std::fs::metadata(dir.join("data")).unwrap().len(), data);

    // The root of a file system.
    let root = temp.path().join("root");
    std::fs::create_dir_all(root.join("lost+found")).unwrap();
    Store::options().open(&root).unwrap().close().unwrap();

    let other = temp.path().join("other");
    std::fs::create_dir_all(other.join("journal")).unwrap();
    std::fs::write(other.join("journal/letter"), b"dear").unwrap();
    let not_empty = Store::options().open(&other).unwrap_err();
    assert!(matches!(not_empty, Error::LostSuperblock { .. }), "{not_empty}");
    assert_eq!(std::fs::read(other.join("journal/letter")).unwrap(), b"dear");
}

#[test]
fn a_store_that_lacks_a_file_is_refused_with_the_remedy() {
    for name in ["data", "map", "journal/control", "journal/redo.000"] {
        let (_temp, dir) = dir();
        let store = Store::options().open(&dir).unwrap();
        let mut txn = store.begin_write().unwrap();
        txn.allocate().unwrap();
        txn.commit(Durability::Sync).unwrap();
        store.close().unwrap();
        std::fs::remove_file(dir.join(name)).unwrap();
        let lost = Store::options().open(&dir).unwrap_err().to_string();
        assert!(lost.contains("pagekeeper store repair") && lost.contains(name), "{name}: {lost}");
    }
}

/// The same holds if the file is removed while the store is open.
#[test]
fn a_data_file_that_is_gone_is_named_by_all_that_open_it_again() {
    let (temp, dir) = dir();
    let store = Store::options().open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.allocate().unwrap();
    txn.commit(Durability::Sync).unwrap();
    std::fs::remove_file(dir.join("data")).unwrap();
    let copy = temp.path().join("copy");
    let lost = [
        store.verify().map(drop),
        store.inspect(PageNo::new(0)..PageNo::new(1)).map(drop),
        store.backup(&copy).map(drop),
    ];
    for lost in lost {
        let lost = lost.unwrap_err().to_string();
        assert!(lost.contains("data: gone") && lost.contains("pagekeeper store repair"), "{lost}");
    }
    assert!(!copy.exists());
}

#[test]
fn resident_pages_are_loaded_again_after_a_restart() {
    let (_temp, dir) = dir();
    let store = Store::options().memory(8 << 20).open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let first = txn.allocate_run(500).unwrap();
    for page in PageNo::each(first..first + 500) {
        txn.write(page, &vec![3; store.payload_size()]).unwrap();
    }
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    let read = store.begin_read().unwrap();
    PageNo::each(first..first + 500).for_each(|page| assert_eq!(read.read(page).unwrap()[9], 3));
    drop(read);
    store.close().unwrap();

    let store = Store::options().memory(8 << 20).open(&dir).unwrap();
    while store.stats().cache.resident_pages < 500 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(store);
    // A foreign list loads nothing, and does no harm.
    std::fs::write(dir.join("warm"), b"nonsense").unwrap();
    let store = Store::options().memory(8 << 20).open(&dir).unwrap();
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_store_on_read_only_media_is_refused_with_the_reason() {
    let (temp, dir) = dir();
    Store::options().open(&dir).unwrap().close().unwrap();
    let point = temp.path().join("read-only");
    std::fs::create_dir(&point).unwrap();
    let mount = |args: &[&str]| {
        let done = std::process::Command::new("mount").args(args).arg(&point).output();
        done.is_ok_and(|output| output.status.success())
    };
    if !mount(&["--bind", dir.to_str().unwrap()]) || !mount(&["-o", "remount,bind,ro"]) {
        return skip("a read-only mount takes root");
    }
    let error = Store::options().open(&point).map(drop).unwrap_err();
    std::process::Command::new("umount").arg(&point).output().unwrap();
    assert_eq!(error.errno(), Some(libc::EROFS), "{error}");
    Store::options().open(&dir).unwrap();
}

#[test]
fn pages_that_are_prefetched_are_read_from_memory() {
    let (_temp, dir) = dir();
    let store = Store::options().memory(8 << 20).warm(false).open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let pages = (0..100).map(|_| txn.allocate().unwrap());
    assert_eq!(pages.last(), Some(PageNo::new(99)));
    txn.commit(Durability::Sync).unwrap();
    store.close_and_sync().unwrap();
    let store = Store::options().memory(8 << 20).open(&dir).unwrap();
    store.prefetch((0..100).chain([1 << 40]).map(PageNo::new));
    while store.stats().cache.resident_pages < 100 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let before = store.stats().cache.device_reads;
    let read = store.begin_read().unwrap();
    (0..100).for_each(|page| drop(read.read(PageNo::new(page)).unwrap()));
    assert_eq!(store.stats().cache.device_reads, before);
}

#[test]
fn openings_without_number_leave_room_for_commits() {
    let (_temp, dir) = dir();
    let options = || Store::options().memory(1 << 20).journal_bytes(64 << 10);
    for _ in 0..40 {
        options().open(&dir).unwrap().close().unwrap();
    }
    let store = options().open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let page = txn.allocate().unwrap();
    txn.page_mut(page).unwrap()[0] = 1;
    txn.commit(Durability::Sync).unwrap();
    drop(store);
    for _ in 0..40 {
        let store = options().open(&dir).unwrap();
        assert_eq!(store.begin_read().unwrap().read(page).unwrap()[0], 1);
    }
    let store = options().open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.page_mut(page).unwrap()[0] = 2;
    assert_eq!(txn.commit(Durability::Sync).unwrap(), Seq::new(2));
}

#[test]
fn a_transaction_of_many_parts_keeps_to_the_cap() {
    let (_temp, dir) = dir();
    let options = Store::options().memory(1 << 20).journal_bytes(4 << 20).page_size(16 << 10);
    let store = options.open(&dir).unwrap();
    let payload = vec![7; store.payload_size()];
    let mut max = 0;
    for pages in (8..=256).step_by(8) {
        let mut txn = store.begin_write().unwrap();
        let first = txn.allocate_run(pages).unwrap();
        let mut all = PageNo::each(first..first + pages);
        let written = all.try_for_each(|page| txn.write(page, &payload)).and_then(|()| txn.check_size());
        let committed = txn.commit(Durability::Sync);
        assert_eq!(written.is_ok(), committed.is_ok(), "{pages} pages: {written:?}, {committed:?}");
        match committed {
            Ok(_) => max = pages,
            Err(error) => assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error}"),
        }
        let stat = store.stats();
        assert!(stat.journal_bytes <= stat.max_journal_bytes, "{stat:?}");
    }
    assert!((100..250).contains(&max), "{max}");
}

#[test]
fn a_write_transaction_goes_from_one_thread_to_another() {
    let (_temp, dir) = dir();
    let store = Store::options().memory(1 << 20).journal_bytes(64 << 10).open(&dir).unwrap();
    let counted = |store: &Store| store.begin_read().unwrap().read(PageNo::new(0)).unwrap()[0];
    let mut txn = store.begin_write().unwrap();
    txn.allocate().unwrap();
    txn.commit(Durability::Sync).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..10 {
                    let mut txn = store.begin_write().unwrap();
                    txn.page_mut(PageNo::new(0)).unwrap()[0] += 1;
                    std::thread::scope(|inner| {
                        inner.spawn(move || txn.commit(Durability::None).unwrap());
                    });
                }
            });
        }
    });
    assert_eq!(counted(&store), 40);
}

#[test]
fn a_transaction_with_a_share_of_the_store_keeps_it_open() {
    let (_temp, dir) = dir();
    let store = Arc::new(Store::options().memory(8 << 20).open(&dir).unwrap());
    let mut txn = store.begin_write_owned().unwrap();
    let page = txn.allocate().unwrap();
    txn.commit(Durability::Sync).unwrap();

    let before = store.begin_read_owned().unwrap();
    let mut txn = store.begin_write_owned().unwrap();
    txn.page_mut(page).unwrap()[0] = 7;
    drop(store);
    // Both continue when nobody else has the store, and keep it locked.
    let open = |dir: &PathBuf| Store::options().memory(8 << 20).open(dir);
    assert!(matches!(open(&dir), Err(Error::Io(pagekeeper_io::Error::Locked { .. }))));
    let writer = std::thread::spawn(move || txn.commit(Durability::None));
    assert_eq!(writer.join().unwrap().unwrap(), Seq::new(2));
    assert_eq!((before.seq().get(), before.read(page).unwrap()[0]), (1, 0));
    assert!(matches!(open(&dir), Err(Error::Io(pagekeeper_io::Error::Locked { .. }))));
    drop(before);

    // The last of them closed it, so that its commits are durable.
    let store = Arc::new(open(&dir).unwrap());
    assert_eq!(store.begin_read().unwrap().read(page).unwrap()[0], 7);
    // A dropped one gives back its run, and the next one does not wait for it.
    let len = std::fs::metadata(dir.join("data")).unwrap().len();
    let mut given_up = store.begin_write_owned().unwrap();
    given_up.allocate_run(100_000).unwrap();
    drop(given_up);
    assert_eq!(std::fs::metadata(dir.join("data")).unwrap().len(), len);
    let last = store.begin_write_owned().unwrap();
    drop(store);
    drop(last);
    open(&dir).unwrap().close().unwrap();
}

#[test]
fn a_thread_does_not_wait_for_its_own_transaction() {
    let (_temp, dir) = dir();
    let store = Arc::new(Store::options().memory(4 << 20).journal_bytes(1 << 20).open(&dir).unwrap());
    let open = store.begin_write().unwrap();
    assert!(matches!(store.begin_write(), Err(Error::OwnTransaction)));
    assert!(matches!(store.begin_write_owned(), Err(Error::OwnTransaction)));
    assert!(matches!(store.compact(), Err(Error::OwnTransaction)));
    assert!(matches!(store.try_begin_write(), Err(Error::WriteTimeout)));
    let short = Duration::from_millis(1);
    assert!(matches!(store.begin_write_timeout(short), Err(Error::WriteTimeout)));
    assert!(matches!(store.begin_write_owned_timeout(short), Err(Error::WriteTimeout)));
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(matches!(store.try_begin_write(), Err(Error::WriteTimeout))));
    });
    drop(open);
    drop(store.try_begin_write().unwrap());
    store.begin_write().unwrap().commit(Durability::Sync).unwrap();
}

#[test]
fn a_transaction_that_another_thread_ends_is_waited_for() {
    let (_temp, dir) = dir();
    let store = Arc::new(Store::options().memory(4 << 20).journal_bytes(1 << 20).open(&dir).unwrap());
    for round in 0..4 {
        let mut txn = store.begin_write_owned().unwrap();
        txn.allocate().unwrap();
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            txn.commit(Durability::None).unwrap()
        });
        let next = match round {
            0 => store.begin_write(),
            1 => store.begin_write_owned(),
            2 => store.begin_write_timeout(Duration::MAX),
            _ => store.begin_write_owned_timeout(Duration::from_secs(600)),
        };
        drop(next.unwrap());
        assert_eq!(later.join().unwrap(), Seq::new(round + 1));
    }
}

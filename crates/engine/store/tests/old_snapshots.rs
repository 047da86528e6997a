//! Snapshots that are kept for long: their pages move to disk, up to a limit; a full or failing
//! disk ends the oldest of them, and nothing else.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_simdisk::{Persistence, SimDisk};
use pagekeeper_store::{Durability, Error, PageNo, ReadTxn, Store, StoreOptions};

const PAGES: u64 = 600;

fn small() -> StoreOptions {
    Store::options().memory(1 << 20).journal_bytes(1 << 20).warm(false)
}

/// Writes this number to all pages.
fn write_all(store: &Store, round: u64) {
    for first in (0..PAGES).step_by(50) {
        let mut txn = store.begin_write().unwrap();
        if txn.pages() < PAGES {
            txn.allocate_run(PAGES).unwrap();
        }
        let mut payload = vec![3; store.payload_size()];
        for page in first..first + 50 {
            payload[..8].copy_from_slice(&(round * PAGES + page).to_le_bytes());
            txn.write(PageNo::new(page), &payload).unwrap();
        }
        txn.commit(Durability::Sync).unwrap();
    }
}

fn has_round(read: &ReadTxn<'_>, round: u64) {
    for page in 0..PAGES {
        let found = read.read(PageNo::new(page)).unwrap();
        assert_eq!(found[..8], (round * PAGES + page).to_le_bytes(), "page {page} of round {round}");
    }
}

fn on(disk: &SimDisk) -> Store {
    small().io(Arc::new(disk.clone())).without_threads().open(Path::new("/store")).unwrap()
}

#[test]
fn they_read_the_same_however_much_is_committed() {
    let temp = pagekeeper_testing::disk_dir();
    let dir = temp.path().join("store");
    let store = small().open(&dir).unwrap();
    let mut kept = Vec::new();
    for round in 0..12 {
        write_all(&store, round);
        if round % 3 == 0 {
            kept.push((round, store.begin_read().unwrap()));
        }
        for (round, read) in &kept {
            has_round(read, *round);
        }
        has_round(&store.begin_read().unwrap(), round);
    }
    store.sync().unwrap();
    let stats = store.stats();
    assert!(stats.snapshot_bytes > 2 * PAGES * 4096 / 2, "{stats:?}");
    assert!(stats.unapplied_bytes <= 256 << 10, "{stats:?}");
    assert!(!std::fs::read_dir(&dir).unwrap().any(|entry| entry.unwrap().file_name() == "versions"));
    // Ended from the middle: the others keep theirs, and places are used again.
    kept.remove(1);
    write_all(&store, 12);
    store.sync().unwrap();
    for (round, read) in &kept {
        has_round(read, *round);
    }
    assert!(store.stats().snapshot_bytes <= stats.snapshot_bytes);
    drop(kept);
    write_all(&store, 13);
    store.sync().unwrap();
    assert_eq!(store.stats().snapshot_bytes, 0);
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn at_the_limit_the_oldest_ends() {
    let disk = SimDisk::new();
    let options = small().io(Arc::new(disk)).without_threads().snapshot_bytes(PAGES * 4096);
    let store = options.open(Path::new("/store")).unwrap();
    let mut kept = Vec::new();
    for round in 0..6 {
        write_all(&store, round);
        kept.push(store.begin_read().unwrap());
        store.sync().unwrap();
        assert!(store.stats().snapshot_bytes <= PAGES * 4096);
    }
    let ended = |read: &ReadTxn<'_>| matches!(read.read(PageNo::new(0)), Err(Error::SnapshotTooOld));
    let number = kept.iter().take_while(|read| ended(read)).count();
    assert!((3..5).contains(&number), "{number}");
    for (round, read) in (0..).zip(&kept).skip(number) {
        has_round(read, round);
    }
}

#[test]
fn on_a_full_disk_the_oldest_ends_and_commits_go_on() {
    let disk = SimDisk::new();
    let store = on(&disk);
    write_all(&store, 0);
    store.sync().unwrap();
    let old = store.begin_read().unwrap();
    // The journal and the data file have their room.
    disk.fill_up_at(0);
    for round in 1..5 {
        write_all(&store, round);
    }
    store.sync().unwrap();
    assert!(matches!(old.read(PageNo::new(0)), Err(Error::SnapshotTooOld)));
    has_round(&store.begin_read().unwrap(), 4);
    disk.make_room();
    let old = store.begin_read().unwrap();
    for round in 5..8 {
        write_all(&store, round);
    }
    store.sync().unwrap();
    has_round(&old, 4);
}

#[test]
fn a_checkpoint_that_lacks_space_takes_theirs() {
    let disk = SimDisk::new();
    let store = on(&disk);
    write_all(&store, 0);
    let old = store.begin_read().unwrap();
    write_all(&store, 1);
    store.sync().unwrap();
    assert!(store.stats().snapshot_bytes > 0);
    // A run gets its space when its pages are written.
    let mut txn = store.begin_write().unwrap();
    let first = txn.allocate_run(PAGES).unwrap();
    txn.write(first, &vec![1; store.payload_size()]).unwrap();
    txn.commit(Durability::Sync).unwrap();
    disk.fill_up_at(0);
    assert_eq!(store.sync().unwrap_err().errno(), Some(libc::ENOSPC));
    assert_eq!(store.stats().snapshot_bytes, 0);
    assert!(matches!(old.read(PageNo::new(0)), Err(Error::SnapshotTooOld)));
    disk.make_room();
    store.sync().unwrap();
    has_round(&store.begin_read().unwrap(), 1);
}

#[test]
fn a_power_cut_leaves_nothing_of_them() {
    let disk = SimDisk::new();
    let store = on(&disk);
    write_all(&store, 0);
    let old = store.begin_read().unwrap();
    (1..4).for_each(|round| write_all(&store, round));
    store.sync().unwrap();
    has_round(&old, 0);
    for (nth, persistence) in (0..).zip(Persistence::ALL) {
        let after = disk.after_power_cut(persistence, nth);
        let store = on(&after);
        has_round(&store.begin_read().unwrap(), 3);
        let old = store.begin_read().unwrap();
        (4..7).for_each(|round| write_all(&store, round));
        store.sync().unwrap();
        has_round(&old, 3);
    }
}

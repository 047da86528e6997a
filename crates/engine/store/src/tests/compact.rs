//! Compactions: what is removed, what stays, and crashes at random during them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Io};
use pagekeeper_simdisk::{Persistence, SimDisk, Times, WriteFault};
use pagekeeper_testing::{Seed, expect_found};

use super::life::{Made, OF_A_LIFE, crashes, life};
use super::world::{Setting, dir};
use crate::injected_fault::InjectedFault;
use crate::{Durability, Error, PageNo, Store, StoreOptions};

const COMPACTING: Setting = Setting { compacts: true, ..Setting::SMALL };

fn options(disk: &SimDisk) -> StoreOptions {
    Store::options().journal_bytes(256 << 10).io(Arc::new(disk.clone())).without_threads().warm(false)
}

fn open(disk: &SimDisk) -> Store {
    options(disk).open(dir()).unwrap()
}

fn bytes(disk: &SimDisk) -> u64 {
    disk.open(&dir().join("data"), Access::Direct).unwrap().stat().unwrap().size
}

/// Makes a store of this many pages, each with its number, of which some are free.
fn store_of(disk: &SimDisk, pages: u64, is_free: impl Fn(u64) -> bool) -> Store {
    let store = open(disk);
    let mut txn = store.begin_write().unwrap();
    for page in 0..pages {
        let allocated = txn.allocate().unwrap();
        assert_eq!(allocated.get(), page);
        txn.page_mut(allocated).unwrap()[..8].copy_from_slice(&page.to_le_bytes());
    }
    txn.commit(Durability::Sync).unwrap();
    free(&store, (0..pages).filter(|page| is_free(*page)));
    store
}

fn free(store: &Store, pages: impl Iterator<Item = u64>) {
    let mut txn = store.begin_write().unwrap();
    pages.for_each(|page| txn.free(PageNo::new(page)).unwrap());
    txn.commit(Durability::Sync).unwrap();
}

fn is_sound(store: &Store) {
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{found}");
}

#[test]
fn free_pages_at_the_end_are_cut_off_and_allocation_begins_low() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 700, |page| page >= 20 && page != 100);
    let before = bytes(&disk);
    let found = store.compact().unwrap();
    assert_eq!((found.pages_before, found.pages, found.seq.get()), (700, 101, 3));
    assert_eq!((bytes(&disk), found.cut), (101 * 4096, before - 101 * 4096));
    // Pages 20 to 99, except the trunk.
    assert_eq!(found.given_back, Some(79 * 4096));
    let stat = store.stats();
    assert_eq!((stat.pages, stat.free_pages, stat.checkpoint_seq.get()), (101, 80, 3));
    is_sound(&store);
    let again = store.compact().unwrap();
    assert_eq!((again.pages, again.cut, again.given_back, again.seq.get()), (101, 0, Some(0), 3));

    drop(store);
    let store = open(&disk.after_power_cut(Persistence::None, 0));
    is_sound(&store);
    let read = store.begin_read().unwrap();
    assert_eq!(read.read(PageNo::new(100)).unwrap()[..8], 100_u64.to_le_bytes());
    drop(read);
    // The lowest pages first, the trunk last, and none twice.
    let mut txn = store.begin_write().unwrap();
    let allocated: Vec<_> = (0..81).map(|_| txn.allocate().unwrap()).collect();
    let expected: Vec<_> = (21..100).chain([20, 101]).map(PageNo::new).collect();
    assert_eq!(allocated, expected);
    txn.commit(Durability::Sync).unwrap();
    is_sound(&store);
}

#[test]
fn a_store_of_free_pages_alone_becomes_empty() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 1200, |_| true);
    assert_eq!(store.compact().unwrap().pages, 0);
    assert_eq!((bytes(&disk), store.stats().free_pages), (0, 0));
    let mut txn = store.begin_write().unwrap();
    assert_eq!(txn.allocate_run(5).unwrap(), PageNo::new(0));
    txn.commit(Durability::Sync).unwrap();
    let read = store.begin_read().unwrap().read(PageNo::new(3));
    assert!(matches!(read, Err(Error::NeverWritten { .. })), "{read:?}");
    is_sound(&store);
}

/// The page reads as never written, but stays unallocated.
#[test]
fn writers_cannot_use_a_page_that_was_cut_off() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 60, |page| (10..50).contains(&page));
    let refuse = |store: &Store| {
        let payload = vec![1; store.payload_size()];
        let mut txn = store.begin_write().unwrap();
        for page in (12..50).map(PageNo::new) {
            assert!(matches!(txn.write(page, &payload), Err(Error::NotAllocated { .. })), "page {page}");
            assert!(matches!(txn.page_mut(page), Err(Error::NotAllocated { .. })));
            assert!(matches!(txn.read(page), Err(Error::NotAllocated { .. })));
            assert!(matches!(txn.free(page), Err(Error::NotAllocated { .. })), "page {page} is freed twice");
        }
        // Checks that a never-written run does not count as cut-off pages.
        let first = txn.allocate_run(2).unwrap();
        txn.commit(Durability::Sync).unwrap();
        let mut txn = store.begin_write().unwrap();
        txn.write(first, &payload).unwrap();
        txn.free(first + 1).unwrap();
        txn.commit(Durability::Sync).unwrap();
    };
    store.compact().unwrap();
    refuse(&store);
    store.close().unwrap();
    let store = open(&disk);
    refuse(&store);
    is_sound(&store);
}

/// Remains behind the previous end are not pages of a later run either, whatever a crash left
/// there.
#[test]
fn old_bytes_behind_the_end_are_not_pages_of_a_later_run() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 40, |page| page >= 10);
    store.sync().unwrap();
    // The commit is made, but the file cannot be cut.
    let from = disk.ops();
    drop(store);
    for cut in 0..60 {
        let disk = disk.after_kill();
        let store = open(&disk);
        disk.cut_power_at(disk.ops() + cut);
        let is_whole = store.compact().is_ok();
        let found = disk.after_power_cut(Persistence::All, cut);
        drop(store);
        let store = open(&found);
        let mut txn = store.begin_write().unwrap();
        let (pages, first) = (txn.pages(), txn.allocate_run(20).unwrap());
        assert_eq!(first.get(), pages);
        txn.commit(Durability::Sync).unwrap();
        let read = store.begin_read().unwrap();
        for page in PageNo::each(first..first + 20) {
            assert!(matches!(read.read(page), Err(Error::NeverWritten { .. })), "page {page}, cut at {cut}");
        }
        drop(read);
        is_sound(&store);
        if is_whole {
            assert!(cut > 12, "a compaction has more operations, {from}");
            return;
        }
    }
    panic!("a compaction has fewer operations");
}

/// The compacting process is killed. The cut part is missing at the next opening, and reappears
/// after a power cut.
#[test]
fn pages_cut_off_by_a_killed_compaction_do_not_reappear() {
    for cut in 0.. {
        let disk = SimDisk::new();
        let store = store_of(&disk, 50, |page| page >= 10);
        disk.cut_power_at(disk.ops() + cut);
        let is_whole = store.compact().is_ok();
        let disk = disk.after_kill();
        drop(store);
        open(&disk).compact().unwrap();
        let disk = disk.after_power_cut(Persistence::None, 0);
        let store = open(&disk);
        let mut txn = store.begin_write().unwrap();
        assert_eq!(txn.allocate_run(30).unwrap(), PageNo::new(10));
        txn.commit(Durability::Sync).unwrap();
        let read = store.begin_read().unwrap();
        for page in (10..40).map(PageNo::new) {
            let found = read.read(page);
            assert!(matches!(found, Err(Error::NeverWritten { .. })), "cut at {cut}: {:?}", found.map(drop));
        }
        is_sound(&store);
        if is_whole {
            assert!(cut > 10, "a compaction is more than {cut} operations");
            return;
        }
    }
}

#[test]
fn open_snapshots_keep_their_view_during_a_compaction() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 60, |_| false);
    store.sync().unwrap();
    let read = store.begin_read().unwrap();
    free(&store, 5..60);
    store.sync().unwrap();
    assert_eq!(store.compact().unwrap().pages, 5);
    store.drop_cached();
    for page in 0..60_u64 {
        assert_eq!(read.read(PageNo::new(page)).unwrap()[..8], page.to_le_bytes());
    }
    // Until their pages belong to another run.
    let mut txn = store.begin_write().unwrap();
    txn.allocate_run(50).unwrap();
    txn.commit(Durability::Sync).unwrap();
    assert!(matches!(read.read(PageNo::new(30)), Err(Error::SnapshotTooOld)));
    drop(read);
    let read = store.begin_read().unwrap();
    assert!(matches!(read.read(PageNo::new(30)), Err(Error::NeverWritten { .. })));
}

#[test]
fn backups_and_repairs_of_a_compacted_store_are_complete() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 60, |page| page == 3);
    free(&store, (20..40).chain(50..60));
    // The page map has the free pages.
    store.sync().unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.page_mut(PageNo::new(0)).unwrap()[9] = 1;
    txn.commit(Durability::Sync).unwrap();
    let before = store.stats().seq;
    let (seq, _) = store.core().drop_free_end().unwrap();
    assert_eq!((seq, store.stats().pages), (before + 1, 50));
    let mut txn = store.begin_write().unwrap();
    txn.allocate_run(10).unwrap();
    txn.commit(Durability::Sync).unwrap();
    let read = store.begin_read().unwrap();
    assert!(matches!(read.read(PageNo::new(55)), Err(Error::NeverWritten { .. })));
    drop(read);
    is_sound(&store);

    assert_eq!(store.compact().unwrap().given_back, Some(20 * 4096));
    let copy = Path::new("/copy");
    store.backup(copy).unwrap();
    let (pages, free) = (store.stats().pages, store.stats().free_pages);
    store.close_and_sync().unwrap();
    let saved = Path::new("/saved");
    let found = options(&disk).repair(dir(), saved).unwrap();
    assert!(found.is_complete(), "{found:?}");
    assert_eq!((found.free_pages, found.never_written), (free, 10));
    for dir in [copy, saved] {
        let store = options(&disk).open(dir).unwrap();
        assert_eq!((store.stats().pages, store.stats().free_pages), (pages, free));
        is_sound(&store);
    }
}

/// A kill between the commit that gives pages up and the checkpoint: their journal entries must not
/// be recovered.
#[test]
fn pages_behind_the_last_one_are_not_counted() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 30, |page| page >= 20);
    store.core().drop_free_end().unwrap();
    let unapplied = store.stats().unapplied_pages;
    store.close().unwrap();
    let store = options(&disk).open(dir()).unwrap();
    let named = store.inspect(PageNo::new(0)..PageNo::new(store.stats().pages)).unwrap();
    let in_journal = named.iter().filter(|info| !info.applied).count() as u64;
    let (pages, counted) = (store.stats().pages, store.stats().opening.pages);
    assert_eq!((pages, counted, store.stats().unapplied_pages), (20, 20, 20));
    assert_eq!((in_journal, unapplied), (20, 20));
}

/// Checks that a page is allocated again, and that a full disk fails only that transaction.
#[test]
fn freed_space_is_allocated_again_before_the_commit() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 60, |page| (10..50).contains(&page));
    store.compact().unwrap();
    disk.inject_all(WriteFault::Allocate(libc::ENOSPC), Times::Once);
    let mut txn = store.begin_write().unwrap();
    assert_eq!(txn.allocate().unwrap_err().errno(), Some(libc::ENOSPC));
    // The failed transaction leaks no page.
    assert_eq!(txn.allocate().unwrap(), PageNo::new(11));
    txn.commit(Durability::Sync).unwrap();
    is_sound(&store);
}

#[test]
fn a_store_that_is_read_only_or_damaged_is_not_compacted() {
    let disk = SimDisk::new();
    let store = store_of(&disk, 60, |page| page > 30);
    store.close_and_sync().unwrap();
    let store = options(&disk).read_only(true).open(dir()).unwrap();
    assert!(matches!(store.compact(), Err(Error::ReadOnly)));
    drop(store);
    let file = disk.open_writable(&dir().join("data"), Access::Direct, Create::Never).unwrap();
    let rot = pagekeeper_io::AlignedBuf::new(4096);
    file.write_at(31 * 4096, &rot, pagekeeper_io::WriteMode::Plain).unwrap();
    let store = open(&disk);
    let before = store.stats();
    assert!(matches!(store.compact(), Err(Error::Damaged { page, .. }) if page.get() == 31));
    assert_eq!((store.stats().pages, store.stats().seq), (before.pages, before.seq));
}

#[test]
fn random_crashes_during_compactions_lose_nothing() {
    let seed = Seed::new();
    let made = Made::like(COMPACTING);
    for which in 0..crashes(10_000).div_ceil(OF_A_LIFE) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| life(&seed, which, &made, None))) {
            eprintln!("life {which}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn faults_of_a_compaction_are_found() {
    let (seed, made) = (Seed(12), Made::like(COMPACTING));
    let faults = [(InjectedFault::CompactedBeforeCheckpoint, 8), (InjectedFault::HolesUnknownToTheMap, 288)];
    expect_found(2000, &faults, |fault, which| {
        life(&seed, which, &made, Some(fault));
    });
}

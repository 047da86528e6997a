//! Journals of another size: the result of an opening, and what is left if it is interrupted at any
//! of its operations.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Io};
use pagekeeper_simdisk::{Damage, Persistence, SimDisk};

use super::world::dir;
use crate::injected_fault::InjectedFault;
use crate::{Durability, Error, PageNo, Store, StoreOptions};

const SMALL_JOURNAL_BYTES: u64 = 64 << 10;
const LARGE_JOURNAL_BYTES: u64 = 256 << 10;
/// More operations than an opening that resizes has.
const MANY: u64 = 400;

fn options(disk: &SimDisk) -> StoreOptions {
    Store::options().memory(1 << 20).warm(false).io(Arc::new(disk.clone())).without_threads()
}

fn commits(store: &Store, commits: usize) {
    (0..commits).for_each(|_| commit(store));
}

/// Adds 1 to each of some pages, which a first commit makes.
fn commit(store: &Store) {
    let mut txn = store.begin_write().unwrap();
    for page in (0..5).map(PageNo::new) {
        if txn.pages() == page.get() {
            txn.allocate().unwrap();
        }
        let payload = txn.page_mut(page).unwrap();
        (payload[0], payload[4000]) = (payload[0].wrapping_add(1), payload[4000].wrapping_add(1));
    }
    txn.commit(Durability::Sync).unwrap();
}

fn has_all(store: &Store, commits: u8) {
    assert_eq!(store.stats().seq.get(), u64::from(commits));
    let read = store.begin_read().unwrap();
    for page in (0..5).map(PageNo::new) {
        let payload = read.read(page).unwrap();
        assert_eq!((payload[0], payload[4000]), (commits, commits), "page {page}");
    }
}

fn is_sound(store: &Store) {
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{found}");
}

fn journals(disk: &SimDisk) -> Vec<String> {
    let names = disk.list(dir()).unwrap().into_iter().filter_map(|name| name.into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("journal")).collect();
    names.sort();
    names
}

/// Makes a disk with a store of seven commits, of which the data file has four.
fn made() -> SimDisk {
    let disk = SimDisk::new();
    let store =
        options(&disk).journal_bytes(SMALL_JOURNAL_BYTES).background_apply(false).open(dir()).unwrap();
    commits(&store, 4);
    store.sync().unwrap();
    commits(&store, 3);
    drop(store);
    disk.after_kill()
}

#[test]
fn an_opening_resizes_the_journal_only_if_a_size_is_given() {
    let disk = made();
    let store = options(&disk).journal_bytes(LARGE_JOURNAL_BYTES).open(dir()).unwrap();
    assert_eq!((store.stats().max_journal_bytes, store.stats().opening.commits), (LARGE_JOURNAL_BYTES, 3));
    has_all(&store, 7);
    assert_eq!(journals(&disk), ["journal.2"]);
    commit(&store);
    drop(store);

    let disk = disk.after_power_cut(Persistence::None, 0);
    let store = options(&disk).open(dir()).unwrap();
    assert_eq!(store.stats().max_journal_bytes, LARGE_JOURNAL_BYTES);
    has_all(&store, 8);
    commit(&store);
    store.close().unwrap();

    let store = options(&disk).journal_bytes(SMALL_JOURNAL_BYTES).open(dir()).unwrap();
    assert_eq!(
        (store.stats().max_journal_bytes, journals(&disk)),
        (SMALL_JOURNAL_BYTES, vec!["journal".to_owned()])
    );
    has_all(&store, 9);
    // More than the ring takes at once.
    commits(&store, 200);
    is_sound(&store);
}

#[test]
fn reading_changes_no_journal() {
    let disk = made();
    let before = disk.ops();
    let store = options(&disk).journal_bytes(LARGE_JOURNAL_BYTES).read_only(true).open(dir()).unwrap();
    assert_eq!(store.stats().max_journal_bytes, SMALL_JOURNAL_BYTES);
    has_all(&store, 7);
    drop(store);
    assert_eq!((disk.ops(), journals(&disk)), (before, vec!["journal".to_owned()]));
}

#[test]
fn a_journal_that_takes_no_page_is_refused_before_anything_is_changed() {
    let disk = SimDisk::new();
    let of_64_kib = || options(&disk).memory(8 << 20).page_size(64 << 10);
    of_64_kib().journal_bytes(1 << 20).open(dir()).unwrap().close().unwrap();
    let before = disk.ops();
    let refused = of_64_kib().journal_bytes(SMALL_JOURNAL_BYTES).open(dir()).unwrap_err();
    assert!(
        matches!(refused, Error::Setting { what: "a journal", given: SMALL_JOURNAL_BYTES, .. }),
        "{refused}"
    );
    assert_eq!(disk.ops(), before);
    assert_eq!(of_64_kib().open(dir()).unwrap().stats().max_journal_bytes, 1 << 20);
}

/// Returns the disk after the power was cut at an operation of the opening; `None` if the opening
/// had finished before.
fn cut_at(at: u64, bug: Option<InjectedFault>) -> Option<SimDisk> {
    let disk = made();
    disk.cut_power_at(disk.ops() + at);
    let mut options = options(&disk).journal_bytes(LARGE_JOURNAL_BYTES);
    options.injected_fault = bug;
    options.open(dir()).is_err().then_some(disk)
}

/// Checks that an opening reads everything, and that the store takes commits.
fn is_whole(disk: &SimDisk, journal_bytes: Option<u64>) {
    let before = disk.ops();
    has_all(&options(disk).read_only(true).open(dir()).unwrap(), 7);
    assert_eq!(disk.ops(), before, "it was to be read only");
    let options = options(disk);
    let options = if let Some(bytes) = journal_bytes { options.journal_bytes(bytes) } else { options };
    let store = options.open(dir()).unwrap();
    has_all(&store, 7);
    if let Some(bytes) = journal_bytes {
        assert_eq!(store.stats().max_journal_bytes, bytes);
    }
    assert_eq!(journals(disk).len(), 1);
    commit(&store);
    drop(store);
    let store = self::options(&disk.after_power_cut(Persistence::None, 1)).open(dir()).unwrap();
    has_all(&store, 8);
    is_sound(&store);
}

fn any_cut_leaves_all(bug: Option<InjectedFault>) {
    let mut cuts = 0;
    while let Some(disk) = cut_at(cuts, bug) {
        for (seed, persistence) in [
            Persistence::None,
            Persistence::All,
            Persistence::Random,
            Persistence::Torn,
            Persistence::TornGarbage,
        ]
        .into_iter()
        .enumerate()
        {
            let wanted = [None, Some(LARGE_JOURNAL_BYTES), Some(SMALL_JOURNAL_BYTES)][seed % 3];
            is_whole(&disk.after_power_cut(persistence, seed as u64 + cuts), wanted);
        }
        is_whole(&disk.after_kill(), None);
        cuts += 1;
    }
    assert!((30..MANY).contains(&cuts), "{cuts} operations");
}

#[test]
fn a_power_cut_at_any_operation_leaves_one_journal_or_the_other() {
    any_cut_leaves_all(None);
}

/// The slot is not corrupted by the power cut: the disk has lost it later.
#[test]
fn one_rotten_slot_of_the_superblock_after_any_cut_is_survived() {
    let mut cuts = 0;
    while let Some(cut) = cut_at(cuts, None) {
        for slot in 0..2 {
            let disk = cut.after_power_cut(Persistence::All, cuts);
            let range = slot * 4096..slot * 4096 + 8;
            disk.damage(dir().join("superblock"), &Damage::Unreadable(range)).unwrap();
            let store = options(&disk).open(dir()).unwrap();
            has_all(&store, 7);
            is_sound(&store);
        }
        cuts += 1;
    }
    assert!(cuts > 30, "{cuts} operations");
}

#[test]
fn a_device_that_is_full_at_any_operation_costs_no_commit() {
    let mut kept = 0;
    for at in 0..MANY {
        let disk = made();
        disk.fill_up_at(disk.ops() + at);
        let store = options(&disk).journal_bytes(LARGE_JOURNAL_BYTES).open(dir()).unwrap();
        has_all(&store, 7);
        let bytes = store.stats().max_journal_bytes;
        drop(store);
        kept += u32::from(bytes == SMALL_JOURNAL_BYTES);
        disk.make_room();
        let store = options(&disk).journal_bytes(LARGE_JOURNAL_BYTES).open(dir()).unwrap();
        assert_eq!(
            (store.stats().max_journal_bytes, journals(&disk).len()),
            (LARGE_JOURNAL_BYTES, 1),
            "full at {at}"
        );
        has_all(&store, 7);
        if bytes == LARGE_JOURNAL_BYTES {
            assert!(kept > 3, "it was full too late to matter");
            return;
        }
    }
    panic!("an opening has fewer operations than that");
}

#[test]
fn an_error_at_any_operation_costs_no_commit() {
    for at in 0..MANY {
        let disk = made();
        disk.fail_operation_at(disk.ops() + at, libc::EIO);
        let is_done = options(&disk).journal_bytes(LARGE_JOURNAL_BYTES).open(dir()).is_ok_and(|store| {
            has_all(&store, 7);
            store.stats().max_journal_bytes == LARGE_JOURNAL_BYTES && journals(&disk).len() == 1
        });
        let disk = disk.after_kill();
        disk.heal_all();
        is_whole(&disk, None);
        if is_done && at > 60 {
            return;
        }
    }
    panic!("an opening has fewer operations than that");
}

#[test]
fn a_repair_takes_the_journal_that_counts() {
    let mut cuts = 0;
    while let Some(cut) = cut_at(cuts, None) {
        let disk = cut.after_power_cut(Persistence::All, cuts);
        let lost = disk.after_kill();
        let file = lost.open_writable(&dir().join("superblock"), Access::Direct, Create::Never).unwrap();
        file.write_at(0, &pagekeeper_io::AlignedBuf::new(8192), pagekeeper_io::WriteMode::Plain).unwrap();
        for disk in [disk, lost] {
            let to = Path::new("/saved");
            options(&disk).repair(dir(), to).unwrap();
            let store = options(&disk).open(to).unwrap();
            let read = store.begin_read().unwrap();
            assert!((0..5).all(|page| read.read(PageNo::new(page)).unwrap()[0] == 7), "cut at {cuts}");
        }
        cuts += 1;
    }
}

#[test]
fn faults_of_a_resize_are_found() {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let bugs = [InjectedFault::ResizedBeforeCheckpoint, InjectedFault::OldJournalGoneFirst];
    let found = bugs.map(|bug| catch_unwind(AssertUnwindSafe(|| any_cut_leaves_all(Some(bug)))).is_err());
    set_hook(hook);
    assert_eq!(found, [true; 2]);
}

//! A flipped bit in the journal. If it destroys acknowledged commits, the store is refused, and
//! never opened without them. Otherwise it is opened, and the damage is reported. On a simulated
//! disk.

mod common;

use common::{commit, dir};
use std::sync::Arc;

use pagekeeper_io::{Access, Io};
use pagekeeper_simdisk::{Damage, Persistence, SimDisk};
use pagekeeper_store::{Error, PageNo, Store, StoreOptions};
use pagekeeper_wal::{Lsn, RedoLog};

const FILES: u64 = 4;

fn options(disk: &SimDisk) -> StoreOptions {
    common::options(disk, 1 << 20)
}

fn ring(disk: &SimDisk) -> Vec<Vec<u8>> {
    let read = |file: u64| {
        let path = dir().join(format!("journal/redo.{file:03}"));
        let file = disk.open(&path, Access::Buffered).unwrap();
        let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    };
    (0..FILES).map(read).collect()
}

/// Commits, and returns the changed bytes of the journal, each with the number of its file.
fn commit_and_find(disk: &SimDisk, store: &Store) -> Vec<(u64, u64)> {
    let before = ring(disk);
    commit(store);
    let mut changed = Vec::new();
    for (file, (before, after)) in (0..).zip(before.iter().zip(ring(disk))) {
        let places = (0..).zip(before.iter().zip(after)).filter(|(_, (before, after))| **before != *after);
        changed.extend(places.map(|(at, _)| (file, at)));
    }
    assert!(changed.len() > 30, "a record has more bytes than {changed:?}");
    changed
}

/// Checks that with any of these bits flipped the store is refused, for writing and read-only, and
/// left as it is.
fn each_flip_is_refused(made: &SimDisk, places: &[(u64, u64)]) {
    for (number, (file, at)) in (0..).zip(places) {
        let disk = made.after_power_cut(Persistence::All, 0);
        let path = dir().join(format!("journal/redo.{file:03}"));
        disk.damage(path, &Damage::Bit { at: *at, bit: number % 8 }).unwrap();
        let rotten = ring(&disk);
        for read_only in [false, true] {
            let error = options(&disk).read_only(read_only).open(dir()).map(drop).unwrap_err();
            let is_said =
                matches!(error, Error::Journal(_) | Error::Corrupt { .. } | Error::UnknownVersion { .. });
            assert!(is_said, "byte {at} of file {file}: {error}");
        }
        assert!(ring(&disk) == rotten, "something was written");
    }
}

/// Divides the places into those in records, and those in padding.
fn of_records_and_padding(disk: &SimDisk, places: Vec<(u64, u64)>) -> [Vec<(u64, u64)>; 2] {
    let len = ring(disk)[0].len() as u64;
    let log = RedoLog::options().io(Arc::new(disk.clone())).read_only(true);
    let (_, records) = log.recover(dir().join("journal"), None).unwrap();
    // None of these journals has wrapped around.
    let is_of_record = |(file, at): &(u64, u64)| {
        records.iter().any(|record| (record.lsn..record.end).contains(&Lsn::new(file * len + at)))
    };
    let (records, padding) = places.into_iter().partition(is_of_record);
    [records, padding]
}

/// Checks that with any of these bits flipped the store opens with all its commits, takes more, and
/// reports the damage.
fn each_flip_is_named(made: &SimDisk, places: &[(u64, u64)]) {
    let seq = options(made).read_only(true).open(dir()).unwrap().stats().seq;
    assert!(!places.is_empty());
    for (number, (file, at)) in (0..).zip(places) {
        let disk = made.after_power_cut(Persistence::All, 0);
        let path = dir().join(format!("journal/redo.{file:03}"));
        disk.damage(path, &Damage::Bit { at: *at, bit: number % 8 }).unwrap();
        let store = options(&disk).open(dir()).unwrap();
        let found = store.verify().unwrap();
        let named = format!("/store/journal/redo.{file:03}: the padding at byte ");
        assert!(found.faults == 1 && found.named[0].starts_with(&named), "byte {at}: {found}");
        commit(&store);
        store.close_and_sync().unwrap();
        let store = options(&disk).open(dir()).unwrap();
        assert_eq!(store.stats().seq, seq + 1);
        // Overwritten, or given up.
        let found = store.verify().unwrap();
        assert!(found.is_sound(), "byte {at}: {found}");
    }
}

/// A store opens although any byte of its journal that no commit needs is damaged.
#[test]
fn damage_that_no_commit_needs_does_not_prevent_opening() {
    let options = |disk: &SimDisk| common::options(disk, 64 << 10);
    for synced in [false, true] {
        let disk = SimDisk::new();
        let store = options(&disk).open(dir()).unwrap();
        (0..3).for_each(|_| commit(&store));
        if synced {
            store.close_and_sync().unwrap();
        } else {
            store.close().unwrap();
        }
        // Three groups, and a block behind them; of zeros, which most of it is, one in sixteen.
        let bytes = ring(&disk).swap_remove(0);
        let places = (0..4 * 4096_u64).zip(bytes).filter(|(at, byte)| *byte != 0 || at.is_multiple_of(16));
        let all = places.map(|(at, _)| (0, at)).collect();
        let [records, others] = of_records_and_padding(&disk, all);
        assert_eq!(records.is_empty(), synced);
        for (_, at) in others {
            let flip = || disk.damage("/store/journal/redo.000", &Damage::Bit { at, bit: 5 }).unwrap();
            flip();
            let store = options(&disk).read_only(true).open(dir()).unwrap();
            assert_eq!(store.stats().seq.get(), 3, "byte {at}");
            assert_eq!(store.begin_read().unwrap().read(PageNo::new(0)).unwrap()[0], 3, "byte {at}");
            drop(store);
            flip();
        }
        for at in (0..2 * 4096).step_by(31) {
            let flip = || disk.damage("/store/journal/control", &Damage::Bit { at, bit: 1 }).unwrap();
            flip();
            let found = options(&disk).read_only(true).open(dir()).unwrap().verify().unwrap();
            assert!(found.faults <= 1, "byte {at}: {found}");
            flip();
        }
    }
}

#[test]
fn a_flipped_bit_in_the_last_group_of_a_closed_store_is_refused_or_loses_nothing() {
    for synced in [false, true] {
        let disk = SimDisk::new();
        let store = options(&disk).open(dir()).unwrap();
        (0..5).for_each(|_| commit(&store));
        if synced {
            store.sync().unwrap();
        }
        let last = commit_and_find(&disk, &store);
        store.close().unwrap();
        let [record, padding] = of_records_and_padding(&disk, last);
        each_flip_is_refused(&disk, &record);
        each_flip_is_named(&disk, &padding);
    }
}

/// A killed store is opened and closed without a commit. Its old commits are then as safe as new
/// ones.
#[test]
fn a_flipped_bit_in_the_last_group_of_a_killed_store_that_was_opened_and_closed_is_refused_or_loses_nothing()
{
    let disk = SimDisk::new();
    let store = options(&disk).open(dir()).unwrap();
    (0..5).for_each(|_| commit(&store));
    let last = commit_and_find(&disk, &store);
    let killed = disk.after_kill();
    drop(store);
    for close in [true, false] {
        let disk = killed.after_kill();
        // This takes no room, however often it happens.
        for _ in 0..300 {
            let store = options(&disk).open(dir()).unwrap();
            assert_eq!(store.stats().opening.commits, 6);
            if close {
                store.close().unwrap();
            }
        }
        let [record, padding] = of_records_and_padding(&disk, last.clone());
        each_flip_is_refused(&disk, &record);
        each_flip_is_named(&disk, &padding);
        let store = options(&disk).open(dir()).unwrap();
        (0..100).for_each(|_| commit(&store));
        store.close_and_sync().unwrap();
        assert_eq!(options(&disk).open(dir()).unwrap().stats().seq.get(), 106);
    }
}

#[test]
fn a_flipped_bit_in_the_first_record_behind_an_opening_loses_nothing_in_silence() {
    for closed in [false, true] {
        let disk = SimDisk::new();
        let store = options(&disk).open(dir()).unwrap();
        (0..20).for_each(|_| commit(&store));
        if closed {
            store.close().unwrap();
        } else {
            std::mem::forget(store);
        }
        let disk = disk.after_kill();
        let store = options(&disk).open(dir()).unwrap();
        assert_eq!(store.stats().seq.get(), 20);
        let first = commit_and_find(&disk, &store);
        (0..80).for_each(|_| commit(&store));
        assert_eq!(store.stats().checkpoint_seq.get(), 0, "all of it is in the journal alone");
        let disk = disk.after_kill();
        each_flip_is_refused(&disk, &first);
    }
}

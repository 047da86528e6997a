//! A bit of the journal that is another one than was written: what it takes with it was acknowledged, so that the store is refused, and
//! never opened without it. On a simulated disk.

mod common;

use common::{commit, dir};
use pagekeeper_io::{Access, Damage, Io, Persistence, SimDisk};
use pagekeeper_store::{Error, Store, StoreOptions};

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

/// A commit, and the bytes of the journal that it changed, each with the number of its file.
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

/// With any of these bits flipped the store is refused, to write and to read only, and left as it is.
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

#[test]
fn a_flipped_bit_in_the_last_group_of_a_closed_store_is_refused() {
    for synced in [false, true] {
        let disk = SimDisk::new();
        let store = options(&disk).open(dir()).unwrap();
        (0..5).for_each(|_| commit(&store));
        if synced {
            store.sync().unwrap();
        }
        let last = commit_and_find(&disk, &store);
        store.close().unwrap();
        each_flip_is_refused(&disk, &last);
    }
}

/// A store that was killed is closed by whoever opened it and committed nothing: what it had is as safe then as what was committed since.
#[test]
fn a_flipped_bit_in_the_last_group_of_a_killed_store_that_was_opened_and_closed_is_refused() {
    let disk = SimDisk::new();
    let store = options(&disk).open(dir()).unwrap();
    (0..5).for_each(|_| commit(&store));
    let last = commit_and_find(&disk, &store);
    let killed = disk.after_kill();
    drop(store);
    for close in [true, false] {
        let disk = killed.after_kill();
        // However often that happens it takes up no room.
        for _ in 0..300 {
            let store = options(&disk).open(dir()).unwrap();
            assert_eq!(store.stat().opening.commits, 6);
            if close {
                store.close().unwrap();
            }
        }
        each_flip_is_refused(&disk, &last);
        let store = options(&disk).open(dir()).unwrap();
        (0..100).for_each(|_| commit(&store));
        store.close_and_sync().unwrap();
        assert_eq!(options(&disk).open(dir()).unwrap().stat().seq, 106);
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
        assert_eq!(store.stat().seq, 20);
        let first = commit_and_find(&disk, &store);
        (0..80).for_each(|_| commit(&store));
        assert_eq!(store.stat().checkpoint_seq, 0, "all of it is in the journal alone");
        let disk = disk.after_kill();
        each_flip_is_refused(&disk, &first);
    }
}

//! Openings that change nothing write nothing: of a closed store, of one that was only read, and of
//! one that cannot be opened. On a simulated disk.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Io, WriteMode};
use pagekeeper_simdisk::{Fault, SimDisk, Times};
use pagekeeper_store::{Durability, Error, PageNo, Store, StoreOptions};

const PAGES: u64 = 40;

fn dir() -> &'static Path {
    Path::new("/store")
}

/// Returns options with the background thread and the warm set.
fn options(disk: &SimDisk) -> StoreOptions {
    Store::options().io(Arc::new(disk.clone())).memory(1 << 20).journal_bytes(64 << 10)
}

/// Makes a store with 40 pages, all in the data file.
fn made() -> SimDisk {
    let disk = SimDisk::new();
    let store = options(&disk).open(dir()).unwrap();
    for _ in 0..PAGES / 8 {
        let mut txn = store.begin_write().unwrap();
        let first = txn.allocate_run(8).unwrap();
        PageNo::each(first..first + 8)
            .for_each(|page| txn.write(page, &vec![7; store.payload_size()]).unwrap());
        txn.commit(Durability::Sync).unwrap();
    }
    store.close_and_sync().unwrap();
    disk.after_kill()
}

/// Returns the number of operations on the disk except syncs: writes, and changes of lengths and
/// names.
fn changes(disk: &SimDisk) -> u64 {
    disk.ops() - disk.stats().syncs
}

/// Returns the warm set.
fn note(disk: &SimDisk) -> Option<Vec<u8>> {
    let file = disk.open(&dir().join("warm"), Access::Buffered).ok()?;
    let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    Some(bytes)
}

#[test]
fn a_store_that_is_opened_and_closed_again_is_left_as_it_is() {
    for (threads, noted) in [(false, false), (true, true), (false, true), (true, false)] {
        let disk = made();
        if !noted {
            disk.remove(dir().join("warm")).unwrap();
        }
        let before = note(&disk);
        for close in 0..3 {
            let options = if threads { options(&disk) } else { options(&disk).without_threads() };
            let store = options.open(dir()).unwrap();
            assert_eq!(store.begin_read().unwrap().pages(), PAGES);
            match close {
                0 => store.close().unwrap(),
                1 => store.close_and_sync().unwrap(),
                _ => drop(store),
            }
        }
        assert_eq!((changes(&disk), note(&disk)), (0, before), "threads: {threads}");
    }
}

#[test]
fn reads_alone_write_only_the_residency_note_once() {
    let disk = made();
    disk.remove(dir().join("warm")).unwrap();
    let read = |pages: &[u64]| {
        let (before, note_before) = (changes(&disk), note(&disk));
        let store = options(&disk).without_threads().open(dir()).unwrap();
        let txn = store.begin_read().unwrap();
        for page in pages {
            assert_eq!(txn.read(PageNo::new(*page)).unwrap()[0], 7);
        }
        drop(txn);
        store.close().unwrap();
        (changes(&disk) > before, note(&disk) != note_before)
    };
    assert_eq!(read(&[3, 4, 5, 20]), (true, true));
    // Opening it briefly does not drop pages that others have listed.
    for pages in [&[3, 4, 5, 20][..], &[4], &[]] {
        assert_eq!(read(pages), (false, false), "{pages:?}");
    }
    assert_eq!(read(&[4, 6]), (true, true));
}

/// Makes a store with commits in the data file, and others only in the journal, which was closed or
/// not.
fn with_journal(closed: bool) -> SimDisk {
    let disk = made();
    let store = options(&disk).background_apply(false).without_threads().open(dir()).unwrap();
    for page in 0..6 {
        let mut txn = store.begin_write().unwrap();
        txn.page_mut(PageNo::new(page)).unwrap()[0] = 8;
        txn.commit(Durability::Sync).unwrap();
    }
    if closed {
        store.close().unwrap();
    }
    disk.after_kill()
}

/// Returns the files of a store except the warm set, with their content.
fn content(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = ["superblock", "data", "map", "journal/control"].map(str::to_owned);
    let ring = (0..4).map(|file| format!("journal/redo.{file:03}"));
    let read = |name: String| {
        let file = disk.open(&dir().join(&name), Access::Buffered).unwrap();
        let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        (name, bytes)
    };
    names.into_iter().chain(ring).map(read).collect()
}

/// Runs more openings than the journal has epochs or room for, and checks that each fails in this
/// way.
fn all_fail(disk: &SimDisk, is_expected: impl Fn(&Error) -> bool) {
    let before = changes(disk);
    for turn in 0..300 {
        let options = if turn % 10 == 0 { options(disk) } else { options(disk).without_threads() };
        let error = options.open(dir()).map(drop).unwrap_err();
        assert!(is_expected(&error), "{error}");
    }
    assert_eq!(changes(disk), before, "something was written");
}

/// Checks that everything is there, and that the journal has its room.
fn goes_on(disk: &SimDisk) {
    let store = options(disk).without_threads().open(dir()).unwrap();
    let read = store.begin_read().unwrap();
    for page in 0..PAGES {
        assert_eq!(read.read(PageNo::new(page)).unwrap()[0], if page < 6 { 8 } else { 7 }, "page {page}");
    }
    drop(read);
    for round in 0..100_u8 {
        let mut txn = store.begin_write().unwrap();
        txn.write(PageNo::new(u64::from(round) % PAGES), &vec![round; store.payload_size()]).unwrap();
        txn.commit(Durability::Sync).unwrap();
    }
    assert!(store.verify().unwrap().is_sound());
    store.close().unwrap();
}

#[test]
fn openings_that_fail_for_a_disk_that_can_not_be_read_use_nothing_up() {
    for closed in [false, true] {
        for name in ["superblock", "journal/control", "journal/redo.000"] {
            let disk = with_journal(closed);
            let before = content(&disk);
            disk.inject(dir().join(name), 0..u64::MAX, Fault::EIO, Times::Always).unwrap();
            all_fail(&disk, |error| error.to_string().contains("Input/output error"));
            disk.heal(dir().join(name)).unwrap();
            assert!(content(&disk) == before, "{name}");
            goes_on(&disk);
        }
    }
}

#[test]
fn openings_that_fail_for_a_file_that_was_cut_off_use_nothing_up() {
    for closed in [false, true] {
        for name in ["data", "map"] {
            let disk = with_journal(closed);
            let before = content(&disk);
            let bytes = &before.iter().find(|(of, _)| of == name).unwrap().1;
            disk.truncate(dir().join(name), 4096).unwrap();
            let cut = content(&disk);
            all_fail(&disk, |error| matches!(error, Error::CutOff { found: 4096, .. }));
            assert!(content(&disk) == cut, "{name}");
            // The file is put back.
            let file = disk.open_writable(&dir().join(name), Access::Buffered, Create::Never).unwrap();
            file.write_at(0, bytes, WriteMode::Plain).unwrap();
            file.sync_all().unwrap();
            goes_on(&disk);
        }
    }
}

#[test]
fn failed_openings_of_a_newer_format_use_nothing_up() {
    for closed in [false, true] {
        let disk = with_journal(true);
        let journal = pagekeeper_wal::RedoLog::options().io(Arc::new(disk.clone())).without_threads();
        let (log, _) = journal.recover(dir().join("journal"), None).unwrap();
        let end = log.try_append(&[2; 16]).unwrap();
        log.sync_upto(end).unwrap();
        if closed {
            log.close().unwrap();
        }
        let disk = disk.after_kill();
        let before = content(&disk);
        all_fail(&disk, |error| {
            matches!(error, Error::UnknownVersion { version: 2, known: 1, .. })
                && error.to_string().contains("written by a newer pagekeeper")
        });
        assert!(content(&disk) == before);
    }
}

//! Openings that change nothing write nothing: of a store that was closed, of one that only reads were done in, and of one that can't be
//! opened. On a simulated disk.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, Io, SimDisk};
use pagekeeper_store::{Durability, Store, StoreOptions};

const PAGES: u64 = 40;

fn dir() -> &'static Path {
    Path::new("/store")
}

/// With its thread, and with the note of what is resident.
fn options(disk: &SimDisk) -> StoreOptions {
    Store::options().io(Arc::new(disk.clone())).memory(1 << 20).journal_bytes(64 << 10)
}

/// A store with 40 pages, all in the data file.
fn made() -> SimDisk {
    let disk = SimDisk::new();
    let store = options(&disk).open(dir()).unwrap();
    for _ in 0..PAGES / 8 {
        let mut txn = store.begin().unwrap();
        let first = txn.allocate_run(8).unwrap();
        (first..first + 8).for_each(|page| txn.write(page, &vec![7; store.payload_size()]).unwrap());
        txn.commit(Durability::Sync).unwrap();
    }
    store.close_and_sync().unwrap();
    disk.after_kill()
}

/// What was done to the disk but syncs: writes, changes of lengths and of names.
fn changes(disk: &SimDisk) -> u64 {
    disk.ops() - disk.stats().syncs
}

/// What is noted to be resident.
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
fn of_reads_alone_only_the_note_of_what_is_resident_is_written_and_once() {
    let disk = made();
    disk.remove(dir().join("warm")).unwrap();
    let read = |pages: &[u64]| {
        let (before, note_before) = (changes(&disk), note(&disk));
        let store = options(&disk).without_threads().open(dir()).unwrap();
        let txn = store.begin_read().unwrap();
        for page in pages {
            assert_eq!(txn.read(*page).unwrap()[0], 7);
        }
        drop(txn);
        store.close().unwrap();
        (changes(&disk) > before, note(&disk) != note_before)
    };
    assert_eq!(read(&[3, 4, 5, 20]), (true, true));
    // Whoever has it open for a moment does not forget what others have noted.
    for pages in [&[3, 4, 5, 20][..], &[4], &[]] {
        assert_eq!(read(pages), (false, false), "{pages:?}");
    }
    assert_eq!(read(&[4, 6]), (true, true));
}

//! Written data that is lost, or in an older state: reads, `verify` or the opening detect it, and
//! it is never mistaken for the right data. On a simulated disk.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, AlignedBuf, Create, Io, WriteMode};
use pagekeeper_simdisk::{SimDisk, Times, WriteFault};
use pagekeeper_store::{Durability, Error, PageNo, Store, StoreOptions};

const PAGE: u64 = 4096;
const PAGES: u64 = 6;

fn dir() -> &'static Path {
    Path::new("/store")
}

fn options(disk: &SimDisk) -> StoreOptions {
    Store::options().io(Arc::new(disk.clone())).memory(1 << 20).warm(false).without_threads()
}

fn write_all(store: &Store, byte: u8) {
    let mut txn = store.begin_write().unwrap();
    if txn.pages() == 0 {
        // The last one is never written.
        txn.allocate_run(PAGES + 1).unwrap();
    }
    (0..PAGES).for_each(|page| txn.write(PageNo::new(page), &vec![byte; store.payload_size()]).unwrap());
    txn.commit(Durability::Sync).unwrap();
}

/// Makes a store that was closed with everything in the data file; each page was written twice.
fn disk() -> SimDisk {
    let disk = SimDisk::new();
    let store = options(&disk).open(dir()).unwrap();
    for byte in [1, 2] {
        write_all(&store, byte);
        store.sync().unwrap();
    }
    store.close_and_sync().unwrap();
    disk
}

fn write(disk: &SimDisk, name: &str, at: u64, bytes: &[u8]) {
    let file = disk.open_writable(&dir().join(name), Access::Direct, Create::Never).unwrap();
    let mut aligned = AlignedBuf::new(bytes.len());
    aligned.copy_from_slice(bytes);
    file.write_at(at, &aligned, WriteMode::Plain).unwrap();
    file.sync_all().unwrap();
}

fn read(disk: &SimDisk, name: &str, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = AlignedBuf::new(len);
    disk.open(&dir().join(name), Access::Direct).unwrap().read_at(at, &mut bytes).unwrap();
    bytes.to_vec()
}

/// Checks that a reader and `verify` refuse page 3 with these words, and that all other pages are
/// right.
fn is_found(store: &Store, said: &str) {
    let found = store.verify().unwrap();
    assert!(found.faults == 1 && found.named[0].contains(said), "{said}: {found}");
    let read = store.begin_read().unwrap();
    for page in 0..PAGES {
        match read.read(PageNo::new(page)) {
            Ok(found) => assert!(page != 3 && found[0] == 2, "page {page}: {said}"),
            Err(error) => assert!(page == 3 && error.to_string().contains(said), "{said}: {error}"),
        }
    }
    assert!(matches!(read.read(PageNo::new(PAGES)), Err(Error::NeverWritten { .. })));
    drop(read);
    // A page that is written again is right again.
    let mut txn = store.begin_write().unwrap();
    txn.write(PageNo::new(3), &vec![2; store.payload_size()]).unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    let found = store.verify().unwrap();
    assert!(found.is_sound(), "{said}: {found}");
}

#[test]
fn a_write_that_was_lost_or_went_elsewhere_is_found() {
    for (fault, said) in [
        (WriteFault::Lost, "of commit 1, but not what was written there last"),
        (WriteFault::Misdirected { to: PAGES * PAGE }, "of commit 1, but not what was written there last"),
    ] {
        let disk = SimDisk::new();
        let store = options(&disk).open(dir()).unwrap();
        write_all(&store, 1);
        store.sync().unwrap();
        let mut txn = store.begin_write().unwrap();
        (0..PAGES).filter(|page| *page != 3).for_each(|page| {
            txn.write(PageNo::new(page), &vec![2; store.payload_size()]).unwrap();
        });
        txn.commit(Durability::Sync).unwrap();
        let mut txn = store.begin_write().unwrap();
        txn.write(PageNo::new(3), &vec![2; store.payload_size()]).unwrap();
        txn.commit(Durability::Sync).unwrap();
        disk.inject("/store/data", 3 * PAGE..4 * PAGE, fault, Times::Once).unwrap();
        // With so little memory each page is a write of its own. The misdirected write lands on the
        // page that was never written.
        store.sync().unwrap();
        store.close_and_sync().unwrap();
        let store = options(&disk).open(dir()).unwrap();
        let found = store.verify().unwrap();
        let (elsewhere, lost): (Vec<_>, Vec<_>) =
            found.named.iter().partition(|fault| fault.contains(&format!("page {PAGES} ")));
        assert!(lost.len() == 1 && lost.iter().all(|fault| fault.contains(said)), "{found}");
        assert_eq!(elsewhere.len(), usize::from(fault != WriteFault::Lost), "{found}");
        let read = store.begin_read().unwrap();
        assert!(matches!(read.read(PageNo::new(3)), Err(Error::Damaged { page, .. }) if page.get() == 3));
    }
}

#[test]
fn a_page_that_is_old_blank_or_of_no_commit_is_found() {
    let made = disk();
    let zeros = vec![0; 4096];
    // As page 3 was after commit 1.
    let older = {
        let disk = SimDisk::new();
        let store = options(&disk).open(dir()).unwrap();
        write_all(&store, 1);
        store.close_and_sync().unwrap();
        let mut page = read(&disk, "data", 3 * PAGE, 4096);
        let id = read(&made, "data", 0, 4096)[24..32].to_vec();
        page[24..32].copy_from_slice(&id);
        reseal(&mut page);
        page
    };
    let mut newer = read(&made, "data", 3 * PAGE, 4096);
    newer[16..24].copy_from_slice(&9_u64.to_le_bytes());
    reseal(&mut newer);
    for (bytes, said) in [
        (&zeros, "it was written, and is all zeros"),
        (&older, "of commit 1, but not what was written there last"),
        (&newer, "of commit 9, but not what was written there last"),
    ] {
        let disk = made.after_power_cut(pagekeeper_simdisk::Persistence::All, 0);
        write(&disk, "data", 3 * PAGE, bytes);
        is_found(&options(&disk).open(dir()).unwrap(), said);
    }
    // Also if memory has the right page.
    let disk = made.after_power_cut(pagekeeper_simdisk::Persistence::All, 0);
    let store = options(&disk).open(dir()).unwrap();
    assert_eq!(store.begin_read().unwrap().read(PageNo::new(3)).unwrap()[0], 2);
    write(&disk, "data", 3 * PAGE, &zeros);
    is_found(&store, "it was written, and is all zeros");
}

/// The journal lost its end after a checkpoint had written pages, and the map does not cover them.
#[test]
fn a_page_of_a_lost_commit_is_told_from_a_later_one() {
    let disk = disk();
    for place in 0..2 {
        write(&disk, "map", place * 4096, &[7; 4096]);
    }
    let mut newer = read(&disk, "data", 3 * PAGE, 4096);
    newer[16..24].copy_from_slice(&4_u64.to_le_bytes());
    reseal(&mut newer);
    write(&disk, "data", 3 * PAGE, &newer);
    let store = options(&disk).open(dir()).unwrap();
    let said = "commits were lost";
    let error = store.begin_read().unwrap().read(PageNo::new(3)).unwrap_err();
    assert!(matches!(&error, Error::Damaged { page, .. } if page.get() == 3), "{error}");
    assert!(error.to_string().contains(said), "{error}");
    let found = store.verify().unwrap();
    assert_eq!(found.named.iter().filter(|fault| fault.contains(said)).count(), 1, "{found}");
    // Writing it as a whole makes it right again.
    let mut txn = store.begin_write().unwrap();
    txn.write(PageNo::new(3), &vec![5; store.payload_size()]).unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    assert_eq!(store.begin_read().unwrap().read(PageNo::new(3)).unwrap()[0], 5);
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_commit_of_a_newer_version_in_the_journal_is_reported() {
    let disk = disk();
    let journal = pagekeeper_wal::RedoLog::options().io(Arc::new(disk.clone())).without_threads();
    let (log, _) = journal.recover(dir().join("journal"), None).unwrap();
    let end = log.try_append(&[2; 16]).unwrap();
    log.sync_upto(end).unwrap();
    log.close().unwrap();
    let error = options(&disk).open(dir()).map(drop).unwrap_err();
    assert!(matches!(error, Error::UnknownVersion { version: 2, known: 1, .. }), "{error}");
}

fn reseal(page: &mut [u8]) {
    let crc = crc32c::crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_file_that_was_cut_off_is_not_opened_and_not_made_longer() {
    for (name, len) in [("data", 0), ("data", 3 * PAGE), ("data", PAGES * PAGE), ("map", 0), ("map", 4096)] {
        let disk = disk();
        let file = disk.open_writable(&dir().join(name), Access::Direct, Create::Never).unwrap();
        file.set_len(len).unwrap();
        file.sync_all().unwrap();
        let error = options(&disk).open(dir()).map(drop).unwrap_err();
        assert!(matches!(error, Error::CutOff { found, .. } if found == len), "{name}: {error}");
        assert!(
            error.to_string().ends_with("save what can be saved by `pagekeeper store repair`"),
            "{error}"
        );
        assert_eq!(file.stat().unwrap().size, len, "{name}");
    }
}

#[test]
fn one_place_of_the_page_map_may_be_lost_and_both_hide_no_page() {
    let made = disk();
    for places in [&[0][..], &[1], &[0, 1]] {
        for how in [&[0_u8; 4096][..], &[7; 4096]] {
            let disk = made.after_power_cut(pagekeeper_simdisk::Persistence::All, 0);
            for place in places {
                write(&disk, "map", place * 4096, how);
            }
            let is_blank = places.len() == 2 && how[0] == 0;
            let store = options(&disk).open(dir()).unwrap();
            let found = store.verify().unwrap();
            assert_eq!(found.is_sound(), places.len() == 1, "{places:?}: {found}");
            let read = store.begin_read().unwrap();
            for page in 0..PAGES {
                match read.read(PageNo::new(page)) {
                    Ok(found) => assert!(found[0] == 2 && !is_blank),
                    Err(error) => {
                        assert!(is_blank && error.to_string().contains("was never written"), "{error}");
                    }
                }
            }
            drop(read);
            write_all(&store, 3);
            store.close_and_sync().unwrap();
            let store = options(&disk).open(dir()).unwrap();
            let found = store.verify().unwrap();
            assert!(found.is_sound(), "{places:?}: {found}");
            assert_eq!(store.begin_read().unwrap().read(PageNo::new(3)).unwrap()[0], 3);
        }
    }
}

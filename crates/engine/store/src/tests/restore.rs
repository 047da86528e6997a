//! Restoring: the store made from a backup has everything that the backup has, or it is not a
//! store. The backup is unchanged.

use std::path::{Path, PathBuf};

use pagekeeper_io::{Access, AlignedBuf, Create as CreateFile, Io, WriteMode};
use pagekeeper_simdisk::{Persistence, SimDisk};

use super::backup::{PAGE, commit, content, dir, is_whole, made, open, options, reopened, to};
use super::disk::Meanwhile;
use crate::{Backup, Create, Durability, Error, PageNo, Store};

fn at(name: &str) -> PathBuf {
    Path::new("/copies").join(name)
}

fn bytes(disk: &SimDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, Access::Buffered).unwrap();
    let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn restore(disk: &SimDisk, backup: &str, to: &Path) -> Result<Backup, Error> {
    options(disk, &Meanwhile::default()).restore(at(backup), to)
}

/// Makes a store with a backup, "base".
fn backed_up() -> (SimDisk, Store) {
    let (disk, store, _) = reopened(&made());
    store.backup(at("base")).unwrap();
    (disk, store)
}

/// Backs the store up as it is, and restores the backup.
fn is_restored_as_it_is(disk: &SimDisk, store: &Store, what: &str) {
    let (full, restored) = (at(&format!("full-{what}")), at(&format!("restored-{what}")));
    store.backup(&full).unwrap();
    let made = options(disk, &Meanwhile::default()).restore(&full, &restored).unwrap();
    assert_eq!((made.seq, made.pages), (store.stats().seq, store.stats().pages), "{what}");
    assert!(bytes(disk, &full.join("data")) == bytes(disk, &restored.join("data")), "{what}");
    let disk = disk.after_power_cut(Persistence::None, 1);
    let opened = open(&disk, &restored).unwrap();
    assert!(content(&opened) == content(store), "{what}");
    let verified = opened.verify().unwrap();
    assert!(verified.is_sound(), "{what}: {verified}");
    commit(&opened, [0]);
}

#[test]
fn a_restored_store_is_the_store_as_of_its_backup() {
    let (disk, store) = backed_up();
    commit(&store, [3, 5, 70, 71, 72, 140]);
    let mut txn = store.begin_write().unwrap();
    txn.allocate().unwrap();
    txn.allocate_run(9).unwrap();
    txn.commit(Durability::Sync).unwrap();
    is_restored_as_it_is(&disk, &store, "written");
    // Freed, allocated again, and a new root.
    let mut txn = store.begin_write().unwrap();
    (120..155).for_each(|page| txn.free(PageNo::new(page)).unwrap());
    (20..28).for_each(|page| txn.free(PageNo::new(page)).unwrap());
    txn.commit(Durability::Sync).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.allocate().unwrap();
    txn.set_root(Some(PageNo::new(8)));
    txn.commit(Durability::Sync).unwrap();
    is_restored_as_it_is(&disk, &store, "freed");
    // Fewer pages, and others become holes.
    let mut txn = store.begin_write().unwrap();
    (155..160).for_each(|page| {
        let _ = txn.free(PageNo::new(page));
    });
    txn.commit(Durability::Sync).unwrap();
    let before = store.stats().pages;
    let compaction = store.compact().unwrap();
    assert!(compaction.given_back.unwrap() > 0, "{compaction:?}");
    is_restored_as_it_is(&disk, &store, "compacted");
    // Allocated again, the pages read as never written.
    let mut txn = store.begin_write().unwrap();
    txn.allocate_run(before).unwrap();
    txn.commit(Durability::Sync).unwrap();
    is_restored_as_it_is(&disk, &store, "longer");
}

#[test]
fn an_impossible_restore_is_refused_and_creates_nothing() {
    let (disk, store) = backed_up();
    let expected = content(&store);
    assert!(matches!(restore(&disk, "none", to()), Err(Error::NoStore { .. })));
    assert!(disk.list(to()).is_err());
    let before = bytes(&disk, &at("base/data"));
    for there in [at("base"), dir().to_path_buf()] {
        let error = restore(&disk, "base", &there).unwrap_err();
        assert!(matches!(error, Error::Exists { is_unfinished: false, .. }), "{error}");
    }
    assert!(bytes(&disk, &at("base/data")) == before);
    let file = disk.open_writable(&at("base/data"), Access::Direct, CreateFile::Never).unwrap();
    let (mut page, mut other) = (AlignedBuf::new(4096), AlignedBuf::new(4096));
    file.read_at(13 * PAGE, &mut page).unwrap();
    file.read_at(14 * PAGE, &mut other).unwrap();
    file.write_at(13 * PAGE, &other, WriteMode::Plain).unwrap();
    let error = restore(&disk, "base", to()).unwrap_err();
    assert!(matches!(error, Error::Damaged { page, .. } if page.get() == 13), "{error}");
    assert!(disk.list(to()).is_err());
    file.write_at(13 * PAGE, &page, WriteMode::Plain).unwrap();
    restore(&disk, "base", to()).unwrap();
    is_whole(&disk, &expected, "the whole one");
}

#[test]
fn a_backup_that_was_committed_to_is_restored_as_it_is() {
    let (disk, _) = backed_up();
    let changed = open(&disk, &at("base")).unwrap();
    commit(&changed, [1]);
    let expected = content(&changed);
    changed.close().unwrap();
    assert_eq!(restore(&disk, "base", to()).unwrap().seq, expected.0);
    is_whole(&disk, &expected, "with a commit of its own");
}

#[test]
fn a_store_that_is_read_only_is_backed_up() {
    let (disk, store) = backed_up();
    let expected = content(&store);
    store.close().unwrap();
    let reader = options(&disk, &Meanwhile::default()).read_only(true).open(dir()).unwrap();
    reader.backup(at("two")).unwrap();
    drop(reader);
    assert!(bytes(&disk, &at("two/data")) == bytes(&disk, &at("base/data")));
    restore(&disk, "two", to()).unwrap();
    is_whole(&disk, &expected, "of a store that was read only");
}

#[test]
fn a_full_disk_leaves_no_half_restored_store() {
    let (made, store) = backed_up();
    let expected = content(&store);
    drop(store);
    restore(&made.after_kill(), "base", to()).unwrap();
    let mut refused = 0;
    for full in 0..200 {
        let disk = made.after_kill();
        disk.fill_up_at(disk.ops() + full);
        match restore(&disk, "base", to()) {
            Ok(_) => is_whole(&disk.after_kill(), &expected, "operations that needed no more space"),
            Err(error) => {
                refused += 1;
                assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
                assert!(disk.list(to()).is_err(), "operation {full}");
            }
        }
    }
    assert!(refused > 10);
}

/// The power is cut at each operation, with each persistence pattern.
#[test]
fn a_power_cut_leaves_no_half_restored_store() {
    let (disk, store) = backed_up();
    let expected = content(&store);
    store.close_and_sync().unwrap();
    let made = disk.after_power_cut(Persistence::All, 1);
    let disk = made.after_kill();
    let first = disk.ops();
    restore(&disk, "base", to()).unwrap();
    let last = disk.ops();
    let (mut whole, mut cuts) = (0, 0);
    for cut in first..=last {
        for persistence in Persistence::ALL {
            let disk = made.after_kill();
            disk.cut_power_at(cut);
            let is_made = restore(&disk, "base", to()).is_ok();
            let disk = disk.after_power_cut(persistence, cut);
            let what = format!("power cut at operation {cut}, {persistence:?}");
            cuts += 1;
            let has_some = disk.list(to()).is_ok_and(|names| !names.is_empty());
            let create = if has_some { Create::IfMissing } else { Create::Never };
            match options(&disk, &Meanwhile::default()).create(create).open(to()) {
                Err(Error::NoStore { .. } | Error::Unfinished { .. }) => assert!(!is_made, "{what}"),
                Err(error) => panic!("{what}: {error}"),
                Ok(store) => {
                    drop(store);
                    is_whole(&disk, &expected, &what);
                    whole += 1;
                }
            }
        }
    }
    assert!(whole > 0 && whole < cuts, "{whole} of {cuts}");
}

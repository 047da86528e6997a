//! A store that is opened read-only: complete, on read-only media, beside other readers, and
//! without a byte written.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use pagekeeper_io::Io;
use pagekeeper_simdisk::{Damage, Persistence, SimDisk};
use pagekeeper_store::{Create, Durability, Error, PageNo, Store, StoreOptions};
use pagekeeper_testing::Mounted;

const SLOT_BYTES: u64 = 4096;

fn dir() -> &'static Path {
    Path::new("/store")
}

fn small() -> StoreOptions {
    Store::options().memory(1 << 20).journal_bytes(64 << 10).background_apply(false)
}

fn on(disk: &SimDisk) -> StoreOptions {
    small().io(Arc::new(disk.clone())).warm(false).without_threads()
}

/// Writes `first` to pages 0 to 7; then changes page 0 in part, and page 1 as a whole.
fn fill(store: &Store, first: u8, checkpoint: bool) {
    let mut txn = store.begin_write().unwrap();
    let at = txn.allocate_run(8).unwrap();
    let payload = vec![first; store.payload_size()];
    PageNo::each(at..at + 8).for_each(|page| txn.write(page, &payload).unwrap());
    txn.set_metadata(b"filled").unwrap();
    txn.commit(Durability::Sync).unwrap();
    if checkpoint {
        store.sync().unwrap();
    }
    let mut txn = store.begin_write().unwrap();
    txn.page_mut(PageNo::new(0)).unwrap()[9] = 99;
    txn.write(PageNo::new(1), &vec![98; store.payload_size()]).unwrap();
    txn.commit(Durability::Sync).unwrap();
}

fn is_filled(store: &Store, first: u8) {
    let read = store.begin_read().unwrap();
    assert_eq!((read.seq().get(), read.pages(), read.metadata()), (2, 8, &b"filled"[..]));
    for page in 0..8 {
        let found = read.read(PageNo::new(page)).unwrap();
        let expected = match page {
            0 => [first, 99],
            1 => [98; 2],
            _ => [first; 2],
        };
        assert_eq!(found[8..10], expected, "page {page}");
    }
}

/// Checks that operations that would change the store fail.
fn refuses_changes(store: &Store) {
    assert!(matches!(store.begin_write().map(drop), Err(Error::ReadOnly)));
    assert!(matches!(store.step(), Err(Error::ReadOnly)));
}

#[test]
fn a_read_only_store_shows_the_journal_and_writes_nothing() {
    for (checkpoint, close) in [(false, false), (true, false), (true, true)] {
        let made = SimDisk::new();
        let store = on(&made).open(dir()).unwrap();
        fill(&store, 7, checkpoint);
        let disk = if close {
            store.close_and_sync().unwrap();
            made
        } else {
            made.after_power_cut(Persistence::None, 3)
        };
        disk.fill_up_at(0);
        let operations = disk.ops();
        let stores: Vec<_> = (0..2).map(|_| on(&disk).read_only(true).open(dir()).unwrap()).collect();
        for store in &stores {
            for _ in 0..2 {
                is_filled(store, 7);
            }
            refuses_changes(store);
            assert_eq!(store.sync().is_ok(), close);
            assert!(store.verify().unwrap().is_sound());
            assert_eq!(
                store.stats().opening.commits,
                [2, 1, 0][usize::from(checkpoint) + usize::from(close)]
            );
            assert_eq!(store.inspect(PageNo::new(0)..PageNo::new(8)).unwrap().len(), 8);
        }
        let error = on(&disk).open(dir()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Io(pagekeeper_io::Error::Locked { .. })), "{error}");
        let mut stores = stores.into_iter();
        stores.next().unwrap().close().unwrap();
        drop(stores);
        assert_eq!(disk.ops(), operations, "something was written");
        // As if nobody had read it.
        let store = on(&disk).open(dir()).unwrap();
        is_filled(&store, 7);
    }
}

#[test]
fn beside_a_writer_it_is_refused() {
    let disk = SimDisk::new();
    let store = on(&disk).open(dir()).unwrap();
    fill(&store, 7, false);
    let operations = disk.ops();
    let error = on(&disk).read_only(true).open(dir()).map(drop).unwrap_err();
    assert!(matches!(error, Error::Io(pagekeeper_io::Error::Locked { .. })), "{error}");
    assert_eq!(disk.ops(), operations);
}

#[test]
fn a_missing_store_is_not_created() {
    let disk = SimDisk::new();
    for create in [Create::IfMissing, Create::New, Create::Never] {
        let error = on(&disk).create(create).read_only(true).open(dir()).map(drop).unwrap_err();
        assert!(matches!(error, Error::NoStore { .. }), "{error}");
    }
    Io::create_dir(&disk, dir()).unwrap();
    let operations = disk.ops();
    let error = on(&disk).read_only(true).open(dir()).map(drop).unwrap_err();
    assert!(matches!(error, Error::NoStore { .. }), "{error}");
    assert_eq!(disk.ops(), operations);
}

/// A lost slot costs nothing, but the next one would: `verify` must report it, and a reader must
/// not repair it.
#[test]
fn a_slot_that_is_not_whole_is_a_fault() {
    for (file, said) in
        [("superblock", "superblock, slot"), ("journal/control", "the journal's control file, slot")]
    {
        for slot in 0..2 {
            let at = slot * SLOT_BYTES;
            for damage in [
                Damage::Bit { at: at + 50, bit: 3 },
                Damage::Zeros(at..at + SLOT_BYTES),
                Damage::Unreadable(at..at + 1),
            ] {
                let disk = SimDisk::new();
                let store = on(&disk).open(dir()).unwrap();
                fill(&store, 7, true);
                store.close().unwrap();
                disk.damage(dir().join(file), &damage).unwrap();
                let operations = disk.ops();
                for _ in 0..2 {
                    let store = on(&disk).read_only(true).open(dir()).unwrap();
                    is_filled(&store, 7);
                    let found = store.verify().unwrap();
                    assert_eq!(found.faults, 1, "{file}, {damage:?}: {found}");
                    assert!(found.named[0].starts_with(&format!("{said} {slot}: ")), "{found}");
                }
                assert_eq!(disk.ops(), operations);
            }
        }
    }
}

/// Returns names, bytes and times of everything in a directory.
fn all_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
        if path.is_dir() {
            all.extend(all_of(&path));
            all.push((path, Vec::new(), changed));
        } else {
            all.push((path.clone(), std::fs::read(&path).unwrap(), changed));
        }
    }
    all.sort();
    all
}

#[test]
fn a_full_and_a_read_only_file_system_will_do() {
    let Some(mounted) = Mounted::new("ext4") else { return };
    let dir = mounted.path().join("store");
    let store = small().open(&dir).unwrap();
    fill(&store, 7, true);
    store.close().unwrap();
    // To the last byte.
    let full = mounted.path().join("full");
    let status = Command::new("sh")
        .args([
            "-c",
            "dd if=/dev/zero of=\"$0\" bs=1M 2>/dev/null; dd if=/dev/zero of=\"$0.2\" bs=1 2>/dev/null",
        ])
        .arg(&full)
        .status()
        .unwrap();
    assert!(!status.success(), "it is full");
    let read = || {
        let before = all_of(&dir);
        let store = Store::options().read_only(true).open(&dir).unwrap();
        is_filled(&store, 7);
        refuses_changes(&store);
        assert!(store.verify().unwrap().is_sound());
        store.close().unwrap();
        assert_eq!(all_of(&dir), before);
    };
    read();
    // The store can be opened for writing, too, and takes the commits that fit into the journal.
    let store = small().open(&dir).unwrap();
    is_filled(&store, 7);
    drop(store);
    let status = Command::new("mount").args(["-o", "remount,ro"]).arg(mounted.path()).status().unwrap();
    assert!(status.success());
    read();
    assert_eq!(small().open(&dir).map(drop).unwrap_err().errno(), Some(libc::EROFS));
    // Also without the lock files, as a copy may be.
    let status = Command::new("mount").args(["-o", "remount,rw"]).arg(mounted.path()).status().unwrap();
    assert!(status.success());
    std::fs::remove_file(dir.join("lock")).unwrap();
    std::fs::remove_file(dir.join("journal/lock")).unwrap();
    read();
}

#[test]
fn read_permission_suffices_to_open() {
    if !is_root() {
        return pagekeeper_testing::skip("another user takes root");
    }
    let temp = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = temp.path().join("store");
    let store = small().open(&dir).unwrap();
    fill(&store, 7, false);
    store.close().unwrap();
    let readable = |path: &Path, mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    readable(temp.path(), 0o755);
    for (path, _, _) in all_of(&dir) {
        readable(&path, if path.is_dir() { 0o755 } else { 0o444 });
    }
    let before = all_of(&dir);
    pagekeeper_testing::as_nobody(|| {
        let store = Store::options().read_only(true).without_threads().open(&dir).unwrap();
        is_filled(&store, 7);
        assert!(store.verify().unwrap().is_sound());
    });
    assert_eq!(all_of(&dir), before);
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|of| std::os::unix::fs::MetadataExt::uid(&of) == 0)
}

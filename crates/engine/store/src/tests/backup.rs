//! Backups of an open store: complete and as of one commit, whatever happens meanwhile, or no store
//! at all. The source is unchanged.

use std::path::Path;
use std::sync::{Arc, Mutex};

use pagekeeper_io::{Access, AlignedBuf, Create as CreateFile, Io, WriteMode};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_simdisk::{Persistence, SimDisk};

use super::disk::{Meanwhile, Prompt};
use crate::{Backup, Create, Durability, Error, PageNo, Seq, Store, StoreOptions};

pub(super) const PAGE: u64 = 4096;
pub(super) const PAGES: u64 = 150;
/// The free ones.
const FREE: [u64; 3] = [11, 12, 30];

pub(super) fn dir() -> &'static Path {
    Path::new("/store")
}

pub(super) fn to() -> &'static Path {
    Path::new("/copies/one")
}

pub(super) fn options(disk: &SimDisk, meanwhile: &Meanwhile) -> StoreOptions {
    let io = Arc::new(Prompt::new(disk.clone(), meanwhile.clone()));
    let options = Store::options().io(io).memory(1 << 20).journal_bytes(64 << 10).snapshot_bytes(0);
    options.warm(false).without_threads()
}

/// Makes one more commit, which writes its number to these pages.
pub(super) fn commit(store: &Store, pages: impl IntoIterator<Item = u64>) {
    let mut txn = store.begin_write().unwrap();
    let seq = store.stats().seq.get() + 1;
    for page in pages {
        txn.write(PageNo::new(page), &seq.to_le_bytes().repeat(store.payload_size() / 8)).unwrap();
    }
    txn.set_metadata(&seq.to_le_bytes()).unwrap();
    txn.commit(Durability::Sync).unwrap();
}

/// Makes a store with pages that are applied, only in the journal, free, or never written.
pub(super) fn made() -> SimDisk {
    let disk = SimDisk::builder().by_steps().build();
    disk.create_dir("/copies".as_ref()).unwrap();
    disk.sync_dir("/".as_ref()).unwrap();
    let store = options(&disk, &Meanwhile::default()).open(dir()).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.allocate_run(PAGES).unwrap();
    txn.set_root(Some(PageNo::new(7)));
    txn.commit(Durability::Sync).unwrap();
    (0..PAGES / 10).for_each(|at| commit(&store, at * 10..at * 10 + 8));
    let mut txn = store.begin_write().unwrap();
    for page in FREE {
        txn.free(PageNo::new(page)).unwrap();
    }
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    (0..3).for_each(|page| commit(&store, [page * 20, 147 - page]));
    store.close().unwrap();
    disk
}

pub(super) fn reopened(disk: &SimDisk) -> (SimDisk, Store, Meanwhile) {
    let (disk, meanwhile) = (disk.after_kill(), Meanwhile::default());
    let store = options(&disk, &meanwhile).open(dir()).unwrap();
    (disk, store, meanwhile)
}

pub(super) fn open(disk: &SimDisk, dir: &Path) -> Result<Store, Error> {
    options(disk, &Meanwhile::default()).create(Create::Never).open(dir)
}

/// Everything that a reader sees.
pub(super) type Content = (Seq, Option<PageNo>, Vec<u8>, Vec<Result<Vec<u8>, String>>);

pub(super) fn content(store: &Store) -> Content {
    let read = store.begin_read().unwrap();
    let page =
        |page| read.read(PageNo::new(page)).map(|page| page.to_vec()).map_err(|error| error.to_string());
    (read.seq(), read.root(), read.metadata().to_vec(), (0..read.pages()).map(page).collect())
}

/// What commits changed, in their order: everything that a reader sees after one, or one page.
enum Change {
    All(Content),
    Page(Seq, u64),
}

/// Returns everything that a reader sees after this commit.
fn content_after(changes: &[Change], commit: Seq, page_bytes: usize) -> Content {
    let seq_of = |change: &Change| match change {
        Change::All(content) => content.0,
        Change::Page(seq, _) => *seq,
    };
    let mut content: Option<Content> = None;
    for change in changes.iter().take_while(|change| seq_of(change) <= commit) {
        match (change, &mut content) {
            (Change::All(all), _) => content = Some(all.clone()),
            (Change::Page(seq, page), Some((last, _, metadata, pages))) => {
                let bytes = seq.get().to_le_bytes();
                (*last, *metadata) = (*seq, bytes.to_vec());
                pages[usize::try_from(*page).unwrap()] = Ok(bytes.repeat(page_bytes / bytes.len()));
            }
            (Change::Page(..), None) => panic!("a change of nothing"),
        }
    }
    content.filter(|content| content.0 == commit).expect("of a commit")
}

/// Checks that the store has this content, is valid, and takes commits.
pub(super) fn is_whole(disk: &SimDisk, expected: &Content, what: &str) {
    let store = open(disk, to()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(content(&store) == *expected, "{what}: as of commit {}", store.stats().seq);
    let verified = store.verify().unwrap();
    assert!(verified.is_sound(), "{what}: {verified}");
    assert_eq!(store.stats().opening.commits, 0);
    let mut txn = store.begin_write().unwrap();
    // From the free list.
    assert!(FREE.contains(&txn.allocate().unwrap().get()));
    txn.commit(Durability::Sync).unwrap();
    commit(&store, [0, 149]);
    store.close_and_sync().unwrap();
    let store = open(disk, to()).unwrap();
    assert_eq!((store.stats().seq, store.verify().unwrap().faults), (expected.0 + 2, 0), "{what}");
}

#[test]
fn a_backup_is_the_store_as_it_was() {
    let made = made();
    let (disk, store, _) = reopened(&made);
    let before = content(&store);
    let Backup { seq, pages, snapshots, .. } = store.backup(to()).unwrap();
    assert_eq!((seq, pages, snapshots), (before.0, PAGES, 1));
    assert!(content(&store) == before);
    commit(&store, [3]);
    is_whole(&disk.after_power_cut(Persistence::None, 1), &before, "after a power cut");
    // Pages that were never written take no space.
    let (disk, store, _) = reopened(&made);
    let mut txn = store.begin_write().unwrap();
    txn.allocate_run(1 << 20).unwrap();
    txn.commit(Durability::Sync).unwrap();
    assert!(store.backup(to()).unwrap().bytes < 2 << 20);
    assert_eq!(open(&disk, to()).unwrap().stats().pages, PAGES + (1 << 20));
}

#[test]
fn commits_and_checkpoints_continue_beside_a_backup() {
    let made = made();
    let mut most = 0;
    for many in [0, 1, 7, 40, 80] {
        let (disk, store, meanwhile) = reopened(&made);
        let store = Arc::new(store);
        let changes = Arc::new(Mutex::new(vec![Change::All(content(&store))]));
        // As many as can run beside the first writes of the backup.
        let (beside, kept, mut left) = (Arc::clone(&store), Arc::clone(&changes), 6);
        meanwhile.set(move || {
            if left == 0 || many == 0 {
                return;
            }
            left -= 1;
            for round in 0..3 {
                let from = (left * 31 + round * 17) % (PAGES - many);
                for page in from..from + many {
                    // One of the free pages stays as it is.
                    if !FREE.contains(&page) {
                        commit(&beside, [page]);
                        lock(&kept).push(Change::Page(beside.stats().seq, page));
                    }
                }
                beside.sync().unwrap();
            }
            let mut txn = beside.begin_write().unwrap();
            txn.allocate_run(70).unwrap();
            txn.commit(Durability::None).unwrap();
            lock(&kept).push(Change::All(content(&beside)));
            let last = beside.stats().pages - 1;
            commit(&beside, [last]);
            lock(&kept).push(Change::All(content(&beside)));
        });
        let backup = store.backup(to()).unwrap();
        meanwhile.clear();
        most = most.max(backup.snapshots);
        let expected = content_after(&lock(&changes), backup.seq, store.payload_size());
        is_whole(
            &disk.after_power_cut(Persistence::None, 1),
            &expected,
            &format!("{many} pages: {backup:?}"),
        );
    }
    assert!(most > 2, "no snapshot was ended");
}

/// During one copy, pages are copied, removed by a compaction, and allocated again without being
/// written.
#[test]
fn pages_that_come_back_beside_a_copy_were_never_written() {
    let (disk, store, meanwhile) = reopened(&made());
    (140..PAGES).for_each(|page| commit(&store, [page]));
    store.sync().unwrap();
    let store = Arc::new(store);
    let states = Arc::new(Mutex::new(vec![content(&store)]));
    let (beside, kept, mut left) = (Arc::clone(&store), Arc::clone(&states), 6);
    meanwhile.set(move || {
        if left == 0 {
            return;
        }
        left -= 1;
        let mut txn = beside.begin_write().unwrap();
        (140..PAGES).for_each(|page| txn.free(PageNo::new(page)).unwrap());
        txn.commit(Durability::Sync).unwrap();
        lock(&kept).push(content(&beside));
        assert_eq!(beside.compact().unwrap().pages, 140);
        lock(&kept).push(content(&beside));
        let mut txn = beside.begin_write().unwrap();
        assert_eq!(txn.allocate_run(PAGES - 140).unwrap(), PageNo::new(140));
        txn.commit(Durability::Sync).unwrap();
        lock(&kept).push(content(&beside));
        let some = (140..PAGES).filter(|page| (page + left) % 2 == 0);
        for page in some.chain((0..100).filter(|page| !FREE.contains(page))) {
            commit(&beside, [page]);
            lock(&kept).push(content(&beside));
        }
        beside.sync().unwrap();
    });
    let made = store.backup(to()).unwrap();
    meanwhile.clear();
    assert!(made.snapshots > 2);
    let states = lock(&states);
    let expected = states.iter().find(|state| state.0 == made.seq).expect("of a commit");
    let copy = open(&disk, to()).unwrap();
    assert!(content(&copy) == *expected);
    let verified = copy.verify().unwrap();
    assert!(verified.is_sound(), "{verified}");
}

#[test]
fn a_backup_of_a_damaged_store_fails_and_leaves_nothing() {
    for (page, name) in [(40, "data"), (13, "data")] {
        let made = made();
        let file = made.open_writable(&dir().join(name), Access::Direct, CreateFile::Never).unwrap();
        let mut bytes = AlignedBuf::new(4096);
        // Page 13 gets the bytes of page 12, and page 40 a flipped bit.
        file.read_at(if page == 40 { 40 } else { 12 } * PAGE, &mut bytes).unwrap();
        bytes[100] ^= u8::from(page == 40);
        file.write_at(page * PAGE, &bytes, WriteMode::Plain).unwrap();
        file.sync_all().unwrap();
        // Page 40 is intact in the journal.
        let (disk, store, _) = reopened(&made);
        if page == 40 {
            store.backup(to()).unwrap();
            continue;
        }
        let error = store.backup(to()).unwrap_err();
        assert!(matches!(error, Error::Damaged { page, .. } if page.get() == 13), "{error}");
        assert!(disk.list("/copies".as_ref()).unwrap().is_empty());
        let all = vec![9; store.payload_size()];
        let mut txn = store.begin_write().unwrap();
        txn.write(PageNo::new(13), &all).unwrap();
        txn.commit(Durability::Sync).unwrap();
        store.backup(to()).unwrap();
    }
}

#[test]
fn existing_files_are_left_alone() {
    let (disk, store, _) = reopened(&made());
    disk.create("/copies/file", *b"a file").unwrap();
    disk.create_dir("/copies/empty".as_ref()).unwrap();
    for name in ["/copies/file", "/copies/empty", "/store"] {
        let error = store.backup(name).unwrap_err();
        assert!(matches!(error, Error::Exists { is_unfinished: false, .. }), "{error}");
    }
    assert_eq!(store.backup("/none/one").unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(disk.list("/copies".as_ref()).unwrap(), ["empty", "file"]);
    assert!(disk.list("/copies/empty".as_ref()).unwrap().is_empty());
    store.backup(to()).unwrap();
    assert!(matches!(store.backup(to()), Err(Error::Exists { .. })));
    is_whole(&disk, &content(&store), "that is there");
}

#[test]
fn a_full_disk_fails_the_backup_alone() {
    let made = made();
    let (disk, store, _) = reopened(&made);
    let first = disk.ops();
    store.backup(to()).unwrap();
    for full in first..disk.ops() {
        let (disk, store, _) = reopened(&made);
        let before = content(&store);
        disk.fill_up_at(full);
        match store.backup(to()) {
            Ok(_) => is_whole(&disk.after_kill(), &before, "operations that needed no more space"),
            Err(error) => {
                assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
                assert!(disk.list("/copies".as_ref()).unwrap().is_empty(), "operation {full}");
            }
        }
        disk.make_room();
        commit(&store, [5]);
        assert!(store.verify().unwrap().is_sound());
    }
}

/// The power is cut at each operation, with each persistence pattern.
#[test]
fn a_power_cut_leaves_the_source_and_no_half_of_a_backup() {
    let made = made();
    let (disk, store, _) = reopened(&made);
    let expected = content(&store);
    let first = disk.ops();
    store.backup(to()).unwrap();
    let last = disk.ops();
    drop(store);
    assert!(last > first + 10);
    let (mut whole, mut cuts) = (0, 0);
    for cut in first..=last {
        for persistence in Persistence::ALL {
            let (disk, store, _) = reopened(&made);
            disk.cut_power_at(cut);
            let is_made = store.backup(to()).is_ok();
            let found = disk.after_power_cut(persistence, cut);
            let killed = disk.after_kill();
            drop(store);
            for (disk, what) in [(&found, "power cut"), (&killed, "kill")] {
                let what = format!("{what} at operation {cut}, {persistence:?}");
                // Its remains are never mistaken for a place where a new store can be made.
                let has_some = disk.list(to()).is_ok_and(|names| !names.is_empty());
                let create = if has_some { Create::IfMissing } else { Create::Never };
                match options(disk, &Meanwhile::default()).create(create).open(to()) {
                    Err(Error::NoStore { .. } | Error::Unfinished { .. }) => assert!(!is_made, "{what}"),
                    Err(error) => panic!("{what}: {error}"),
                    Ok(store) => {
                        drop(store);
                        is_whole(disk, &expected, &what);
                        whole += 1;
                    }
                }
                let store = open(disk, dir()).unwrap();
                assert!(content(&store) == expected, "{what}: the source");
                cuts += 1;
                // It can be made again when its remains are removed.
                match store.backup(to()) {
                    Ok(_) => {}
                    Err(Error::Exists { .. }) => {
                        store.backup("/copies/two").unwrap();
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
    println!("{cuts} crashes, {whole} of them with a whole backup");
    assert!(whole > 0 && whole < cuts);
}

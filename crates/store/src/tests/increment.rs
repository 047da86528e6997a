//! Increments: with the backup before them they are the store as it was, whatever goes on beside; and what is not whole, or does not fit,
//! becomes no store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pagekeeper_io::{Access, AlignedBuf, Create as CreateFile, Io, Persistence, SimDisk, WriteMode};
use pagekeeper_kernel::mutex::lock;

use super::backup::{PAGE, PAGES, commit, content, dir, is_whole, made, open, options, reopened, to};
use super::disk::Meanwhile;
use crate::{Base, Create, Durability, Error, Store};

fn at(name: &str) -> PathBuf {
    Path::new("/copies").join(name)
}

fn bytes(disk: &SimDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, Access::Buffered).unwrap();
    let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn restore(disk: &SimDisk, chain: &[&str], to: &Path) -> Result<crate::Backup, Error> {
    let increments: Vec<_> = chain[1..].iter().map(|name| at(name)).collect();
    options(disk, &Meanwhile::default()).restore(&at(chain[0]), &increments, to)
}

/// A store with a backup, "base", and what the increments after that are to have.
fn begun() -> (SimDisk, Store, Base) {
    let (disk, store, _) = reopened(&made());
    let base = store.backup(&at("base")).unwrap().base();
    (disk, store, base)
}

/// The same with an increment, "first": pages written, allocated and given back since.
fn with_one() -> (SimDisk, Store, Base) {
    let (disk, store, base) = begun();
    commit(&store, [3, 5, 70, 71, 72, 140]);
    let mut txn = store.begin().unwrap();
    txn.allocate().unwrap();
    txn.allocate_run(9).unwrap();
    txn.commit(Durability::Sync).unwrap();
    let base = store.backup_since(&base, &at("first")).unwrap().base();
    (disk, store, base)
}

/// The restored store is one like a backup made now.
fn is_like_a_backup(disk: &SimDisk, store: &Store, chain: &[&str]) {
    let (full, restored) = (at(&format!("full-{}", chain.len())), at(&format!("restored-{}", chain.len())));
    store.backup(&full).unwrap();
    let made = restore(disk, chain, &restored).unwrap();
    assert_eq!((made.seq, made.pages), (store.stat().seq, store.stat().pages), "{chain:?}");
    assert!(bytes(disk, &full.join("data")) == bytes(disk, &restored.join("data")), "{chain:?}");
    let disk = disk.after_power_cut(Persistence::None, 1);
    let opened = open(&disk, &restored).unwrap();
    assert!(content(&opened) == content(store), "{chain:?}");
    let verified = opened.verify().unwrap();
    assert!(verified.is_sound(), "{chain:?}: {verified}");
    commit(&opened, [0]);
}

#[test]
fn a_chain_is_the_store_as_of_its_last_increment() {
    let (disk, store, _) = with_one();
    is_like_a_backup(&disk, &store, &["base", "first"]);
    let base = options(&disk, &Meanwhile::default()).base(&at("first")).unwrap();
    // Freed, taken again, and a new root.
    let mut txn = store.begin().unwrap();
    (120..155).for_each(|page| txn.free(page).unwrap());
    (20..28).for_each(|page| txn.free(page).unwrap());
    txn.commit(Durability::Sync).unwrap();
    let mut txn = store.begin().unwrap();
    txn.allocate().unwrap();
    txn.set_root(Some(8));
    txn.commit(Durability::Sync).unwrap();
    let base = store.backup_since(&base, &at("two")).unwrap().base();
    is_like_a_backup(&disk, &store, &["base", "first", "two"]);
    // Fewer pages, and others become holes.
    let mut txn = store.begin().unwrap();
    (155..160).for_each(|page| {
        let _ = txn.free(page);
    });
    txn.commit(Durability::Sync).unwrap();
    let before = store.stat().pages;
    let compaction = store.compact().unwrap();
    assert!(compaction.given_back.unwrap() > 0, "{compaction:?}");
    let base = store.backup_since(&base, &at("three")).unwrap().base();
    is_like_a_backup(&disk, &store, &["base", "first", "two", "three"]);
    // They come back as such that were never written.
    let mut txn = store.begin().unwrap();
    txn.allocate_run(before).unwrap();
    txn.commit(Durability::Sync).unwrap();
    let base = store.backup_since(&base, &at("four")).unwrap().base();
    is_like_a_backup(&disk, &store, &["base", "first", "two", "three", "four"]);
    // Nothing at all.
    let empty = store.backup_since(&base, &at("five")).unwrap();
    assert_eq!((empty.since, empty.seq, empty.pages), (base.seq, base.seq, 0));
    is_like_a_backup(&disk, &store, &["base", "first", "two", "three", "four", "five"]);
    assert_eq!(bytes(&disk, &at("five")).len() as u64, empty.bytes);
}

#[test]
fn pages_that_a_compaction_took_away_are_gone_from_what_is_restored() {
    let (disk, store, base) = begun();
    let mut txn = store.begin().unwrap();
    (100..PAGES).filter(|page| page % 10 < 8 || *page > 140).for_each(|page| {
        let _ = txn.free(page);
    });
    txn.commit(Durability::Sync).unwrap();
    for page in 100..PAGES {
        let mut txn = store.begin().unwrap();
        if txn.write(page, &vec![1; store.payload_size()]).is_ok() {
            txn.commit(Durability::Sync).unwrap();
            let mut txn = store.begin().unwrap();
            txn.free(page).unwrap();
            txn.commit(Durability::Sync).unwrap();
        }
    }
    let compaction = store.compact().unwrap();
    assert!(compaction.pages < compaction.pages_before, "{compaction:?}");
    store.backup_since(&base, &at("first")).unwrap();
    is_like_a_backup(&disk, &store, &["base", "first"]);
}

#[test]
fn commits_and_checkpoints_go_on_beside_an_increment() {
    let mut most = 0;
    for many in [0, 1, 7, 40, 80] {
        let (disk, store, meanwhile) = reopened(&made());
        let base = store.backup(&at("base")).unwrap().base();
        (0..PAGES)
            .filter(|page| page % 10 < 8 && ![11, 12, 30].contains(page))
            .for_each(|page| commit(&store, [page]));
        let store = Arc::new(store);
        let states = Arc::new(Mutex::new(vec![content(&store)]));
        let (beside, kept, mut left) = (Arc::clone(&store), Arc::clone(&states), 6);
        meanwhile.set(move || {
            if left == 0 || many == 0 {
                return;
            }
            left -= 1;
            for round in 0..3 {
                let from = (left * 31 + round * 17) % (PAGES - many);
                for page in from..from + many {
                    // One of the free pages stays as it is.
                    if ![11, 12, 30].contains(&page) {
                        commit(&beside, [page]);
                        lock(&kept).push(content(&beside));
                    }
                }
                beside.sync().unwrap();
            }
        });
        let increment = store.backup_since(&base, &at("first")).unwrap();
        meanwhile.clear();
        most = most.max(increment.snapshots);
        let states = lock(&states);
        let expected = states.iter().find(|state| state.0 == increment.seq).expect("of a commit");
        let disk = disk.after_power_cut(Persistence::None, 1);
        let restored = restore(&disk, &["base", "first"], to()).unwrap();
        assert_eq!(restored.seq, increment.seq);
        is_whole(&disk, expected, &format!("{many} pages: {increment:?}"));
    }
    assert!(most > 2, "no snapshot was ended");
}

/// Pages that are copied, taken away by a compaction, and there again without being written, all beside one copy.
#[test]
fn pages_that_come_back_beside_a_copy_were_never_written() {
    for whole in [true, false] {
        let (disk, store, meanwhile) = reopened(&made());
        let base = store.backup(&at("base")).unwrap().base();
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
            let mut txn = beside.begin().unwrap();
            (140..PAGES).for_each(|page| txn.free(page).unwrap());
            txn.commit(Durability::Sync).unwrap();
            lock(&kept).push(content(&beside));
            assert_eq!(beside.compact().unwrap().pages, 140);
            lock(&kept).push(content(&beside));
            let mut txn = beside.begin().unwrap();
            assert_eq!(txn.allocate_run(PAGES - 140).unwrap(), 140);
            txn.commit(Durability::Sync).unwrap();
            lock(&kept).push(content(&beside));
            let some = (140..PAGES).filter(|page| (page + left) % 2 == 0);
            for page in some.chain((0..100).filter(|page| ![11, 12, 30].contains(page))) {
                commit(&beside, [page]);
                lock(&kept).push(content(&beside));
            }
            beside.sync().unwrap();
        });
        let (seq, snapshots) = if whole {
            let made = store.backup(to()).unwrap();
            (made.seq, made.snapshots)
        } else {
            let made = store.backup_since(&base, &at("first")).unwrap();
            (made.seq, made.snapshots)
        };
        meanwhile.clear();
        assert!(snapshots > 2);
        if !whole {
            restore(&disk, &["base", "first"], to()).unwrap();
        }
        let states = lock(&states);
        let expected = states.iter().find(|state| state.0 == seq).expect("of a commit");
        let copy = open(&disk, to()).unwrap();
        assert!(content(&copy) == *expected, "whole: {whole}");
        let verified = copy.verify().unwrap();
        assert!(verified.is_sound(), "whole: {whole}: {verified}");
    }
}

/// Whatever was lost or changed of it, at each place.
#[test]
fn what_is_not_whole_becomes_no_store() {
    let (disk, store, _) = with_one();
    let before = content(&store);
    let whole = bytes(&disk, &at("first"));
    let mut tried = 0;
    let mut refused = |bytes: Vec<u8>, what: &str| {
        tried += 1;
        let name = format!("rotten-{tried}");
        disk.create(at(&name), bytes).unwrap();
        match restore(&disk, &["base", &name], to()) {
            Err(Error::NoIncrement { path, .. }) => assert_eq!(path, at(&name)),
            other => panic!("{what}: {other:?}"),
        }
        assert!(!disk.list("/copies".as_ref()).unwrap().iter().any(|name| name == "first.new"));
        assert!(disk.list(to()).is_err(), "{what}");
        Io::remove(&disk, &at(&name)).unwrap();
    };
    for len in (0..whole.len()).step_by(512).chain([1, 8191, 8193, whole.len() - 1]) {
        refused(whole[..len].to_vec(), &format!("cut to {len}"));
    }
    refused([&whole[..], &[0]].concat(), "longer");
    for at in (0..128).chain(4092..4200).chain((4200..whole.len()).step_by(509)).chain(8192..8300) {
        let mut rotten = whole.clone();
        rotten[at] ^= 1 << (at % 8);
        refused(rotten, &format!("byte {at}"));
    }
    // Two pages that are whole, in each other's place, and one twice.
    let first = 8192 + 4096;
    let page = |at: usize| whole[first + at * 4096..][..4096].to_vec();
    for (one, other) in [(1, 0), (0, 0), (1, 1)] {
        let mut rotten = whole.clone();
        rotten[first..first + 4096].copy_from_slice(&page(one));
        rotten[first + 4096..first + 8192].copy_from_slice(&page(other));
        refused(rotten, "pages changed places");
    }
    restore(&disk, &["base", "first"], to()).unwrap();
    is_whole(&disk, &before, "the whole one");
}

#[test]
fn what_does_not_fit_is_refused_with_what_is_wrong() {
    let (disk, store, base) = with_one();
    commit(&store, [9]);
    let two = store.backup_since(&base, &at("two")).unwrap();
    let refused = |chain: &[&str], said: &str| {
        let error = restore(&disk, chain, to()).unwrap_err();
        assert!(error.to_string().contains(said), "{chain:?}: {error}");
        assert!(disk.list(to()).is_err(), "{chain:?}");
    };
    let gap = format!(
        "/copies/two: begins at commit {}, and what comes before it, /copies/base, ends at commit 20: name",
        two.since
    );
    refused(&["base", "two"], &gap);
    refused(&["base", "two", "first"], &gap);
    refused(
        &["base", "first", "first"],
        "/copies/first: begins at commit 20, and what comes before it, /copies/first",
    );
    refused(&["first"], "");
    refused(&["base", "none"], "");
    // What was committed to the backup is not what the increment goes on from.
    restore(&disk, &["base"], &at("changed")).unwrap();
    commit(&open(&disk, &at("changed")).unwrap(), [1]);
    refused(
        &["changed", "first"],
        "begins at commit 20, and what comes before it, /copies/changed, ends at commit 21",
    );
    let other = options(&disk, &Meanwhile::default()).open("/other".as_ref()).unwrap();
    other.backup(&at("other")).unwrap();
    refused(&["other", "first"], "/copies/first: of store ");
    let error = other.backup_since(&base, &at("three")).unwrap_err();
    assert!(matches!(error, Error::OtherStore { .. }), "{error}");
    let behind = open(&disk, &at("base")).unwrap();
    let error = behind.backup_since(&base, &at("three")).unwrap_err();
    assert!(matches!(error, Error::BaseAhead { .. }), "{error}");
    assert!(disk.list(&at("three")).is_err());
}

#[test]
fn what_is_there_is_left_as_it_is_and_a_source_is_only_read() {
    let (disk, store, base) = with_one();
    let before = bytes(&disk, &at("first"));
    for (name, found, unfinished) in
        [("first", "first", false), ("base", "base", false), ("new", "new.new", true)]
    {
        if unfinished {
            disk.create(at(found), *b"a file").unwrap();
        }
        match store.backup_since(&base, &at(name)) {
            Err(Error::Exists { path, is_unfinished }) => {
                assert_eq!((path, is_unfinished), (at(found), unfinished));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(bytes(&disk, &at("first")) == before && bytes(&disk, &at("new.new")) == b"a file");
    let expected = content(&store);
    store.close().unwrap();
    let reader = || options(&disk, &Meanwhile::default()).read_only(true).open(dir()).unwrap();
    let first = options(&disk, &Meanwhile::default()).base(&at("base")).unwrap();
    assert_eq!((first.seq(), first.store()), (20, base.store()));
    reader().backup_since(&first, &at("two")).unwrap();
    assert!(bytes(&disk, &at("two")) == before);
    restore(&disk, &["base", "two"], to()).unwrap();
    is_whole(&disk, &expected, "of a store that was read only");
}

#[test]
fn of_what_is_damaged_there_is_no_increment() {
    let made = made();
    let (disk, store, _) = reopened(&made);
    let base = store.backup(&at("base")).unwrap().base();
    store.close_and_sync().unwrap();
    let file = disk.open_writable(&dir().join("data"), Access::Direct, CreateFile::Never).unwrap();
    let mut page = AlignedBuf::new(4096);
    file.read_at(12 * PAGE, &mut page).unwrap();
    file.write_at(13 * PAGE, &page, WriteMode::Plain).unwrap();
    let (disk, store, _) = reopened(&disk);
    let error = store.backup_since(&base, &at("first")).unwrap_err();
    assert!(matches!(error, Error::Damaged { page: 13, .. }), "{error}");
    assert_eq!(disk.list("/copies".as_ref()).unwrap(), ["base"]);
}

#[test]
fn a_full_disk_leaves_neither_an_increment_nor_a_half_restored_store() {
    let (disk, store, base) = with_one();
    let expected = content(&store);
    let first = disk.ops();
    store.backup_since(&base, &at("two")).unwrap();
    let (made, last) = (disk.clone(), disk.ops());
    let run = |full: u64| {
        let (disk, store, base) = with_one();
        disk.fill_up_at(full);
        (store.backup_since(&base, &at("two")), disk, store)
    };
    let mut refused = 0;
    for full in first..last {
        let (done, disk, store) = run(full);
        if let Err(error) = done {
            refused += 1;
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
            assert_eq!(disk.list("/copies".as_ref()).unwrap(), ["base", "first"], "operation {full}");
        }
        disk.make_room();
        commit(&store, [5]);
    }
    assert!(refused > 0);
    drop(store);
    let first = made.ops();
    restore(&made.after_kill(), &["base", "first", "two"], to()).unwrap();
    let mut refused = 0;
    for full in (first..).take(200) {
        let disk = made.after_kill();
        disk.fill_up_at(disk.ops() + (full - first));
        match restore(&disk, &["base", "first", "two"], to()) {
            Ok(_) => is_whole(&disk.after_kill(), &expected, "what needed no room any more"),
            Err(error) => {
                refused += 1;
                assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
                assert!(disk.list(to()).is_err(), "operation {full}");
            }
        }
    }
    assert!(refused > 10);
}

/// At each operation, with each pattern of what persists.
#[test]
fn a_power_cut_leaves_a_whole_increment_or_none() {
    let (disk, store, base) = with_one();
    commit(&store, [44, 45]);
    let expected = content(&store);
    store.sync().unwrap();
    store.close_and_sync().unwrap();
    let made = disk.after_kill();
    let again = || {
        let (disk, store, _) = reopened(&made);
        (disk, store)
    };
    let (disk, store) = again();
    let first = disk.ops();
    store.backup_since(&base, &at("two")).unwrap();
    let last = disk.ops();
    drop(store);
    let (mut whole, mut cuts) = (0, 0);
    for cut in first..=last {
        for persistence in Persistence::ALL {
            let (disk, store) = again();
            disk.cut_power_at(cut);
            let is_made = store.backup_since(&base, &at("two")).is_ok();
            let (found, killed) = (disk.after_power_cut(persistence, cut), disk.after_kill());
            drop(store);
            for (disk, what) in [(&found, "power cut"), (&killed, "kill")] {
                cuts += 1;
                let what = format!("{what} at operation {cut}, {persistence:?}");
                let is_there = disk.list("/copies".as_ref()).unwrap().iter().any(|name| name == "two");
                assert!(is_there || !is_made, "{what}");
                if is_there {
                    restore(disk, &["base", "first", "two"], to()).unwrap();
                    is_whole(disk, &expected, &what);
                    whole += 1;
                }
                assert!(content(&open(disk, dir()).unwrap()) == expected, "{what}: the source");
            }
        }
    }
    assert!(whole > 0 && whole < cuts, "{whole} of {cuts}");
}

#[test]
fn a_power_cut_leaves_no_half_of_what_is_restored() {
    let (disk, store, _) = with_one();
    let expected = content(&store);
    store.close_and_sync().unwrap();
    let made = disk.after_power_cut(Persistence::All, 1);
    let disk = made.after_kill();
    let first = disk.ops();
    restore(&disk, &["base", "first"], to()).unwrap();
    let last = disk.ops();
    let (mut whole, mut cuts) = (0, 0);
    for cut in first..=last {
        for persistence in Persistence::ALL {
            let disk = made.after_kill();
            disk.cut_power_at(cut);
            let is_made = restore(&disk, &["base", "first"], to()).is_ok();
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

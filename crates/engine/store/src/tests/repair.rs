//! Repairs of stores with each kind of damage: intact pages are there, lost ones are listed, and
//! nothing is mistaken for something else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, AlignedBuf, Create as CreateFile, Io, IoFile, WriteMode};
use pagekeeper_simdisk::{Fault, SimDisk, Times};
use pagekeeper_testing::{Rng, Seed};

use super::disk::{Meanwhile, Prompt};
use crate::{Create, Durability, Error, PageNo, Repair, Seq, Store, StoreOptions};

const PAGE: u64 = 4096;
const PAGES: u64 = 90;

fn dir() -> &'static Path {
    Path::new("/store")
}

fn to() -> &'static Path {
    Path::new("/repaired")
}

fn options(disk: &SimDisk) -> StoreOptions {
    let io = Arc::new(Prompt::new(disk.clone(), Meanwhile::default()));
    Store::options().io(io).memory(1 << 20).journal_bytes(64 << 10).warm(false).without_threads()
}

/// A commit, and the content of a page after it.
type Version = (Seq, Option<Vec<u8>>);

/// The content of each page after each commit that changed it; `None` if it is free.
#[derive(Default)]
struct History(BTreeMap<PageNo, Vec<Version>>);

impl History {
    fn commit(&mut self, store: &Store, change: impl FnOnce(&mut crate::WriteTxn<'_>) -> Vec<PageNo>) {
        let mut txn = store.begin_write().unwrap();
        let changed = change(&mut txn);
        let seq = txn.commit(Durability::Sync).unwrap();
        let read = store.begin_read().unwrap();
        for page in changed {
            let now = read.read(page).ok().map(|page| page.to_vec());
            self.0.entry(page).or_default().push((seq, now));
        }
    }

    fn last(&self, page: PageNo) -> Option<&Option<Vec<u8>>> {
        self.0.get(&page)?.last().map(|(_, content)| content)
    }
}

/// Makes a store with pages that were written several times, free pages, a root, metadata, and
/// commits in the journal, some of which change parts of pages.
fn made(seed: u64, is_applied: bool) -> (SimDisk, History) {
    let disk = SimDisk::builder().by_steps().build();
    let mut history = History::default();
    let store = options(&disk).open(dir()).unwrap();
    let mut rng = Rng::from_seed(seed);
    history.commit(&store, |txn| {
        txn.allocate_run(PAGES).unwrap();
        txn.set_root(Some(PageNo::new(1)));
        txn.set_metadata(b"meta").unwrap();
        Vec::new()
    });
    let len = store.payload_size();
    for _ in 0..40 {
        let pages: Vec<_> = (0..3).map(|_| PageNo::new(1 + rng.of(0..PAGES - 11))).collect();
        history.commit(&store, |txn| {
            for page in &pages {
                let byte = rng.number().to_le_bytes()[0];
                match txn.page_mut(*page) {
                    Ok(payload) => payload[100..200].fill(byte),
                    Err(Error::NotAllocated { .. }) => {}
                    Err(_) => txn.write(*page, &vec![byte; len]).unwrap(),
                }
            }
            pages
        });
        if rng.one_in(8) {
            store.sync().unwrap();
        }
        let page = PageNo::new(1 + rng.of(0..PAGES - 11));
        if rng.one_in(3) && store.begin_read().unwrap().read(page).is_ok() {
            history.commit(&store, |txn| {
                txn.free(page).unwrap();
                // Trunks do not matter here.
                vec![page]
            });
        }
    }
    if is_applied {
        store.close_and_sync().unwrap();
    } else {
        store.close().unwrap();
    }
    (disk, history)
}

fn repair(disk: &SimDisk) -> Result<Repair, Error> {
    options(disk).repair(dir(), to())
}

fn open_file(disk: &SimDisk, name: &str) -> Arc<dyn IoFile> {
    disk.open_writable(&dir().join(name), Access::Direct, CreateFile::Never).unwrap()
}

/// Changes some bytes of a file on the medium.
fn spoil(disk: &SimDisk, name: &str, at: u64, how: impl FnOnce(&mut [u8])) {
    let file = open_file(disk, name);
    let mut bytes = AlignedBuf::new(4096);
    file.read_at(at, &mut bytes).unwrap();
    how(&mut bytes);
    file.write_at(at, &bytes, WriteMode::Plain).unwrap();
    file.sync_all().unwrap();
}

/// Checks that the repaired store opens, and that each page in it is as of its last commit, or
/// reported otherwise.
fn is_right(disk: &SimDisk, history: &History, found: &Repair, what: &str) {
    let store =
        options(disk).create(Create::Never).open(to()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let read = store.begin_read().unwrap();
    let of =
        |findings: &[crate::PageFinding]| findings.iter().map(|finding| finding.page).collect::<Vec<_>>();
    let (lost, doubtful) = (of(&found.lost), of(&found.doubtful));
    let commits_are_lost = found.notes.iter().any(|note| note.contains("commits"));
    let knows_writes = !found.notes.iter().any(|note| note.contains("page map"));
    for (page, versions) in &history.0 {
        let is_last =
            |content: Option<&[u8]>| history.last(*page).is_some_and(|last| last.as_deref() == content);
        match read.read(*page) {
            Ok(found) => {
                let was = versions.iter().any(|(_, version)| version.as_deref() == Some(&found[..]));
                assert!(was, "{what}: page {page} has what it never had");
                let may_be_old = commits_are_lost || doubtful.contains(page) || !knows_writes;
                assert!(
                    may_be_old || is_last(Some(&found)),
                    "{what}: page {page} is old, and nobody said so"
                );
            }
            Err(Error::Damaged { .. }) => {
                assert!(lost.contains(page), "{what}: page {page} is lost, and not listed");
            }
            Err(Error::NotAllocated { .. }) => {
                let was = versions.iter().any(|(_, version)| version.is_none());
                assert!(
                    was && (commits_are_lost || !knows_writes || is_last(None)),
                    "{what}: page {page} is free"
                );
            }
            Err(Error::NeverWritten { .. } | Error::OutOfRange { .. }) => {
                assert!(commits_are_lost || !knows_writes, "{what}: page {page} was written");
            }
            Err(error) => panic!("{what}: page {page}: {error}"),
        }
    }
    let verified = store.verify().unwrap();
    assert_eq!(verified.faults, found.lost.len() as u64, "{what}: {verified}\n{found:?}");
    // Lost pages are right again when they are written, and the store takes commits.
    drop(read);
    for page in &lost {
        let mut txn = store.begin_write().unwrap();
        txn.write(*page, &vec![1; store.payload_size()]).unwrap();
        txn.commit(Durability::Sync).unwrap();
    }
    let mut txn = store.begin_write().unwrap();
    let new = txn.allocate().unwrap();
    assert!(store.begin_read().unwrap().read(new).is_err(), "{what}: page {new} is in use");
    txn.commit(Durability::Sync).unwrap();
    store.sync().unwrap();
    let verified = store.verify().unwrap();
    assert!(verified.is_sound(), "{what}: {verified}");
}

#[test]
fn a_sound_store_is_copied_as_it_is() {
    for (seed, is_applied) in [(1, true), (2, false)] {
        let (disk, history) = made(seed, is_applied);
        let before: Vec<_> = ["superblock", "data", "map", "journal/control", "journal/redo.000"]
            .map(|name| (name, content(&disk, name)))
            .into();
        let found = repair(&disk).unwrap();
        assert!(found.is_complete(), "{found:?}");
        is_right(&disk, &history, &found, "sound");
        for (name, before) in before {
            assert!(content(&disk, name) == before, "{name}: the source is another one");
        }
        assert!(matches!(repair(&disk), Err(Error::Exists { .. })));
    }
}

fn content(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(&dir().join(name), Access::Direct).unwrap();
    let len = usize::try_from(file.stat().unwrap().size).unwrap();
    let mut bytes = AlignedBuf::new(len.next_multiple_of(4096));
    let got = file.read_at(0, &mut bytes).unwrap();
    bytes[..got].to_vec()
}

#[test]
fn each_page_that_is_lost_is_listed_and_no_other() {
    for page in [1, 17, 60].map(PageNo::new) {
        let (disk, history) = made(3, true);
        if history.last(page).is_none_or(Option::is_none) {
            continue;
        }
        spoil(&disk, "data", page.offset(PAGE), |bytes| bytes[1000] ^= 4);
        let found = repair(&disk).unwrap();
        let lost: Vec<_> = found.lost.iter().map(|lost| (lost.page, lost.what.as_str())).collect();
        assert_eq!(lost, [(page, "its checksum does not hold")]);
        assert!(found.doubtful.is_empty() && found.notes.is_empty(), "{found:?}");
        is_right(&disk, &history, &found, "one page");
    }
}

#[test]
fn open_unfinished_newer_and_foreign_files_are_refused() {
    let (disk, _) = made(4, true);
    let held = options(&disk).open(dir()).unwrap();
    let error = repair(&disk).unwrap_err();
    assert!(matches!(error, Error::Io(pagekeeper_io::Error::Locked { .. })), "{error}");
    held.close().unwrap();
    assert!(matches!(options(&disk).repair("/none", to()), Err(Error::NoStore { .. })));
    disk.create_dir("/empty".as_ref()).unwrap();
    assert!(matches!(options(&disk).repair("/empty", to()), Err(Error::NoStore { .. })));
    disk.create("/empty/superblock.new", *b"").unwrap();
    assert!(matches!(options(&disk).repair("/empty", to()), Err(Error::Unfinished { .. })));
    for slot in 0..2 {
        spoil(&disk, "superblock", slot * PAGE, |bytes| {
            bytes[8] = 9;
            let crc = crc32c::crc32c(&bytes[..4092]);
            bytes[4092..].copy_from_slice(&crc.to_le_bytes());
        });
    }
    assert!(matches!(repair(&disk), Err(Error::UnknownVersion { .. })));
    assert!(disk.list("/".as_ref()).unwrap().iter().all(|name| name != "repaired"));
}

/// Both slots, the map and the journal are missing, corrupt or cut off, alone and together.
#[test]
fn damaged_metadata_is_rebuilt() {
    type Damage = fn(&SimDisk);
    let damages: [(&str, Damage); 8] = [
        ("no superblock", |disk| Io::remove(disk, &dir().join("superblock")).unwrap()),
        ("rotten slots", |disk| {
            for slot in 0..2 {
                spoil(disk, "superblock", slot * PAGE, |bytes| bytes[60] ^= 1);
            }
        }),
        ("no map", |disk| Io::remove(disk, &dir().join("map")).unwrap()),
        ("rotten map", |disk| {
            for place in 0..2 {
                spoil(disk, "map", place * PAGE, |bytes| bytes[100] ^= 1);
            }
        }),
        ("no control file", |disk| Io::remove(disk, &dir().join("journal/control")).unwrap()),
        ("a ring that was cut off", |disk| {
            let file = open_file(disk, "journal/redo.001");
            file.set_len(4096).unwrap();
            file.sync_all().unwrap();
        }),
        ("a map that was cut off", |disk| {
            let file = open_file(disk, "map");
            file.set_len(0).unwrap();
            file.sync_all().unwrap();
        }),
        ("data that was cut off", |disk| {
            let file = open_file(disk, "data");
            file.set_len(40 * PAGE).unwrap();
            file.sync_all().unwrap();
        }),
    ];
    for (at, (first, damage)) in damages.iter().enumerate() {
        for (second, also) in &damages[at..] {
            for is_applied in [true, false] {
                let (disk, history) = made(5, is_applied);
                // Files are removed after all other damage.
                let mut both = [(first, damage), (second, also)];
                both.sort_by_key(|(name, _)| name.starts_with("no "));
                for (name, damage) in both.iter().take(if first == second { 1 } else { 2 }) {
                    println!("{name}");
                    damage(&disk);
                }
                let what = format!("{first} and {second}, applied: {is_applied}");
                let found = repair(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(!found.notes.is_empty(), "{what}");
                if *second != "data that was cut off" && is_applied {
                    assert!(found.lost.is_empty(), "{what}: {found:?}");
                }
                is_right(&disk, &history, &found, &what);
            }
        }
    }
}

/// Bits are flipped, sectors zeroed, misplaced or made unreadable in each of the files, at random.
#[test]
fn damage_at_random_is_found_or_does_no_harm() {
    let seed = Seed::new();
    let stores = [(11, true), (12, false), (13, false)].map(|(seed, is_applied)| made(seed, is_applied));
    let names = [
        "superblock",
        "data",
        "data",
        "data",
        "map",
        "journal/control",
        "journal/redo.000",
        "journal/redo.001",
    ];
    let (mut complete, mut lost) = (0, 0);
    for life in 0..600 {
        let mut rng = seed.rng(life);
        let (disk, history) = &stores[rng.index(stores.len())];
        let disk = disk.after_kill();
        let mut what = format!("life {life}");
        let mut unreadable = Vec::new();
        for _ in 0..=rng.of(0..4) {
            let name = names[rng.index(names.len())];
            let blocks = open_file(&disk, name).stat().unwrap().size / PAGE;
            let (at, other) = (rng.of(0..blocks) * PAGE, rng.of(0..blocks) * PAGE);
            let sector = rng.index(8) * 512;
            let kind = rng.of(0..4);
            write!(what, ", {name} at {at}: {kind}").unwrap();
            match kind {
                0 => spoil(&disk, name, at, |bytes| bytes[rng.index(4096)] ^= 1 << rng.of(0..8)),
                1 => spoil(&disk, name, at, |bytes| bytes[sector..sector + 512].fill(0)),
                2 => {
                    let from = content(&disk, name)[usize::try_from(other).unwrap()..][..4096].to_vec();
                    spoil(&disk, name, at, |bytes| bytes.copy_from_slice(&from));
                }
                _ => unreadable.push((name, at)),
            }
        }
        for (name, at) in unreadable {
            disk.inject(dir().join(name), at..at + 512, Fault::EIO, Times::Always).unwrap();
        }
        match repair(&disk) {
            Ok(found) => {
                is_right(&disk, history, &found, &what);
                complete += u64::from(found.is_complete());
                lost += found.lost.len();
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    println!("{complete} of 600 complete, {lost} pages lost");
    assert!(complete > 20 && lost > 100);
}

//! A store with one corrupt or unreadable superblock slot is opened with all commits. If both slots
//! are lost, the store is left as it is. The disk is simulated.

mod common;

use std::path::Path;

use common::{commit, dir};
use pagekeeper_io::{Access, AlignedBuf, Create as CreateFile, Io, WriteMode};
use pagekeeper_simdisk::{Fault, Persistence, SimDisk, Times};
use pagekeeper_store::{Create, Durability, Error, PageNo, Store, StoreOptions};

const SLOT_BYTES: usize = 4096;

fn options(disk: &SimDisk) -> StoreOptions {
    common::options(disk, 64 << 10)
}

/// Creates a store with a commit for each value; a checkpoint follows where the value is true.
fn disk(commits: &[bool]) -> SimDisk {
    let disk = SimDisk::new();
    let store = options(&disk).open(dir()).unwrap();
    for checkpoint in commits {
        commit(&store);
        if *checkpoint {
            store.sync().unwrap();
        }
    }
    store.close().unwrap();
    disk
}

fn spoil(disk: &SimDisk, slot: usize, how: impl FnOnce(&mut [u8])) {
    let path = dir().join("superblock");
    let file = disk.open_writable(&path, Access::Direct, CreateFile::Never).unwrap();
    let mut bytes = AlignedBuf::new(SLOT_BYTES);
    file.read_at((slot * SLOT_BYTES) as u64, &mut bytes).unwrap();
    how(&mut bytes);
    file.write_at((slot * SLOT_BYTES) as u64, &bytes, WriteMode::Plain).unwrap();
    file.sync_all().unwrap();
}

/// Checks that the store has this many commits, takes more, and has two intact slots again, also
/// after a power cut.
fn is_whole(disk: &SimDisk, commits: usize, what: &str) {
    let store = options(disk).open(dir()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = store.begin_read().unwrap().read(PageNo::new(0)).unwrap()[..8].to_vec();
    assert_eq!(found, (commits as u64).to_le_bytes(), "{what}");
    let verified = store.verify().unwrap();
    assert!(verified.is_sound() && verified.superblocks == 2, "{what}: {verified}");
    commit(&store);
    let after = disk.after_power_cut(Persistence::None, 1);
    let store = options(&after).open(dir()).unwrap();
    assert_eq!(store.stats().seq.get(), commits as u64 + 1, "{what}");
    assert_eq!(store.verify().unwrap().superblocks, 2, "{what}");
}

/// Commits of which the last are only in the journal, only in the data file, or in both.
const COMMITS_AND_CHECKPOINTS: [&[bool]; 5] =
    [&[false], &[true], &[false, true, false], &[true, true, false, false], &[true, false, true, true]];

#[test]
fn one_rotten_slot_costs_nothing() {
    let mut damages = 0;
    for commits in COMMITS_AND_CHECKPOINTS {
        let made = disk(commits);
        for slot in 0..2 {
            let bits = (0..SLOT_BYTES * 8).step_by(997).map(|bit| (bit, 0));
            for (from, len) in bits.chain([(0, SLOT_BYTES), (0, 512), (512, 512), (SLOT_BYTES - 512, 512)]) {
                let disk = made.after_power_cut(Persistence::All, 0);
                spoil(&disk, slot, |bytes| match len {
                    0 => bytes[from / 8] ^= 1 << (from % 8),
                    len => bytes[from..from + len].fill(0xff * u8::from(from > 0)),
                });
                is_whole(&disk, commits.len(), &format!("{commits:?}, slot {slot}, {len} at {from}"));
                damages += 1;
            }
        }
    }
    println!("{damages} damages");
}

#[test]
fn one_slot_that_can_not_be_read_costs_nothing() {
    for commits in COMMITS_AND_CHECKPOINTS {
        for slot in 0..2 {
            let disk = disk(commits);
            let range = slot * SLOT_BYTES as u64..(slot + 1) * SLOT_BYTES as u64;
            disk.inject(dir().join("superblock"), range, Fault::EIO, Times::Always).unwrap();
            is_whole(&disk, commits.len(), &format!("{commits:?}, slot {slot}"));
        }
    }
}

#[test]
fn one_slot_that_is_cut_off_costs_nothing() {
    let disk = disk(COMMITS_AND_CHECKPOINTS[3]);
    let file = disk.open_writable(&dir().join("superblock"), Access::Direct, CreateFile::Never).unwrap();
    file.set_len(SLOT_BYTES as u64).unwrap();
    file.sync_all().unwrap();
    is_whole(&disk, COMMITS_AND_CHECKPOINTS[3].len(), "cut off");
}

/// A crash comes during a checkpoint, and one slot is lost after it.
#[test]
fn one_slot_is_enough_after_a_crash_at_any_operation_of_a_checkpoint() {
    let made = disk(&[true, false, false]);
    for cut in 0.. {
        let mut is_whole_checkpoint = false;
        for (persistence, seed) in Persistence::ALL.into_iter().zip(0..) {
            for slot in 0..2 {
                let disk = made.after_power_cut(Persistence::All, 0);
                let store = options(&disk).open(dir()).unwrap();
                disk.cut_power_at(disk.ops() + cut);
                is_whole_checkpoint = store.sync().is_ok();
                let disk = disk.after_power_cut(persistence, seed);
                drop(store);
                let path = dir().join("superblock");
                let file = disk.open_writable(&path, Access::Direct, CreateFile::Never).unwrap();
                let mut bytes = AlignedBuf::new(2 * SLOT_BYTES);
                file.read_at(0, &mut bytes).unwrap();
                let is_whole_slot = |slot: usize| {
                    let (checked, crc) =
                        bytes[slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES].split_at(SLOT_BYTES - 4);
                    crc32c::crc32c(checked).to_le_bytes() == crc
                };
                // Two faults at a time are too many.
                if !is_whole_slot(1 - slot) {
                    continue;
                }
                spoil(&disk, slot, |bytes| bytes[100] ^= 1);
                is_whole(&disk, 3, &format!("cut at {cut}, {persistence:?}, slot {slot}"));
            }
        }
        if is_whole_checkpoint {
            assert!(cut > 6, "a checkpoint is more than {cut} operations");
            return;
        }
    }
}

#[test]
fn a_superblock_that_is_a_link_to_nothing_costs_no_store() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let dir = &temp.path().join("store");
    let options = || Store::options().memory(1 << 20).warm(false).without_threads();
    let store = options().open(dir).unwrap();
    commit(&store);
    store.close().unwrap();
    let (name, elsewhere) = (dir.join("superblock"), temp.path().join("elsewhere"));
    std::fs::rename(&name, &elsewhere).unwrap();
    std::os::unix::fs::symlink(temp.path().join("gone"), &name).unwrap();
    let error = options().open(dir).map(drop).unwrap_err();
    assert!(matches!(error, Error::LostSuperblock { .. }), "{error}");
    std::fs::rename(&elsewhere, &name).unwrap();
    assert_eq!(options().open(dir).unwrap().stats().seq.get(), 1);
}

/// Returns all files with their content.
fn content(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let read = |name: &str| {
        let file = disk.open(&dir().join(name), Access::Buffered).ok()?;
        let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
        file.read_at(0, &mut bytes).ok()?;
        Some((name.to_owned(), bytes))
    };
    let names = ["superblock", "data", "journal/control", "journal/redo.000", "journal/redo.001"];
    names.into_iter().filter_map(read).collect()
}

#[test]
fn a_store_that_has_lost_both_slots_is_left_as_it_is() {
    type Spoil = fn(&SimDisk);
    let both: [(Spoil, &str); 4] = [
        (
            |disk| (0..2).for_each(|slot| spoil(disk, slot, |bytes| bytes[100] ^= 1)),
            "its checksum does not hold",
        ),
        (|disk| (0..2).for_each(|slot| spoil(disk, slot, |bytes| bytes.fill(0))), "all zeros"),
        (
            |disk| disk.inject(dir().join("superblock"), 0..u64::MAX, Fault::EIO, Times::Always).unwrap(),
            "Input/output error",
        ),
        (|disk| Io::remove(disk, &dir().join("superblock")).unwrap(), "gone"),
    ];
    // The second store has its only commits in the journal, and no page in the data file.
    for has_pages in [true, false] {
        for (spoil, said) in both {
            let disk = if has_pages { disk(&[true, false]) } else { SimDisk::new() };
            if !has_pages {
                let store = options(&disk).open(dir()).unwrap();
                let mut txn = store.begin_write().unwrap();
                txn.set_metadata(b"all there is").unwrap();
                txn.commit(Durability::Sync).unwrap();
            }
            spoil(&disk);
            let before = content(&disk);
            for create in [Create::IfMissing, Create::Never, Create::New] {
                let error = options(&disk).create(create).open(dir()).map(drop).unwrap_err();
                let is_said = match error {
                    Error::BrokenSuperblock { .. } | Error::LostSuperblock { .. } => {
                        let text = error.to_string();
                        text.contains(said)
                            && text.contains(
                                "the last backup, or save what can be saved by `pagekeeper store repair`",
                            )
                    }
                    Error::NotEmpty { .. } => create == Create::New,
                    _ => false,
                };
                assert!(is_said, "{create:?}: {error}");
                assert!(content(&disk) == before, "{create:?}: something was changed");
            }
            disk.heal(dir().join("superblock")).ok();
        }
    }
}

/// A superblock with impossible values and a valid checksum is refused: the error says so, and the
/// store is not opened.
#[test]
fn nonsense_is_refused() {
    let hostile = [
        (16, u64::MAX),
        (32, u64::MAX),
        (48, 0),
        (48, 1 << 62),
        (48, u64::MAX),
        (56, 1 << 32),
        (56, u64::MAX),
    ];
    for (at, value) in hostile {
        let what = format!("{value} at {at}");
        let disk = disk(&[true, false]);
        for slot in 0..2 {
            spoil(&disk, slot, |bytes| {
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                let crc = crc32c::crc32c(&bytes[..SLOT_BYTES - 4]);
                bytes[SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            });
        }
        for read_only in [false, true] {
            let error = options(&disk).read_only(read_only).open(dir()).map(drop).unwrap_err();
            assert!(matches!(error, Error::BrokenSuperblock { .. }), "{what}: {error}");
            assert!(error.to_string().contains("its content is invalid"), "{what}: {error}");
        }
        // A slot of nonsense counts as lost, like a missing one.
        let repaired = options(&disk).repair(dir(), Path::new("/repaired")).unwrap();
        assert!(repaired.lost.is_empty() && repaired.data_pages == 1, "{what}: {repaired:?}");
        let store = options(&disk).open(Path::new("/repaired")).unwrap();
        assert_eq!(
            store.begin_read().unwrap().read(PageNo::new(0)).unwrap()[..8],
            2_u64.to_le_bytes(),
            "{what}"
        );
    }
}

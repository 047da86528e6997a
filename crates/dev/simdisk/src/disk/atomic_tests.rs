//! Atomic writes and power cuts: each write is found completely or not at all, whatever else is
//! torn.

use std::sync::mpsc;

use super::*;
use crate::faults::WriteFault;
use pagekeeper_io::{AlignedBuf, AtomicWrites, WriteMode, writes_atomically};

/// Offsets and lengths that do not overlap; the file ends with the last one.
const PLACES: [(u64, usize); 5] = [(0, 512), (512, 512), (4096, 4096), (16_384, 16_384), (65_536, 65_536)];
const LEN: usize = 131_072;
const SEEDS: u64 = 300;

fn filled(len: usize, byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len);
    buf.fill(byte);
    buf
}

fn file_of(disk: &SimDisk, access: Access) -> Arc<dyn IoFile> {
    disk.create("/file", vec![1; LEN]).unwrap();
    disk.open_writable("/file".as_ref(), access, Create::Never).unwrap()
}

fn content(disk: &SimDisk) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let file = disk.open("/file".as_ref(), Access::Buffered).unwrap();
    assert_eq!(file.read_at(0, &mut bytes), Ok(LEN));
    bytes
}

/// Returns the byte that fills a range, or `None` if its bytes differ.
fn whole(bytes: &[u8], place: (u64, usize)) -> Option<u8> {
    let part = &bytes[usize::try_from(place.0).unwrap()..][..place.1];
    part.iter().all(|byte| *byte == part[0]).then_some(part[0])
}

/// Returns how often a range was found old, new and torn, over all patterns and seeds.
fn found(disk: &SimDisk, old: u8, new: u8) -> [u32; 3] {
    let mut counts = [0; 3];
    for (persistence, seed) in Persistence::ALL.into_iter().flat_map(|p| (0..SEEDS).map(move |s| (p, s))) {
        let bytes = content(&disk.after_power_cut(persistence, seed));
        for place in PLACES {
            let at = match whole(&bytes, place) {
                Some(byte) if byte == old => 0,
                Some(byte) if byte == new => 1,
                _ => 2,
            };
            counts[at] += 1;
        }
    }
    counts
}

#[test]
fn an_atomic_write_is_never_torn_and_a_plain_one_is() {
    for (mode, is_torn) in [(WriteMode::Atomic, false), (WriteMode::Plain, true)] {
        let disk = SimDisk::builder().atomic_writes(65_536).build();
        let file = file_of(&disk, Access::Direct);
        for (at, len) in PLACES {
            file.write_at(at, &filled(len, 2), mode).unwrap();
        }
        let [old, new, torn] = found(&disk, 1, 2);
        assert!(old > 1000 && new > 1000, "{mode:?}: {old} old, {new} new, {torn} torn");
        assert_eq!(torn > 500, is_torn, "{mode:?}: {torn} torn");
        assert_eq!(torn > 0, is_torn, "{mode:?}: {torn} torn");
        // An atomic write is not durable by itself; a sync makes it durable.
        let lost = content(&disk.after_power_cut(Persistence::None, 0));
        assert!(lost.iter().all(|byte| *byte == 1), "{mode:?}");
        file.sync_data().unwrap();
        assert_eq!(found(&disk, 1, 2)[1], 7 * 300 * 5, "{mode:?}");
    }
}

#[test]
fn submitted_and_interrupted_atomic_writes_are_whole_too() {
    for cut in 0..=PLACES.len() as u64 {
        let disk = SimDisk::builder().atomic_writes(65_536).by_steps().build();
        let file = file_of(&disk, Access::Direct);
        disk.cut_power_at(disk.ops() + cut);
        let (sender, ended) = mpsc::channel();
        let writes = PLACES.map(|(offset, len)| {
            let (file, sender) = (Arc::clone(&file), sender.clone());
            let done = Box::new(move |_: AlignedBuf, result: Result<(), Error>| {
                sender.send(result.is_ok()).unwrap();
            });
            OwnedWrite { file, offset, buf: filled(len, 2), mode: WriteMode::Atomic, done }
        });
        disk.submit_writes(writes.into());
        while disk.step() {}
        drop(sender);
        let done = ended.iter().filter(|done| *done).count();
        assert_eq!(done as u64, cut);
        let [old, new, torn] = found(&disk, 1, 2);
        assert_eq!(torn, 0, "{old} old, {new} new, cut at {cut}");
        assert!(old > 0 && new > 0, "{old} old, {new} new, cut at {cut}");
    }
}

/// A later durable write replaces a part; the rest of the atomic one stays complete.
#[test]
fn a_durable_write_over_an_atomic_one_leaves_it_whole() {
    let disk = SimDisk::builder().atomic_writes(65_536).build();
    let file = file_of(&disk, Access::Direct);
    file.write_at(65_536, &filled(65_536, 2), WriteMode::Atomic).unwrap();
    file.write_at(98_304, &filled(4096, 3), WriteMode::Durable).unwrap();
    let mut seen = [0; 3];
    for (persistence, seed) in Persistence::ALL.into_iter().flat_map(|p| (0..SEEDS).map(move |s| (p, s))) {
        let bytes = content(&disk.after_power_cut(persistence, seed));
        let parts = [(65_536, 32_768), (98_304, 4096), (102_400, 28_672)].map(|part| whole(&bytes, part));
        let [Some(head @ (1 | 2)), Some(3), tail] = parts else {
            panic!("{persistence:?} {seed}: {parts:?}")
        };
        assert_eq!(Some(head), tail, "{persistence:?} {seed}");
        seen[usize::from(head)] += 1;
    }
    assert!(seen[1] > 100 && seen[2] > 100, "{seen:?}");
}

#[test]
fn one_over_another_leaves_one_of_the_three() {
    let disk = SimDisk::builder().atomic_writes(65_536).build();
    let file = file_of(&disk, Access::Direct);
    for byte in [2, 3] {
        file.write_at(65_536, &filled(65_536, byte), WriteMode::Atomic).unwrap();
    }
    let mut seen = [0; 4];
    for (persistence, seed) in Persistence::ALL.into_iter().flat_map(|p| (0..SEEDS).map(move |s| (p, s))) {
        let bytes = content(&disk.after_power_cut(persistence, seed));
        let byte = whole(&bytes, (65_536, 65_536)).unwrap_or_else(|| panic!("{persistence:?} {seed}: torn"));
        seen[usize::from(byte)] += 1;
    }
    assert!(seen[1..].iter().all(|count| *count > 50), "{seen:?}");
}

#[test]
fn a_refused_write_changes_nothing() {
    let path = std::path::PathBuf::from("/file");
    let failed = |range, errno| Err(Error::Write { path: path.clone(), range, errno });
    let unaligned = |range| Err(Error::Unaligned { path: path.clone(), range });
    let memory = filled(LEN, 2);

    let without = SimDisk::new();
    let file = file_of(&without, Access::Direct);
    assert_eq!(file.atomic_write_bytes(), None);
    assert!(!writes_atomically(&*file, 4096));
    // This error takes precedence over any other.
    for (at, len) in [(0_u64, 4096), (4096, 8192), (0, 100)] {
        let refused = failed(at..at + len as u64, libc::EOPNOTSUPP);
        assert_eq!(file.write_at(at, &memory[..len], WriteMode::Atomic), refused);
    }

    let with = SimDisk::builder().atomic_writes(20_000).build();
    let file = file_of(&with, Access::Direct);
    assert_eq!(file.atomic_write_bytes(), Some(512..=16_384));
    assert!(writes_atomically(&*file, 512) && writes_atomically(&*file, 16_384));
    assert!(!writes_atomically(&*file, 256) && !writes_atomically(&*file, 1536));
    for (at, len, refused) in [
        (0, 32_768, failed(0..32_768, libc::EINVAL)),
        (4096, 8192, unaligned(4096..12_288)),
        (0, 12_288, unaligned(0..12_288)),
        (0, 256, unaligned(0..256)),
    ] {
        assert_eq!(file.write_at(at, &memory[..len], WriteMode::Atomic), refused);
    }
    assert_eq!(file.write_at(0, &memory[..0], WriteMode::Atomic), Ok(()));
    let buffered = with.open_writable(&path, Access::Buffered, Create::Never).unwrap();
    assert_eq!(buffered.atomic_write_bytes(), None);
    let refused = failed(0..4096, libc::EOPNOTSUPP);
    assert_eq!(buffered.write_at(0, &memory[..4096], WriteMode::Atomic), refused);
    for disk in [&without, &with] {
        assert_eq!(disk.ops(), 0, "a refused call is not an operation");
        assert!(content(disk).iter().all(|byte| *byte == 1));
    }
    // The same holds after a restart.
    let restarted = with.after_power_cut(Persistence::None, 0);
    let file = restarted.open_writable(&path, Access::Direct, Create::Never).unwrap();
    assert_eq!(file.atomic_write_bytes(), Some(512..=16_384));
    // At least the alignment of direct writes.
    let coarse = SimDisk::builder().alignment(4096).atomic_writes(4096).build();
    assert_eq!(file_of(&coarse, Access::Direct).atomic_write_bytes(), Some(4096..=4096));
    let none = SimDisk::builder().alignment(4096).atomic_writes(2048).build();
    assert_eq!(file_of(&none, Access::Direct).atomic_write_bytes(), None);
}

#[test]
fn faults_strike_it_as_a_whole() {
    let disk = SimDisk::builder().atomic_writes(65_536).build();
    let file = file_of(&disk, Access::Direct);
    let write = |byte| file.write_at(65_536, &filled(65_536, byte), WriteMode::Atomic);
    disk.inject_all(WriteFault::Short(4096), Times::Once);
    disk.inject_all(WriteFault::INTERRUPTED, Times::Nth(1));
    let requests = disk.stats().requests;
    assert_eq!(write(2), Ok(()));
    assert_eq!(disk.stats().requests, requests + 1, "never short");
    assert_eq!(write(3), Ok(()));
    disk.inject_all(WriteFault::NO_SPACE, Times::Once);
    assert_eq!(write(4).unwrap_err().errno(), Some(libc::ENOSPC));
    assert_eq!(whole(&content(&disk), (65_536, 65_536)), Some(3));
    disk.inject_all(WriteFault::SYNC_EIO, Times::Once);
    assert!(file.sync_data().is_err());
    assert_eq!(found(&disk, 1, 3), [7 * 300 * 5, 0, 0], "lost, all of it");
}

#[test]
fn a_full_disk_is_told_from_a_refusal() {
    let disk = SimDisk::builder().atomic_writes(1 << 16).build();
    let file = file_of(&disk, Access::Direct);
    disk.fill_up_at(disk.ops());
    let full = AtomicWrites::try_probe(&*file, 4096).unwrap_err();
    assert_eq!(full.errno(), Some(libc::ENOSPC));
    assert_eq!(AtomicWrites::probe(&*file, 4096), AtomicWrites::Refused);
    assert_eq!(AtomicWrites::try_probe(&*file, 1 << 17), Ok(AtomicWrites::Refused));
    disk.make_room();
    assert_eq!(AtomicWrites::try_probe(&*file, 4096), Ok(AtomicWrites::InPlace));
}

//! Damage, lost and misdirected writes, syncs that lie or drop, a full disk.

use std::ops::Range;

use super::*;
use crate::content::pattern;
use crate::faults::WriteFault;
use pagekeeper_io::WriteMode;

fn file_of(disk: &SimDisk, bytes: &[u8]) -> Arc<dyn IoFile> {
    disk.create("/file", bytes).unwrap();
    disk.open_writable("/file".as_ref(), Access::Buffered, Create::Never).unwrap()
}

fn bytes(disk: &SimDisk, access: Access, range: Range<u64>) -> Result<Vec<u8>, Error> {
    let mut bytes = pagekeeper_io::AlignedBuf::new(usize::try_from(range.end - range.start).unwrap());
    let got = disk.open("/file".as_ref(), access)?.read_at(range.start, &mut bytes)?;
    Ok(bytes[..got].to_vec())
}

/// Returns the first byte of each of the first pages.
fn pages(disk: &SimDisk, access: Access, count: u64) -> Vec<u8> {
    (0..count).map(|page| bytes(disk, access, page * 4096..(page + 1) * 4096).unwrap()[0]).collect()
}

#[test]
fn each_kind_of_damage_has_its_effect() {
    let counting: Vec<u8> = (0..4096_u32).map(|at| (at / 16).to_le_bytes()[0]).collect();
    let after = |damage: &Damage| {
        let disk = SimDisk::new();
        file_of(&disk, &counting);
        disk.damage("/file", damage).unwrap();
        let kept = bytes(&disk, Access::Buffered, 0..8192);
        assert_eq!(kept, bytes(&disk.after_power_cut(Persistence::All, 0), Access::Buffered, 0..8192));
        kept
    };
    let mut expected = counting.clone();
    expected[1000] ^= 4;
    assert_eq!(after(&Damage::Bit { at: 1000, bit: 2 }).unwrap(), expected);
    let mut expected = counting.clone();
    expected[512..1024].fill(0);
    assert_eq!(after(&Damage::Zeros(512..1024)).unwrap(), expected);
    let mut expected = counting.clone();
    pattern(9, 512, &mut expected[512..1024]);
    assert_eq!(after(&Damage::Garbage { range: 512..1024, seed: 9 }).unwrap(), expected);
    let mut expected = counting.clone();
    expected.copy_within(0..512, 512);
    assert_eq!(after(&Damage::Shifted { range: 0..1024, by: 512 }).unwrap(), expected);
    assert_eq!(after(&Damage::Cut(100)).unwrap(), counting[..100]);
    assert_eq!(after(&Damage::Unreadable(600..601)).unwrap_err().errno(), Some(libc::EIO));
}

#[test]
fn a_bad_sector_stays_bad_until_it_is_written_as_a_whole() {
    let disk = SimDisk::new();
    file_of(&disk, &[1; 8192]);
    disk.damage("/file", &Damage::Unreadable(5000..5001)).unwrap();
    for disk in [disk.clone(), disk.after_kill(), disk.after_power_cut(Persistence::None, 0)] {
        let sector = 4608..5120_u64;
        assert!(bytes(&disk, Access::Direct, 0..sector.start).is_ok());
        assert!(bytes(&disk, Access::Direct, sector.clone()).is_err());
        assert!(bytes(&disk, Access::Buffered, 0..8192).is_err());
        let file = disk.open_writable("/file".as_ref(), Access::Buffered, Create::Never).unwrap();
        file.write_at(sector.start, &[2; 511], WriteMode::Plain).unwrap();
        assert!(bytes(&disk, Access::Direct, sector.clone()).is_err());
        file.write_at(sector.start, &[2; 512], WriteMode::Plain).unwrap();
        assert_eq!(bytes(&disk, Access::Direct, sector).unwrap(), [2; 512]);
    }
}

#[test]
fn a_lost_write_is_seen_until_the_cache_forgets_it() {
    for (fault, landed) in [(WriteFault::Lost, 1), (WriteFault::Misdirected { to: 8192 }, 2)] {
        for mode in [WriteMode::Plain, WriteMode::Durable] {
            let disk = SimDisk::new();
            let file = file_of(&disk, &[1; 12288]);
            disk.inject_all(fault, Times::Once);
            file.write_at(0, &[2; 4096], mode).unwrap();
            file.write_at(4096, &[3; 4096], mode).unwrap();
            file.sync_data().unwrap();
            assert_eq!(pages(&disk, Access::Direct, 3), [1, 3, landed]);
            assert_eq!(pages(&disk, Access::Buffered, 3), [2, 3, landed]);
            assert_eq!(
                pages(&disk.after_power_cut(Persistence::All, 0), Access::Buffered, 3),
                [1, 3, landed]
            );
            file.release(0..u64::MAX).unwrap();
            assert_eq!(pages(&disk, Access::Buffered, 3), [1, 3, landed]);
        }
    }
}

#[test]
fn a_lost_direct_write_is_gone_at_once() {
    let disk = SimDisk::new();
    file_of(&disk, &[1; 8192]);
    let file = disk.open_writable("/file".as_ref(), Access::Direct, Create::Never).unwrap();
    disk.inject_all(WriteFault::Misdirected { to: 1 << 20 }, Times::Once);
    let mut block = pagekeeper_io::AlignedBuf::new(4096);
    block.fill(2);
    file.write_at(0, &block, WriteMode::Durable).unwrap();
    assert_eq!(pages(&disk, Access::Buffered, 2), [1, 1]);
}

#[test]
fn syncs_lie_or_drop() {
    let run = |fault| {
        let disk = SimDisk::new();
        let file = file_of(&disk, &[1; 4096]);
        file.write_at(0, &[2; 4096], WriteMode::Plain).unwrap();
        disk.inject_all(fault, Times::Once);
        let synced = file.sync_data().is_ok();
        let found = |disk: &SimDisk| pages(disk, Access::Buffered, 1)[0];
        let cut = disk.after_power_cut(Persistence::None, 0);
        file.sync_data().unwrap();
        (synced, found(&disk), found(&cut), found(&disk.after_power_cut(Persistence::None, 0)))
    };
    assert_eq!(run(WriteFault::SYNC_EIO), (false, 2, 1, 1));
    assert_eq!(run(WriteFault::SyncDrop(libc::EIO)), (false, 1, 1, 1));
    // The next sync is real.
    assert_eq!(run(WriteFault::SyncLie), (true, 2, 1, 2));
}

#[test]
fn a_full_disk_accepts_writes_that_need_no_space() {
    let disk = SimDisk::new();
    let file = file_of(&disk, &[1; 4096]);
    file.allocate(0..8192).unwrap();
    disk.fill_up_at(disk.ops());
    file.write_at(0, &[2; 8192], WriteMode::Plain).unwrap();
    file.sync_data().unwrap();
    let full = |result: Result<(), Error>| assert_eq!(result.unwrap_err().errno(), Some(libc::ENOSPC));
    full(file.write_at(8192, &[2; 1], WriteMode::Plain));
    full(file.allocate(0..8193));
    full(disk.create_dir("/dir".as_ref()));
    full(disk.lock("/lock".as_ref()).map(drop));
    full(disk.open_writable("/new".as_ref(), Access::Buffered, Create::New).map(drop));
    disk.rename("/file".as_ref(), "/other".as_ref()).unwrap();
    disk.make_room();
    file.write_at(8192, &[2; 1], WriteMode::Plain).unwrap();
    disk.lock("/lock".as_ref()).unwrap();
}

#[test]
fn the_nth_operation_fails_of_any_kind() {
    for at in 0..5 {
        let disk = SimDisk::new();
        let file = file_of(&disk, &[1; 4096]);
        disk.fail_operation_at(disk.ops() + at, libc::EDQUOT);
        let results = [
            file.write_at(0, &[2; 4096], WriteMode::Plain),
            file.sync_data(),
            file.set_len(8192),
            disk.create_dir("/dir".as_ref()),
            disk.sync_dir("/".as_ref()),
        ];
        for (which, result) in (0..).zip(results) {
            let errno = (which == at).then_some(libc::EDQUOT);
            assert_eq!(result.err().and_then(|error| error.errno()), errno, "{which} of {at}");
        }
        let cut = disk.after_power_cut(Persistence::None, 0);
        assert_eq!(pages(&cut, Access::Buffered, 1), [if at < 2 { 1 } else { 2 }]);
        assert_eq!(cut.list("/dir".as_ref()).is_ok(), at < 3, "{at}");
    }
}

#[test]
fn random_damages_repeat_and_lie_within_the_file() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..500 {
        let damage = Damage::random(seed, 100_000);
        assert_eq!(damage, Damage::random(seed, 100_000));
        kinds.insert(format!("{damage:?}").split([' ', '(']).next().unwrap().to_owned());
        let disk = SimDisk::new();
        file_of(&disk, &vec![1; 100_000]);
        disk.damage("/file", &damage).unwrap();
        let file = disk.open("/file".as_ref(), Access::Buffered).unwrap();
        assert_eq!(file.stat().unwrap().size, 100_000, "{damage:?}");
    }
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

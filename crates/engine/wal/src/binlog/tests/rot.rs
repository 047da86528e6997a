//! A decaying medium, a full disk, and files of a newer version. The log is read correctly or
//! fails, and nothing is changed without need.

use pagekeeper_io::{Access, Create, Io, WriteMode};
use pagekeeper_simdisk::{Damage, SimDisk};
use pagekeeper_testing::{Rng, Seed};

use super::support::{DIR, append, group, options, read_groups};
use crate::binlog::injected_fault::BinLogFault;
use crate::record::{RecordKind, encode};
use crate::testing::lives;
use crate::{BinLog, Error, Position, PurgeMode};

/// Returns a log with three groups in each of two segments.
fn made(close: bool) -> SimDisk {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    for which in 0..6 {
        if which == 3 {
            log.rotate().unwrap();
        }
        append(&log, &group(which, 2, 300)).unwrap();
    }
    if close {
        log.close().unwrap();
    }
    disk.after_kill()
}

fn all(log: &BinLog) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    read_groups(log, log.first())
}

#[test]
fn openings_that_append_nothing_use_nothing_up() {
    for close in [true, false] {
        let disk = made(close);
        let names = disk.list(DIR.as_ref()).unwrap();
        for turn in 0..60 {
            let log = options(&disk).open(DIR).unwrap();
            assert_eq!(all(&log).unwrap().len(), 6);
            let end = log.end();
            assert_eq!(end.segment, 2);
            assert_eq!(read_groups(&log, end).unwrap().len(), 0);
            if turn % 2 == 0 {
                log.close().unwrap();
            }
        }
        assert_eq!((disk.stats().writes, disk.list(DIR.as_ref()).unwrap()), (0, names));
        let log = options(&disk).open(DIR).unwrap();
        let mut follower = log.follow(log.end()).unwrap();
        assert_eq!(append(&log, &group(6, 1, 9)).unwrap().segment, 3);
        assert_eq!(follower.try_next().unwrap().unwrap().bytes, group(6, 1, 9)[0]);
        drop(follower);
        log.close().unwrap();
        let log = options(&disk).open(DIR).unwrap();
        assert_eq!(all(&log).unwrap().len(), 7);
        assert_eq!(log.purge_to(log.end(), PurgeMode::UnlessFollowed), Ok(2));
        assert_eq!(all(&log).unwrap().len(), 1);
    }
}

#[test]
fn a_log_is_read_on_a_full_disk_and_continues_once_there_is_room() {
    let disk = made(true);
    disk.fill_up_at(0);
    let log = options(&disk).open(DIR).unwrap();
    assert_eq!(all(&log).unwrap().len(), 6);
    let refused = append(&log, &group(6, 1, 9)).unwrap_err();
    assert!(matches!(&refused, Error::Io(error) if error.errno() == Some(libc::ENOSPC)), "{refused}");
    log.close().unwrap();
    let log = options(&disk).open(DIR).unwrap();
    disk.make_room();
    append(&log, &group(6, 1, 9)).unwrap();
    assert_eq!(all(&log).unwrap().len(), 7);
}

#[test]
fn a_read_only_log_is_read_beside_others_and_nothing_is_written() {
    let read_only = |disk: &SimDisk| options(disk).read_only(true).open(DIR);
    let empty = SimDisk::new();
    assert!(matches!(read_only(&empty), Err(Error::NoLog { .. })));
    empty.create_dir(DIR.as_ref()).unwrap();
    assert!(matches!(read_only(&empty), Err(Error::NoLog { .. })));
    assert_eq!(empty.ops(), 1);
    for close in [true, false] {
        let disk = made(close);
        let logs = [read_only(&disk).unwrap(), read_only(&disk).unwrap()];
        for log in &logs {
            assert_eq!(all(log).unwrap().len(), 6);
            assert_eq!(append(log, &group(6, 1, 9)), Err(Error::ReadOnly));
            assert_eq!(log.rotate(), Err(Error::ReadOnly));
            assert_eq!(log.purge_to(log.end(), PurgeMode::Forced), Err(Error::ReadOnly));
            assert_eq!(log.sync(), Ok(log.end()));
        }
        assert!(matches!(options(&disk).open(DIR), Err(Error::Io(pagekeeper_io::Error::Locked { .. }))));
        drop(logs);
        assert_eq!(disk.ops(), 0);
        let log = options(&disk).open(DIR).unwrap();
        assert!(matches!(read_only(&disk), Err(Error::Io(pagekeeper_io::Error::Locked { .. }))));
        drop(log);
    }
}

#[test]
fn files_of_a_newer_format_are_left_alone() {
    let newer = |disk: &SimDisk, name: &str, at: u64, bytes: &[u8]| {
        let path = std::path::Path::new(DIR).join(name);
        let file = disk.open_writable(&path, Access::Buffered, Create::Never).unwrap();
        file.write_at(at, bytes, WriteMode::Plain).unwrap();
        file.sync_data().unwrap();
    };
    let disk = made(true);
    let mut header = vec![0; 4096];
    let path = std::path::Path::new(DIR).join("binlog.000001");
    disk.open(&path, Access::Buffered).unwrap().read_at(0, &mut header).unwrap();
    header[8] = 9;
    let crc = crc32c::crc32c(&header[..4092]);
    header[4092..].copy_from_slice(&crc.to_le_bytes());
    newer(&disk, "binlog.000001", 0, &header);
    assert_eq!(
        options(&disk).open(DIR).unwrap_err(),
        Error::UnknownVersion { path: path.clone(), version: 9 }
    );

    let disk = made(true);
    let line = "pagekeeper-binlog 2 0123456789abcdef";
    newer(&disk, "binlog.index", 0, format!("{line} {:08x}\n", crc32c::crc32c(line.as_bytes())).as_bytes());
    assert!(matches!(options(&disk).open(DIR), Err(Error::UnknownVersion { version: 2, .. })));

    let disk = made(false);
    // The salt of a segment differs in each log.
    let path = std::path::Path::new(DIR).join("binlog.000002");
    disk.open(&path, Access::Buffered).unwrap().read_at(0, &mut header).unwrap();
    let salt = u32::from_le_bytes(header[12..16].try_into().unwrap());
    newer(&disk, "binlog.000002", 4096, &encode(RecordKind::Unknown(8), b"?", 4096, salt, 0));
    let written = disk.stats().written;
    assert_eq!(options(&disk).open(DIR).unwrap_err(), Error::UnknownRecord { path, offset: 4096 });
    assert_eq!(disk.stats().written, written);
}

/// Damages a log at random. Either every group is intact, or opening fails, or the log ends early
/// and all missing groups were hit.
fn damaged(mut rng: Rng, injected_fault: Option<BinLogFault>) -> Result<(), String> {
    let disk = SimDisk::new();
    let options = |disk: &SimDisk| {
        let mut options = options(disk);
        options.injected_fault = injected_fault;
        options
    };
    let log = options(&disk).open(DIR).unwrap();
    let count = rng.of(1..12);
    let mut ends = Vec::new();
    for which in 0..count {
        if rng.one_in(5) {
            log.rotate().unwrap();
        }
        let from = log.end();
        let len = rng.index(2500);
        ends.push((from, append(&log, &group(which, 1 + rng.index(3), len)).unwrap()));
    }
    let expected = all(&log).unwrap();
    let closed = rng.one_in(2);
    let last = log.end().segment;
    if closed {
        log.close().unwrap();
    }
    let disk = disk.after_kill();
    let files: Vec<_> = disk.list(DIR.as_ref()).unwrap();
    let files: Vec<_> =
        files.iter().filter_map(|name| name.to_str()).filter(|name| *name != "lock").collect();
    let name = files[rng.index(files.len())].to_owned();
    let path = std::path::Path::new(DIR).join(&name);
    let size = disk.open(&path, Access::Buffered).unwrap().stat().unwrap().size;
    let damage = Damage::random(rng.number(), size.min(40 << 10));
    disk.damage(&path, &damage).unwrap();
    let found = options(&disk).open(DIR).and_then(|log| all(&log));
    let Ok(found) = found else { return Ok(()) };
    let context =
        |what: &str| Err(format!("{what}: {} of {count}; {name}: {damage:?}, closed: {closed}", found.len()));
    if found.len() > expected.len() || found[..] != expected[..found.len()] {
        return context("not what was appended");
    }
    let hit = match &damage {
        Damage::Bit { at, .. } => *at..*at + 1,
        Damage::Shifted { range, .. } | Damage::Zeros(range) | Damage::Garbage { range, .. } => range.clone(),
        _ => 0..0,
    };
    let is_hit = |(from, end): &(Position, Position)| {
        name == format!("binlog.{last:06}")
            && end.segment == last
            && hit.start < end.offset.next_multiple_of(4096)
            && (from.segment < last || from.offset < hit.end)
    };
    // Unreadable bytes never count as bytes that were never written.
    let readable = !matches!(damage, Damage::Unreadable(_));
    let excused = !closed && readable && ends[found.len()..].iter().all(is_hit);
    if found.len() == expected.len() || excused { Ok(()) } else { context("lost in silence") }
}

#[test]
fn damages_are_found_or_do_no_harm() {
    let seed = Seed::new();
    for which in 0..lives(9000) {
        damaged(seed.rng(which), None).unwrap_or_else(|error| panic!("life {which}: {error}"));
    }
}

#[test]
fn injected_faults_that_only_damage_shows_are_found() {
    let seed = Seed(7);
    for fault in [
        BinLogFault::NoSearchBehindEnd,
        BinLogFault::UnreadableIsEmpty,
        BinLogFault::NoChecksum,
        BinLogFault::SealedEndIgnored,
    ] {
        let found = (0..9000).find(|which| damaged(seed.rng(*which), Some(fault)).is_err());
        println!("{fault:?}: found in life {found:?}");
        assert!(found.is_some(), "{fault:?}");
    }
}

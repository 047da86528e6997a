//! Appending, reading, rotating, purging and reopening; refused directories and settings.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Error as IoError, Io, WriteMode};
use pagekeeper_simdisk::SimDisk;

use super::support::{DIR, append, contents, group, names, options, read_groups};
use crate::binlog::segment::{SEGMENT_HEADER_BYTES, segment_name};
use crate::{BinLog, Error, LogMode, Lsn, Position, PurgeMode};
use pagekeeper_testing::disk_dir;

#[test]
fn records_are_read_in_order_across_segments_and_reopenings() {
    for (mode, every) in [
        (LogMode::Buffered, 0),
        (LogMode::Buffered, 1),
        (LogMode::Buffered, 3),
        (LogMode::Direct, 0),
        (LogMode::Direct, 1),
        (LogMode::Uncached, 0),
        (LogMode::Uncached, 1),
    ] {
        let disk = SimDisk::new();
        let mut appended = Vec::new();
        for round in 0..4_u32 {
            let log = options(&disk).mode(mode).sync_every(every).open(DIR).unwrap();
            assert_eq!(log.mode(), mode);
            for which in 0..30 {
                let group = group(
                    u64::from(round * 100 + which),
                    1 + which as usize % 4,
                    (which * which * 5) as usize,
                );
                let position = append(&log, &group).unwrap();
                assert!(position <= log.end());
                appended.push(group);
            }
            assert_eq!(read_groups(&log, log.first()).unwrap(), appended, "{mode}, {every}");
            assert!(log.end().segment > 2);
            if round % 2 == 0 {
                log.close().unwrap();
            }
        }
        let log = options(&disk).mode(mode).open(DIR).unwrap();
        assert_eq!(read_groups(&log, log.first()).unwrap(), appended);
    }
}

#[test]
fn it_works_on_real_files_in_each_mode() {
    let dir = disk_dir();
    for mode in [LogMode::Auto, LogMode::Buffered, LogMode::Direct, LogMode::Uncached] {
        let path = dir.path().join(mode.to_string());
        let options = BinLog::options().max_segment_bytes(64 << 10).mode(mode);
        let mut appended = Vec::new();
        for round in 0..2 {
            let log = options.clone().open(&path).unwrap();
            for which in 0..50 {
                appended.push(group(round * 100 + which, 2, 3000));
                append(&log, appended.last().unwrap()).unwrap();
            }
            assert_eq!(read_groups(&log, log.first()).unwrap(), appended, "{}", log.why());
        }
        let error = {
            let _log = options.clone().open(&path).unwrap();
            options.open(&path).unwrap_err()
        };
        assert_eq!(error, Error::Io(IoError::Locked { path: path.join("lock") }));
    }
}

#[test]
fn reading_from_a_position_finds_later_records() {
    let disk = SimDisk::new();
    let log = options(&disk).sync_every(2).open(DIR).unwrap();
    let mut positions = vec![log.first()];
    let groups: Vec<_> = (0..40).map(|which| group(which, 2, 700)).collect();
    for group in &groups {
        positions.push(append(&log, group).unwrap());
    }
    assert!(positions.is_sorted_by(|a, b| a < b));
    for (at, position) in positions.iter().enumerate() {
        assert_eq!(read_groups(&log, *position).unwrap(), groups[at..], "{position}");
        assert_eq!(position.to_string().parse(), Ok(*position));
    }
    let start = Position { segment: 1, offset: 0 };
    assert_eq!(read_groups(&log, start).unwrap(), groups);
}

#[test]
fn a_position_where_no_record_stands_is_refused() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    append(&log, &group(1, 2, 5000)).unwrap();
    log.rotate().unwrap();
    append(&log, &group(1, 2, 500)).unwrap();
    let at = |segment, offset| Position { segment, offset };
    let follow = |position| log.follow(position).and_then(|mut follower| follower.try_next()).unwrap_err();
    assert_eq!(follow(at(1, 4104)), Error::NoRecord { position: at(1, 4104) });
    assert_eq!(follow(at(1, 4097)), Error::NoRecord { position: at(1, 4097) });
    assert_eq!(follow(at(1, 16 << 10)), Error::PastEnd { position: at(1, 16 << 10), end: at(1, 12 << 10) });
    assert_eq!(follow(at(2, 16 << 10)), Error::PastEnd { position: at(2, 16 << 10), end: at(2, 8 << 10) });
    assert_eq!(follow(at(3, 4096)), Error::PastEnd { position: at(3, 4096), end: at(2, 8 << 10) });
    assert_eq!(follow(at(0, 0)), Error::Purged { position: at(0, 0), first: at(1, 4096) });
}

#[test]
fn each_sync_ends_a_block_and_without_syncs_records_are_dense() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    append(&log, &group(1, 1, 100)).unwrap();
    append(&log, &group(2, 1, 100)).unwrap();
    assert_eq!((log.end(), log.durable_end()), (Position { segment: 1, offset: 3 * 4096 }, log.end()));
    let log = options(&disk).sync_every(0).open("/other").unwrap();
    append(&log, &group(1, 1, 100)).unwrap();
    append(&log, &group(2, 1, 100)).unwrap();
    assert_eq!(log.end(), Position { segment: 1, offset: 4096 + 2 * (24 + 104) });
    assert_eq!(log.durable_end(), log.first());
    assert_eq!(log.sync().unwrap(), Position { segment: 1, offset: 8192 });
    assert_eq!(log.sync().unwrap(), log.end());
}

#[test]
fn a_group_is_never_split_and_one_too_large_changes_nothing() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    let room = (16 << 10) - 4096_usize;
    append(&log, &[vec![1; room - 24]]).unwrap();
    assert_eq!(log.end(), Position { segment: 1, offset: 16 << 10 });
    let before = contents(&disk);
    // The second group would leave 8 bytes, which no padding fills.
    let groups = [vec![1; room - 23], vec![1; room - 32], vec![1; room - 40]].map(|record| vec![record]);
    for group in groups.into_iter().chain([vec![vec![1; room / 2]; 2], vec![vec![]; room / 24 + 1]]) {
        let error = append(&log, &group).unwrap_err();
        assert!(matches!(error, Error::GroupTooLarge { max: 12288, bytes } if bytes > 12288), "{error}");
    }
    assert_eq!(append(&log, &[]), Err(Error::EmptyGroup));
    assert!(contents(&disk) == before);
    append(&log, &vec![vec![2]; room / 32]).unwrap();
    assert_eq!(log.end(), Position { segment: 2, offset: 16 << 10 });
}

#[test]
fn a_log_that_was_closed_empty_continues_in_its_segment() {
    let disk = SimDisk::new();
    for _ in 0..3 {
        options(&disk).open(DIR).unwrap().close().unwrap();
        assert_eq!(names(&disk), ["binlog.000001", "binlog.index", "binlog.index.new", "lock"]);
    }
    // Nothing was appended: the log is as it was closed.
    drop(options(&disk).open(DIR).unwrap());
    assert_eq!(options(&disk).open(DIR).unwrap().end(), Position { segment: 1, offset: 4096 });
    // The log was dropped without a close, and has records.
    let log = options(&disk).open(DIR).unwrap();
    let end = append(&log, &group(1, 1, 10)).unwrap();
    assert_eq!(end.segment, 1);
    drop(log);
    let log = options(&disk).open(DIR).unwrap();
    assert_eq!((log.end().segment, log.end() > end), (1, true));
    assert_eq!(append(&log, &group(1, 1, 10)).unwrap().segment, 2);
}

#[test]
fn purging_removes_whole_segments_and_minds_followers() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    let groups: Vec<_> = (0..12).map(|which| group(which, 1, 3000)).collect();
    let positions: Vec<_> = groups.iter().map(|group| append(&log, group).unwrap()).collect();
    assert_eq!(log.end().segment, 4);
    let at = |segment| Position { segment, offset: 5000 };
    let mut follower = log.follow(positions[3]).unwrap();
    assert_eq!(
        log.purge_to(at(3), PurgeMode::UnlessFollowed),
        Err(Error::Followed { position: positions[3] })
    );
    assert_eq!(log.purge_to(at(2), PurgeMode::UnlessFollowed), Ok(1));
    assert_eq!(log.purge_to(at(2), PurgeMode::UnlessFollowed), Ok(0));
    assert_eq!(log.first(), Position { segment: 2, offset: 4096 });
    assert_eq!(follower.try_next().unwrap().unwrap().bytes, groups[4][0]);
    assert_eq!(log.purge_to(at(3), PurgeMode::Forced), Ok(1));
    let error = follower.try_next().unwrap_err();
    assert!(matches!(error, Error::Purged { first: Position { segment: 3, .. }, .. }), "{error}");
    assert_eq!(follower.try_next(), Ok(None), "it has ended");
    assert!(matches!(log.purge_to(at(5), PurgeMode::Forced), Err(Error::PastEnd { .. })));
    let left = ["binlog.000003", "binlog.000004", "binlog.index", "binlog.index.new", "lock"];
    assert_eq!(names(&disk), left);
    log.close().unwrap();
    let log = options(&disk).open(DIR).unwrap();
    assert_eq!(read_groups(&log, log.first()).unwrap(), groups[6..]);
}

fn refused(disk: &SimDisk) -> Error {
    let before = contents(disk);
    let error = options(disk).open(DIR).unwrap_err();
    assert!(contents(disk) == before, "{error}: something was changed");
    error
}

/// Returns a log of three segments.
fn three_segments() -> SimDisk {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    for which in 0..9 {
        append(&log, &group(which, 1, 3000)).unwrap();
    }
    assert_eq!(log.end().segment, 3);
    disk
}

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn writable(disk: &SimDisk, name: &str) -> Arc<dyn pagekeeper_io::IoFile> {
    disk.open_writable(&path(name), Access::Buffered, Create::Never).unwrap()
}

#[test]
fn directories_of_others_are_refused() {
    let disk = SimDisk::new();
    disk.create_dir(DIR.as_ref()).unwrap();
    disk.create(path("table"), *b"x").unwrap();
    assert_eq!(refused(&disk), Error::NotEmpty { path: DIR.into(), found: "table".into() });
    assert_eq!(names(&disk), ["table"], "not even a lock");
    // The names at the root of a file system are accepted.
    let disk = SimDisk::new();
    disk.create_dir(DIR.as_ref()).unwrap();
    disk.create(path("lost+found"), *b"").unwrap();
    options(&disk).open(DIR).unwrap().close().unwrap();
    options(&disk).open(DIR).unwrap();

    let disk = three_segments();
    disk.remove(path("binlog.index")).unwrap();
    assert_eq!(refused(&disk), Error::MissingFile { path: path("binlog.index") });

    // A segment from another log.
    let (disk, other) = (three_segments(), three_segments());
    let name = segment_name(2);
    let (_, bytes) = contents(&other).into_iter().find(|(found, _)| *found == name).unwrap();
    writable(&disk, &name).write_at(0, &bytes, WriteMode::Plain).unwrap();
    assert_eq!(refused(&disk), Error::NotASegment { path: path(&name) });
}

#[test]
fn segments_missing_cut_renamed_or_too_many_are_refused() {
    for number in 1..=3 {
        let disk = three_segments();
        disk.remove(path(&segment_name(number))).unwrap();
        assert_eq!(refused(&disk), Error::MissingFile { path: path(&segment_name(number)) });
    }
    for (number, len) in [(1, 16383), (2, 4096), (3, 4095)] {
        let disk = three_segments();
        writable(&disk, &segment_name(number)).set_len(len).unwrap();
        let expected = if number == 3 { 4096 } else { 16384 };
        assert_eq!(
            refused(&disk),
            Error::WrongSize { path: path(&segment_name(number)), expected, found: len }
        );
    }
    let disk = three_segments();
    for (from, to) in [("binlog.000001", "x"), ("binlog.000002", "binlog.000001"), ("x", "binlog.000002")] {
        disk.rename(&path(from), &path(to)).unwrap();
    }
    assert_eq!(refused(&disk), Error::NotASegment { path: path("binlog.000001") });

    for (number, len) in [(4, 4097), (9, 8192)] {
        let disk = three_segments();
        disk.create(path(&segment_name(number)), vec![1; len]).unwrap();
        assert_eq!(refused(&disk), Error::Unlisted { path: path(&segment_name(number)) });
    }
    // The remains of a rotation or a purge after a crash.
    let disk = three_segments();
    disk.create(path("binlog.000004"), vec![0; 4096]).unwrap();
    writable(&disk, "binlog.index.new").write_at(0, b"half an ind", WriteMode::Plain).unwrap();
    let log = options(&disk).open(DIR).unwrap();
    assert_eq!(log.end().segment, 3);
    assert_eq!(append(&log, &group(1, 1, 10)).unwrap().segment, 4);
    log.close().unwrap();
    assert_eq!(names(&disk).len(), 7, "{:?}", names(&disk));
}

#[test]
fn a_damaged_index_is_refused() {
    let disk = three_segments();
    writable(&disk, "binlog.index").write_at(60, b"9", WriteMode::Plain).unwrap();
    assert_eq!(refused(&disk), Error::BrokenIndex { path: path("binlog.index"), line: 2 });
    let disk = three_segments();
    writable(&disk, "binlog.index").set_len(0).unwrap();
    assert_eq!(refused(&disk), Error::BrokenIndex { path: path("binlog.index"), line: 1 });
}

#[test]
fn damage_before_the_durable_end_is_refused_in_the_last_segment_and_reported_in_others() {
    let spoil = |disk: &SimDisk, number, offset| {
        writable(disk, &segment_name(number)).write_at(offset, &[0xa5; 16], WriteMode::Plain).unwrap();
    };
    // The last segment has two groups, each in its own block. The second proves that the first was
    // durable.
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    append(&log, &group(1, 1, 3000)).unwrap();
    append(&log, &group(2, 1, 3000)).unwrap();
    drop(log);
    spoil(&disk, 1, SEGMENT_HEADER_BYTES + 100);
    assert_eq!(
        refused(&disk),
        Error::Corrupt {
            path: path("binlog.000001"),
            offset: SEGMENT_HEADER_BYTES,
            lsn: Lsn::new(SEGMENT_HEADER_BYTES)
        }
    );

    let disk = three_segments();
    spoil(&disk, 2, SEGMENT_HEADER_BYTES + 100);
    let log = options(&disk).open(DIR).unwrap();
    let mut follower = log.follow(Position { segment: 1, offset: 0 }).unwrap();
    for which in 0..3 {
        assert_eq!(follower.try_next().unwrap().unwrap().bytes, group(which, 1, 3000)[0]);
    }
    assert_eq!(
        follower.try_next(),
        Err(Error::Damaged { path: path("binlog.000002"), offset: SEGMENT_HEADER_BYTES })
    );
    assert!(follower.next().is_none());
}

#[test]
fn settings_out_of_range_are_refused() {
    for bytes in [0, 4096, 12 << 10, (16 << 10) + 1] {
        let error = BinLog::options().max_segment_bytes(bytes).open("/nowhere").unwrap_err();
        assert!(matches!(error, Error::Setting { given, .. } if given == bytes), "{error}");
    }
}

#[test]
fn a_second_opener_is_refused_and_the_first_continues() {
    fn shared<T: Send + Sync>() {}
    shared::<BinLog>();
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    assert_eq!(refused(&disk), Error::Io(IoError::Locked { path: path("lock") }));
    append(&log, &group(1, 1, 1)).unwrap();
    drop(log);
    options(&disk).open(DIR).unwrap();
}

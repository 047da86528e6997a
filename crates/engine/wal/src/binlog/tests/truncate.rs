//! Ends that are cut off: what stays, who is told, and power cuts at any operation of it; and the
//! positions that keep a log to a size or an age.

use std::time::{Duration, SystemTime};

use pagekeeper_simdisk::{Persistence, SimDisk};
use pagekeeper_testing::Seed;

use super::support::{append, contents, group, options, read_groups};
use crate::{BinLog, Error, LogMode, Position, PurgeMode};

type Groups = Vec<Vec<Vec<u8>>>;

/// Appends groups to several segments. Returns them, and the position past each.
fn filled(log: &BinLog, which: std::ops::Range<u64>) -> (Groups, Vec<Position>) {
    let groups: Groups =
        which.zip((1..=3).cycle()).map(|(which, records)| group(which, records, 2000)).collect();
    let ends = groups.iter().map(|group| append(log, group).unwrap()).collect();
    (groups, ends)
}

#[test]
fn what_is_behind_the_position_is_gone_for_good() {
    for mode in [LogMode::Buffered, LogMode::Direct] {
        let disk = SimDisk::new();
        for at in 0..30 {
            let disk = disk.clone();
            let log = options(&disk).mode(mode).open(format!("/log {at}")).unwrap();
            let (mut groups, ends) = filled(&log, 0..30);
            assert!(log.end().segment > 3);
            log.truncate_after(ends[at], PurgeMode::UnlessFollowed).unwrap();
            groups.truncate(at + 1);
            assert_eq!((log.end(), log.durable_end()), (ends[at], ends[at]));
            assert_eq!(read_groups(&log, log.first()).unwrap(), groups);
            // Opened again with or without an append before.
            let mut log = log;
            if at % 2 == 0 {
                log.close().unwrap();
                log = options(&disk).mode(mode).open(format!("/log {at}")).unwrap();
                assert_eq!(read_groups(&log, log.first()).unwrap(), groups);
            }
            groups.extend(filled(&log, 100..105).0);
            assert_eq!(read_groups(&log, ends[at]).unwrap(), groups[at + 1..]);
            drop(log);
            let log = options(&disk).mode(mode).open(format!("/log {at}")).unwrap();
            assert_eq!(read_groups(&log, log.first()).unwrap(), groups);
        }
    }
}

#[test]
fn a_log_that_is_cut_to_nothing_goes_on() {
    for reopen in [false, true] {
        let disk = SimDisk::new();
        let mut log = options(&disk).open("/binlog").unwrap();
        filled(&log, 0..10);
        let first = log.first();
        log.truncate_after(first, PurgeMode::UnlessFollowed).unwrap();
        if reopen {
            drop(log);
            log = options(&disk).open("/binlog").unwrap();
        }
        assert_eq!(read_groups(&log, first).unwrap(), Groups::new());
        let (groups, _) = filled(&log, 50..53);
        assert_eq!(read_groups(&log, first).unwrap(), groups);
        drop(log);
        let log = options(&disk).open("/binlog").unwrap();
        assert_eq!(read_groups(&log, first).unwrap(), groups);
    }
}

#[test]
fn only_the_end_of_a_group_will_do_and_followers_are_told() {
    let disk = SimDisk::new();
    let log = options(&disk).open("/binlog").unwrap();
    let (groups, ends) = filled(&log, 0..20);
    let before = contents(&disk);
    let follower = log.follow(ends[12]).unwrap();
    let cut = |position, purge| log.truncate_after(position, purge).unwrap_err();
    let at = |offset: u64| Position { offset: ends[10].offset - offset, ..ends[10] };
    for offset in [1, 8, 64] {
        assert!(matches!(cut(at(offset), PurgeMode::Forced), Error::NoRecord { .. }));
    }
    let past = Position { segment: 99, offset: 4096 };
    assert!(matches!(cut(past, PurgeMode::Forced), Error::PastEnd { .. }));
    let past = Position { offset: ends[10].offset + (1 << 20), ..ends[10] };
    assert!(matches!(cut(past, PurgeMode::Forced), Error::PastEnd { .. }));
    assert!(
        matches!(cut(ends[10], PurgeMode::UnlessFollowed), Error::Followed { position } if position == ends[12])
    );
    assert_eq!(contents(&disk), before, "nothing changed");
    assert_eq!(read_groups(&log, log.first()).unwrap(), groups);

    let waiting = std::thread::spawn(move || {
        let mut follower = follower;
        std::iter::from_fn(|| follower.next()).find_map(Result::err)
    });
    let mut early = log.follow(log.first()).unwrap();
    log.truncate_after(ends[10], PurgeMode::Forced).unwrap();
    assert!(matches!(waiting.join().unwrap(), Some(Error::Truncated { .. })));
    // A follower in an earlier segment goes on to the new end.
    let mut seen = 0;
    while let Some(event) = early.try_next().unwrap() {
        seen += usize::from(event.ends_group);
    }
    assert_eq!(seen, 11);
    log.purge_to(ends[10], PurgeMode::Forced).unwrap();
    assert!(matches!(cut(ends[0], PurgeMode::Forced), Error::Purged { .. }));
}

#[test]
fn after_a_power_cut_all_of_the_end_is_there_or_none() {
    let random = Seed::new();
    let (mut wholes, mut cuts) = (0, 0);
    for life in 0..200 {
        let mut rng = random.rng(life);
        let disk = SimDisk::new();
        let log = options(&disk).open("/binlog").unwrap();
        let (mut groups, ends) = filled(&log, 0..20);
        let at = rng.index(19);
        disk.cut_power_at(disk.ops() + rng.of(0..40));
        let done = log.truncate_after(ends[at], PurgeMode::UnlessFollowed);
        let persistence = Persistence::ALL[rng.index(Persistence::ALL.len())];
        let mut after = disk.after_power_cut(persistence, rng.number());
        drop(log);
        // The power goes again while the log is opened.
        if rng.one_in(2) {
            after.cut_power_at(rng.of(0..20));
            let opened = options(&after).open("/binlog").map(drop);
            let twice = after.after_power_cut(persistence, rng.number());
            drop(opened);
            after = twice;
        }
        // Reading does not finish it, and shows the same.
        let read_only = options(&after).read_only(true).open("/binlog").unwrap();
        let seen = read_groups(&read_only, read_only.first()).unwrap();
        drop(read_only);
        let log = options(&after).open("/binlog").unwrap();
        assert_eq!(read_groups(&log, log.first()).unwrap(), seen);
        if seen.len() == groups.len() {
            assert!(done.is_err(), "what was cut off is there again");
            wholes += 1;
        } else {
            groups.truncate(at + 1);
            cuts += 1;
        }
        assert_eq!(seen, groups);
        groups.extend(filled(&log, 70..73).0);
        drop(log);
        let log = options(&after).open("/binlog").unwrap();
        assert_eq!(read_groups(&log, log.first()).unwrap(), groups);
    }
    assert!(wholes > 10 && cuts > 10, "{wholes} whole, {cuts} cut off");
}

#[test]
fn a_log_is_kept_to_a_size_and_an_age() {
    let temp = tempfile::tempdir_in("/var/tmp").unwrap();
    let log =
        BinLog::options().max_segment_bytes(16 << 10).zero_ahead(0).open(temp.path().join("log")).unwrap();
    let (_, ends) = filled(&log, 0..40);
    let last = log.end().segment;
    let path = |number: u64| temp.path().join(format!("log/binlog.{number:06}"));
    let size = |number| std::fs::metadata(path(number)).unwrap().len();
    let bytes = size(last) + size(last - 1) + size(last - 2);
    assert_eq!(log.last_bytes(bytes).segment, last - 2);
    assert_eq!(log.last_bytes(bytes - 1).segment, last - 1);
    assert_eq!((log.last_bytes(1).segment, log.last_bytes(u64::MAX)), (last, log.first()));
    // All but the last three were written an hour ago.
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for number in log.first().segment..last - 2 {
        std::fs::File::options().write(true).open(path(number)).unwrap().set_modified(hour_ago).unwrap();
    }
    let minute_ago = SystemTime::now() - Duration::from_secs(60);
    assert_eq!(log.since(minute_ago).unwrap().segment, last - 2);
    assert_eq!(log.since(hour_ago - Duration::from_secs(9)).unwrap(), log.first());
    assert_eq!(log.since(SystemTime::now() + Duration::from_secs(3600)).unwrap(), log.end());
    log.purge_to(log.since(minute_ago).unwrap(), PurgeMode::UnlessFollowed).unwrap();
    assert_eq!(log.first().segment, last - 2);
    assert!(matches!(log.follow(ends[0]), Err(Error::Purged { .. })));
}

#[test]
fn a_record_is_found_by_its_own_number() {
    let log = options(&SimDisk::new()).open("/binlog").unwrap();
    let find = |number: u64| log.partition_point(|bytes| *bytes < number.to_be_bytes()[..]).unwrap();
    assert_eq!((find(0), find(7)), (log.first(), log.first()));
    // The even numbers, in groups of up to three records, in several segments.
    let mut positions = Vec::new();
    for group in (0..400_u64).collect::<Vec<_>>().chunks(3) {
        let records: Vec<_> = group.iter().map(|number| [(2 * number).to_be_bytes(); 60].concat()).collect();
        append(&log, &records).unwrap();
    }
    assert!(log.end().segment > 3, "{}", log.end());
    let mut follower = log.follow(log.first()).unwrap();
    while let Some(event) = follower.try_next().unwrap() {
        positions.push(event.position);
    }
    positions.push(log.end());
    for number in 0..=800 {
        let position = find(number);
        assert_eq!(position, positions[usize::try_from(number.div_ceil(2)).unwrap()], "{number}");
    }
    // The oldest segments are gone.
    let middle = positions[200];
    log.purge_to(middle, PurgeMode::UnlessFollowed).unwrap();
    assert_eq!((find(0), find(400)), (log.first(), middle));
}

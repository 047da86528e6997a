//! Failed writes and syncs, full disks, panics: who gets the error, and what continues.

use std::sync::Barrier;

use pagekeeper_io::Error as IoError;
use pagekeeper_simdisk::{RandomFaults, RandomWriteFaults, SimDisk, Times, WriteFault};

use super::support::{DIR, append, group, names, options, read_groups};
use crate::{BinLog, Error, LogMode, PurgeMode};
use pagekeeper_testing::{Mounted, disk_dir};

fn is_poisoned<T: std::fmt::Debug>(result: Result<T, Error>, errno: i32) {
    match result {
        Err(Error::Poisoned { cause }) => match *cause {
            Error::Io(error) => assert_eq!(error.errno(), Some(errno), "{error}"),
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_write_or_sync_is_final_for_everyone() {
    for fault in [WriteFault::EIO, WriteFault::SYNC_EIO, WriteFault::Sync(libc::ENOSPC)] {
        let disk = SimDisk::new();
        let log = options(&disk).open(DIR).unwrap();
        append(&log, &group(1, 2, 100)).unwrap();
        let mut follower = log.follow(log.first()).unwrap();
        let durable = log.durable_end();
        disk.inject_all(fault, Times::Once);
        let errno = if fault == WriteFault::Sync(libc::ENOSPC) { libc::ENOSPC } else { libc::EIO };
        is_poisoned(append(&log, &group(2, 2, 100)), errno);
        // The disk works again; the log does not.
        is_poisoned(append(&log, &group(3, 2, 100)), errno);
        is_poisoned(log.sync(), errno);
        is_poisoned(log.rotate(), errno);
        is_poisoned(log.purge_to(log.end(), PurgeMode::Forced), errno);
        assert_eq!(log.durable_end(), durable);
        // Durable records can still be read.
        assert!(follower.try_next().unwrap().is_some() && follower.try_next().unwrap().is_some());
        is_poisoned(follower.try_next(), errno);
        assert!(follower.next().is_none());
        is_poisoned(log.close(), errno);
        let log = options(&disk).open(DIR).unwrap();
        let found = read_groups(&log, log.first()).unwrap();
        assert_eq!(found[0], group(1, 2, 100));
        append(&log, &group(4, 1, 1)).unwrap();
    }
}

#[test]
fn a_log_continues_if_its_reserved_index_is_removed() {
    let disk = SimDisk::new();
    let remove_room = || disk.remove("/binlog/binlog.index.new").unwrap();
    let log = options(&disk).open(DIR).unwrap();
    let position = append(&log, &group(1, 2, 100)).unwrap();
    remove_room();
    log.rotate().unwrap();
    append(&log, &group(2, 2, 100)).unwrap();
    remove_room();
    assert_eq!(log.purge_to(log.end(), PurgeMode::Forced), Ok(1));
    remove_room();
    log.close().unwrap();
    let log = options(&disk).open(DIR).unwrap();
    assert!(log.first() > position);
    assert_eq!(read_groups(&log, log.first()).unwrap(), [group(2, 2, 100)]);
}

/// Whoever may write to the directory can put something else there.
#[test]
fn other_files_at_the_reserved_name_are_left_alone() {
    let dir = disk_dir();
    for kind in ["symbolic", "hard"] {
        let path = dir.path().join(kind);
        let other = dir.path().join(format!("other than {kind}"));
        std::fs::write(&other, "not an index").unwrap();
        drop(BinLog::options().open(&path).unwrap());
        let reserved = path.join("binlog.index.new");
        std::fs::remove_file(&reserved).unwrap();
        match kind {
            "hard" => std::fs::hard_link(&other, &reserved).unwrap(),
            _ => std::os::unix::fs::symlink(&other, &reserved).unwrap(),
        }
        let log = BinLog::options().open(&path).unwrap();
        append(&log, &group(1, 2, 100)).unwrap();
        log.rotate().unwrap();
        log.close().unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "not an index");
        assert!(path.join("binlog.index").symlink_metadata().unwrap().is_file());
        let log = BinLog::options().open(&path).unwrap();
        assert_eq!(read_groups(&log, log.first()).unwrap(), [group(1, 2, 100)]);
    }
}

#[test]
fn a_log_continues_without_room_for_the_next_index() {
    let rehearsal = SimDisk::new();
    options(&rehearsal).open(DIR).unwrap();
    let mut opened = 0;
    for operation in 0..rehearsal.ops() {
        for errno in [libc::EIO, libc::EROFS, libc::ENOSPC, libc::EACCES] {
            let disk = SimDisk::new();
            disk.fail_operation_at(operation, errno);
            let Ok(log) = options(&disk).open(DIR) else { continue };
            assert_eq!(disk.stats().faults, 1);
            opened += 1;
            append(&log, &group(1, 2, 100)).unwrap();
            log.rotate().unwrap();
            assert!(names(&disk).contains(&"binlog.index.new".to_owned()));
            append(&log, &group(2, 2, 100)).unwrap();
            log.close().unwrap();
            let log = options(&disk).open(DIR).unwrap();
            let groups = [group(1, 2, 100), group(2, 2, 100)];
            assert_eq!(read_groups(&log, log.first()).unwrap(), groups);
        }
    }
    // The file that is made for the next index, and its space, which is allocated twice.
    assert_eq!(opened, 3 * 4);
}

#[test]
fn all_waiters_get_the_error_of_a_failure() {
    let disk = SimDisk::new();
    let log = options(&disk).max_segment_bytes(1 << 20).open(DIR).unwrap();
    let hold = disk.hold("/binlog/binlog.000001", 0..u64::MAX).unwrap();
    let barrier = Barrier::new(9);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..8)
            .map(|which| {
                let (log, barrier) = (&log, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    append(log, &group(which, 1, 10))
                })
            })
            .collect();
        let reader = scope.spawn(|| log.follow(log.first()).unwrap().next().unwrap());
        barrier.wait();
        while disk.stats().in_flight == 0 {
            std::thread::yield_now();
        }
        disk.inject_all(WriteFault::SYNC_EIO, Times::Always);
        drop(hold);
        for waiter in waiters {
            is_poisoned(waiter.join().unwrap(), libc::EIO);
        }
        // The reader saw the record before the sync, or got the error.
        if let Err(error) = reader.join().unwrap() {
            is_poisoned::<()>(Err(error), libc::EIO);
        }
    });
}

#[test]
fn at_a_full_disk_that_append_fails_and_the_others_stay() {
    for (mode, every) in
        [(LogMode::Buffered, 1), (LogMode::Buffered, 0), (LogMode::Direct, 0), (LogMode::Uncached, 2)]
    {
        let mut failed_somewhere = 0;
        for at in 0..60 {
            let disk = SimDisk::new();
            let log = options(&disk).mode(mode).sync_every(every).open(DIR).unwrap();
            let short = RandomWriteFaults { short_per_mille: 600, ..RandomWriteFaults::default() };
            disk.set_random_faults(RandomFaults::default(), short);
            disk.inject_all(WriteFault::NO_SPACE, Times::Nth(at));
            let mut kept = Vec::new();
            let mut failed = 0;
            for which in 0..12 {
                let group = group(which, 2, 2000);
                match append(&log, &group) {
                    Ok(position) => {
                        assert!(position <= log.end());
                        kept.push(group);
                    }
                    Err(Error::Io(error)) => {
                        assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
                        failed += 1;
                    }
                    Err(error) => panic!("write {at}: {error}"),
                }
            }
            assert!(failed <= 1);
            failed_somewhere += failed;
            assert_eq!(read_groups(&log, log.first()).unwrap(), kept, "write {at}");
            disk.set_random_faults(RandomFaults::default(), RandomWriteFaults::default());
            disk.heal_all();
            log.close().unwrap();
            let log = options(&disk).open(DIR).unwrap();
            assert_eq!(read_groups(&log, log.first()).unwrap(), kept, "write {at}, opened again");
        }
        assert!(failed_somewhere > 10, "{failed_somewhere}");
    }
}

/// The test of the mode runs at the first append and not before: it takes room.
#[test]
fn a_full_file_system_opens_a_log_in_each_mode_and_the_mode_is_found_out_when_there_is_room() {
    let Some(mounted) = Mounted::new("ext4") else { return };
    let open = |mode| {
        let options = BinLog::options().max_segment_bytes(64 << 10).zero_ahead(0).mode(mode);
        options.open(mounted.path().join(mode.to_string())).unwrap()
    };
    let modes = [LogMode::Direct, LogMode::Uncached];
    for mode in modes {
        let log = open(LogMode::Buffered);
        append(&log, &group(1, 2, 3000)).unwrap();
        log.close().unwrap();
        let at = |mode: LogMode| mounted.path().join(mode.to_string());
        std::fs::rename(at(LogMode::Buffered), at(mode)).unwrap();
    }
    let full = mounted.path().join("full");
    let mut file = std::fs::File::create(&full).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    drop(file);
    let logs = modes.map(open);
    for log in &logs {
        assert_eq!(read_groups(log, log.first()).unwrap(), [group(1, 2, 3000)]);
        for _ in 0..2 {
            let refused = append(log, &group(2, 2, 30_000)).unwrap_err();
            assert!(matches!(&refused, Error::Io(error) if error.errno() == Some(libc::ENOSPC)), "{refused}");
        }
    }
    std::fs::remove_file(&full).unwrap();
    for (log, mode) in logs.into_iter().zip(modes) {
        append(&log, &group(3, 2, 30_000)).unwrap();
        let (found, why) = (log.mode(), log.why());
        assert!(found == mode || why.contains("is refused here"), "{why}");
        assert_eq!(read_groups(&log, log.first()).unwrap(), [group(1, 2, 3000), group(3, 2, 30_000)]);
        log.close().unwrap();
    }
}

#[test]
fn remains_of_a_full_disk_that_cannot_be_cut_off_end_the_log() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    disk.inject_all(WriteFault::NO_SPACE, Times::Once);
    disk.inject_all(WriteFault::SYNC_EIO, Times::Once);
    is_poisoned(append(&log, &group(1, 1, 100)), libc::EIO);
}

#[test]
fn nothing_changes_where_the_log_cannot_be_made() {
    for at in 0..4 {
        let disk = SimDisk::new();
        disk.inject_all(WriteFault::NO_SPACE, Times::Nth(at));
        match options(&disk).open(DIR) {
            Err(error) => {
                assert!(matches!(&error, Error::Io(IoError::Write { errno: libc::ENOSPC, .. })), "{error}");
                disk.heal_all();
                let log = options(&disk).open(DIR).unwrap();
                assert_eq!(log.end(), log.first());
            }
            Ok(log) => drop(log),
        }
    }
}

#[test]
fn a_writer_that_panics_ends_the_log_and_keeps_nobody_waiting() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    let leader = log.shared.queue.exclusive().unwrap();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|which| {
                let log = &log;
                scope.spawn(move || if which == 0 { log.rotate() } else { append(log, &group(which, 1, 1)) })
            })
            .collect();
        drop(leader);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Err(Error::Abandoned));
        }
    });
    assert_eq!(append(&log, &group(1, 1, 1)), Err(Error::Abandoned));
    let _: BinLog = log;
}

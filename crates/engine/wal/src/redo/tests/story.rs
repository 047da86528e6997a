//! Plain use, and wrong input.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagekeeper_io::{Access, Create, Error as IoError, Io, Threads, WriteMode};
use pagekeeper_simdisk::SimDisk;

use super::super::options::FlushPolicy;
use super::super::{Backpressure, RedoLog};
use super::{all, dir, small};
use crate::{Error, LogMode, Lsn};
use pagekeeper_testing::disk_dir;

/// Returns the names and contents of the files in the log's directory.
fn everything(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.list(dir()).unwrap();
    let read = |name: std::ffi::OsString| {
        let file = disk.open(&dir().join(&name), Access::Buffered).unwrap();
        let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        (name.into_string().unwrap(), bytes)
    };
    names.into_iter().map(read).collect()
}

#[test]
fn appended_records_are_read_back_in_order() {
    let disk = SimDisk::new();
    // Without threads: they would sync on their own after a second.
    let log = small(&disk).without_threads().create(dir()).unwrap();
    let bodies = [&b"first"[..], b"", b"third, of an odd length"];
    let ends: Vec<_> = bodies.iter().map(|body| log.append(body).unwrap()).collect();
    assert_eq!(log.durable_lsn(), Lsn::new(0));
    assert_eq!(all(&log), [], "not durable yet");
    log.wait_flushed(ends[0]).unwrap();
    assert!(log.durable_lsn() >= ends[2], "one sync for all that waits");
    let records = all(&log);
    assert_eq!(records.iter().map(|record| &record.body[..]).collect::<Vec<_>>(), bodies);
    assert_eq!(records.iter().map(|record| record.end).collect::<Vec<_>>(), ends);
    assert_eq!(log.read_from(ends[1]).unwrap().count(), 1);
    log.close().unwrap();

    let log = small(&disk).without_threads().open(dir()).unwrap();
    assert_eq!(all(&log), records);
    let end = log.append(b"fourth").unwrap();
    log.wait_flushed(end).unwrap();
    assert_eq!(all(&log).len(), 4);
    let stats = log.stats();
    assert_eq!((stats.appends, stats.commits - stats.syncs), (1, 0));
}

#[test]
fn threads_append_and_commit_while_the_ring_goes_round() {
    let temp = disk_dir();
    let dir = temp.path().join("redo");
    for mode in [LogMode::Buffered, LogMode::Direct, LogMode::Auto] {
        let options = || RedoLog::options().files(3).file_bytes(128 << 10).buffer_bytes(64 << 10).mode(mode);
        let log = options().create(&dir).unwrap();
        let (stop, checkpoints) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4_u8)
                .map(|thread| {
                    let log = &log;
                    scope.spawn(move || {
                        for number in 0..200_u32 {
                            let mut body = vec![thread; usize::try_from(number).unwrap() * 17 % 3000 + 5];
                            body[1..5].copy_from_slice(&number.to_le_bytes());
                            let end = log.append(&body).unwrap();
                            if number % 3 == 0 {
                                log.wait_flushed(end).unwrap();
                                assert!(log.durable_lsn() >= end);
                            }
                        }
                    })
                })
                .collect();
            let checkpointer = scope.spawn(|| {
                // The numbers of each thread's records ascend, and none is missing.
                let mut next = [0_u32; 4];
                loop {
                    let stopping = stop.load(Ordering::SeqCst);
                    if stopping {
                        log.sync_upto(log.end()).unwrap();
                    }
                    let mut end = log.checkpoint_lsn();
                    for record in log.read_from(end).unwrap() {
                        let record = record.unwrap();
                        let number = u32::from_le_bytes(record.body[1..5].try_into().unwrap());
                        assert_eq!(
                            std::mem::replace(&mut next[usize::from(record.body[0])], number + 1),
                            number
                        );
                        end = record.end;
                    }
                    log.checkpoint(end).unwrap();
                    checkpoints.fetch_add(1, Ordering::Relaxed);
                    if stopping {
                        return next;
                    }
                    std::thread::yield_now();
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            stop.store(true, Ordering::SeqCst);
            assert_eq!(checkpointer.join().unwrap(), [200; 4]);
        });
        assert!(log.end() > Lsn::new(log.capacity()), "it went round");
        log.close().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn appends_wait_while_the_ring_is_full_and_the_callback_is_called() {
    let disk = SimDisk::new();
    let reported = Arc::new(Mutex::new(Vec::<Backpressure>::new()));
    let callback = Arc::clone(&reported);
    let log =
        small(&disk).on_backpressure(move |full| callback.lock().unwrap().push(full)).create(dir()).unwrap();
    let mut ends = vec![];
    let refused = loop {
        match log.try_append(&[1; 3000]) {
            Ok(end) => ends.push(end),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::RingFull { checkpoint: Lsn::new(0) });
    assert!(reported.lock().unwrap().is_empty());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| log.append(&[2; 3000]).unwrap());
        while reported.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        log.checkpoint(ends[3]).unwrap();
        assert!(waits.join().unwrap() > *ends.last().unwrap());
    });
    let full = reported.lock().unwrap()[0];
    assert_eq!((full.checkpoint, full.capacity), (Lsn::new(0), 64 << 10));
    assert!(full.to_string().starts_with("redo ring full: "));
    assert_eq!(log.stats().waits_for_ring, 1);
}

#[test]
fn a_full_ring_can_be_opened_any_number_of_times() {
    let disk = SimDisk::new();
    let log = small(&disk).create(dir()).unwrap();
    let fit = std::iter::repeat_with(|| log.try_append(&[3; 1000])).take_while(Result::is_ok).count();
    log.close().unwrap();
    for _ in 0..5 {
        let log = small(&disk).open(dir()).unwrap();
        assert_eq!(all(&log).len(), fit);
        assert!(matches!(log.try_append(&[4; 4000]), Err(Error::RingFull { .. })));
    }
    let log = small(&disk).open(dir()).unwrap();
    let end = all(&log)[fit - 1].end;
    log.checkpoint(end).unwrap();
    let end = log.append(&[5; 1000]).unwrap();
    log.wait_flushed(end).unwrap();
    log.close().unwrap();
    let log = small(&disk).open(dir()).unwrap();
    assert_eq!(all(&log).iter().map(|record| record.body[0]).collect::<Vec<_>>(), [5]);
}

#[test]
fn records_up_to_the_longest_go_in_and_come_out() {
    let disk = SimDisk::new();
    let log = small(&disk).create(dir()).unwrap();
    let max = log.longest_record();
    for round in 0..20 {
        let body: Vec<u8> = (0..max).map(|at| (at * 7 + round).to_le_bytes()[0]).collect();
        let end = log.append(&body).unwrap();
        log.wait_flushed(end).unwrap();
        assert_eq!(all(&log).pop().unwrap().body, body);
        log.checkpoint(end).unwrap();
    }
    let error = log.append(&vec![0; max + 1]).unwrap_err();
    assert_eq!(error, Error::RecordTooLarge { bytes: max as u64 + 1, max: max as u64 });
}

#[test]
fn checkpoints_are_taken_of_records_only() {
    let disk = SimDisk::new();
    let log = small(&disk).create(dir()).unwrap();
    let ends = [log.append(&[1; 100]).unwrap(), log.append(&[2; 5000]).unwrap()];
    assert_eq!(log.checkpoint(ends[0] + 8), Err(Error::NotARecord { lsn: ends[0] + 8 }));
    assert_eq!(log.checkpoint(ends[0] + 1), Err(Error::NotARecord { lsn: ends[0] + 1 }));
    assert!(
        matches!(log.checkpoint(Lsn::new(1 << 30)), Err(Error::NotInLog { from, .. }) if from == Lsn::new(0))
    );
    assert!(matches!(log.wait_flushed(Lsn::new(1 << 30)), Err(Error::NotInLog { .. })));
    log.checkpoint(ends[0]).unwrap();
    log.checkpoint(ends[0]).unwrap();
    log.checkpoint(Lsn::new(0)).unwrap();
    assert_eq!(log.checkpoint_lsn(), ends[0]);
    assert!(matches!(log.read_from(Lsn::new(0)).unwrap_err(), Error::NotInLog { .. }));
    assert_eq!(all(&log).len(), 1);
    assert_eq!(log.stats().checkpoints, 1);
}

#[test]
fn threads_move_the_checkpoint_in_any_order() {
    let disk = SimDisk::new();
    let log = small(&disk).create(dir()).unwrap();
    let append_and_checkpoint = || {
        for _ in 0..200 {
            let end = log.append(&[7; 100]).unwrap();
            log.wait_flushed(end).unwrap();
            log.checkpoint(end).unwrap();
            assert!(log.checkpoint_lsn() >= end);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(append_and_checkpoint);
        }
    });
    assert_eq!(all(&log).len(), 0);
}

#[test]
fn an_overtaken_reader_is_an_error() {
    let disk = SimDisk::new();
    let log = small(&disk).create(dir()).unwrap();
    let end = log.append(&[1; 100]).unwrap();
    log.wait_flushed(end).unwrap();
    let mut reader = log.read_from(Lsn::new(0)).unwrap();
    for _ in 0..30 {
        let end = log.append(&[2; 3000]).unwrap();
        log.checkpoint(end).unwrap();
    }
    assert_eq!(reader.next(), Some(Err(Error::Overtaken { lsn: Lsn::new(0) })));
    assert_eq!(reader.next(), None);
}

#[test]
fn each_policy_syncs_at_its_time() {
    for policy in [FlushPolicy::Os, FlushPolicy::Every(Duration::MAX)] {
        let disk = SimDisk::new();
        let log = small(&disk).flush_policy(policy).create(dir()).unwrap();
        let end = log.append(b"x").unwrap();
        log.wait_flushed(end).unwrap();
        assert_eq!((log.stats().syncs, log.durable_lsn(), log.stats().written), (0, Lsn::new(0), 4096));
        assert_eq!(all(&log).len(), 1, "written records can be read");
        log.sync_upto(end).unwrap();
        assert_eq!((log.stats().syncs, log.durable_lsn()), (1, Lsn::new(4096)));
    }
    let disk = SimDisk::new();
    let log = small(&disk).flush_policy(FlushPolicy::Every(Duration::from_millis(1))).create(dir()).unwrap();
    let end = log.append(b"x").unwrap();
    while log.durable_lsn() < end {
        std::thread::yield_now();
    }
}

#[test]
fn pages_are_given_back() {
    let temp = disk_dir();
    let dir = temp.path().join("redo");
    for policy in [FlushPolicy::EachCommit, FlushPolicy::Os] {
        let options =
            RedoLog::options().files(2).file_bytes(32 << 20).mode(LogMode::Buffered).flush_policy(policy);
        let log = options.create(&dir).unwrap();
        for number in 0..96_u64 {
            let end = log.append(&vec![1; 1 << 20]).unwrap();
            log.wait_flushed(end).unwrap();
            if number % 16 == 15 {
                log.checkpoint(end).unwrap();
            }
        }
        assert!(log.stats().released > 0 || log.stats().resident == 0, "{:?}", log.stats());
        log.close().unwrap();
        let io = Threads::new();
        for name in ["redo.000", "redo.001"] {
            let file = io.open(&dir.join(name), Access::Buffered).unwrap();
            if let Some(found) = file.residency(0..32 << 20).unwrap() {
                // The kernel may hold references to a few pages while it is advised.
                assert!(found.resident <= 256 << 10, "{policy:?}, {name}: {found:?}");
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn settings_that_no_log_can_have_are_refused() {
    let disk = SimDisk::new();
    let wrong = [
        small(&disk).files(0),
        small(&disk).files(5000),
        small(&disk).file_bytes(10_000),
        small(&disk).file_bytes(12 << 10),
        small(&disk).buffer_bytes(40_000),
        small(&disk).buffer_bytes(4096),
    ];
    for options in wrong {
        assert!(matches!(options.create(dir()), Err(Error::Setting { .. })));
    }
    let error = small(&disk).file_bytes(4096).create(dir()).unwrap_err();
    assert_eq!(error.to_string(), "a ring of 16384: give 65536 bytes or more in all");
    assert_eq!(disk.ops(), 0);
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let disk = SimDisk::new();
    disk.create_dir(dir()).unwrap();
    assert_eq!(small(&disk).open(dir()).unwrap_err(), Error::NoLog { path: dir().join("control") });
    disk.create("/redo/diary.txt", *b"dear").unwrap();
    let before = everything(&disk);
    let error = small(&disk).create(dir()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/redo: not empty: it has diary.txt, and a log is made in an empty directory only"
    );
    assert!(matches!(small(&disk).open(dir()), Err(Error::NoLog { .. })));
    assert_eq!(everything(&disk), before);
    assert!(matches!(small(&disk).open("/nowhere"), Err(Error::NoLog { .. })));

    // The names at the root of a file system are ignored.
    let disk = SimDisk::new();
    disk.create_dir(dir()).unwrap();
    disk.create("/redo/lost+found", *b"").unwrap();
    small(&disk).create(dir()).unwrap().close().unwrap();
    small(&disk).open(dir()).unwrap();

    // An existing log is not an empty directory, even without its control file.
    let disk = SimDisk::new();
    small(&disk).create(dir()).unwrap().close().unwrap();
    assert!(matches!(small(&disk).create(dir()), Err(Error::NotEmpty { .. })));
    SimDisk::remove(&disk, "/redo/control").unwrap();
    let before = everything(&disk);
    assert!(matches!(small(&disk).create(dir()), Err(Error::NotEmpty { .. })));
    assert!(matches!(small(&disk).open(dir()), Err(Error::NoLog { .. })));
    assert_eq!(everything(&disk), before);
}

#[test]
fn damaged_logs_are_named_and_not_changed() {
    let made = || {
        let disk = SimDisk::new();
        let log = small(&disk).create(dir()).unwrap();
        let end = log.append(b"precious").unwrap();
        log.wait_flushed(end).unwrap();
        let end = log.append(b"too").unwrap();
        log.wait_flushed(end).unwrap();
        log.append(b"knows that the first was durable").unwrap();
        log.close().unwrap();
        disk
    };
    let damage = |path: &str, offset: u64, bytes: &[u8], disk: &SimDisk| {
        let file = disk.open_writable(Path::new(path), Access::Buffered, Create::Never).unwrap();
        file.write_at(offset, bytes, WriteMode::Plain).unwrap();
    };
    let refused = |disk: &SimDisk| {
        let before = everything(disk);
        let error = small(disk).open(dir()).unwrap_err();
        assert_eq!(everything(disk), before);
        error
    };

    let disk = made();
    SimDisk::remove(&disk, "/redo/redo.002").unwrap();
    assert_eq!(refused(&disk), Error::MissingFile { path: "/redo/redo.002".into() });

    let disk = made();
    disk.truncate("/redo/redo.001", 100).unwrap();
    let expected = Error::WrongSize { path: "/redo/redo.001".into(), expected: 16 << 10, found: 100 };
    assert_eq!(refused(&disk), expected);

    let disk = made();
    damage("/redo/control", 0, &[0; 8192], &disk);
    assert_eq!(refused(&disk), Error::BrokenControl { path: "/redo/control".into() });

    let disk = made();
    damage("/redo/redo.000", 24, b"P", &disk);
    let corrupt = Error::Corrupt { path: "/redo/redo.000".into(), offset: 0, lsn: Lsn::new(0) };
    assert_eq!(refused(&disk), corrupt);

    let disk = made();
    let log = small(&disk).open(dir()).unwrap();
    let locked = Error::Io(IoError::Locked { path: "/redo/lock".into() });
    assert_eq!(small(&disk).open(dir()).unwrap_err(), locked);
    assert!(matches!(small(&disk).create(dir()), Err(Error::NotEmpty { .. })));
    drop(log);
    small(&disk).open(dir()).unwrap();
}

#[test]
fn an_unfinished_log_is_created_again() {
    let whole = SimDisk::new();
    small(&whole).create(dir()).unwrap();
    let mut unfinished = 0;
    for cut in 0..whole.ops() {
        for persistence in pagekeeper_simdisk::Persistence::ALL {
            let disk = SimDisk::new();
            disk.cut_power_at(cut);
            if small(&disk).without_threads().create(dir()).is_ok() {
                continue;
            }
            let disk = disk.after_power_cut(persistence, cut);
            match small(&disk).open(dir()) {
                Ok(log) => assert_eq!(all(&log), []),
                Err(error) => {
                    let plain = matches!(error, Error::Unfinished { .. } | Error::NoLog { .. });
                    assert!(plain, "cut at {cut}, {persistence:?}: {error}");
                    unfinished += 1;
                    let log = small(&disk)
                        .create(dir())
                        .unwrap_or_else(|error| panic!("{cut}, {persistence:?}: {error}"));
                    let end = log.append(b"x").unwrap();
                    log.wait_flushed(end).unwrap();
                }
            }
        }
    }
    assert!(unfinished > 0);
}

//! A disk that fails, or is full.

use std::sync::Arc;

use pagekeeper_io::{Error as IoError, Io};
use pagekeeper_simdisk::{RandomFaults, RandomWriteFaults, SimDisk, Times, WriteFault};

use super::super::options::FlushPolicy;
use super::super::state::WritingMode;
use super::{all, dir, small};
use crate::{Error, LogMode, Lsn};

#[test]
fn a_failed_sync_ends_the_log_for_everyone_and_for_good() {
    let disk = SimDisk::new();
    let log = Arc::new(small(&disk).create(dir()).unwrap());
    let kept = log.append(b"kept").unwrap();
    log.wait_flushed(kept).unwrap();
    disk.inject_all(WriteFault::SYNC_EIO, Times::Always);
    let cause = IoError::Sync { path: "/redo/redo.000".into(), errno: libc::EIO };
    let expected = Error::Poisoned { cause: Box::new(cause.into()) };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (log, expected) = (&log, &expected);
            scope.spawn(move || {
                let result = log.append(b"lost").and_then(|lsn| log.wait_flushed(lsn));
                assert_eq!(result.as_ref(), Err(expected));
            });
        }
    });
    assert!(expected.to_string().contains("/redo/redo.000"), "{expected}");
    // The disk works again, but the log does not: nobody knows what it holds.
    disk.heal_all();
    assert_eq!(log.append(b"more").as_ref(), Err(&expected));
    assert_eq!(log.sync_upto(kept), Ok(()), "that was durable before");
    assert_eq!(log.checkpoint(kept).as_ref(), Err(&expected));
    assert_eq!(all(&log).len(), 1, "reading continues");
    assert_eq!(Arc::into_inner(log).unwrap().close().as_ref(), Err(&expected));
    let log = small(&disk).open(dir()).unwrap();
    assert_eq!(all(&log)[0].body, b"kept");
}

#[test]
fn a_failed_write_ends_the_log_for_callers_waiting_for_space_too() {
    let disk = SimDisk::new();
    let log = small(&disk).create(dir()).unwrap();
    disk.inject_all(WriteFault::EIO, Times::Always);
    let error = loop {
        match log.append(&[1; 5000]) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&error, Error::Poisoned { cause } if matches!(**cause, Error::Io(IoError::Write { .. })))
    );
    assert_eq!(log.append(b"x"), Err(error));
}

/// The kernel reports the failure once: a later sync would not see it.
#[test]
fn a_failed_writeback_that_only_the_release_sees_ends_the_log() {
    let disk = SimDisk::new();
    let options = small(&disk).file_bytes(4 << 20).flush_policy(FlushPolicy::Os);
    let log = options.create(dir()).unwrap();
    disk.inject_all(WriteFault::SYNC_EIO, Times::Always);
    let error = loop {
        match log.append(&[1; 10_000]) {
            Ok(end) => assert!(end < Lsn::new(15 << 20), "pages were released, and nothing failed"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&error, Error::Poisoned { cause } if matches!(**cause, Error::Io(IoError::Sync { .. }))),
        "{error}"
    );
    assert_eq!(log.stats().syncs, 0);
}

#[test]
fn a_checkpoint_that_fails_ends_the_log() {
    let disk = SimDisk::new();
    let log = small(&disk).create(dir()).unwrap();
    let end = log.append(b"x").unwrap();
    log.wait_flushed(end).unwrap();
    disk.inject("/redo/control", 0..8192, WriteFault::EIO, Times::Once).unwrap();
    assert!(matches!(log.checkpoint(end), Err(Error::Poisoned { .. })));
    assert_eq!(log.checkpoint_lsn(), Lsn::new(0));
    assert!(matches!(log.append(b"y"), Err(Error::Poisoned { .. })));
}

#[test]
fn a_disk_that_is_full_leaves_nothing_behind() {
    for fault in [WriteFault::Allocate(libc::ENOSPC), WriteFault::NO_SPACE, WriteFault::SYNC_EIO] {
        for nth in 0..4 {
            let disk = SimDisk::new();
            disk.inject_all(fault, Times::Nth(nth));
            let error = small(&disk).create(dir()).unwrap_err();
            assert!(matches!(error, Error::Io(_)), "{error}");
            assert_eq!(disk.list(dir()).unwrap_or_default(), [""; 0], "{fault:?} {nth}");
            disk.heal_all();
            small(&disk).create(dir()).unwrap();
        }
    }
    // Without fallocate, writing the zeros is enough.
    let disk = SimDisk::new();
    disk.inject_all(WriteFault::Allocate(libc::EOPNOTSUPP), Times::Always);
    small(&disk).create(dir()).unwrap();
}

#[test]
fn short_and_interrupted_calls_are_continued() {
    let reads = RandomFaults { short_per_mille: 300, interrupted_per_mille: 300, ..RandomFaults::default() };
    let writes = RandomWriteFaults {
        short_per_mille: 300,
        interrupted_per_mille: 300,
        ..RandomWriteFaults::default()
    };
    let disk = SimDisk::builder().random_faults(reads).random_write_faults(writes).build();
    let log = small(&disk).create(dir()).unwrap();
    for number in 0..50_u8 {
        let end = log.append(&vec![number; usize::from(number) * 100]).unwrap();
        log.wait_flushed(end).unwrap();
        if number % 4 == 3 {
            log.checkpoint(end).unwrap();
        }
    }
    log.close().unwrap();
    let log = small(&disk).open(dir()).unwrap();
    assert_eq!(all(&log).iter().map(|record| record.body[0]).collect::<Vec<_>>(), [48, 49]);
}

/// This file system may ignore the flag of a durable write.
#[test]
fn a_sync_follows_each_commit_unless_durable_writes_are_proven() {
    for honours_durable in [false, true] {
        let disk = SimDisk::new();
        let log = small(&disk).without_threads().create(dir()).unwrap();
        let direct = WritingMode { mode: LogMode::Direct, honours_durable };
        assert!(log.core.write.mode.set(direct).is_ok());
        log.append(b"opening the files and the control file").unwrap();
        let before = disk.stats().syncs;
        for _ in 0..5 {
            log.wait_flushed(log.append(b"x").unwrap()).unwrap();
        }
        assert_eq!(disk.stats().syncs - before, if honours_durable { 0 } else { 5 });
    }
}

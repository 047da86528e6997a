//! Leader election, the contents of batches, the handover, and a log that ends.

use super::world::{GROUP, Log};
use super::{check, segment::HEADER};
use crate::Error;

/// Asserts that the log has all groups and accepts more.
fn assert_has(log: &Log, bytes: &[u8]) {
    let mut groups = log.groups();
    groups.sort_unstable();
    assert_eq!(groups, bytes);
    log.append(9).unwrap();
    log.rotate().unwrap();
}

#[test]
fn groups_side_by_side() {
    check(
        Log::new,
        &[
            |log| _ = log.append(1).unwrap(),
            |log| _ = log.append(2).unwrap(),
            |log| _ = log.append(3).unwrap(),
        ],
        |log| assert_has(log, &[1, 2, 3]),
    );
}

/// Appends two groups, in this order.
fn twice(log: &Log, byte: u8) {
    let first = log.append(byte).unwrap();
    assert!(first < log.append(byte + 1).unwrap());
}

#[test]
fn groups_of_callers_who_come_again() {
    check(Log::new, &[|log| twice(log, 1), |log| twice(log, 3), |log| twice(log, 5)], |log| {
        assert_has(log, &[1, 2, 3, 4, 5, 6]);
    });
}

#[test]
fn exclusive_leaders() {
    check(
        Log::new,
        &[
            |log| _ = log.append(1).unwrap(),
            |log| log.rotate().unwrap(),
            |log| {
                log.rotate().unwrap();
                log.append(2).unwrap();
            },
        ],
        |log| assert_has(log, &[1, 2]),
    );
}

/// Appends a group and requests a sync.
fn synced(log: &Log, byte: u8) {
    let end = log.append(byte).unwrap();
    assert!(end <= log.sync().unwrap());
}

#[test]
fn requests_for_a_sync() {
    check(
        || Log { sync_every: false, ..Log::new() },
        &[|log| synced(log, 1), |log| synced(log, 2), |log| _ = log.append(3).unwrap()],
        |log| assert_has(log, &[1, 2, 3]),
    );
}

/// Asserts that everyone gets the first error if the log has failed.
fn assert_over(log: &Log) {
    let over = || log.disk(|disk| disk.over.clone());
    assert_eq!(log.append(5).err(), over());
    assert_eq!(log.rotate().err(), over());
}

#[test]
fn a_leader_that_panics() {
    fn append(log: &Log, byte: u8) {
        if let Err(error) = log.append(byte) {
            assert_eq!(error, Error::Abandoned);
        }
    }
    check(
        Log::new,
        &[
            |log| {
                if log.panic(1) {
                    assert_eq!(log.append(2), Err(Error::Abandoned));
                }
            },
            |log| append(log, 3),
            |log| {
                append(log, 4);
                assert!(matches!(log.rotate(), Ok(()) | Err(Error::Abandoned)));
            },
        ],
        assert_over,
    );
}

#[test]
fn a_sync_that_fails() {
    check(
        || Log { max_synced: HEADER + GROUP, ..Log::new() },
        &[|log| _ = log.append(1), |log| _ = log.append(2), |log| _ = log.rotate()],
        assert_over,
    );
}

#[test]
fn a_sync_that_fails_and_a_leader_that_panics() {
    check(
        || Log { max_synced: HEADER + GROUP, ..Log::new() },
        &[|log| _ = log.append(1), |log| _ = log.append(2), |log| _ = log.panic(3)],
        assert_over,
    );
}

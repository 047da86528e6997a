//! Leader election, the contents of batches, the handover, and a log that ends.

use super::world::{GROUP_BYTES, ModelLog};
use super::{check, segment::SEGMENT_HEADER_BYTES};
use crate::Error;

/// Asserts that the log has all groups and accepts more.
fn assert_has(log: &ModelLog, bytes: &[u8]) {
    let mut groups = log.groups();
    groups.sort_unstable();
    assert_eq!(groups, bytes);
    log.append(9).unwrap();
    log.rotate().unwrap();
}

#[test]
fn groups_side_by_side() {
    check(
        ModelLog::new,
        &[
            |log| _ = log.append(1).unwrap(),
            |log| _ = log.append(2).unwrap(),
            |log| _ = log.append(3).unwrap(),
        ],
        |log| assert_has(log, &[1, 2, 3]),
    );
}

/// Appends two groups, in this order.
fn twice(log: &ModelLog, byte: u8) {
    let first = log.append(byte).unwrap();
    assert!(first < log.append(byte + 1).unwrap());
}

#[test]
fn groups_of_returning_callers() {
    check(ModelLog::new, &[|log| twice(log, 1), |log| twice(log, 3), |log| twice(log, 5)], |log| {
        assert_has(log, &[1, 2, 3, 4, 5, 6]);
    });
}

#[test]
fn exclusive_leaders() {
    check(
        ModelLog::new,
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
fn synced(log: &ModelLog, byte: u8) {
    let end = log.append(byte).unwrap();
    assert!(end <= log.sync().unwrap());
}

#[test]
fn requests_for_a_sync() {
    check(
        || ModelLog { sync_every: false, ..ModelLog::new() },
        &[|log| synced(log, 1), |log| synced(log, 2), |log| _ = log.append(3).unwrap()],
        |log| assert_has(log, &[1, 2, 3]),
    );
}

/// Asserts that everyone gets the first error if the log has failed.
fn assert_over(log: &ModelLog) {
    let over = || log.disk(|disk| disk.over.clone());
    assert_eq!(log.append(5).err(), over());
    assert_eq!(log.rotate().err(), over());
}

#[test]
fn a_leader_that_panics() {
    fn append(log: &ModelLog, byte: u8) {
        if let Err(error) = log.append(byte) {
            assert_eq!(error, Error::Abandoned);
        }
    }
    check(
        ModelLog::new,
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
        || ModelLog { max_synced: SEGMENT_HEADER_BYTES + GROUP_BYTES, ..ModelLog::new() },
        &[|log| _ = log.append(1), |log| _ = log.append(2), |log| _ = log.rotate()],
        assert_over,
    );
}

#[test]
fn a_sync_that_fails_and_a_leader_that_panics() {
    check(
        || ModelLog { max_synced: SEGMENT_HEADER_BYTES + GROUP_BYTES, ..ModelLog::new() },
        &[|log| _ = log.append(1), |log| _ = log.append(2), |log| _ = log.panic(3)],
        assert_over,
    );
}

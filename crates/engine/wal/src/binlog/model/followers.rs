//! Followers that check and sleep while the log is written.

use super::check;
use super::follower::ModelFollower;
use super::segment::SEGMENT_HEADER_BYTES;
use super::world::{GROUP_BYTES, ModelLog};
use crate::Error;

/// Reads until the log is closed.
fn read(log: &ModelLog) {
    let mut follower = ModelFollower::new(log, false).unwrap();
    follower.read_all().unwrap();
    assert_eq!(follower.read, [1, 2]);
}

/// Reads one group.
fn read_one(log: &ModelLog, durable_only: bool) {
    let mut follower = ModelFollower::new(log, durable_only).unwrap();
    follower.read(1).unwrap();
    assert_eq!(follower.read, [1]);
}

fn write(log: &ModelLog) {
    log.append(1).unwrap();
    log.append(2).unwrap();
    log.progress.closed();
}

#[test]
fn a_follower_that_sleeps() {
    check(ModelLog::new, &[write, read], |_| ());
}

#[test]
fn a_follower_with_a_waker() {
    check(
        ModelLog::new,
        &[write, |log| {
            let mut follower = ModelFollower::new(log, false).unwrap();
            follower.poll_all().unwrap();
            assert_eq!(follower.read, [1, 2]);
        }],
        |_| (),
    );
}

#[test]
fn followers_of_written_and_of_durable_records() {
    check(
        || ModelLog { sync_every: false, ..ModelLog::new() },
        &[
            |log| {
                log.append(1).unwrap();
                log.sync().unwrap();
                log.append(2).unwrap();
                log.progress.closed();
            },
            read,
            |log| {
                let mut follower = ModelFollower::new(log, true).unwrap();
                follower.read_all().unwrap();
                assert_eq!(follower.read, [1]);
            },
        ],
        |_| (),
    );
}

#[test]
fn a_follower_over_a_rotation() {
    check(
        ModelLog::new,
        &[
            |log| {
                log.append(1).unwrap();
                log.rotate().unwrap();
                log.append(2).unwrap();
                log.progress.closed();
            },
            read,
            |log| {
                let mut follower = ModelFollower::new(log, true).unwrap();
                follower.read_all().unwrap();
                assert_eq!(follower.read, [1, 2]);
            },
        ],
        |_| (),
    );
}

#[test]
fn followers_that_are_woken_by_each_step() {
    check(
        || ModelLog { sync_every: false, ..ModelLog::new() },
        &[
            |log| _ = log.append(1).unwrap(),
            |log| {
                read_one(log, false);
                log.sync().unwrap();
            },
            |log| read_one(log, true),
        ],
        |_| (),
    );
}

#[test]
fn a_follower_of_two_appenders() {
    check(
        ModelLog::new,
        &[
            |log| _ = log.append(1).unwrap(),
            |log| _ = log.append(2).unwrap(),
            |log| {
                let mut follower = ModelFollower::new(log, false).unwrap();
                follower.read(2).unwrap();
                assert_eq!(follower.read, log.groups());
            },
        ],
        |_| (),
    );
}

#[test]
fn followers_of_a_log_that_fails() {
    fn read(log: &ModelLog, durable_only: bool, max: usize) {
        let mut follower = ModelFollower::new(log, durable_only).unwrap();
        assert!(matches!(follower.read_all(), Err(Error::Poisoned { .. })));
        assert!((1..=max).contains(&follower.read.len()), "{:?}", follower.read);
    }
    check(
        || ModelLog { max_synced: SEGMENT_HEADER_BYTES + GROUP_BYTES, ..ModelLog::new() },
        &[
            |log| {
                log.append(1).unwrap();
                log.append(2).unwrap_err();
            },
            |log| read(log, false, 2),
            |log| read(log, true, 1),
        ],
        |_| (),
    );
}

//! Followers that check and sleep while the log is written.

use super::check;
use super::follower::Follower;
use super::segment::HEADER;
use super::world::{GROUP, Log};
use crate::Error;

/// Reads until the log is closed.
fn read(log: &Log) {
    let mut follower = Follower::new(log, false).unwrap();
    follower.read_all().unwrap();
    assert_eq!(follower.read, [1, 2]);
}

/// Reads one group.
fn read_one(log: &Log, durable_only: bool) {
    let mut follower = Follower::new(log, durable_only).unwrap();
    follower.read(1).unwrap();
    assert_eq!(follower.read, [1]);
}

fn write(log: &Log) {
    log.append(1).unwrap();
    log.append(2).unwrap();
    log.progress.closed();
}

#[test]
fn a_follower_that_sleeps() {
    check(Log::new, &[write, read], |_| ());
}

#[test]
fn a_follower_with_a_waker() {
    check(
        Log::new,
        &[write, |log| {
            let mut follower = Follower::new(log, false).unwrap();
            follower.poll_all().unwrap();
            assert_eq!(follower.read, [1, 2]);
        }],
        |_| (),
    );
}

#[test]
fn followers_of_what_is_written_and_of_what_is_durable() {
    check(
        || Log { sync_every: false, ..Log::new() },
        &[
            |log| {
                log.append(1).unwrap();
                log.sync().unwrap();
                log.append(2).unwrap();
                log.progress.closed();
            },
            read,
            |log| {
                let mut follower = Follower::new(log, true).unwrap();
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
        Log::new,
        &[
            |log| {
                log.append(1).unwrap();
                log.rotate().unwrap();
                log.append(2).unwrap();
                log.progress.closed();
            },
            read,
            |log| {
                let mut follower = Follower::new(log, true).unwrap();
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
        || Log { sync_every: false, ..Log::new() },
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
fn a_follower_of_two_who_append() {
    check(
        Log::new,
        &[
            |log| _ = log.append(1).unwrap(),
            |log| _ = log.append(2).unwrap(),
            |log| {
                let mut follower = Follower::new(log, false).unwrap();
                follower.read(2).unwrap();
                assert_eq!(follower.read, log.groups());
            },
        ],
        |_| (),
    );
}

#[test]
fn followers_of_a_log_that_fails() {
    fn read(log: &Log, durable_only: bool, max: usize) {
        let mut follower = Follower::new(log, durable_only).unwrap();
        assert!(matches!(follower.read_all(), Err(Error::Poisoned { .. })));
        assert!((1..=max).contains(&follower.read.len()), "{:?}", follower.read);
    }
    check(
        || Log { max_synced: HEADER + GROUP, ..Log::new() },
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

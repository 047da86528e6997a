//! Purges while followers arrive, read and move on.

use super::check;
use super::follower::Follower;
use super::world::Log;
use crate::Error;

/// Returns a closed log of two segments.
fn two_segments() -> Log {
    let log = Log::new();
    log.append(1).unwrap();
    log.rotate().unwrap();
    log.append(2).unwrap();
    log.progress.closed();
    log
}

#[test]
fn a_purge_that_minds_followers() {
    check(
        two_segments,
        &[
            |log| match log.purge_to(2, false) {
                Ok(purged) => assert_eq!(purged, 1),
                Err(error) => assert!(matches!(error, Error::Followed { .. })),
            },
            |log| match Follower::new(log, false) {
                Ok(mut follower) => {
                    follower.read_all().unwrap();
                    assert_eq!(follower.read, [1, 2]);
                }
                Err(error) => assert!(matches!(error, Error::Purged { .. })),
            },
            |log| drop(Follower::new(log, false)),
        ],
        |log| {
            log.purge_to(2, false).unwrap();
            assert_eq!(log.groups(), [2]);
        },
    );
}

#[test]
fn a_purge_by_force() {
    check(
        Log::new,
        &[
            |log| {
                log.append(1).unwrap();
                log.rotate().unwrap();
                assert_eq!(log.purge_to(2, true), Ok(1));
                log.append(2).unwrap();
                log.progress.closed();
            },
            |log| {
                let Ok(mut follower) = Follower::new(log, false) else { return };
                match follower.read_all() {
                    Ok(()) => assert_eq!(follower.read, [1, 2]),
                    Err(error) => assert!(matches!(error, Error::Purged { .. })),
                }
            },
        ],
        |log| assert_eq!(log.groups(), [2]),
    );
}

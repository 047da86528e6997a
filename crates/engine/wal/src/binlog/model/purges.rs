//! Purges while followers arrive, read and move on.

use super::check;
use super::follower::ModelFollower;
use super::world::ModelLog;
use crate::Error;

/// Returns a closed log of two segments.
fn two_segments() -> ModelLog {
    let log = ModelLog::new();
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
            |log| match ModelFollower::new(log, false) {
                Ok(mut follower) => {
                    follower.read_all().unwrap();
                    assert_eq!(follower.read, [1, 2]);
                }
                Err(error) => assert!(matches!(error, Error::Purged { .. })),
            },
            |log| drop(ModelFollower::new(log, false)),
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
        ModelLog::new,
        &[
            |log| {
                log.append(1).unwrap();
                log.rotate().unwrap();
                assert_eq!(log.purge_to(2, true), Ok(1));
                log.append(2).unwrap();
                log.progress.closed();
            },
            |log| {
                let Ok(mut follower) = ModelFollower::new(log, false) else { return };
                match follower.read_all() {
                    Ok(()) => assert_eq!(follower.read, [1, 2]),
                    Err(error) => assert!(matches!(error, Error::Purged { .. })),
                }
            },
        ],
        |log| assert_eq!(log.groups(), [2]),
    );
}

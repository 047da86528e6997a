//! A log of consecutive files with a checkpoint: pages that recovery would read stay, and all
//! others are released as without a checkpoint.

use std::collections::BTreeSet;

use pagekeeper_policy::{
    CheckpointFacts, CheckpointPosition, DatabaseId, FileClass, FileFacts, FileId, FilePosition,
    FollowerFacts, FollowerId, LogId, RewriteKind, Rule, StepFacts, StepState, WINDOW, WindowFacts, step,
};
use proptest::prelude::*;

use crate::model::{check_ranges, config, releases};

const FILES: u64 = 6;
const WINDOWS: u64 = 4;
const SIZE: u64 = WINDOWS * WINDOW;

#[derive(Debug, Clone)]
struct Log {
    /// For each window of each file: whether it has pages, and whether they are dirty.
    windows: Vec<(bool, bool)>,
    writer: Option<(u64, u64)>,
    follower: Option<(u64, u64)>,
    checkpoint: Option<(u64, u64)>,
    near_files: u64,
    slack: u64,
}

fn log() -> impl Strategy<Value = Log> {
    let windows = prop::collection::vec(any::<(bool, bool)>(), usize::try_from(FILES * WINDOWS).unwrap());
    let place = || prop::option::of((0..FILES, 0..=SIZE));
    (windows, place(), place(), place(), 0..3_u64, 0..2 * WINDOW).prop_map(
        |(windows, writer, follower, checkpoint, near_files, slack)| Log {
            windows,
            writer,
            follower,
            checkpoint,
            near_files,
            slack,
        },
    )
}

impl Log {
    fn facts(&self, rule: Rule) -> StepFacts {
        let files = (0..FILES).map(|sequence| FileFacts {
            id: FileId(sequence),
            database: DatabaseId(1),
            log: LogId(1),
            sequence,
            class: FileClass::Wal,
            rule,
            rewrite: RewriteKind::WholePages,
            size: SIZE,
            writer: self.writer.filter(|(at, _)| *at == sequence).map(|(_, offset)| FilePosition::At(offset)),
            changed: 0,
            windows: (0..WINDOWS)
                .filter_map(|number| {
                    let (resident, dirty) =
                        self.windows[usize::try_from(sequence * WINDOWS + number).unwrap()];
                    let start = number * WINDOW;
                    let unwritten = if dirty { WINDOW } else { 0 };
                    resident.then_some(WindowFacts {
                        start,
                        end: start + WINDOW,
                        resident: WINDOW,
                        unwritten,
                    })
                })
                .collect(),
        });
        let follower = |(sequence, offset)| FollowerFacts {
            id: FollowerId(1),
            log: LogId(1),
            sequence,
            position: FilePosition::At(offset),
            near_files: 0,
        };
        let checkpoint = |(sequence, offset)| CheckpointFacts {
            log: LogId(1),
            at: CheckpointPosition::InSeries { sequence, offset },
        };
        StepFacts {
            files: files.collect(),
            followers: self.follower.map(follower).into_iter().collect(),
            checkpoints: self.checkpoint.map(checkpoint).into_iter().collect(),
            ..StepFacts::default()
        }
    }

    /// Returns the windows that are released in two steps, by sequence and number.
    fn released(&self, rule: Rule) -> Result<BTreeSet<(u64, u64)>, TestCaseError> {
        let facts = self.facts(rule);
        let mut state = StepState::default();
        let mut released = BTreeSet::new();
        for _ in 0..2 {
            let acts = step(&mut state, &facts);
            check_ranges(&facts, &acts)?;
            for (file, range) in releases(&acts) {
                released.extend(
                    (range.start / WINDOW..range.end.div_ceil(WINDOW)).map(|number| (file.0, number)),
                );
            }
        }
        Ok(released)
    }

    /// Whether recovery would read some of the window.
    fn is_recovered(&self, (sequence, number): (u64, u64)) -> bool {
        let Some(checkpoint) = self.checkpoint else { return true };
        let ends_after = (sequence, (number + 1) * WINDOW - 1) >= checkpoint;
        // A writer that was last seen in a file before the checkpoint's is now at an unknown place.
        let writer = self.writer.map(|(writer, _)| writer).filter(|writer| *writer >= checkpoint.0);
        ends_after && writer.is_none_or(|writer| sequence <= writer)
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn recovery_finds_its_pages_and_others_are_released(log in log()) {
        let (near_files, slack) = (log.near_files, log.slack);
        let with = log.released(Rule::ReleaseBeforeCheckpoint { near_files, slack })?;
        let without = log.released(Rule::ReleaseBehindFollowers { near_files, slack })?;
        let expected = without.into_iter().filter(|window| !log.is_recovered(*window)).collect();
        prop_assert_eq!(with, expected);
    }
}

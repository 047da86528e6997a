//! Followers: near ones are waited for, byte by byte; far ones that stall hold nothing, but a file
//! in which their place is not known.

use pagekeeper_policy::{FilePosition, RewriteKind, Rule, WINDOW};
use proptest::prelude::*;

use crate::model::{MIB, config, releases};
use crate::series::{Log, Op, op};

proptest! {
    #![proptest_config(config(4))]

    #[test]
    fn pages_a_near_follower_has_yet_to_read_are_never_released(
        near_files in 0..4_u64,
        slow in 0..3_u8,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let rule = Rule::ReleaseBehindFollowers { near_files, slack: 0 };
        let mut log = Log::new(rule, RewriteKind::Never, 3, slow);
        for op in &ops {
            if !matches!(op, Op::Step) {
                log.apply(op)?;
                continue;
            }
            let facts = log.facts();
            let writer = facts.files.iter().filter(|file| file.writer.is_some()).map(|file| file.sequence).max();
            let writer = writer.or(facts.files.iter().map(|file| file.sequence).max()).unwrap();
            for (file, range) in releases(&log.step()?) {
                let file = facts.files.iter().find(|facts| facts.id == file).unwrap();
                for follower in &facts.followers {
                    let next = match follower.position {
                        FilePosition::At(offset) => (follower.sequence, offset),
                        FilePosition::Unknown => (follower.sequence, 0),
                    };
                    if writer.saturating_sub(follower.sequence) <= near_files {
                        let last = (file.sequence, range.end - 1);
                        prop_assert!(last < next, "{range:?} of {} released, {follower:?}", file.sequence);
                    }
                }
            }
        }
    }

    #[test]
    fn two_steps_after_far_followers_stall_nothing_is_left_for_them(
        near_files in 0..4_u64,
        slack in 0..5 * MIB,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let rule = Rule::ReleaseBehindFollowers { near_files, slack };
        let mut log = Log::new(rule, RewriteKind::Never, 3, 0);
        for op in ops.iter().filter(|op| !matches!(op, Op::Hold(..) | Op::Purge)) {
            log.apply(op)?;
        }
        while log.followers.iter().any(|follower| log.current - follower.sequence.min(log.current) <= near_files) {
            log.apply(&Op::Rotate)?;
        }
        log.apply(&Op::Write(9 * MIB))?;
        log.apply(&Op::Sync)?;
        log.retry += 1;
        log.step()?;
        log.retry += 1;
        log.step()?;
        let somewhere: Vec<u64> = log
            .facts()
            .followers
            .iter()
            .filter(|follower| follower.position == FilePosition::Unknown)
            .map(|follower| follower.sequence)
            .collect();
        for (&sequence, pages) in log.files.iter().filter(|(sequence, _)| !somewhere.contains(sequence)) {
            let tail = log.position.saturating_sub(slack) / WINDOW * WINDOW;
            for window in pages.windows() {
                prop_assert!(
                    sequence == log.current && window.end > tail,
                    "{window:?} of {sequence} is left; the writer is in {} at {}", log.current, log.position
                );
            }
        }
    }
}

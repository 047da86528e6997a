//! The exact rule releases the same ranges of a log as the inferring rule, and keeps the same pages
//! by itself.

use std::collections::BTreeMap;
use std::ops::Range;

use pagekeeper_policy::allowance::{Follower, FollowerSet, ReleaseAllowance, WriterPosition, is_near};
use pagekeeper_policy::exact::{WriteWatermarks, due_work, release_ranges};
use pagekeeper_policy::{
    DatabaseId, FileClass, FileFacts, FileId, FilePosition, FollowerFacts, FollowerId, LogId, READ_AHEAD,
    RewriteKind, Rule, StepAction, StepFacts, StepState, WINDOW, WindowFacts, step,
};
use proptest::prelude::*;

use crate::model::{MIB, config};

/// A log whose positions are known: the sizes of its files, oldest first, and the positions of its
/// readers.
#[derive(Debug, Clone)]
struct Log {
    rule: Rule,
    sizes: Vec<u64>,
    /// Whether the last file is written, at its end.
    is_written: bool,
    followers: Vec<Follower>,
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        1 => Just(Rule::Keep),
        1 => Just(Rule::Direct),
        1 => Just(Rule::ReleaseOnRotation),
        4 => (0..5 * MIB).prop_map(|slack| Rule::ReleaseBehindWriter { slack }),
        8 => (0..4_u64, 0..5 * MIB)
            .prop_map(|(near_files, slack)| Rule::ReleaseBehindFollowers { near_files, slack }),
    ]
}

fn log() -> impl Strategy<Value = Log> {
    let follower = (0..8_u64, prop::option::weighted(0.9, 0..30 * MIB), any::<bool>())
        .prop_map(|(sequence, offset, moved)| Follower { sequence, offset, moved, near_files: 0 });
    let sizes = prop::collection::vec(prop_oneof![0..30 * MIB, (0..15_u64).prop_map(|at| at * WINDOW)], 1..6);
    (rule(), sizes, any::<bool>(), prop::collection::vec(follower, 0..4))
        .prop_map(|(rule, sizes, is_written, followers)| Log { rule, sizes, is_written, followers })
}

fn windows(size: u64) -> impl Iterator<Item = Range<u64>> {
    (0..size.div_ceil(WINDOW)).map(move |at| at * WINDOW..size.min((at + 1) * WINDOW))
}

impl Log {
    fn files(&self) -> impl Iterator<Item = (u64, u64, Option<u64>)> {
        let last = self.sizes.len() - 1;
        self.sizes
            .iter()
            .enumerate()
            .map(move |(at, &size)| (at as u64 + 1, size, (at == last && self.is_written).then_some(size)))
    }

    fn newest(&self) -> u64 {
        self.sizes.len() as u64
    }

    fn allowance(&self, sequence: u64, size: u64, writer: Option<u64>) -> ReleaseAllowance<'_> {
        let followers = FollowerSet { writer: self.newest(), all: &self.followers };
        let writer = writer.map_or(WriterPosition::Elsewhere, WriterPosition::At);
        ReleaseAllowance::new(self.rule, writer, size).with_followers(self.rule, sequence, followers)
    }

    /// Returns the ranges that the exact rule releases if all windows are written and clean.
    fn released(&self) -> Vec<(u64, Range<u64>)> {
        self.files()
            .flat_map(|(sequence, size, writer)| {
                let allowance = self.allowance(sequence, size, writer);
                let marks = WriteWatermarks { written: size, started: size, clean: size };
                let due = due_work(&allowance, marks, windows(size));
                assert_eq!((due.start, due.wait), (None, None));
                due.release.map(move |range| (sequence, range)).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the same log as observed: all windows resident and clean.
    fn facts(&self) -> StepFacts {
        let log = LogId(1);
        let clean = |range: Range<u64>| {
            let resident = range.end - range.start;
            WindowFacts { start: range.start, end: range.end, resident, unwritten: 0 }
        };
        let files = self.files().map(|(sequence, size, writer)| FileFacts {
            id: FileId(sequence),
            database: DatabaseId(1),
            log,
            sequence,
            class: FileClass::Binlog,
            rule: self.rule,
            rewrite: RewriteKind::Never,
            size,
            writer: writer.map(FilePosition::At),
            changed: 0,
            windows: windows(size).map(clean).collect(),
        });
        let followers = self.followers.iter().zip(0..).map(|(follower, id)| FollowerFacts {
            id: FollowerId(id),
            log,
            sequence: follower.sequence,
            position: follower.offset.map_or(FilePosition::Unknown, FilePosition::At),
            near_files: follower.near_files,
        });
        StepFacts { files: files.collect(), followers: followers.collect(), ..StepFacts::default() }
    }

    /// Returns the ranges that a step releases if it knows which followers have moved.
    fn observed(&self) -> Vec<(u64, Range<u64>)> {
        let facts = self.facts();
        let mut before = StepFacts { files: Vec::new(), ..facts.clone() };
        before.followers.retain(|seen| usize::try_from(seen.id.0).is_ok_and(|at| !self.followers[at].moved));
        let mut state = StepState::default();
        step(&mut state, &before);
        let released = step(&mut state, &facts).into_iter().filter_map(|act| match act {
            StepAction::Release { file, range } => Some((file.0, range)),
            StepAction::StartWriteback { .. } | StepAction::Warn { .. } => None,
        });
        released.collect()
    }
}

/// One file that is written, synced now and then, and released by what is due of it.
#[derive(Debug, Clone)]
enum Op {
    Write(u64),
    Sync,
    Follow(u64),
    Step,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..7 * MIB).prop_map(Op::Write),
        1 => Just(Op::Sync),
        2 => (0..9 * MIB).prop_map(Op::Follow),
        4 => Just(Op::Step),
    ]
}

proptest! {
    #![proptest_config(config(16))]

    #[test]
    fn it_agrees_with_the_inferring_rule(log in log()) {
        prop_assert_eq!(log.released(), log.observed());
    }

    #[test]
    fn its_limit_agrees_with_its_windows(log in log()) {
        for (sequence, size, writer) in log.files() {
            let allowance = log.allowance(sequence, size, writer);
            let far_reads = |window: &Range<u64>| log.followers.iter().any(|follower| {
                follower.sequence == sequence && match follower.offset {
                    Some(at) => {
                        follower.moved && window.start < at + READ_AHEAD && at / WINDOW * WINDOW < window.end
                    }
                    None => true,
                }
            });
            let all: Vec<_> = release_ranges(&allowance, windows(size)).collect();
            for window in windows(size) {
                let goes = all.iter().any(|range| range.start <= window.start && window.end <= range.end);
                prop_assert!(!goes || window.end <= allowance.limit(), "{window:?} of {sequence}");
                prop_assert!(goes || window.end > allowance.limit() || far_reads(&window), "{window:?} of {sequence}");
            }
        }
    }

    #[test]
    fn near_followers_and_the_writer_keep_their_pages(log in log()) {
        let (slack, near_files) = match log.rule {
            Rule::ReleaseBehindWriter { slack } => (slack, None),
            Rule::ReleaseBehindFollowers { near_files, slack } => (slack, Some(near_files)),
            Rule::Keep
            | Rule::ReleaseOnRotation
            | Rule::ReleaseBeforeCheckpoint { .. }
            | Rule::Direct
            | Rule::Budget { .. } => return Ok(()),
        };
        let released: BTreeMap<(u64, u64), u64> =
            log.released().into_iter().map(|(sequence, range)| ((sequence, range.start), range.end)).collect();
        for ((sequence, start), end) in released {
            if sequence == log.newest() && log.is_written {
                let at = log.sizes.last().unwrap();
                prop_assert!(end <= at.saturating_sub(slack) / WINDOW * WINDOW);
            }
            for follower in &log.followers {
                let is_near = near_files.is_some_and(|near| is_near(log.newest(), follower.sequence, near));
                let next = (follower.sequence, follower.offset.unwrap_or(0));
                prop_assert!(!is_near || (sequence, end - 1) < next, "{start}..{end} of {sequence}, {follower:?}");
            }
        }
    }

    #[test]
    fn released_pages_are_clean_and_repeating_releases_nothing(
        slack in 0..5 * MIB,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let rule = Rule::ReleaseBehindFollowers { near_files: 0, slack };
        let mut marks = WriteWatermarks { written: 0, started: 0, clean: 0 };
        let (mut there, mut read): (Vec<Range<u64>>, Option<u64>) = (Vec::new(), None);
        for op in ops {
            match op {
                Op::Write(bytes) => {
                    let last = marks.written / WINDOW * WINDOW;
                    there.retain(|window| window.start < last);
                    marks.written += bytes;
                    there.extend(windows(marks.written).filter(|window| window.start >= last));
                }
                Op::Sync => (marks.started, marks.clean) = (marks.written, marks.written),
                Op::Follow(bytes) => read = Some(marks.written.min(read.unwrap_or(0) + bytes)),
                Op::Step => {
                    let all: Vec<_> =
                        read.iter().map(|&at| Follower { sequence: 1, offset: Some(at), moved: true, near_files: 0 }).collect();
                    let allowance = ReleaseAllowance::new(rule, WriterPosition::At(marks.written), marks.written)
                        .with_followers(rule, 1, FollowerSet { writer: 1, all: &all });
                    let done = due_work(&allowance, marks, there.clone().into_iter());
                    if let Some(range) = &done.start {
                        prop_assert!(range.start <= marks.started && marks.started < range.end);
                        marks.started = range.end;
                    }
                    if let Some(range) = &done.wait {
                        prop_assert!(range.start <= marks.clean && range.end <= marks.started, "{range:?}, {marks:?}");
                        marks.clean = range.end;
                    }
                    for range in done.release {
                        prop_assert!(range.end <= marks.clean, "{range:?} is dirty, {marks:?}");
                        there.retain(|window| !(range.start <= window.start && window.end <= range.end));
                    }
                    let goes = (marks.written.saturating_sub(slack)).min(read.unwrap_or(u64::MAX)) / WINDOW * WINDOW;
                    prop_assert!(there.iter().all(|window| window.end > goes), "{there:?} left, all to {goes} may go");
                    prop_assert!(marks.written - marks.clean < slack + 2 * WINDOW, "{marks:?}");
                    let again = due_work(&allowance, marks, there.iter().cloned());
                    prop_assert_eq!((again.start, again.wait, again.release.count()), (None, None, 0));
                }
            }
        }
    }
}

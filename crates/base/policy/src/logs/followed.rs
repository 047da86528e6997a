//! The logs that have followers, among the facts of one step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::logs::allowance::{Follower, FollowerSet};
use crate::logs::state::FollowerPosition;
use crate::{FileFacts, FilePosition, FollowerId, LogId, RewriteKind, StepFacts};

/// Steps for which resident pages of a file may still be due to a follower that has left it. The
/// caller samples such a file one step later, or more if it is short of time.
const PASSED_STEPS: u8 = 8;

/// The files that followers were in recently, with the number of steps since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PassedFiles(BTreeMap<(LogId, u64, u64), u8>);

impl PassedFiles {
    /// Forgets files that followers left [`PASSED_STEPS`] steps ago.
    fn begin_step(&mut self) {
        self.0.retain(|_, steps| {
            *steps += 1;
            *steps < PASSED_STEPS
        });
    }

    /// Forgets the files of logs without releases: their pages are not evidence of a reader.
    pub(crate) fn retain_logs(&mut self, is_released: impl Fn(LogId) -> bool) {
        self.0.retain(|(log, _, _), _| is_released(*log));
    }

    fn insert(&mut self, log: LogId, one: u64, other: u64) {
        self.0.insert((log, one.min(other), one.max(other)), 0);
    }
}

/// The file that a writer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WriterFile {
    sequence: u64,
    /// Time of its last write, as in [`FileFacts::changed`].
    changed: i128,
}

/// A log that has followers.
#[derive(Debug, Default)]
pub(crate) struct FollowedLog {
    /// The writer with the largest sequence.
    writer: Option<WriterFile>,
    /// The largest sequence.
    newest: u64,
    followers: Vec<Follower>,
    /// The sequences that followers were in recently.
    passed: Vec<RangeInclusive<u64>>,
}

impl FollowedLog {
    /// Returns all followed logs. `past` has the followers' positions in the last step. A follower
    /// that is not in it counts as moving, since nothing says that it is stuck. The files they were
    /// in are added to `passed`.
    pub(crate) fn survey(
        facts: &StepFacts,
        past: &BTreeMap<FollowerId, FollowerPosition>,
        passed: &mut PassedFiles,
    ) -> BTreeMap<LogId, Self> {
        passed.begin_step();
        let mut logs: BTreeMap<LogId, Self> = BTreeMap::new();
        for follower in &facts.followers {
            let (log, sequence, position) = (follower.log, follower.sequence, follower.position);
            let before = past.get(&follower.id).filter(|before| before.log == log);
            let moved = before != Some(&FollowerPosition { log, sequence, position });
            let offset = match position {
                FilePosition::At(offset) => Some(offset),
                FilePosition::Unknown => None,
            };
            let near_files = follower.near_files;
            let followed = logs.entry(log).or_default();
            followed.followers.push(Follower { sequence, offset, moved, near_files });
            // A new follower may have come from anywhere.
            let from = before.map_or(0, |before| before.sequence);
            passed.insert(log, from, sequence);
        }
        let seen: BTreeSet<FollowerId> = facts.followers.iter().map(|follower| follower.id).collect();
        for (_, before) in past.iter().filter(|(id, _)| !seen.contains(id)) {
            passed.insert(before.log, before.sequence, before.sequence);
        }
        for (log, from, to) in passed.0.keys() {
            logs.entry(*log).or_default().passed.push(*from..=*to);
        }
        if !logs.is_empty() {
            for file in &facts.files {
                if let Some(log) = logs.get_mut(&file.log) {
                    log.newest = log.newest.max(file.sequence);
                    if file.writer.is_some() {
                        let writer = WriterFile { sequence: file.sequence, changed: file.changed };
                        log.writer = log.writer.max(Some(writer));
                    }
                }
            }
        }
        logs
    }

    /// Whether a follower may have read from the file with this sequence since its last sample.
    pub(crate) fn is_passed(&self, sequence: u64) -> bool {
        self.passed.iter().any(|sequences| sequences.contains(&sequence))
    }

    /// Whether a file was recycled for later use: the writer has not reached it, so followers have
    /// nothing to read there. Such a file lies ahead of the writer's file and was last written
    /// before it. A follower ahead of the writer shows that the writer has moved on since.
    pub(crate) fn is_recycled(&self, file: &FileFacts) -> bool {
        self.writer.is_some_and(|writer| {
            file.rewrite == RewriteKind::WholePages
                && file.sequence > writer.sequence
                && file.changed < writer.changed
                && self.followers.iter().all(|follower| follower.sequence <= writer.sequence)
        })
    }

    pub(crate) fn followers(&self) -> FollowerSet<'_> {
        let writer = self.writer.map_or(self.newest, |writer| writer.sequence);
        FollowerSet { writer, all: &self.followers }
    }
}

//! The followed logs among the facts of one step.

use std::collections::BTreeMap;

use crate::allowance::{Follower, Followers};
use crate::state::FollowerPosition;
use crate::{Facts, FollowerId, LogId, Position};

/// A log that has followers.
#[derive(Debug, Default)]
pub(crate) struct FollowedLog {
    /// The largest sequence that a writer has.
    writer: Option<u64>,
    /// The largest sequence.
    newest: u64,
    followers: Vec<Follower>,
}

impl FollowedLog {
    /// All followed logs. `past` has where the followers were in the last step; one not seen before counts as moving,
    /// since nothing says that it is stuck.
    pub(crate) fn survey(
        facts: &Facts,
        past: &BTreeMap<FollowerId, FollowerPosition>,
    ) -> BTreeMap<LogId, Self> {
        let mut logs: BTreeMap<LogId, Self> = BTreeMap::new();
        for follower in &facts.followers {
            let (log, sequence, position) = (follower.log, follower.sequence, follower.position);
            let moved = past.get(&follower.id) != Some(&FollowerPosition { log, sequence, position });
            let offset = match position {
                Position::At(offset) => Some(offset),
                Position::Unknown => None,
            };
            let near_files = follower.near_files;
            logs.entry(log).or_default().followers.push(Follower { sequence, offset, moved, near_files });
        }
        if !logs.is_empty() {
            for file in &facts.files {
                if let Some(log) = logs.get_mut(&file.log) {
                    log.newest = log.newest.max(file.sequence);
                    if file.writer.is_some() {
                        log.writer = log.writer.max(Some(file.sequence));
                    }
                }
            }
        }
        logs
    }

    pub(crate) fn followers(&self) -> Followers<'_> {
        Followers { writer: self.writer.unwrap_or(self.newest), all: &self.followers }
    }
}

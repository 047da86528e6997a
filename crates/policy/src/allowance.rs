//! The release limit: what a rule wants of each window of a file, given where the writer and the followers are.
//!
//! Invariants:
//! 1. The window that holds a writer's known position stays, and so does all from `slack` before it on (but for
//!    a file in direct I/O, which has no page that the writer would come back to).
//! 2. Nothing at or above the lowest near follower's place in the log goes.
//! 3. A far follower holds nothing, but for the range ahead of it while it moves.
//! 4. The last window of a file, if short, stays while a writer is known to be at or beyond it, even if the
//!    size was seen before the position and lies below it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::history::{ResidentWindow, Verdict};
use crate::log::{align_down, behind_writer, is_near, needed_from};
use crate::state::FollowerPosition;
use crate::tail_inference::TailInference;
use crate::{Facts, FileFacts, FollowerId, LogId, Position, READ_AHEAD, Rule, WINDOW};

/// A log that has followers.
#[derive(Debug, Default)]
pub(crate) struct FollowedLog {
    /// The largest sequence that a writer has.
    writer: Option<u64>,
    /// The largest sequence.
    newest: u64,
    followers: Vec<Follower>,
}

#[derive(Debug)]
struct Follower {
    sequence: u64,
    position: Position,
    moved: bool,
}

impl FollowedLog {
    /// All followed logs. `past` tells where the followers were in the last step; one not seen before counts as
    /// moving, since nothing says that it is stuck.
    pub(crate) fn survey(
        facts: &Facts,
        past: &BTreeMap<FollowerId, FollowerPosition>,
    ) -> BTreeMap<LogId, Self> {
        let mut logs: BTreeMap<LogId, Self> = BTreeMap::new();
        for follower in &facts.followers {
            let (log, sequence, position) = (follower.log, follower.sequence, follower.position);
            let moved = past.get(&follower.id) != Some(&FollowerPosition { log, sequence, position });
            logs.entry(log).or_default().followers.push(Follower { sequence, position, moved });
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

    fn is_near(&self, follower: &Follower, near_files: u64) -> bool {
        is_near(self.writer.unwrap_or(self.newest), follower.sequence, near_files)
    }

    /// From which byte of the file with this sequence on near followers have yet to read; `u64::MAX` if they
    /// have read it all.
    fn needed_from(&self, sequence: u64, near_files: u64) -> u64 {
        let place = |follower: &Follower| match follower.position {
            Position::At(offset) => (follower.sequence, offset),
            Position::Unknown => (follower.sequence, 0),
        };
        let near = self.followers.iter().filter(|follower| self.is_near(follower, near_files));
        needed_from(sequence, near.map(place))
    }

    /// The ranges of the file with this sequence that moving far followers are about to read.
    fn being_read(&self, sequence: u64, near_files: u64) -> Vec<Range<u64>> {
        let far = self.followers.iter().filter(|follower| !self.is_near(follower, near_files));
        far.filter(|follower| follower.moved && follower.sequence == sequence)
            .filter_map(|follower| match follower.position {
                Position::At(offset) => Some(align_down(offset)..offset.saturating_add(READ_AHEAD)),
                Position::Unknown => None,
            })
            .collect()
    }
}

/// What stays of a file for its writer's sake.
#[derive(Debug)]
enum Reserve<'a> {
    Nothing,
    Everything,
    /// The writer is known to be above `tail`; all from `from` on stays.
    Known {
        from: u64,
        tail: u64,
    },
    /// Just the window that starts here.
    Window(u64),
    /// The writer is taken to be in one of these.
    Inferred {
        ranges: Vec<Range<u64>>,
        tail: &'a TailInference,
    },
}

impl<'a> Reserve<'a> {
    fn behind_writer(file: &FileFacts, slack: u64, tail: Option<&'a TailInference>) -> Self {
        match file.writer {
            None => Self::Nothing,
            Some(Position::At(offset)) => {
                // a size seen before the position may lie below it: the last, short window is the writer's
                let end = offset.min(file.size);
                Self::Known { from: behind_writer(end, slack), tail: align_down(end) }
            }
            Some(Position::Unknown) => {
                match tail.and_then(|tail| Some((tail.protected(slack, file.size)?, tail))) {
                    Some((ranges, tail)) => Self::Inferred { ranges, tail },
                    None => Self::Everything,
                }
            }
        }
    }

    fn keeps(&self, range: &Range<u64>) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Known { from, .. } => range.end > *from,
            Self::Window(start) => overlap(range, &(*start..start.saturating_add(WINDOW))),
            Self::Inferred { ranges, .. } => ranges.iter().any(|kept| overlap(range, kept)),
        }
    }

    /// Whether the writer has certainly gone on from this window, though it is kept.
    fn is_behind_tail(&self, range: &Range<u64>) -> bool {
        match self {
            Self::Known { tail, .. } => range.end <= *tail,
            Self::Nothing | Self::Everything | Self::Window(_) | Self::Inferred { .. } => false,
        }
    }

    /// Whether the writer is thought to have gone on from this window.
    fn is_left_behind(&self, range: &Range<u64>) -> bool {
        match self {
            Self::Inferred { tail, .. } => tail.left_behind(range.start),
            Self::Nothing | Self::Everything | Self::Known { .. } | Self::Window(_) => false,
        }
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The allowance of one file in one step.
#[derive(Debug)]
pub(crate) struct Allowance<'a> {
    reserve: Reserve<'a>,
    /// Near followers have yet to read from here on.
    needed_from: u64,
    /// Far followers read here now.
    being_read: Vec<Range<u64>>,
    /// Bytes that may stay, for a budget.
    budget: Option<u64>,
}

impl<'a> Allowance<'a> {
    pub(crate) fn of(file: &FileFacts, log: Option<&FollowedLog>, tail: Option<&'a TailInference>) -> Self {
        let mut allowance =
            Self { reserve: Reserve::Nothing, needed_from: u64::MAX, being_read: Vec::new(), budget: None };
        match file.rule {
            Rule::Keep => allowance.reserve = Reserve::Everything,
            Rule::Direct => {}
            Rule::ReleaseOnRotation => {
                if file.writer.is_some() {
                    allowance.reserve = Reserve::Everything;
                }
            }
            Rule::ReleaseBehindWriter { slack } => {
                allowance.reserve = Reserve::behind_writer(file, slack, tail)
            }
            Rule::ReleaseBehindFollowers { near_files, slack } => {
                allowance.reserve = Reserve::behind_writer(file, slack, tail);
                if let Some(log) = log {
                    allowance.needed_from = log.needed_from(file.sequence, near_files);
                    allowance.being_read = log.being_read(file.sequence, near_files);
                }
            }
            Rule::Budget { bytes } => {
                allowance.budget = Some(bytes);
                allowance.reserve = match Reserve::behind_writer(file, 0, tail) {
                    Reserve::Known { tail, .. } => Reserve::Window(tail),
                    other => other,
                };
            }
        }
        allowance
    }

    /// What the rule wants of a window. `newer` is, for a budget, what the log has resident in this window and
    /// all newer ones.
    pub(crate) fn verdict(&self, window: &ResidentWindow, newer: u64) -> Verdict {
        let range = &window.range;
        let needed = range.end > self.needed_from;
        if self.reserve.keeps(range) {
            let flush = (needed && self.reserve.is_behind_tail(range)) || self.reserve.is_left_behind(range);
            if flush { Verdict::Flush } else { Verdict::Stay }
        } else if self.budget.is_some_and(|bytes| newer <= bytes) {
            Verdict::Stay
        } else if needed || self.being_read.iter().any(|read| overlap(range, read)) {
            Verdict::Flush
        } else {
            Verdict::Release
        }
    }
}

//! Decides which windows of a file may be released and which are to be cleaned, from the positions
//! of the writer and the followers of its log.
//!
//! Both halves of the rules share this definition. [`crate::step()`] observes: it asks about each
//! window that has pages, and infers the writer's position if none is visible. A writer that knows
//! its own position asks about the bytes it wrote ([`crate::exact`]) and does not need to know what
//! is resident.
//!
//! Invariants:
//! 1. The window at a writer's known position stays, and so does everything from `slack` bytes
//!    before it. Files in direct I/O are exempt: the writer never comes back to one of their pages.
//! 2. Nothing at or above the position of the lowest near follower is released. [`crate::step()`]
//!    makes one exception: recycled files that the writer has not reached yet.
//! 3. A far follower holds only the next [`READ_AHEAD`] bytes, while it moves. If its offset in the
//!    file is unknown, it holds that whole file.
//! 4. [`Rule::ReleaseBeforeCheckpoint`] keeps everything that crash recovery would read. It keeps
//!    the whole log until the checkpoint is known.
//! 5. The last window of a file, if short, stays while a writer is known to be at or beyond it.
//!    This also holds if the size was read before the position and lies below it.

use core::ops::Range;

use crate::logs::recovery::RecoveryRanges;
use crate::{READ_AHEAD, Rule, WINDOW};

/// Returns the last multiple of [`WINDOW`] at or below `offset`.
pub const fn align_down(offset: u64) -> u64 {
    offset - offset % WINDOW
}

/// Returns the byte up to which a log may be released for its writer's sake: `slack` bytes before
/// `end`, the end of the written data, stay.
///
/// ```
/// use pagekeeper_policy::{WINDOW, allowance::behind_writer};
///
/// assert_eq!(behind_writer(3 * WINDOW + 1, 0), 3 * WINDOW);
/// assert_eq!(behind_writer(3 * WINDOW + 1, 2), 2 * WINDOW);
/// ```
pub const fn behind_writer(end: u64, slack: u64) -> u64 {
    align_down(end.saturating_sub(slack))
}

/// Whether a follower in the file `follower` is near the writer in the file `writer`: at most
/// `near_files` files behind.
pub const fn is_near(writer: u64, follower: u64, near_files: u64) -> bool {
    writer.saturating_sub(follower) <= near_files
}

/// Returns the first byte that near followers have yet to read of the file with this sequence, or
/// `u64::MAX` if they have read it all. `places` yields each follower's file sequence and its
/// offset in that file.
pub fn needed_from(sequence: u64, places: impl Iterator<Item = (u64, u64)>) -> u64 {
    match places.min() {
        Some((lowest, offset)) if lowest == sequence => align_down(offset),
        Some((lowest, _)) if lowest < sequence => 0,
        _ => u64::MAX,
    }
}

/// One reader that tails a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Follower {
    /// The sequence of the file that the follower reads.
    pub sequence: u64,
    /// The offset that it reads next; `None` if unknown.
    pub offset: Option<u64>,
    /// Whether it has moved, or may have moved, since the last step.
    pub moved: bool,
    /// It is near up to this many files behind the writer. The larger of this and the rule's limit
    /// applies.
    pub near_files: u64,
}

/// The readers that tail one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowerSet<'a> {
    /// The sequence of the writer's file, or of the newest file if there is no writer.
    pub writer: u64,
    /// The followers, in any order.
    pub all: &'a [Follower],
}

impl FollowerSet<'_> {
    fn needed_from(self, sequence: u64, near_files: u64) -> u64 {
        let near = self.all.iter().filter(|follower| self.is_near(follower, near_files));
        needed_from(sequence, near.map(|follower| (follower.sequence, follower.offset.unwrap_or(0))))
    }

    fn is_near(self, follower: &Follower, near_files: u64) -> bool {
        is_near(self.writer, follower.sequence, near_files.max(follower.near_files))
    }

    /// Whether a far follower is, or may be, about to read part of the window.
    fn is_read_next(self, sequence: u64, near_files: u64, window: &Range<u64>) -> bool {
        let is_about_to = |follower: &Follower| match follower.offset {
            Some(offset) => {
                follower.moved && overlap(window, &(align_down(offset)..offset.saturating_add(READ_AHEAD)))
            }
            None => true,
        };
        self.all.iter().any(|follower| {
            follower.sequence == sequence && !self.is_near(follower, near_files) && is_about_to(follower)
        })
    }
}

/// The position of a file's writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterPosition<'a> {
    /// In another file, or there is no writer.
    Elsewhere,
    /// In this file, about to write at this offset.
    At(u64),
    /// In this file, presumably in one of these ranges.
    Within(&'a [Range<u64>]),
    /// In this file at an unknown position.
    Somewhere,
}

/// The decision on the pages of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Leave it alone.
    Stay,
    /// Keep its pages, but write the dirty ones back.
    Flush,
    /// Its pages are no longer needed.
    Release,
}

/// The part of a file that stays for its writer's sake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterReserve<'a> {
    Nothing,
    Everything,
    /// Everything from `from` on. The writer has left everything below `tail`.
    From {
        from: u64,
        tail: u64,
    },
    /// Only the window that starts here.
    Window(u64),
    Ranges(&'a [Range<u64>]),
}

impl<'a> WriterReserve<'a> {
    fn behind_writer(writer: WriterPosition<'a>, size: u64, slack: u64) -> Self {
        match writer {
            WriterPosition::Elsewhere => Self::Nothing,
            WriterPosition::At(offset) => {
                // A size read before the position may lie below it: the last, short window is the
                // writer's.
                let end = offset.min(size);
                Self::From { from: behind_writer(end, slack), tail: align_down(end) }
            }
            WriterPosition::Within(ranges) => Self::Ranges(ranges),
            WriterPosition::Somewhere => Self::Everything,
        }
    }
}

/// The part of one file that may be released, by its rule and the positions of its log's writer and
/// followers.
///
/// ```
/// use pagekeeper_policy::allowance::{ReleaseAllowance, Verdict, WriterPosition};
/// use pagekeeper_policy::{Rule, WINDOW};
///
/// let rule = Rule::ReleaseBehindWriter { slack: 0 };
/// let allowance = ReleaseAllowance::new(rule, WriterPosition::At(5 * WINDOW + 1), u64::MAX);
/// assert_eq!(allowance.limit(), 5 * WINDOW);
/// assert_eq!(allowance.verdict(&(4 * WINDOW..5 * WINDOW), 0), Verdict::Release);
/// assert_eq!(allowance.verdict(&(5 * WINDOW..6 * WINDOW), 0), Verdict::Stay);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseAllowance<'a> {
    reserve: WriterReserve<'a>,
    /// Near followers have yet to read everything from here on.
    needed_from: u64,
    followers: FollowerSet<'a>,
    sequence: u64,
    near_files: u64,
    /// The part that crash recovery would read.
    recovery: RecoveryRanges,
    /// The budget: bytes that may stay.
    budget: Option<u64>,
}

impl<'a> ReleaseAllowance<'a> {
    /// Creates the allowance of a file of `size` bytes (`u64::MAX` if unknown), without followers.
    pub fn new(rule: Rule, writer: WriterPosition<'a>, size: u64) -> Self {
        let (reserve, near_files, budget) = match rule {
            Rule::Keep => (WriterReserve::Everything, 0, None),
            Rule::Direct => (WriterReserve::Nothing, 0, None),
            Rule::ReleaseOnRotation => match writer {
                WriterPosition::Elsewhere => (WriterReserve::Nothing, 0, None),
                WriterPosition::At(_) | WriterPosition::Within(_) | WriterPosition::Somewhere => {
                    (WriterReserve::Everything, 0, None)
                }
            },
            Rule::ReleaseBehindWriter { slack } => {
                (WriterReserve::behind_writer(writer, size, slack), 0, None)
            }
            Rule::ReleaseBehindFollowers { near_files, slack }
            | Rule::ReleaseBeforeCheckpoint { near_files, slack } => {
                (WriterReserve::behind_writer(writer, size, slack), near_files, None)
            }
            Rule::Budget { bytes, .. } => {
                let reserve = match WriterReserve::behind_writer(writer, size, 0) {
                    WriterReserve::From { tail, .. } => WriterReserve::Window(tail),
                    other => other,
                };
                (reserve, 0, Some(bytes))
            }
        };
        let recovery = match rule {
            Rule::ReleaseBeforeCheckpoint { .. } => RecoveryRanges::EVERYTHING,
            Rule::Keep
            | Rule::ReleaseBehindWriter { .. }
            | Rule::ReleaseOnRotation
            | Rule::ReleaseBehindFollowers { .. }
            | Rule::Budget { .. }
            | Rule::Direct => RecoveryRanges::NOTHING,
        };
        let followers = FollowerSet { writer: 0, all: &[] };
        Self { reserve, needed_from: u64::MAX, followers, sequence: 0, near_files, recovery, budget }
    }

    /// Adds the part of the file that crash recovery would read. Only
    /// [`Rule::ReleaseBeforeCheckpoint`] uses it.
    #[must_use]
    pub fn with_recovery(self, rule: Rule, recovery: RecoveryRanges) -> Self {
        match rule {
            Rule::ReleaseBeforeCheckpoint { .. } => Self { recovery, ..self },
            Rule::Keep
            | Rule::ReleaseBehindWriter { .. }
            | Rule::ReleaseOnRotation
            | Rule::ReleaseBehindFollowers { .. }
            | Rule::Budget { .. }
            | Rule::Direct => self,
        }
    }

    /// Adds the followers of the log, for its file with this sequence. Only
    /// [`Rule::ReleaseBehindFollowers`] and [`Rule::ReleaseBeforeCheckpoint`] use them.
    #[must_use]
    pub fn with_followers(self, rule: Rule, sequence: u64, followers: FollowerSet<'a>) -> Self {
        match rule {
            Rule::ReleaseBehindFollowers { near_files, .. }
            | Rule::ReleaseBeforeCheckpoint { near_files, .. } => {
                let needed_from = followers.needed_from(sequence, near_files);
                Self { needed_from, followers, sequence, ..self }
            }
            Rule::Keep
            | Rule::ReleaseBehindWriter { .. }
            | Rule::ReleaseOnRotation
            | Rule::Budget { .. }
            | Rule::Direct => self,
        }
    }

    /// Sets the first byte that near followers have yet to read ([`needed_from`]).
    #[must_use]
    pub const fn with_needed_from(self, byte: u64) -> Self {
        Self { needed_from: byte, ..self }
    }

    /// Returns the byte up to which everything may be released, except for the range a far follower
    /// is about to read. Returns 0 if nothing is known to be behind the writer. Also returns 0
    /// under a budget, which counts resident bytes; a caller that knows only positions expresses a
    /// budget as slack.
    pub fn limit(&self) -> u64 {
        let recovered_from = match self.recovery.start() {
            u64::MAX => u64::MAX,
            start => align_down(start),
        };
        if self.budget.is_some() { 0 } else { self.clean_limit().min(self.needed_from).min(recovered_from) }
    }

    /// Returns the byte up to which everything is to be clean, whether it is released or a follower
    /// has yet to read it.
    pub fn clean_limit(&self) -> u64 {
        match self.reserve {
            WriterReserve::Nothing => u64::MAX,
            WriterReserve::Everything => 0,
            WriterReserve::From { from, .. } => from,
            WriterReserve::Window(start) => start,
            WriterReserve::Ranges(ranges) => ranges.iter().map(|range| range.start).min().unwrap_or(u64::MAX),
        }
    }

    /// Returns the byte up to which the writer has certainly left the file. Writeback below it is
    /// not wasted.
    pub fn left_by_writer(&self) -> u64 {
        match self.reserve {
            WriterReserve::From { tail, .. } => tail,
            WriterReserve::Nothing
            | WriterReserve::Everything
            | WriterReserve::Window(_)
            | WriterReserve::Ranges(_) => self.clean_limit(),
        }
    }

    /// Whether the window stays for the writer's sake.
    pub fn is_kept_for_writer(&self, window: &Range<u64>) -> bool {
        match self.reserve {
            WriterReserve::Nothing => false,
            WriterReserve::Everything => true,
            WriterReserve::From { from, .. } => window.end > from,
            WriterReserve::Window(start) => overlap(window, &(start..start.saturating_add(WINDOW))),
            WriterReserve::Ranges(ranges) => ranges.iter().any(|kept| overlap(window, kept)),
        }
    }

    /// Decides what may be done with a window, which is aligned or ends at the end of the file.
    /// `newer` matters under a budget only: the log's resident bytes in this window and all newer
    /// ones.
    pub fn verdict(&self, window: &Range<u64>, newer: u64) -> Verdict {
        let needed = window.end > self.needed_from || self.recovery.overlaps(window);
        if self.is_kept_for_writer(window) {
            let left = match self.reserve {
                WriterReserve::From { tail, .. } => window.end <= tail,
                WriterReserve::Nothing
                | WriterReserve::Everything
                | WriterReserve::Window(_)
                | WriterReserve::Ranges(_) => false,
            };
            if needed && left { Verdict::Flush } else { Verdict::Stay }
        } else if self.budget.is_some_and(|bytes| newer <= bytes) {
            Verdict::Stay
        } else if needed || self.followers.is_read_next(self.sequence, self.near_files, window) {
            Verdict::Flush
        } else {
            Verdict::Release
        }
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn near_followers_keep_the_pages_they_have_yet_to_read() {
        assert!(is_near(12, 10, 2) && !is_near(12, 9, 2) && is_near(3, 5, 0));
        let places = |places: &'static [(u64, u64)]| places.iter().copied();
        assert_eq!(needed_from(7, places(&[])), u64::MAX);
        assert_eq!(needed_from(7, places(&[(8, 0)])), u64::MAX);
        assert_eq!(needed_from(7, places(&[(7, 3 * WINDOW + 5), (8, 1)])), 3 * WINDOW);
        assert_eq!(needed_from(7, places(&[(7, 5 * WINDOW), (6, 9 * WINDOW)])), 0);
    }

    #[test]
    fn limits_agree_with_the_windows() {
        let rule = Rule::ReleaseBehindFollowers { near_files: 1, slack: 2 * WINDOW };
        let all = [Follower { sequence: 7, offset: Some(5 * WINDOW + 9), moved: true, near_files: 0 }];
        let writer = ReleaseAllowance::new(rule, WriterPosition::At(20 * WINDOW), 20 * WINDOW);
        assert_eq!(
            (writer.limit(), writer.clean_limit(), writer.left_by_writer()),
            (18 * WINDOW, 18 * WINDOW, 20 * WINDOW)
        );
        let near = writer.with_followers(rule, 7, FollowerSet { writer: 7, all: &all });
        assert_eq!((near.limit(), near.clean_limit()), (5 * WINDOW, 18 * WINDOW));
        assert_eq!(
            near,
            writer.with_needed_from(5 * WINDOW).with_followers(rule, 7, FollowerSet { writer: 7, all: &all })
        );
        for at in 0..20 {
            let window = at * WINDOW..(at + 1) * WINDOW;
            let expected = match at {
                0..5 => Verdict::Release,
                // The range that the follower waits for is written out, including the writer's
                // slack.
                _ => Verdict::Flush,
            };
            assert_eq!(near.verdict(&window, 0), expected, "{at}");
        }
        // Far, and moving: the range it reads next stays.
        let left = ReleaseAllowance::new(rule, WriterPosition::Elsewhere, 20 * WINDOW);
        let far = left.with_followers(rule, 7, FollowerSet { writer: 9, all: &all });
        assert_eq!((far.limit(), far.clean_limit()), (u64::MAX, u64::MAX));
        assert_eq!(far.verdict(&(4 * WINDOW..5 * WINDOW), 0), Verdict::Release);
        assert_eq!(far.verdict(&(5 * WINDOW..6 * WINDOW), 0), Verdict::Flush);
        assert_eq!(far.verdict(&(10 * WINDOW..11 * WINDOW), 0), Verdict::Release);
        // Far, at an unknown offset: the whole file stays.
        let somewhere = [Follower { offset: None, moved: false, ..all[0] }];
        let far = left.with_followers(rule, 7, FollowerSet { writer: 9, all: &somewhere });
        assert!((0..10).all(|at| far.verdict(&(at * WINDOW..(at + 1) * WINDOW), 0) == Verdict::Flush));
        let other = left.with_followers(rule, 8, FollowerSet { writer: 9, all: &somewhere });
        assert_eq!(other.verdict(&(0..WINDOW), 0), Verdict::Release);
    }

    #[test]
    fn a_follower_can_have_a_longer_limit_than_its_rule() {
        let rule = Rule::ReleaseBehindFollowers { near_files: 1, slack: 0 };
        for (near_files, limit) in [(0, u64::MAX), (4, u64::MAX), (5, 2 * WINDOW), (u64::MAX, 2 * WINDOW)] {
            let all = [Follower { sequence: 7, offset: Some(2 * WINDOW), moved: false, near_files }];
            let allowance = ReleaseAllowance::new(rule, WriterPosition::Elsewhere, 20 * WINDOW);
            let allowance = allowance.with_followers(rule, 7, FollowerSet { writer: 12, all: &all });
            assert_eq!(allowance.limit(), limit, "{near_files}");
        }
    }
}

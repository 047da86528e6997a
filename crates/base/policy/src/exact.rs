//! The exact rule: the work due on a file whose writer knows its own position and how far the pages are on their
//! way to the disk.
//!
//! It serves an engine's own logs. Nothing is inferred, and residency is not queried: written data counts as
//! resident until it is released. [`Allowance`] says what may be released, as for [`crate::step()`].
//!
//! Invariants:
//! * A range that is waited for was started before, or is started in the same call.
//! * A range that is released is clean by then.
//! * At most the slack and the writer's own window stay dirty, whether pages are released or a follower needs
//!   them.
//! * Once the work is done, the same call returns nothing.

use core::ops::Range;

use crate::allowance::{Allowance, Verdict};

/// The unit of writeback in bytes: the smallest page size.
const PAGE: u64 = 4096;

/// How far the pages of a file are on their way to the disk, in bytes: `clean <= started <= written`, unless a
/// sync came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// The program has written everything before this.
    pub written: u64,
    /// Writeback of everything before this was started.
    pub started: u64,
    /// Nothing before this is dirty.
    pub clean: u64,
}

/// The work that is due, to be done in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due<R = Option<Range<u64>>> {
    /// Start writeback of this range.
    pub start: Option<Range<u64>>,
    /// Wait until this range is written.
    pub wait: Option<Range<u64>>,
    /// Then drop the pages of this range.
    pub release: R,
}

impl Due {
    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        self.start.is_none() && self.wait.is_none() && self.release.is_none()
    }
}

/// Returns the work due on a file. `windows` are those that may have pages, ascending; each is aligned to
/// [`crate::WINDOW`] or ends at the end of the written data. Adjacent ranges to release are joined.
///
/// ```
/// use pagekeeper_policy::allowance::{Allowance, Writer};
/// use pagekeeper_policy::exact::{Watermarks, due};
/// use pagekeeper_policy::{Rule, WINDOW};
///
/// let allowance = Allowance::new(Rule::ReleaseBehindWriter { slack: WINDOW }, Writer::At(5 * WINDOW), 5 * WINDOW);
/// let marks = Watermarks { written: 5 * WINDOW, started: 3 * WINDOW, clean: WINDOW };
/// let due = due(&allowance, marks, (0..5).map(|at| at * WINDOW..(at + 1) * WINDOW));
/// assert_eq!((due.start, due.wait), (Some(3 * WINDOW..5 * WINDOW), Some(WINDOW..4 * WINDOW)));
/// assert_eq!(due.release.collect::<Vec<_>>(), [0..4 * WINDOW]);
/// ```
pub fn due<'a, W>(allowance: &'a Allowance<'a>, marks: Watermarks, windows: W) -> Due<Releases<'a, W>>
where
    W: Iterator<Item = Range<u64>>,
{
    let up_to = |limit: u64, done: u64| {
        let end = limit.min(marks.written);
        (done < end).then_some(done - done % PAGE..end)
    };
    Due {
        start: up_to(allowance.left_by_writer(), marks.started),
        wait: up_to(allowance.clean_limit(), marks.clean),
        release: releases(allowance, windows),
    }
}

/// Returns the windows that may be released, joined where they touch. `windows` must ascend. Under a budget none
/// may ([`Allowance::limit`]).
pub fn releases<'a, W>(allowance: &'a Allowance<'a>, windows: W) -> Releases<'a, W>
where
    W: Iterator<Item = Range<u64>>,
{
    Releases { allowance, windows, next: None }
}

/// Ranges to release. See [`releases`].
#[derive(Debug, Clone)]
pub struct Releases<'a, W> {
    allowance: &'a Allowance<'a>,
    windows: W,
    /// The first window of the next range.
    next: Option<Range<u64>>,
}

impl<W: Iterator<Item = Range<u64>>> Iterator for Releases<'_, W> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let mut found = self.next.take();
        for window in &mut self.windows {
            match self.allowance.verdict(&window, 0) {
                Verdict::Release => {}
                Verdict::Stay | Verdict::Flush => continue,
            }
            match &mut found {
                None => found = Some(window),
                Some(range) if range.end == window.start => range.end = window.end,
                Some(_) => {
                    self.next = Some(window);
                    break;
                }
            }
        }
        found
    }
}

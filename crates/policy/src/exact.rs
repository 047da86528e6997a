//! The exact rule: what is due of a file whose writer knows where it is, and how far its pages are on their way to the disk.
//!
//! For an engine's own logs. Nothing is inferred, and what is resident is not asked for: what was written is taken to be
//! there until it was released. What may go is what [`Allowance`] says, as it is for [`crate::step()`].
//!
//! Invariants: what is waited for was started, before or at once; what is released is clean by then; of a writer's file no more stays
//! dirty than its slack and its own window, whether pages go or a follower needs them; the same again, once it was done, is nothing.

use core::ops::Range;

use crate::allowance::{Allowance, Verdict};

/// The unit of writeback, in bytes: the smallest page.
const PAGE: u64 = 4096;

/// How far the pages of a file are on their way to the disk, in bytes: `clean <= started <= written`, but for a sync that came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// All before this was written by the program.
    pub written: u64,
    /// Writeback of all before this was started.
    pub started: u64,
    /// Nothing before this is dirty.
    pub clean: u64,
}

/// What is due, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due<R = Option<Range<u64>>> {
    /// Start writeback of these.
    pub start: Option<Range<u64>>,
    /// Wait until these are written.
    pub wait: Option<Range<u64>>,
    /// Then drop the pages of these.
    pub release: R,
}

impl Due {
    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        self.start.is_none() && self.wait.is_none() && self.release.is_none()
    }
}

/// What is due of a file. `windows` are those that may have pages, ascending: aligned to [`crate::WINDOW`], or up to the end
/// of what was written. What is to be released comes joined.
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

/// Those of the windows, which come ascending, that may go, joined where they touch. Under a budget none may
/// ([`Allowance::limit`]).
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

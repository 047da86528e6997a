//! The exact rule: the work due on a file whose writer knows its own position and the progress of
//! its pages on their way to the disk.
//!
//! It serves an engine's own logs. Nothing is inferred, and residency is not queried: written data
//! counts as resident until it is released. [`ReleaseAllowance`] says what may be released, as for
//! [`crate::step()`].
//!
//! Invariants:
//! * A range that is waited for was started before, or is started in the same call.
//! * A range that is released is clean by then.
//! * At most the slack and the writer's own window stay dirty, whether pages are released or a
//!   follower needs them.
//! * Once the work is done, the same call returns nothing.

use core::ops::Range;

use crate::PAGE_BYTES;
use crate::logs::allowance::{ReleaseAllowance, Verdict};

/// The progress of a file's pages on their way to the disk, in bytes:
/// `clean <= started <= written`, unless a sync came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteWatermarks {
    /// The program has written everything before this.
    pub written: u64,
    /// Writeback of everything before this was started.
    pub started: u64,
    /// Nothing before this is dirty.
    pub clean: u64,
}

/// The work that is due, to be done in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DueWork<R = Option<Range<u64>>> {
    /// Start writeback of this range.
    pub start: Option<Range<u64>>,
    /// Wait until this range is written.
    pub wait: Option<Range<u64>>,
    /// Then drop the pages of this range.
    pub release: R,
}

impl DueWork {
    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        self.start.is_none() && self.wait.is_none() && self.release.is_none()
    }
}

/// Returns the work due on a file. `windows` are those that may have pages, ascending; each is
/// aligned to [`crate::WINDOW`] or ends at the end of the written data. Adjacent ranges to release
/// are joined.
///
/// ```
/// use pagekeeper_policy::allowance::{ReleaseAllowance, WriterPosition};
/// use pagekeeper_policy::exact::{WriteWatermarks, due_work};
/// use pagekeeper_policy::{Rule, WINDOW};
///
/// let rule = Rule::ReleaseBehindWriter { slack: WINDOW };
/// let allowance = ReleaseAllowance::new(rule, WriterPosition::At(5 * WINDOW), 5 * WINDOW);
/// let marks = WriteWatermarks { written: 5 * WINDOW, started: 3 * WINDOW, clean: WINDOW };
/// let due = due_work(&allowance, marks, (0..5).map(|at| at * WINDOW..(at + 1) * WINDOW));
/// assert_eq!((due.start, due.wait), (Some(3 * WINDOW..5 * WINDOW), Some(WINDOW..4 * WINDOW)));
/// assert_eq!(due.release.collect::<Vec<_>>(), [0..4 * WINDOW]);
/// ```
pub fn due_work<'a, W>(
    allowance: &'a ReleaseAllowance<'a>,
    marks: WriteWatermarks,
    windows: W,
) -> DueWork<ReleaseRanges<'a, W>>
where
    W: Iterator<Item = Range<u64>>,
{
    let up_to = |limit: u64, done: u64| {
        let end = limit.min(marks.written);
        (done < end).then_some(done - done % PAGE_BYTES..end)
    };
    DueWork {
        start: up_to(allowance.left_by_writer(), marks.started),
        wait: up_to(allowance.clean_limit(), marks.clean),
        release: release_ranges(allowance, windows),
    }
}

/// Returns the windows that may be released, joined where they touch. `windows` must ascend. Under
/// a budget none may ([`ReleaseAllowance::limit`]).
pub fn release_ranges<'a, W>(allowance: &'a ReleaseAllowance<'a>, windows: W) -> ReleaseRanges<'a, W>
where
    W: Iterator<Item = Range<u64>>,
{
    ReleaseRanges { allowance, windows, next: None }
}

/// Ranges to release. See [`release_ranges`].
#[derive(Debug, Clone)]
pub struct ReleaseRanges<'a, W> {
    allowance: &'a ReleaseAllowance<'a>,
    windows: W,
    /// The first window of the next range.
    next: Option<Range<u64>>,
}

impl<W: Iterator<Item = Range<u64>>> Iterator for ReleaseRanges<'_, W> {
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

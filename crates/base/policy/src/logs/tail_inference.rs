//! Infers the position of a writer that is not visible, from the changes of the file's windows.
//!
//! `InnoDB` and others write their redo rings with `pwrite`, whose offset `/proc` does not show.
//! But a writer leaves traces: pages appear where it writes, and they are dirty until it syncs.
//! Each checkpoint rewrites the header block of a ring (in the window that starts at 0), so window
//! 0 shows traces wherever the writer is.
//!
//! A window is *fresh* if its resident or its unwritten bytes grew since the last sample: something
//! wrote (or read) there in between. It is *active* if it is fresh or still dirty. Active windows
//! are remembered.
//!
//! Invariants:
//! 1. The tail is unknown, and nothing of the file may be released, until a window other than the
//!    header's has been fresh. The first sample proves nothing: dirty pages may be old.
//! 2. A remembered window stays protected, together with the `slack` bytes before it and
//!    [`WRITER_AHEAD_BYTES`] bytes after it: the writer may have moved on since, and leaves no
//!    trace where old pages were resident. Once those are released, nothing is resident there. At
//!    the end of the file this range continues at the start. Nothing is protected after the
//!    header's window.
//! 3. A remembered window is forgotten when it is *passed*: a window above it, joined to it by
//!    remembered windows, was fresh in a step after the one in which it was last active. A log is
//!    written upwards, so the writer has left it. In a ring whose checkpoint is known this also
//!    holds around the end of the file. (Without this rule a fast writer would hold [`QUIET_STEPS`]
//!    steps' worth of log.) The header's window is never passed: the next checkpoint comes back to
//!    it.
//! 4. Any other window is forgotten after [`QUIET_STEPS`] consecutive steps in which it was not
//!    active while a window other than the header's was fresh. So the end of the ring is forgotten
//!    after a wraparound, and the old position after a jump.
//! 5. Time alone forgets nothing, except by invariant 7: the last window of an idle writer stays
//!    protected for as long as it is idle, and the same sample twice changes nothing.
//! 6. A window that the caller released and that has pages again is fresh, unless its figures are
//!    exactly those from before: then it refused. A window that shrank (reclaimed by the kernel) is
//!    not fresh. A dirty window whose writeback was started, and that has not changed since, is not
//!    active: otherwise it would never be released if its writeback hung.
//! 7. A writer of whole pages without traces since `retry` changed is idle: only dirty windows stay
//!    for it, since it needs no old page to continue. This does not apply to a ring whose
//!    checkpoint is known, where the last position of an idle writer marks the end of the range
//!    that recovery would read.
//! 8. A window that was released in the last step and has the same figures as before has refused,
//!    or was filled again. If it joins a protected range the writer may be in it, so it is active,
//!    though not fresh.
//!
//! Limits: a write over resident pages, synced before the next sample, leaves no trace. Pages far
//! ahead of the writer are released as soon as the tail is known, so this takes adjacent windows
//! whose release was refused, or a writer that goes further than [`WRITER_AHEAD_BYTES`] in the
//! first step in which it is seen. A program that reads through a ring makes windows fresh; if the
//! writer is idle meanwhile, its last window can be released after [`QUIET_STEPS`] steps. A writer
//! that goes around the whole file between two steps is not followed. Each of these costs one page
//! read at the writer's next partial write, never data.

use std::ops::Range;

use crate::logs::allowance::align_down;
use crate::logs::history::{ResidentWindow, WindowHistory};
use crate::logs::recovery::{further, is_left_behind};
use crate::ranges::append;
use crate::{FileFacts, RewriteKind, WINDOW};

/// Steps with fresh windows elsewhere after which an inactive window no longer counts as the tail.
pub(crate) const QUIET_STEPS: u8 = 8;

/// Bytes protected after a remembered window (8 MiB).
pub(crate) const WRITER_AHEAD_BYTES: u64 = 4 * WINDOW;

/// The state of a writer whose position is not visible.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TailInference {
    /// The windows of the last step, ascending; `None` before the first.
    samples: Option<Vec<WindowSample>>,
    /// The remembered windows, ascending.
    active: Vec<WriterTrace>,
    /// The number of steps in which some window was fresh.
    clock: u64,
    /// Whether the writer has shown itself (invariant 1).
    known: bool,
    /// [`crate::StepFacts::retry`] when the writer last showed itself, or at the first sample.
    seen_at: Option<u64>,
    /// Whether a writer of whole pages has not shown itself since then (invariant 7).
    idle: bool,
    /// The clock when a remembered window other than the header's was last fresh.
    newest: u64,
}

/// A window in the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WindowSample {
    start: u64,
    resident: u64,
    unwritten: u64,
    released: bool,
}

/// A window where the writer was.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WriterTrace {
    range: Range<u64>,
    /// The clock when it was last active.
    last_active: u64,
    /// The clock when it was last fresh, 0 if never.
    last_fresh: u64,
    /// Consecutive steps in which it was not active, but another window was fresh.
    quiet: u8,
}

/// The traces that a writer left in a window in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowHeat {
    Cold,
    Dirty,
    Fresh,
}

impl TailInference {
    /// Records the windows of this step, before anything is decided about them. `history` has the
    /// previous actions. `by_reader` says which windows a reader brought in; these are not traces
    /// of the writer.
    pub(crate) fn observe(
        &mut self,
        windows: &[ResidentWindow],
        (history, by_reader): (&[WindowHistory], &[bool]),
        file: &FileFacts,
        retry: u64,
        in_ring: bool,
    ) {
        let mut heats: Vec<WindowHeat> = windows.iter().map(|now| self.heat_of(now, history)).collect();
        for (heat, by_reader) in heats.iter_mut().zip(by_reader) {
            if *by_reader && *heat == WindowHeat::Fresh {
                *heat = WindowHeat::Cold;
            }
        }
        self.suspect_filled_again(windows, &mut heats, file.size);
        let fresh = |(heat, window): (&WindowHeat, &ResidentWindow)| {
            *heat == WindowHeat::Fresh && window.range.start != 0
        };
        let writer_seen = heats.iter().zip(windows).any(fresh);
        self.known |= writer_seen;
        if writer_seen || self.seen_at.is_none() {
            self.seen_at = Some(retry);
        }
        self.idle = file.rewrite == RewriteKind::WholePages && self.seen_at != Some(retry) && !in_ring;
        if heats.contains(&WindowHeat::Fresh) {
            self.clock += 1;
        }
        for active in &mut self.active {
            active.quiet += u8::from(writer_seen);
        }
        for (heat, window) in heats.iter().zip(windows) {
            if *heat != WindowHeat::Cold {
                self.remember(window, *heat);
            }
        }
        self.active.retain(|active| active.quiet < QUIET_STEPS && active.range.start < file.size);
        self.forget_passed();
        if in_ring {
            self.forget_end_of_file(file.size);
        }
        if self.idle {
            let dirty = |start| windows.iter().any(|now| now.range.start == start && now.unwritten > 0);
            self.active.retain(|active| dirty(active.range.start));
        }
        let data = self.active.iter().filter(|active| active.range.start != 0);
        self.newest = data.map(|active| active.last_fresh).max().unwrap_or(0);
        self.samples = Some(
            windows
                .iter()
                .map(|window| WindowSample {
                    start: window.range.start,
                    resident: window.resident,
                    unwritten: window.unwritten,
                    released: false,
                })
                .collect(),
        );
    }

    /// Records that the window at `index` of the last [`TailInference::observe`] is released now.
    pub(crate) fn released(&mut self, index: usize) {
        if let Some(sample) = self.samples.as_mut().and_then(|samples| samples.get_mut(index)) {
            sample.released = true;
        }
    }

    /// Returns the ranges that stay for the writer in a file of `size` bytes; `None` while the tail
    /// is unknown and everything stays.
    pub(crate) fn protected(&self, slack: u64, size: u64) -> Option<Vec<Range<u64>>> {
        (self.known || self.idle).then(|| {
            let mut ranges: Vec<Range<u64>> = Vec::new();
            let mut wrapped = 0;
            for active in &self.active {
                let ahead = if active.range.start == 0 { 0 } else { WRITER_AHEAD_BYTES };
                let start = align_down(active.range.start.saturating_sub(slack));
                let end = active.range.end.saturating_add(ahead);
                wrapped = wrapped.max(end.saturating_sub(size));
                append(&mut ranges, start..end, 0);
            }
            if wrapped > 0 {
                ranges.push(0..wrapped);
            }
            ranges
        })
    }

    /// Returns where the writer was and where it may have gone since, without the header's window;
    /// `None` while that is unknown.
    pub(crate) fn places(&self, size: u64) -> Option<Vec<Range<u64>>> {
        (self.known && !self.idle).then(|| {
            let data = self.active.iter().filter(|active| active.range.start != 0);
            let mut places: Vec<Range<u64>> = data
                .map(|active| active.range.start..active.range.end.saturating_add(WRITER_AHEAD_BYTES))
                .collect();
            let wrapped = places.iter().map(|place| place.end.saturating_sub(size)).max().unwrap_or(0);
            places.extend((wrapped > 0).then_some(0..wrapped));
            places
        })
    }

    /// Returns the end of the written part of a ring of `size` bytes with its checkpoint at this
    /// offset: the furthest end of adjoining remembered windows. The header's window does not
    /// count. Returns `None` if there is none.
    ///
    /// An end that was fresh just behind the checkpoint is outdated: the writer moved on without a
    /// trace, and is assumed to be at most [`WRITER_AHEAD_BYTES`] bytes beyond the checkpoint. This
    /// does not apply to windows that only resisted a release there (invariant 8).
    pub(crate) fn end_in_ring(&self, checkpoint: u64, size: u64) -> Option<u64> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for active in self.active.iter().filter(|active| active.range.start != 0) {
            append(&mut runs, active.range.clone(), 0);
        }
        let ahead = checkpoint.saturating_add(WRITER_AHEAD_BYTES);
        let ahead = if ahead > size { ahead - size } else { ahead };
        let is_left = |run: &Range<u64>| {
            let fresh = |active: &&WriterTrace| active.last_fresh > 0 && run.contains(&active.range.start);
            let last = self.active.iter().rfind(fresh);
            last.is_some_and(|last| is_left_behind(checkpoint, size, last.range.end))
        };
        let end = |run: &Range<u64>| if is_left(run) { ahead } else { run.end };
        let ends = runs.iter().map(end).filter(|_| self.known);
        ends.reduce(|one, other| further(checkpoint, size, one, other))
    }

    /// Whether a protected window has older traces than the newest one: its dirty pages can be
    /// written.
    pub(crate) fn has_older_traces(&self, start: u64) -> bool {
        let own = self.active.binary_search_by_key(&start, |active| active.range.start);
        self.known && own.map_or(0, |at| self.active[at].last_fresh) < self.newest
    }

    fn heat_of(&self, now: &ResidentWindow, history: &[WindowHistory]) -> WindowHeat {
        if self.samples.is_none() {
            return if now.unwritten > 0 { WindowHeat::Dirty } else { WindowHeat::Cold };
        }
        let figures = (now.resident, now.unwritten);
        let (resident, unwritten) = match self.sample(now.range.start) {
            Some(past) if !past.released || figures == (past.resident, past.unwritten) => {
                (past.resident, past.unwritten)
            }
            _ => (0, 0),
        };
        let asked =
            WindowHistory::find(history, now.range.start).is_some_and(|history| history.is_unchanged(now));
        if now.resident > resident || now.unwritten > unwritten {
            WindowHeat::Fresh
        } else if now.unwritten > 0 && !(asked && figures == (resident, unwritten)) {
            WindowHeat::Dirty
        } else {
            WindowHeat::Cold
        }
    }

    /// Applies invariant 8.
    fn suspect_filled_again(&self, windows: &[ResidentWindow], heats: &mut [WindowHeat], size: u64) {
        let Some(mut kept) = self.protected(0, size).filter(|_| self.known) else { return };
        for (now, heat) in windows.iter().zip(heats) {
            let released = self.sample(now.range.start).is_some_and(|past| past.released);
            // A protected range that ends with the file continues at its start.
            let end = if now.range.start == 0 { size } else { now.range.start };
            let joined = kept.iter_mut().find(|kept| kept.end == end);
            if let (WindowHeat::Cold, true, Some(joined)) = (*heat, released, joined) {
                *heat = WindowHeat::Dirty;
                joined.end = now.range.end;
            }
        }
    }

    fn sample(&self, start: u64) -> Option<&WindowSample> {
        let samples = self.samples.as_ref()?;
        samples.binary_search_by_key(&start, |sample| sample.start).ok().map(|at| &samples[at])
    }

    fn remember(&mut self, window: &ResidentWindow, heat: WindowHeat) {
        let at = match self.active.binary_search_by_key(&window.range.start, |active| active.range.start) {
            Ok(at) => at,
            Err(at) => {
                self.active.insert(
                    at,
                    WriterTrace {
                        range: window.range.clone(),
                        last_active: self.clock,
                        last_fresh: 0,
                        quiet: 0,
                    },
                );
                at
            }
        };
        let active = &mut self.active[at];
        active.range.end = window.range.end;
        active.last_active = self.clock;
        active.quiet = 0;
        if heat == WindowHeat::Fresh {
            active.last_fresh = self.clock;
        }
    }

    /// Applies invariant 3 around the end of the file: a window at its start was fresh after those
    /// at the end were last active.
    fn forget_end_of_file(&mut self, size: u64) {
        let at_start = self
            .active
            .iter()
            .filter(|active| active.range.start != 0 && active.range.start < WRITER_AHEAD_BYTES);
        let fresh = at_start.map(|active| active.last_fresh).max().unwrap_or(0);
        let mut end = size;
        while let Some(last) = self.active.pop_if(|last| last.range.end >= end && last.last_active < fresh) {
            end = last.range.start;
        }
    }

    /// Applies invariant 3.
    fn forget_passed(&mut self) {
        let mut above: Option<u64> = None;
        let mut freshest = 0;
        let mut passed = vec![false; self.active.len()];
        for (active, passed) in self.active.iter().zip(&mut passed).rev() {
            if above != Some(active.range.end) {
                freshest = 0;
            }
            *passed = active.range.start != 0 && freshest > active.last_active;
            above = Some(active.range.start);
            freshest = freshest.max(active.last_fresh);
        }
        let mut passed = passed.into_iter();
        self.active.retain(|_| !passed.next().unwrap_or(false));
    }
}

#[cfg(test)]
mod tests;

//! Streams seen from outside: which pages another process brought into the page cache of one file, and which of them to release.
//!
//! The caller samples the file now and then (a tick). Before the stream gets to a position, it gives [`ExternalStream::saw`] the pages that are
//! resident there: those belong to others. Pages behind the stream that were absent before belong to it. A page that returns after
//! its release belongs to another process.
//!
//! Invariants: no page that was resident before the stream came near is ever released; what was not sampled in time is unknown, and is
//! left alone; the window at the stream's position stays; nothing is released a second time but pages that resisted and have stayed
//! since. Memory is bounded: where the resident pages of a file are scattered over too many places, whole ranges count as those of
//! others.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::allowance::align_down;
use crate::ranges::append;
use crate::{READ_AHEAD, WINDOW};

/// Ranges that are remembered of a file; more are joined with what lies between them.
const MAX_RANGES: usize = 1024;
/// What a program reads besides its files, from the page cache: libraries' headers and settings, in bytes.
const OTHER_READS: u64 = 256 << 10;

/// Where a stream is in a file, as one tick sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamPosition {
    /// At this byte, and it moves from tick to tick.
    At(u64),
    /// Somewhere: it reads by `pread`, `copy_file_range` or a mapping.
    Unknown(Filled),
}

/// What is resident now of a file's windows that had no resident page before the stream came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filled {
    /// Each such window, ascending, and how many bytes of it are resident.
    pub windows: Vec<(Range<u64>, u64)>,
    /// What the process has brought into the page cache since the last tick, of all its files, in bytes.
    pub brought: u64,
    /// Whether that is as much as has come since into all the files where it may be, by [`ExternalStream::grown`].
    pub explained: Explained,
}

/// Whether a process has brought in all that came into its files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Explained {
    /// It can't have.
    #[default]
    No,
    /// It is known at the next tick: pages are in the page cache a moment before they count as fetched.
    NotYet,
    /// It may have.
    Yes,
}

/// What one tick sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Where the stream is.
    pub position: StreamPosition,
    /// Whether it writes the file: its pages are dirty at first.
    pub writes: bool,
    /// Whether a database has the file open as well: then only windows without any page before are the stream's.
    pub shared: bool,
}

/// What is to be done about the file at one tick.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acts {
    /// Ranges to release, ascending: clean by now, or nearly so.
    pub release: Vec<Range<u64>>,
    /// Where to start writeback; it is not waited for before the next tick.
    pub start_writeback: Option<Range<u64>>,
}

/// What is known of one file that a stream reads or writes. See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalStream {
    /// What was sampled before the stream came there.
    seen: Range<u64>,
    /// What was resident there: ascending, disjoint.
    before: Vec<Range<u64>>,
    /// Released up to here.
    done: u64,
    /// Writeback has been started up to here.
    started: u64,
    /// What was to be released and stayed: ascending, disjoint.
    again: Vec<Range<u64>>,
    /// Where the stream has no position: its windows by their start, and how much of each it brought in.
    filled: BTreeMap<u64, u64>,
    /// The last window that it was seen to fill.
    last_filled: Option<u64>,
    /// Whether it had no position at the last tick.
    somewhere: bool,
}

impl ExternalStream {
    /// A stream that was met at byte `position`. Nothing is known of what was resident before it came, but for `own`: where nothing
    /// was.
    pub fn met(position: u64, own: Option<Range<u64>>) -> Self {
        let seen = own.filter(|own| !own.is_empty()).unwrap_or(align_down(position)..align_down(position));
        let done = seen.start.next_multiple_of(WINDOW);
        Self {
            seen,
            before: Vec::new(),
            done,
            started: done,
            again: Vec::new(),
            filled: BTreeMap::new(),
            last_filled: None,
            somewhere: false,
        }
    }

    /// A reader is at byte `position` now. Where it has been before is met anew: others may have come there since.
    pub fn reads_at(&mut self, position: u64) {
        if align_down(position) < self.done {
            *self = Self::met(position, None);
        }
    }

    /// Whether nothing was resident wherever it was sampled.
    pub fn is_all_own(&self) -> bool {
        self.before.is_empty()
    }

    /// What is to be sampled so that all up to `end` is known.
    pub fn unseen(&self, end: u64) -> Range<u64> {
        self.seen.end..end.max(self.seen.end)
    }

    /// What is resident from the end of what was seen up to `end`: ascending.
    pub fn saw(&mut self, end: u64, resident: impl IntoIterator<Item = Range<u64>>) {
        for extent in resident {
            append(&mut self.before, extent, 0);
        }
        self.seen.end = self.seen.end.max(end);
        self.bound();
    }

    /// These are somebody else's, too, though they were not resident at first.
    pub fn others(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let known = self.before.len();
        self.before.extend(ranges);
        if self.before.len() > known {
            self.before.sort_unstable_by_key(|range| range.start);
            self.before = close_gaps(&self.before, 1);
            self.bound();
        }
    }

    /// Nothing is known any more from byte `end` on.
    pub fn forget_from(&mut self, end: u64) {
        self.seen.end = self.seen.end.min(end.max(self.seen.start));
        let end = self.seen.end;
        self.before.retain(|range| range.start < end);
        if let Some(last) = self.before.last_mut() {
            last.end = last.end.min(end);
        }
    }

    fn bound(&mut self) {
        let mut gap = WINDOW;
        while self.before.len() > MAX_RANGES {
            self.before = close_gaps(&self.before, gap);
            gap *= 2;
        }
    }

    /// What is the stream's own in `range`; whole windows alone where `whole_windows`.
    pub fn own(&self, range: Range<u64>, whole_windows: bool) -> Vec<Range<u64>> {
        let (mut start, end) = (range.start.max(self.seen.start), range.end.min(self.seen.end));
        let mut own = Vec::new();
        let mut add = |gap: Range<u64>| {
            let gap =
                if whole_windows { gap.start.next_multiple_of(WINDOW)..floor_or(gap.end, end) } else { gap };
            if gap.start < gap.end {
                own.push(gap);
            }
        };
        let first = self.before.partition_point(|extent| extent.end <= start);
        for extent in &self.before[first..] {
            if extent.start >= end {
                break;
            }
            add(start..extent.start);
            start = extent.end;
        }
        if start < end {
            add(start..end);
        }
        own
    }

    /// What is to be done at this tick.
    pub fn step(&mut self, facts: &Sample) -> Acts {
        let position = match &facts.position {
            StreamPosition::At(position) => align_down(*position).min(align_down(self.seen.end)),
            StreamPosition::Unknown(filled) => return self.step_by_windows(filled),
        };
        self.somewhere = false;
        // It writes again what it had been at.
        self.done = self.done.min(position);
        self.started = self.started.min(position);
        let behind = if facts.writes { self.started } else { position };
        let release = self.own(self.done..behind, facts.shared);
        self.done = behind;
        let started = std::mem::replace(&mut self.started, position);
        let begin = facts.writes && started < position;
        Acts {
            release: self.with_again(release, position),
            start_writeback: begin.then_some(started..position),
        }
    }

    /// How much has come since the last tick into windows where the stream may be, in bytes: as far from where it was as what it
    /// has `brought` reaches.
    pub fn grown(&self, windows: &[(Range<u64>, u64)], brought: u64) -> u64 {
        let reach = self.reach(brought);
        let near = windows.iter().filter(|(window, _)| reach.contains(&window.start));
        near.map(|(window, resident)| resident.saturating_sub(self.filled_of(window))).sum()
    }

    fn filled_of(&self, window: &Range<u64>) -> u64 {
        self.filled.get(&window.start).copied().unwrap_or(0)
    }

    fn reach(&self, brought: u64) -> Range<u64> {
        match self.last_filled {
            Some(last) => last.saturating_sub(2 * READ_AHEAD)..last.saturating_add(brought) + WINDOW + 1,
            None => 0..u64::MAX,
        }
    }

    /// What comes into a window is the stream's while it can be what it brought in: else the window is somebody else's from now
    /// on. What has just been read, and what is being read ahead, ends with the last window that it filled.
    fn step_by_windows(&mut self, filled: &Filled) -> Acts {
        self.somewhere = true;
        if filled.explained == Explained::NotYet {
            return Acts { release: self.with_again(Vec::new(), u64::MAX), start_writeback: None };
        }
        let explained = filled.explained == Explained::Yes;
        let reach = self.reach(filled.brought);
        let mut own = Vec::new();
        let mut others = Vec::new();
        for (window, resident) in &filled.windows {
            let grows = *resident > self.filled_of(window);
            let near = reach.contains(&window.start);
            if !grows || (near && explained) {
                own.push((window.clone(), *resident));
            } else {
                others.push(window.clone());
            }
            // In doubt, too: it is not lost for what comes next.
            if grows && near && filled.brought > 0 && (explained || self.last_filled.is_some()) {
                self.last_filled = self.last_filled.max(Some(window.start));
            }
        }
        if own.len() > MAX_RANGES {
            // That many are filled by no stream.
            others.extend(own.drain(..).map(|(window, _)| window));
        }
        let behind = self.last_filled.map_or(0, |last| (last + WINDOW).saturating_sub(2 * READ_AHEAD));
        let (passed, own): (Vec<_>, Vec<_>) = own.into_iter().partition(|(window, _)| window.end <= behind);
        let release: Vec<_> = passed.into_iter().map(|(window, _)| window).collect();
        others.extend(release.iter().cloned());
        self.filled = own.into_iter().map(|(window, resident)| (window.start, resident)).collect();
        self.others(others);
        Acts { release: self.with_again(release, u64::MAX), start_writeback: None }
    }

    /// What resisted of what was to be released, in any order: it is tried again at the next tick.
    pub fn resisted(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let mut again: Vec<_> = ranges.into_iter().collect();
        again.sort_unstable_by_key(|range| range.start);
        let mut again = close_gaps(&again, 1);
        // Of too many the first are let go.
        again.drain(..again.len().saturating_sub(MAX_RANGES));
        self.again = again;
    }

    /// Those ranges, and what resisted the last time and ends by `end`; it is forgotten.
    fn with_again(&mut self, mut release: Vec<Range<u64>>, end: u64) -> Vec<Range<u64>> {
        let mut again = std::mem::take(&mut self.again);
        again.retain(|range| range.end <= end);
        if again.is_empty() {
            return release;
        }
        release.extend(again);
        release.sort_unstable_by_key(|range| range.start);
        close_gaps(&release, 1)
    }

    /// What is left to be released when the file is closed, up to byte `size`: the stream has `brought` in so many bytes since the
    /// last tick, where it has no position. Once: after that, only what resisted is left.
    pub fn rest(&mut self, size: u64, brought: u64, shared: bool) -> Vec<Range<u64>> {
        let rest = if self.somewhere {
            let last = self.last_filled.unwrap_or(0);
            let starts = std::mem::take(&mut self.filled).into_keys();
            let mut rest: Vec<_> = starts.map(|start| start..(start + WINDOW).min(size)).collect();
            if brought > 0 {
                rest.extend(self.own(last..size.min(last.saturating_add(brought) + WINDOW), false));
            }
            rest.sort_unstable_by_key(|range| range.start);
            close_gaps(&rest, 1)
        } else {
            self.own(self.done..size, shared)
        };
        self.somewhere = false;
        self.done = self.done.max(size);
        self.with_again(rest, u64::MAX)
    }

    /// Up to where it was sampled.
    pub fn seen_to(&self) -> u64 {
        self.seen.end
    }
}

/// Whether all that a process has read of files came from their disks, so that nobody had it in the page cache before: of `read`
/// bytes it was given, `fetched` came from a disk, and `ahead` bytes of these it has yet to be given. In bytes.
///
/// ```
/// use pagekeeper_policy::external_stream::all_fetched;
/// assert!(all_fetched(20 << 20, 28 << 20, 8 << 20));
/// assert!(!all_fetched(20 << 20, 10 << 20, 8 << 20));
/// ```
pub fn all_fetched(read: u64, fetched: u64, ahead: u64) -> bool {
    fetched.saturating_sub(ahead) + OTHER_READS >= read
}

/// The end of a gap: whole windows, but for the previous of the range.
fn floor_or(position: u64, end: u64) -> u64 {
    if position == end { end } else { align_down(position) }
}

/// The ranges, with gaps of less than `least` bytes closed.
fn close_gaps(ranges: &[Range<u64>], least: u64) -> Vec<Range<u64>> {
    let mut closed: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        append(&mut closed, range.clone(), least);
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn at(position: u64) -> Sample {
        Sample { position: StreamPosition::At(position), writes: false, shared: false }
    }

    fn mib(range: Range<u64>) -> Range<u64> {
        range.start * MIB..range.end * MIB
    }

    #[test]
    fn a_cold_file_is_released_behind_the_reader_but_for_the_window_it_is_in() {
        let mut file = ExternalStream::met(0, None);
        file.saw(128 * MIB, []);
        assert_eq!(file.step(&at(3 * MIB)).release, [mib(0..2)]);
        assert_eq!(file.step(&at(9 * MIB)).release, [mib(2..8)], "nothing a second time");
        file.resisted([mib(5..6), mib(3..4)]);
        assert_eq!(file.step(&at(9 * MIB)).release, [mib(3..4), mib(5..6)], "but what resisted");
        assert_eq!(file.step(&at(21 * MIB)).release, [mib(8..20)]);
        file.resisted([mib(18..19)]);
        assert_eq!(file.rest(22 * MIB, 0, false), [mib(18..19), mib(20..22)]);
        file.resisted([mib(21..22)]);
        assert_eq!(file.rest(22 * MIB, 0, false), [mib(21..22)]);
    }

    #[test]
    fn what_was_resident_before_is_never_released() {
        let mut file = ExternalStream::met(0, None);
        file.saw(16 * MIB, [mib(3..5), mib(8..12)]);
        assert_eq!(file.clone().step(&at(16 * MIB)).release, [mib(0..3), mib(5..8), mib(12..16)]);
        let shared = Sample { shared: true, ..at(14 * MIB) };
        assert_eq!(file.step(&shared).release, [mib(0..2), mib(6..8), mib(12..14)]);
        assert_eq!(file.rest(15 * MIB, 0, true), [mib(14..15)]);
    }

    #[test]
    fn what_comes_before_the_stream_or_after_a_second_sample_is_somebody_else_s() {
        let mut file = ExternalStream::met(0, None);
        file.saw(40 * MIB, [mib(30..31)]);
        file.others([mib(8..10), mib(4..6)]);
        assert_eq!(file.step(&at(20 * MIB)).release, [mib(0..4), mib(6..8), mib(10..20)]);
        file.forget_from(24 * MIB);
        assert_eq!(file.unseen(32 * MIB), mib(24..32));
        file.saw(32 * MIB, []);
        assert_eq!(file.step(&at(32 * MIB)).release, [mib(20..32)]);
    }

    #[test]
    fn of_what_was_not_sampled_in_time_nothing_is_known() {
        let mut late = ExternalStream::met(5 * MIB, None);
        assert_eq!(late.unseen(20 * MIB), mib(4..20));
        late.saw(20 * MIB, [mib(4..13)]);
        assert_eq!(late.step(&at(18 * MIB)).release, [mib(13..18)]);
        assert!(!late.is_all_own());
        // It has overtaken the samples: what it left there counts as somebody else's.
        assert_eq!(late.step(&at(60 * MIB)).release, [mib(18..20)]);
        late.saw(80 * MIB, [mib(20..68)]);
        assert_eq!(late.step(&at(76 * MIB)).release, [mib(68..76)]);
        let mut known = ExternalStream::met(5 * MIB, Some(mib(0..13)));
        known.saw(20 * MIB, []);
        assert_eq!(known.step(&at(18 * MIB)).release, [mib(0..18)]);
    }

    #[test]
    fn a_writer_s_pages_are_written_out_at_one_tick_and_released_at_the_next() {
        let writer = |position| Sample { writes: true, ..at(position) };
        let mut file = ExternalStream::met(0, None);
        file.saw(200 * MIB, []);
        let first = file.step(&writer(11 * MIB));
        assert_eq!((first.release, first.start_writeback), (vec![], Some(mib(0..10))));
        let second = file.step(&writer(20 * MIB));
        assert_eq!((second.release, second.start_writeback), (vec![mib(0..10)], Some(mib(10..20))));
        file.resisted([mib(5..7)]);
        let third = file.step(&writer(20 * MIB));
        assert_eq!((third.release, third.start_writeback), (vec![mib(5..7), mib(10..20)], None));
    }

    #[test]
    fn one_that_reads_again_is_followed_again() {
        let mut file = ExternalStream::met(0, None);
        file.saw(100 * MIB, []);
        file.step(&at(80 * MIB));
        file.reads_at(0);
        assert_eq!(file.unseen(20 * MIB), mib(0..20), "others may have come there since");
        file.saw(20 * MIB, [mib(4..6)]);
        assert_eq!(file.step(&at(0)).release, []);
        file.reads_at(10 * MIB);
        assert_eq!(file.step(&at(10 * MIB)).release, [mib(0..4), mib(6..10)]);
    }

    fn filled(windows: &[(u64, u64)], brought: u64) -> (Vec<(Range<u64>, u64)>, u64) {
        let windows = windows.iter().map(|(start, resident)| (mib(*start..start + 2), resident * MIB));
        (windows.collect(), brought * MIB)
    }

    /// One tick of the only file of a process.
    fn fill(file: &mut ExternalStream, windows: &[(u64, u64)], brought: u64) -> Vec<Range<u64>> {
        let (windows, brought) = filled(windows, brought);
        let explained = if file.grown(&windows, brought) <= brought { Explained::Yes } else { Explained::No };
        let position = StreamPosition::Unknown(Filled { windows, brought, explained });
        file.step(&Sample { position, writes: false, shared: false }).release
    }

    #[test]
    fn without_a_position_windows_go_when_the_stream_is_well_past_them() {
        let mut file = ExternalStream::met(0, None);
        file.saw(100 * MIB, [mib(10..12)]);
        assert_eq!(fill(&mut file, &[], 0), []);
        assert_eq!(fill(&mut file, &[(0, 2), (2, 2), (4, 1)], 6), []);
        assert_eq!(fill(&mut file, &[(0, 2), (2, 2), (4, 2), (18, 2)], 12), [mib(0..2), mib(2..4)]);
        file.resisted([mib(1..2)]);
        assert_eq!(fill(&mut file, &[(4, 2), (18, 2), (20, 2)], 2), [mib(1..2), mib(4..6)]);
        // What is there again is somebody else's, though it could be the stream's by what that has brought in.
        assert_eq!(fill(&mut file, &[(0, 2), (18, 2), (20, 2), (22, 2)], 8), []);
        assert_eq!(file.rest(100 * MIB, 2 * MIB, false), [mib(18..26)], "and what it has read since");
        assert_eq!(file.rest(100 * MIB, 2 * MIB, false), []);
    }

    #[test]
    fn what_the_stream_can_not_have_brought_in_is_somebody_else_s() {
        let mut file = ExternalStream::met(0, None);
        file.saw(200 * MIB, []);
        assert_eq!(fill(&mut file, &[(0, 1)], 1), []);
        // Another reads all of it.
        let all: Vec<_> = (0..100).map(|window| (2 * window, 2)).collect();
        assert_eq!(fill(&mut file, &all, 0), []);
        assert!(file.own(0..200 * MIB, true).is_empty());
        assert_eq!(file.rest(200 * MIB, 0, false), []);
        // What is not known to be fetched yet waits for the next tick.
        let mut file = ExternalStream::met(0, None);
        file.saw(200 * MIB, []);
        let (windows, brought) = filled(&[(0, 2), (2, 2)], 3);
        let position = StreamPosition::Unknown(Filled { windows, brought, explained: Explained::NotYet });
        assert_eq!(file.step(&Sample { position, writes: false, shared: false }), Acts::default());
        assert_eq!(fill(&mut file, &[(0, 2), (2, 2), (4, 2)], 6), []);
        assert_eq!(file.rest(200 * MIB, 0, false), [mib(0..6)]);
        // Two read at once: what is too far for the stream is not its own, the rest is.
        let mut file = ExternalStream::met(0, None);
        file.saw(200 * MIB, []);
        assert_eq!(fill(&mut file, &[(0, 2)], 2), []);
        assert_eq!(fill(&mut file, &[(0, 2), (2, 2), (4, 2), (100, 2)], 4), []);
        assert_eq!(file.rest(200 * MIB, 0, false), [mib(0..6)]);
    }

    #[test]
    fn what_came_from_disk_was_nobody_s_before() {
        assert!(all_fetched(10 * MIB, 10 * MIB, 0));
        assert!(all_fetched(10 * MIB, 18 * MIB, 8 * MIB));
        assert!(!all_fetched(10 * MIB, 10 * MIB, 8 * MIB), "some of what it was given was there");
        assert!(!all_fetched(10 * MIB, 0, 0));
    }

    proptest! {
        #[test]
        fn nothing_of_others_and_nothing_at_the_position_is_released(
            extents in prop::collection::vec((0_u64..4000, 1_u64..40), 0..2000),
            positions in prop::collection::vec(0_u64..40_000, 1..20),
            shared: bool,
            writes: bool,
        ) {
            let page = 4096;
            let mut before: Vec<Range<u64>> = Vec::new();
            let mut from = 0;
            for (skip, length) in extents {
                let start = from + (skip % 37 + 1) * page;
                from = start + length * page;
                before.push(start..from);
            }
            let mut file = ExternalStream::met(0, None);
            file.saw(40_000 * page, before.clone());
            for position in positions {
                let position = position * page;
                let acts = file.step(&Sample { position: StreamPosition::At(position), writes, shared });
                for range in &acts.release {
                    prop_assert!(range.start < range.end && range.end <= position);
                    prop_assert!(!before.iter().any(|extent| extent.start < range.end && range.start < extent.end));
                }
                prop_assert!(acts.release.is_sorted_by(|a, b| a.end <= b.start));
                prop_assert!(acts.start_writeback.is_none_or(|range| writes && range.end <= position));
            }
        }
    }
}

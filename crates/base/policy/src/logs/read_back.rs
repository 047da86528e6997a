//! The read-back detector: notices an unknown follower by the pages it reads back, and then keeps
//! its log.
//!
//! A released page that is resident again was read or written. The writer's position is known or
//! inferred; pages that come back elsewhere were brought in by a reader. Such a reader may come
//! again, so nothing more of the log is released until nobody has read any of it back for a while.
//!
//! Invariants:
//! 1. Bytes count as read back where a window that the caller
//!    [released](crate::StepState::released) has more resident than ever since its release. Pages
//!    that the release left do not count. Neither do pages that come back after the kernel
//!    reclaimed them, or after a sample without them.
//! 2. Pages that the file's writer may have brought in do not count. In a file written since the
//!    last step, these are all that the writer can have reached from its previous position, or all
//!    if that is unknown. Dirty pages do not count either.
//! 3. A log with [`READ_BACK_EVIDENCE_BYTES`] bytes read back is *kept* from that very step on:
//!    windows that its rule would release are written out instead. So only these bytes, and those
//!    that a reader reads between two steps, are read back twice.
//! 4. Under a rule that waits for followers, pages on the path of a known follower do not count the
//!    first time, since by its rule a far follower reads from the disk. They do not count for a few
//!    steps after that either, since a file may be sampled late. A window that is released and read
//!    back a second time counts, whoever reads it.
//! 5. After [`KEPT_RETRIES`] retries without a byte read back, a kept log is *probed*: one in
//!    [`WINDOWS_PER_PROBE`] windows is released. A byte read back returns the log to *kept*. After
//!    as many further retries everything is released again. So a single reader, such as a backup,
//!    keeps a log for a while. A recurring reader costs a small part of the log per
//!    [`KEPT_RETRIES`] retries; this number doubles each time the reader comes again, up to
//!    [`KEPT_RETRIES_MAX`].
//! 6. At most [`RELEASED_RANGES_MAX`] ranges and [`FILE_WINDOWS_MAX`] windows per file are
//!    remembered, and [`ALL_WINDOWS_MAX`] windows of all files. Beyond that the lowest windows of a
//!    file are forgotten: nothing up to them counts until it is released again.
//!
//! Limits: a reader that finds its pages resident leaves no trace. Pages that a reader brings in at
//! the writer's position, between the writer's own steps, count as the writer's. If the state is
//! lost, each range released from then on may be read from the disk once more.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::logs::history::ResidentWindow;
use crate::logs::tail_inference::TailInference;
use crate::quotas::shares::shares_by_party;
use crate::{DatabaseId, FileFacts, FileId, FilePosition, LogId, RewriteKind, Rule, WINDOW, WindowFacts};

/// Bytes of a log read back before it is kept (2 MiB). This is more than the read-ahead of a reader
/// that looks at the beginning of a file.
pub const READ_BACK_EVIDENCE_BYTES: u64 = WINDOW;
/// Changes of [`crate::StepFacts::retry`] without a byte read back after which a kept log is tried
/// again: 40 seconds in the guard. Recovery and backups read a log once.
const KEPT_RETRIES: u64 = 4;
/// Upper limit of this for a log that was read back again and again (80 minutes). A free log that
/// was quiet for this long starts over.
const KEPT_RETRIES_MAX: u64 = 120 * KEPT_RETRIES;
/// One in this many windows of a probed log is released.
const WINDOWS_PER_PROBE: u64 = 16;
/// Maximum number of remembered ranges per file.
const RELEASED_RANGES_MAX: usize = 256;
/// Maximum number of remembered windows per file (16 GiB).
const FILE_WINDOWS_MAX: usize = 8192;
/// Maximum number of remembered windows of all files (128 GiB). Each database has a fair share.
const ALL_WINDOWS_MAX: usize = 65_536;

/// The released ranges of one file, and the part of them that came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReleasedFile {
    pub(crate) log: LogId,
    database: DatabaseId,
    released: RangeSet,
    /// Ranges that a known follower read back once.
    read: RangeSet,
    /// The part of `read` that was released again afterwards.
    again: RangeSet,
    /// Windows of `released` that have had resident pages since their last release, by start.
    known: BTreeMap<u64, KnownWindow>,
    changed: i128,
    writer: Option<FilePosition>,
}

/// A released window that has, or had since, resident pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KnownWindow {
    /// Maximum of resident bytes since the release.
    resident: u64,
    /// Bytes dirty or under writeback at the last count.
    unwritten: u64,
}

/// The bytes read back in one step.
#[derive(Debug, Default)]
pub(crate) struct ReadBack {
    /// For each window, whether a reader brought in pages of it.
    pub(crate) by_reader: Vec<bool>,
    /// All bytes read back.
    pub(crate) bytes: u64,
    /// The part of `bytes` that no known follower explains.
    pub(crate) evidence: u64,
}

impl ReleasedFile {
    pub(crate) fn new(file: &FileFacts) -> Self {
        Self {
            log: file.log,
            database: file.database,
            released: RangeSet::default(),
            read: RangeSet::default(),
            again: RangeSet::default(),
            known: BTreeMap::new(),
            changed: file.changed,
            writer: file.writer,
        }
    }

    /// Records that a range was released, and the windows still resident in it.
    pub(crate) fn release(&mut self, range: &Range<u64>, left: &[WindowFacts]) {
        for window in windows_of(range).filter(|window| self.read.contains(window)) {
            self.again.insert(window);
        }
        self.released.insert(range.clone());
        self.known.retain(|start, _| !range.contains(start));
        for window in left.iter().filter(|window| range.contains(&window.start)) {
            let known = KnownWindow { resident: window.resident, unwritten: window.unwritten };
            self.known.insert(window.start, known);
        }
        self.forget_windows_beyond(FILE_WINDOWS_MAX);
    }

    /// Records the windows of this step. `tail` is the inferred position of the writer before it.
    /// `is_passed` says whether a known follower, for which the rule waits, may have read from the
    /// file.
    pub(crate) fn observe(
        &mut self,
        file: &FileFacts,
        windows: &[ResidentWindow],
        tail: Option<&TailInference>,
        is_passed: bool,
    ) -> ReadBack {
        for ranges in [&mut self.released, &mut self.read, &mut self.again] {
            ranges.truncate(file.size);
        }
        self.known.retain(|start, _| *start < file.size);
        let grown: Vec<u64> = windows.iter().map(|window| self.update_window(window)).collect();
        self.forget_windows_beyond(FILE_WINDOWS_MAX);
        let by_writer = self.by_writer(file, windows, tail);
        let mut seen = ReadBack { by_reader: vec![false; windows.len()], ..ReadBack::default() };
        for (index, window) in windows.iter().enumerate() {
            if grown[index] == 0 || by_writer[index] {
                continue;
            }
            seen.by_reader[index] = true;
            seen.bytes += grown[index];
            if is_passed && !self.again.contains(&window.range) {
                self.read.insert(window.range.clone());
            } else {
                seen.evidence += grown[index];
            }
        }
        (self.changed, self.writer) = (file.changed, file.writer);
        seen
    }

    /// Records a window's current state. Returns the bytes of clean pages that came to it, if it
    /// was released.
    fn update_window(&mut self, now: &ResidentWindow) -> u64 {
        if !self.released.contains(&now.range) {
            return 0;
        }
        let known = self.known.entry(now.range.start).or_default();
        let dirtied = now.unwritten.saturating_sub(known.unwritten);
        let grown = now.resident.saturating_sub(known.resident).saturating_sub(dirtied);
        *known = KnownWindow { resident: known.resident.max(now.resident), unwritten: now.unwritten };
        grown
    }

    /// Forgets the lowest windows until at most `windows_max` are left. Nothing up to them counts
    /// as released any more: a window that is released but not known would count as read back in
    /// each step.
    fn forget_windows_beyond(&mut self, windows_max: usize) {
        let mut forgotten = None;
        while self.known.len() > windows_max {
            forgotten = self.known.pop_first();
        }
        if let Some((start, _)) = forgotten {
            self.released.remove_below(start.saturating_add(WINDOW));
        }
    }

    /// Returns, for each window, whether its new pages may be the writer's (invariant 2).
    fn by_writer(
        &self,
        file: &FileFacts,
        windows: &[ResidentWindow],
        tail: Option<&TailInference>,
    ) -> Vec<bool> {
        let all = |by_writer| vec![by_writer; windows.len()];
        if file.changed == self.changed {
            return all(false);
        }
        match (self.writer, file.writer) {
            (None, None) => all(file.rewrite != RewriteKind::Never),
            (Some(FilePosition::At(was)), Some(FilePosition::At(now))) if now < was => all(true),
            (Some(FilePosition::At(was)), Some(FilePosition::At(_)) | None) => {
                let from = was / WINDOW * WINDOW;
                windows.iter().map(|window| window.range.end > from).collect()
            }
            (None, Some(FilePosition::At(now))) => {
                let is_its =
                    |window: &ResidentWindow| file.rewrite != RewriteKind::Never || window.range.end > now;
                windows.iter().map(is_its).collect()
            }
            (Some(FilePosition::Unknown), _) | (_, Some(FilePosition::Unknown)) => {
                let Some(places) = tail.and_then(|tail| tail.places(file.size)) else { return all(true) };
                let mut by_writer = reached_by_writer(windows, &places, file.size);
                // Each checkpoint writes the header of a ring.
                if let Some((first, _)) =
                    by_writer.iter_mut().zip(windows).find(|(_, now)| now.range.start == 0)
                {
                    *first = true;
                }
                by_writer
            }
        }
    }
}

/// Forgets windows of files that exceed their share of [`ALL_WINDOWS_MAX`].
pub(crate) fn forget_windows_beyond_shares(released: &mut BTreeMap<FileId, ReleasedFile>) {
    let all: usize = released.values().map(|file| file.known.len()).sum();
    if all <= ALL_WINDOWS_MAX {
        return;
    }
    let wanted: Vec<_> = released.values().map(|file| (file.database, file.known.len())).collect();
    for (file, share) in released.values_mut().zip(shares_by_party(ALL_WINDOWS_MAX, &wanted)) {
        file.forget_windows_beyond(share);
    }
}

/// For each window of a file of `size` bytes, whether its writer may have been there, given that it
/// was at one of `places`. A writer goes upwards, and leaves no trace in windows that have pages.
/// At the end of a ring it continues at the start. It goes at most as far as the last dirty page,
/// or half of the file if there is none; otherwise a writer would explain everything.
fn reached_by_writer(windows: &[ResidentWindow], places: &[Range<u64>], size: u64) -> Vec<bool> {
    let mut reached = vec![false; windows.len()];
    let is_place =
        |range: &Range<u64>| places.iter().any(|place| place.start < range.end && range.start <= place.end);
    // Adjoining windows, in the order of the writer.
    let mut path: Vec<usize> = Vec::new();
    let mut end = None;
    let in_order = (0..windows.len()).map(|at| (at, false)).chain((0..windows.len()).map(|at| (at, true)));
    for (at, again) in in_order {
        let range = &windows[at].range;
        if end == Some(size) && again {
            end = Some(0);
        }
        if end != Some(range.start) {
            mark_reached(&mut reached, &path, windows, is_place, size);
            path.clear();
            if again || !is_place(range) {
                end = None;
                continue;
            }
        }
        path.push(at);
        end = Some(range.end);
    }
    mark_reached(&mut reached, &path, windows, is_place, size);
    reached
}

/// Marks the part of a path that a writer may have reached.
fn mark_reached(
    reached: &mut [bool],
    path: &[usize],
    windows: &[ResidentWindow],
    is_place: impl Fn(&Range<u64>) -> bool,
    size: u64,
) {
    let is_dirty = |at: &usize| windows[*at].unwritten > 0 && windows[*at].range.start != 0;
    let dirty = path.iter().rposition(is_dirty);
    let mut gone = 0;
    for (step, at) in path.iter().enumerate() {
        let range = &windows[*at].range;
        gone = if is_place(range) { 0 } else { gone + (range.end - range.start) };
        reached[*at] |= gone == 0 || dirty.map_or(gone <= size / 2, |dirty| step <= dirty);
    }
}

/// Returns the windows of a range that starts at a window's start.
fn windows_of(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    (range.start / WINDOW..end.div_ceil(WINDOW))
        .map(move |number| number * WINDOW..end.min((number + 1) * WINDOW))
}

/// Ascending, disjoint ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RangeSet(Vec<Range<u64>>);

impl RangeSet {
    fn insert(&mut self, mut range: Range<u64>) {
        let first = self.0.partition_point(|other| other.end < range.start);
        let end = self.0.partition_point(|other| other.start <= range.end);
        if let Some(met) = self.0.get(first..end).filter(|met| !met.is_empty()) {
            range = range.start.min(met[0].start)..range.end.max(met[met.len() - 1].end);
        }
        self.0.splice(first..end.max(first), [range]);
        if self.0.len() > RELEASED_RANGES_MAX {
            self.0.remove(0);
        }
    }

    fn contains(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|other| other.end <= range.start);
        self.0.get(at).is_some_and(|other| other.start <= range.start && range.end <= other.end)
    }

    /// Forgets everything below an offset.
    fn remove_below(&mut self, offset: u64) {
        self.0.retain_mut(|range| {
            range.start = range.start.max(offset);
            range.start < range.end
        });
    }

    /// Forgets everything beyond the end of the file.
    fn truncate(&mut self, size: u64) {
        while let Some(last) = self.0.pop_if(|last| last.end > size) {
            if last.start < size {
                self.0.push(last.start..size);
                break;
            }
        }
    }
}

/// The part of a log that may be released, in view of its readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadBackPhase {
    /// Everything that its rule releases.
    Free,
    /// Nothing.
    Kept,
    /// One in [`WINDOWS_PER_PROBE`] windows.
    Probed,
}

/// The state of a log that is or was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogReadBack {
    phase: ReadBackPhase,
    /// Bytes read back while the log was free.
    evidence: u64,
    /// [`crate::StepFacts::retry`] at the last read-back, or at the start of the phase.
    since: u64,
    /// Retries without a byte read back after which a phase ends.
    patience: u64,
}

impl LogReadBack {
    pub(crate) fn new(retry: u64) -> Self {
        Self { phase: ReadBackPhase::Free, evidence: 0, since: retry, patience: KEPT_RETRIES / 2 }
    }

    /// Records the bytes read back of the log in this step. Returns whether the log still needs to
    /// be remembered.
    pub(crate) fn observe(&mut self, evidence: u64, retry: u64) -> bool {
        if evidence > 0 {
            self.evidence = self.evidence.saturating_add(evidence);
            self.since = retry;
            let is_enough = match self.phase {
                ReadBackPhase::Free => self.evidence >= READ_BACK_EVIDENCE_BYTES,
                ReadBackPhase::Kept => false,
                ReadBackPhase::Probed => true,
            };
            if is_enough {
                self.phase = ReadBackPhase::Kept;
                self.patience = (2 * self.patience).min(KEPT_RETRIES_MAX);
            }
            return true;
        }
        let quiet = retry.saturating_sub(self.since);
        let next = match self.phase {
            ReadBackPhase::Free => return quiet < KEPT_RETRIES_MAX,
            _ if quiet < self.patience => return true,
            ReadBackPhase::Kept => ReadBackPhase::Probed,
            ReadBackPhase::Probed => ReadBackPhase::Free,
        };
        (self.phase, self.since, self.evidence) = (next, retry, 0);
        true
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.phase != ReadBackPhase::Free
    }

    /// Whether a window stays that its rule would release.
    pub(crate) fn keeps(&self, sequence: u64, window: &Range<u64>) -> bool {
        match self.phase {
            ReadBackPhase::Free => false,
            ReadBackPhase::Kept => true,
            ReadBackPhase::Probed => {
                !sequence.wrapping_add(window.start / WINDOW).is_multiple_of(WINDOWS_PER_PROBE)
            }
        }
    }
}

/// Whether a rule waits for followers: by its choice a far one reads from the disk.
pub(crate) const fn waits_for_followers(rule: Rule) -> bool {
    match rule {
        Rule::ReleaseBehindFollowers { .. } | Rule::ReleaseBeforeCheckpoint { .. } => true,
        Rule::Keep
        | Rule::ReleaseBehindWriter { .. }
        | Rule::ReleaseOnRotation
        | Rule::Budget { .. }
        | Rule::Direct => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::examples::{clean, file, log_of};
    use crate::step;
    use crate::{FollowerFacts, FollowerId, StepFacts, StepState};

    const BEHIND_WRITER: Rule = Rule::ReleaseBehindWriter { slack: 0 };

    /// Returns a file whose pages are all resident.
    fn resident_file(id: u64, database: u64, windows: usize) -> FileFacts {
        let all: Vec<WindowFacts> = (0..windows as u64).map(clean).collect();
        let facts = file(id, BEHIND_WRITER, windows as u64 * WINDOW, &all);
        FileFacts { database: DatabaseId(database), ..facts }
    }

    /// Returns the state after all pages of these files were released and read back.
    fn read_back(files: &[FileFacts]) -> StepState {
        let mut state = StepState::default();
        for file in files {
            state.released(file, &(0..file.size), &[]);
        }
        let facts = log_of(files.to_vec());
        step(&mut state, &facts);
        let all: u64 = files.iter().map(|file| file.size).sum();
        assert_eq!(state.read_back().iter().map(|(_, bytes)| bytes).sum::<u64>(), all);
        step(&mut state, &facts);
        assert_eq!(state.read_back(), &[], "no window counts twice");
        state
    }

    #[test]
    fn a_file_of_more_windows_than_are_remembered_is_read_back_once() {
        let file = resident_file(1, 1, FILE_WINDOWS_MAX + 3);
        let mut state = read_back(std::slice::from_ref(&file));
        assert_eq!(state.released[&FileId(1)].known.len(), FILE_WINDOWS_MAX);
        // A forgotten window counts again once it is released again.
        state.released(&file, &(0..WINDOW), &[]);
        step(&mut state, &log_of([file]));
        assert_eq!(state.read_back(), &[(FileId(1), WINDOW)]);
    }

    /// A follower that catches up passes several files between two samples. These are sampled when
    /// it is already further on.
    #[test]
    fn files_that_are_sampled_after_a_known_follower_has_left_them_are_no_evidence() {
        let rule = Rule::ReleaseBehindFollowers { near_files: 1, slack: 0 };
        let all: Vec<WindowFacts> = (0..8).map(clean).collect();
        let facts = |resident: Range<u64>, follower: u64| {
            let windows = |id: &u64| if resident.contains(id) { all.as_slice() } else { &[] };
            let files = (1..20).map(|id| file(id, rule, 8 * WINDOW, windows(&id)));
            let position = FilePosition::At(8 * WINDOW);
            let (id, log) = (FollowerId(1), LogId(1));
            let followers = vec![FollowerFacts { id, log, sequence: follower, position, near_files: 0 }];
            StepFacts { followers, ..log_of(files) }
        };
        let mut state = StepState::default();
        for file in facts(0..0, 1).files {
            state.released(&file, &(0..file.size), &[]);
        }
        for (resident, follower) in [(0..0, 1), (0..0, 4), (2..5, 7), (5..8, 9)] {
            step(&mut state, &facts(resident, follower));
        }
        assert_eq!(state.kept_logs(), 0);
        // A file that was passed long ago.
        for _ in 0..8 {
            step(&mut state, &facts(0..0, 9));
        }
        step(&mut state, &facts(1..2, 9));
        assert_eq!(state.kept_logs(), 1);
    }

    #[test]
    fn all_files_share_the_memory_and_a_small_database_keeps_its_share() {
        let large = (1..=9).map(|id| resident_file(id, 1, FILE_WINDOWS_MAX));
        let files: Vec<FileFacts> = large.chain([resident_file(10, 2, 100)]).collect();
        let state = read_back(&files);
        let remembered = |id| state.released[&FileId(id)].known.len();
        assert!((1..=10).map(remembered).sum::<usize>() <= ALL_WINDOWS_MAX);
        assert_eq!(remembered(10), 100);
    }
}

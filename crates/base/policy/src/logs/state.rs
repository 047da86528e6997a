//! The state that [`crate::step()`] keeps from one step to the next.
//!
//! Plain data, bounded by the facts. There is an entry only for a file of the last facts, for a
//! window while it has resident pages, and for a follower while it is reported. The exception are
//! released ranges, which are remembered until [`StepState::retain_files`] says that the file is
//! gone. Losing the state does no harm: some windows are tried once more, the position of a writer
//! at an unknown offset is inferred again, and an invisible reader has to read back once more
//! before it is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::logs::followed::PassedFiles;
use crate::logs::history::WindowHistory;
use crate::logs::read_back::{LogReadBack, ReleasedFile};
use crate::logs::tail_inference::TailInference;
use crate::{FileFacts, FileId, FilePosition, FollowerId, LogId, LogWarning, WindowFacts};

/// The state kept between two calls of [`crate::step()`].
///
/// Start with [`StepState::default`] and pass the same state to each step. Keep one for each set of
/// facts, since files that are not in the facts are forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepState {
    /// The files with something to remember.
    pub(crate) files: BTreeMap<FileId, FileHistory>,
    /// The followers' positions in the last step.
    pub(crate) followers: BTreeMap<FollowerId, FollowerPosition>,
    /// The files that followers were in recently.
    pub(crate) passed: PassedFiles,
    /// The released ranges, by file.
    pub(crate) released: BTreeMap<FileId, ReleasedFile>,
    /// The logs that are or were read back.
    pub(crate) read_back: BTreeMap<LogId, LogReadBack>,
    /// The bytes read back in the last step.
    pub(crate) read_back_now: Vec<(FileId, u64)>,
}

impl StepState {
    /// Records that a range of a file was released, after the step that had these facts of it, and
    /// which windows were left resident in it. Without this call, invisible readers go unnoticed.
    pub fn released(&mut self, file: &FileFacts, range: &Range<u64>, left: &[WindowFacts]) {
        self.released.entry(file.id).or_insert_with(|| ReleasedFile::new(file)).release(range, left);
    }

    /// Forgets the released ranges of files that are gone, and the read-back state of logs without
    /// any remaining file.
    pub fn retain_files(&mut self, is_there: impl Fn(FileId) -> bool) {
        self.released.retain(|id, _| is_there(*id));
        let logs: BTreeSet<LogId> = self.released.values().map(|file| file.log).collect();
        self.read_back.retain(|log, _| logs.contains(log));
    }

    /// Returns the bytes of released pages that readers read back, by file, as seen in the last
    /// step.
    pub fn read_back(&self) -> &[(FileId, u64)] {
        &self.read_back_now
    }

    /// Returns the number of logs that are kept because they are read back.
    pub fn kept_logs(&self) -> usize {
        self.read_back.values().filter(|log| log.is_kept()).count()
    }

    /// Forgets actions that were decided for a range of a file but not carried out. The next step
    /// decides again.
    pub fn not_done(&mut self, file: FileId, range: &Range<u64>) {
        if let Some(known) = self.files.get_mut(&file) {
            known.history.retain(|history| !range.contains(&history.start));
        }
    }
}

/// The position of a follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FollowerPosition {
    pub(crate) log: LogId,
    pub(crate) sequence: u64,
    pub(crate) position: FilePosition,
}

/// The state kept for one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileHistory {
    /// The warnings already given, at most one of each kind.
    pub(crate) warned: Vec<LogWarning>,
    /// The last actions on the windows that are still resident, ascending by start.
    pub(crate) history: Vec<WindowHistory>,
    /// The inferred position of a writer whose position is unknown.
    pub(crate) tail: Option<TailInference>,
}

impl FileHistory {
    /// Whether nothing worth an entry is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.warned.is_empty() && self.history.is_empty() && self.tail.is_none()
    }

    /// Forgets the windows, which have no resident pages any more, but not the given warnings.
    pub(crate) fn forget_windows(&mut self) {
        self.history = Vec::new();
        self.tail = None;
    }

    /// Whether `warning` is new. Records it as given.
    pub(crate) fn warn_once(&mut self, warning: LogWarning) -> bool {
        let new = !self.warned.contains(&warning);
        if new {
            self.warned.push(warning);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::examples::{MIB, clean, file, log_of};
    use crate::step;
    use crate::{Rule, StepFacts};

    #[test]
    fn keeps_no_entry_for_files_without_windows() {
        let files = (0..100).map(|n| file(n, Rule::ReleaseBehindWriter { slack: 0 }, 4 * MIB, &[]));
        let mut state = StepState::default();
        step(&mut state, &log_of(files));
        assert_eq!(state, StepState::default());
    }

    #[test]
    fn forgets_windows_that_are_gone_and_files_that_are_gone() {
        let rule = Rule::ReleaseBehindWriter { slack: 0 };
        let mut state = StepState::default();
        step(
            &mut state,
            &log_of([file(1, rule, 4 * MIB, &[clean(0), clean(1)]), file(2, rule, 2 * MIB, &[clean(0)])]),
        );
        assert_eq!(state.files[&FileId(1)].history.len(), 2);
        assert_eq!(state.files[&FileId(2)].history.len(), 1);

        step(&mut state, &log_of([file(1, rule, 4 * MIB, &[clean(1)])]));
        assert_eq!(state.files[&FileId(1)].history.len(), 1);
        assert!(!state.files.contains_key(&FileId(2)));

        step(&mut state, &StepFacts::default());
        assert_eq!(state, StepState::default());
    }

    #[test]
    fn failed_actions_are_decided_again() {
        let rule = Rule::ReleaseBehindWriter { slack: 0 };
        let facts = log_of([file(1, rule, 6 * MIB, &[clean(0), clean(2)])]);
        let mut state = StepState::default();
        let acts = step(&mut state, &facts);
        assert_eq!(acts.len(), 2);
        assert_eq!(step(&mut state, &facts), []);
        state.not_done(FileId(1), &(4 * MIB..6 * MIB));
        state.not_done(FileId(2), &(0..6 * MIB));
        assert_eq!(step(&mut state, &facts), acts[1..]);
    }
}

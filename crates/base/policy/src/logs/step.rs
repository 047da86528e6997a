//! The step: facts in, actions out.
//!
//! Invariants:
//! 1. The actions of a step depend only on the facts and the state. They are ordered by log,
//!    sequence and offset; a file's warnings come first.
//! 2. Ranges of one file ascend and do not overlap. Each lies inside the file, starts at a multiple
//!    of [`WINDOW`], and ends at one or at the end of the file. It never ends at the end of a file
//!    whose writer's position is known, unless the file uses direct I/O.
//! 3. Repeating the same facts gives no actions once flushed windows are released and stalled
//!    followers are recognised: the third step on the same facts is always empty.
//! 4. Files without windows cost no memory, except for their released ranges.
//!
//! Windows that violate the promises of [`crate::WindowFacts`] are cut to their aligned part inside
//! the file; nothing panics.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::logs::allowance::{ReleaseAllowance, Verdict, WriterPosition, align_down};
use crate::logs::followed::FollowedLog;
use crate::logs::history::{ResidentWindow, WindowAction, WindowHistory, decide};
use crate::logs::read_back::{LogReadBack, ReadBack, forget_windows_beyond_shares, waits_for_followers};
use crate::logs::recovery::RecoveryRanges;
use crate::logs::state::{FileHistory, FollowerPosition, StepState};
use crate::logs::tail_inference::TailInference;
use crate::quotas::shares::shares;
use crate::{
    CheckpointPosition, DatabaseId, FileFacts, FileId, FilePosition, LogId, LogWarning, Rule, StepAction,
    StepFacts, WINDOW,
};

/// Decides what to do now.
///
/// Call it every few hundred milliseconds with fresh facts and carry out the actions; `state`
/// carries over what the next call needs. It does no I/O and cannot fail. No action can lose a
/// byte.
///
/// ```
/// use pagekeeper_policy::{
///     DatabaseId, FileClass, FileFacts, FileId, FilePosition, LogId, RewriteKind, Rule, StepAction,
///     StepFacts, StepState, WINDOW, WindowFacts, step,
/// };
///
/// // A log of 5 MiB, all of it resident and written; its writer appends at the end.
/// let size = 5 << 20;
/// let window = |start: u64| {
///     let end = size.min(start + WINDOW);
///     WindowFacts { start, end, resident: end - start, unwritten: 0 }
/// };
/// let mut facts = StepFacts {
///     files: vec![FileFacts {
///         id: FileId(7),
///         database: DatabaseId(1),
///         log: LogId(1),
///         sequence: 1,
///         class: FileClass::Wal,
///         rule: Rule::ReleaseBehindWriter { slack: 0 },
///         rewrite: RewriteKind::Never,
///         size,
///         writer: Some(FilePosition::At(size)),
///         windows: [window(0), window(WINDOW), window(2 * WINDOW)].into(),
///         changed: 0,
///     }],
///     ..StepFacts::default()
/// };
///
/// // What lies behind the writer's window goes.
/// let mut state = StepState::default();
/// assert_eq!(step(&mut state, &facts), [StepAction::Release { file: FileId(7), range: 0..2 * WINDOW }]);
///
/// // The caller did that. Later the writer has moved on to another file: the rest goes too.
/// facts.files[0].windows = [window(2 * WINDOW)].into();
/// facts.files[0].writer = None;
/// assert_eq!(step(&mut state, &facts), [StepAction::Release { file: FileId(7), range: 2 * WINDOW..size }]);
/// ```
pub fn step(state: &mut StepState, facts: &StepFacts) -> Vec<StepAction> {
    let logs = FollowedLog::survey(facts, &state.followers, &mut state.passed);
    let released: BTreeSet<LogId> = state.released.values().map(|file| file.log).collect();
    state.passed.retain_logs(|log| released.contains(&log));
    state.followers = facts
        .followers
        .iter()
        .map(|seen| {
            (seen.id, FollowerPosition { log: seen.log, sequence: seen.sequence, position: seen.position })
        })
        .collect();

    let mut past = mem::take(&mut state.files);
    let mut busy = Vec::new();
    for file in &facts.files {
        if !file.windows.is_empty() || infers_tail(file) {
            busy.push(file);
        } else if let Some(mut known) = past.remove(&file.id) {
            known.forget_windows();
            if !known.is_empty() {
                state.files.insert(file.id, known);
            }
        }
    }
    busy.sort_unstable_by_key(|file| (file.log, file.sequence, file.id));

    let newer = resident_in_newer(&busy);
    let shares = shares_of_totals(&busy);
    let checkpoints = known_checkpoints(facts);
    let mut seen = observe_read_back(state, facts.retry, &busy, &past, &logs);
    let mut actions = Vec::new();
    for (file, newer) in busy.into_iter().zip(newer) {
        let mut known = past.remove(&file.id).unwrap_or_default();
        let log = LogFacts {
            followed: logs.get(&file.log),
            checkpoint: checkpoints.get(&file.log).copied(),
            newer,
            rule: match (file.rule, shares.get(&file.log)) {
                (Rule::Budget { total, .. }, Some(&bytes)) => Rule::Budget { bytes, total },
                (rule, _) => rule,
            },
            read_back: state.read_back.get(&file.log),
            seen: seen.remove(&file.id).unwrap_or_default(),
        };
        step_file(&mut known, file, &log, facts.retry, &mut actions);
        if !known.is_empty() {
            state.files.insert(file.id, known);
        }
    }
    actions
}

/// Records the bytes read back of these files since the last step and returns them. Updates which
/// logs are kept because of that.
fn observe_read_back(
    state: &mut StepState,
    retry: u64,
    busy: &[&FileFacts],
    past: &BTreeMap<FileId, FileHistory>,
    logs: &BTreeMap<LogId, FollowedLog>,
) -> BTreeMap<FileId, ReadBack> {
    let mut evidence: BTreeMap<LogId, u64> = BTreeMap::new();
    let mut all = BTreeMap::new();
    state.read_back_now.clear();
    for file in busy {
        let Some(released) = state.released.get_mut(&file.id) else { continue };
        let is_passed = waits_for_followers(file.rule)
            && logs.get(&file.log).is_some_and(|log| log.is_passed(file.sequence));
        let tail = past.get(&file.id).and_then(|known| known.tail.as_ref());
        let seen = released.observe(file, &resident_windows(file), tail, is_passed);
        if seen.bytes > 0 {
            state.read_back_now.push((file.id, seen.bytes));
        }
        *evidence.entry(file.log).or_default() += seen.evidence;
        all.insert(file.id, seen);
    }
    forget_windows_beyond_shares(&mut state.released);
    state.read_back.retain(|log, known| known.observe(evidence.remove(log).unwrap_or(0), retry));
    for (log, evidence) in evidence.into_iter().filter(|(_, evidence)| *evidence > 0) {
        state.read_back.entry(log).or_insert_with(|| LogReadBack::new(retry)).observe(evidence, retry);
    }
    all
}

/// Whether the writer's position in the file has to be inferred from its windows.
fn infers_tail(file: &FileFacts) -> bool {
    let by_position = matches!(
        file.rule,
        Rule::ReleaseBehindWriter { .. }
            | Rule::ReleaseBehindFollowers { .. }
            | Rule::ReleaseBeforeCheckpoint { .. }
            | Rule::Budget { .. }
    );
    by_position && file.writer == Some(FilePosition::Unknown)
}

/// Returns, for each file (ordered by log and sequence), the resident bytes of newer files under a
/// budget in the same log.
fn resident_in_newer(files: &[&FileFacts]) -> Vec<u64> {
    let mut totals: BTreeMap<LogId, u64> = BTreeMap::new();
    let mut newer = vec![0; files.len()];
    for (file, newer) in files.iter().zip(&mut newer).rev() {
        if matches!(file.rule, Rule::Budget { .. }) {
            let total = totals.entry(file.log).or_default();
            *newer = *total;
            *total = file.windows.iter().fold(*total, |total, window| total.saturating_add(window.resident));
        }
    }
    newer
}

/// Returns the shares of logs whose database has more resident in all logs of the same budget than
/// its total.
fn shares_of_totals(files: &[&FileFacts]) -> BTreeMap<LogId, u64> {
    let mut groups: BTreeMap<(DatabaseId, u64, u64), BTreeMap<LogId, u64>> = BTreeMap::new();
    for file in files {
        if let Rule::Budget { bytes, total } = file.rule {
            let logs = groups.entry((file.database, bytes, total)).or_default();
            let of_log = logs.entry(file.log).or_default();
            *of_log = file.windows.iter().fold(*of_log, |sum, window| sum.saturating_add(window.resident));
        }
    }
    let mut all = BTreeMap::new();
    for ((_, bytes, total), logs) in groups {
        let wanted: Vec<usize> = logs.values().map(|resident| to_usize((*resident).min(bytes))).collect();
        let together = wanted.iter().fold(0, |sum: usize, wanted| sum.saturating_add(*wanted));
        if together as u64 > total {
            let shares = shares(to_usize(total), &wanted);
            all.extend(logs.into_keys().zip(shares).map(|(log, share)| (log, share as u64)));
        }
    }
    all
}

/// Converts bytes of memory to this machine's `usize`, saturating.
fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The facts about a file's log.
struct LogFacts<'a> {
    followed: Option<&'a FollowedLog>,
    checkpoint: Option<KnownCheckpoint>,
    /// Resident bytes of newer files under a budget.
    newer: u64,
    /// The log's rule, with its share of a total.
    rule: Rule,
    /// The log's read-back state.
    read_back: Option<&'a LogReadBack>,
    /// The bytes of the file read back in this step.
    seen: ReadBack,
}

/// The position from which recovery reads a log, and the newest file that its writer may be in.
#[derive(Clone, Copy)]
struct KnownCheckpoint {
    at: CheckpointPosition,
    writer: Option<u64>,
}

fn known_checkpoints(facts: &StepFacts) -> BTreeMap<LogId, KnownCheckpoint> {
    let mut known: BTreeMap<LogId, KnownCheckpoint> = facts
        .checkpoints
        .iter()
        .map(|seen| (seen.log, KnownCheckpoint { at: seen.at, writer: None }))
        .collect();
    for file in facts.files.iter().filter(|file| file.writer.is_some()) {
        if let Some(log) = known.get_mut(&file.log) {
            log.writer = log.writer.max(Some(file.sequence));
        }
    }
    known
}

/// Returns the part of a file that crash recovery would read.
fn needed_by_recovery(file: &FileFacts, log: &LogFacts<'_>, tail: Option<&TailInference>) -> RecoveryRanges {
    let Some(KnownCheckpoint { at, writer }) = log.checkpoint else { return RecoveryRanges::EVERYTHING };
    match at {
        CheckpointPosition::InSeries { sequence, offset } => {
            RecoveryRanges::in_series((sequence, offset), writer, file.sequence)
        }
        CheckpointPosition::InRing { offset } => {
            let end = match file.writer {
                None => None,
                Some(FilePosition::At(end)) => Some(end),
                Some(FilePosition::Unknown) => tail.and_then(|tail| tail.end_in_ring(offset, file.size)),
            };
            RecoveryRanges::in_ring(offset, end, file.size)
        }
    }
}

/// Returns the usable parts of a file's windows.
fn resident_windows(file: &FileFacts) -> Vec<ResidentWindow> {
    let mut from = 0;
    let mut all = Vec::with_capacity(file.windows.len());
    for window in file.windows.iter() {
        let Some(start) = window.start.max(from).checked_next_multiple_of(WINDOW) else {
            continue;
        };
        let end = if window.end >= file.size { file.size } else { align_down(window.end) };
        if start < end && window.resident > 0 {
            let unwritten = window.unwritten.min(window.resident);
            all.push(ResidentWindow { range: start..end, resident: window.resident, unwritten });
            from = end;
        }
    }
    all
}

fn step_file(
    known: &mut FileHistory,
    file: &FileFacts,
    log: &LogFacts<'_>,
    retry: u64,
    actions: &mut Vec<StepAction>,
) {
    if file.rule == Rule::Keep {
        known.forget_windows();
        return;
    }
    let windows = resident_windows(file);
    let mut tail =
        known.tail.take().filter(|_| infers_tail(file)).or_else(|| infers_tail(file).then(Default::default));
    if let Some(tail) = &mut tail {
        let in_ring =
            log.checkpoint.is_some_and(|known| matches!(known.at, CheckpointPosition::InRing { .. }));
        tail.observe(&windows, (&known.history, &log.seen.by_reader), file, retry, in_ring);
    }
    let traces = tail.as_ref().and_then(|tail| tail.protected(slack(file.rule), file.size));
    let writer = match file.writer {
        None => WriterPosition::Elsewhere,
        Some(FilePosition::At(offset)) => WriterPosition::At(offset),
        Some(FilePosition::Unknown) => {
            traces.as_deref().map_or(WriterPosition::Somewhere, WriterPosition::Within)
        }
    };
    let mut allowance = ReleaseAllowance::new(log.rule, writer, file.size);
    if let Some(followed) = log.followed.filter(|followed| !followed.is_recycled(file)) {
        allowance = allowance.with_followers(file.rule, file.sequence, followed.followers());
    }
    allowance = allowance.with_recovery(file.rule, needed_by_recovery(file, log, tail.as_ref()));
    let mut verdicts = decide_verdicts(&allowance, tail.as_ref(), &windows, log.newer);

    if file.rule == Rule::Direct && !windows.is_empty() && known.warn_once(LogWarning::DirectButResident) {
        actions.push(StepAction::Warn { file: file.id, warning: LogWarning::DirectButResident });
    }
    if let Some(read_back) = log.read_back {
        for (window, verdict) in windows.iter().zip(&mut verdicts) {
            if *verdict == Verdict::Release && read_back.keeps(file.sequence, &window.range) {
                *verdict = Verdict::Flush;
            }
        }
        if read_back.is_kept() && log.seen.evidence > 0 && known.warn_once(LogWarning::ReadBack) {
            actions.push(StepAction::Warn { file: file.id, warning: LogWarning::ReadBack });
        }
    }
    let mut history = Vec::new();
    if file.rewrite.needs_old_pages() {
        if verdicts.contains(&Verdict::Release) && known.warn_once(LogWarning::RecycledSubPages) {
            actions.push(StepAction::Warn { file: file.id, warning: LogWarning::RecycledSubPages });
        }
    } else {
        for (index, (window, verdict)) in windows.iter().zip(verdicts).enumerate() {
            let past = WindowHistory::find(&known.history, window.range.start);
            let action = decide(verdict, past, window, retry);
            history.extend(match action {
                Some(action) => Some(WindowHistory::of_action(window, action, retry)),
                None => past.map(|past| past.one_step_later(window)),
            });
            if let Some(action) = action {
                add_action(actions, file, window, action);
            }
            if let (Some(WindowAction::Release), Some(tail)) = (action, &mut tail) {
                tail.released(index);
            }
        }
    }
    known.history = history;
    known.tail = tail;
}

/// Returns the bytes behind the writer that a rule keeps for it.
fn slack(rule: Rule) -> u64 {
    match rule {
        Rule::ReleaseBehindWriter { slack }
        | Rule::ReleaseBehindFollowers { slack, .. }
        | Rule::ReleaseBeforeCheckpoint { slack, .. } => slack,
        Rule::Keep | Rule::ReleaseOnRotation | Rule::Budget { .. } | Rule::Direct => 0,
    }
}

fn decide_verdicts(
    allowance: &ReleaseAllowance<'_>,
    tail: Option<&TailInference>,
    windows: &[ResidentWindow],
    mut newer: u64,
) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::Stay; windows.len()];
    for (window, verdict) in windows.iter().zip(&mut verdicts).rev() {
        newer = newer.saturating_add(window.resident);
        *verdict = allowance.verdict(&window.range, newer);
        // The window is kept in case the writer is there, but its traces are elsewhere.
        if *verdict == Verdict::Stay
            && allowance.is_kept_for_writer(&window.range)
            && tail.is_some_and(|tail| tail.has_older_traces(window.range.start))
        {
            *verdict = Verdict::Flush;
        }
    }
    verdicts
}

/// Adds an action, joined with the last one if they touch.
fn add_action(
    actions: &mut Vec<StepAction>,
    in_file: &FileFacts,
    window: &ResidentWindow,
    action: WindowAction,
) {
    let new = window.range.clone();
    match (actions.last_mut(), action) {
        (Some(StepAction::Release { file, range }), WindowAction::Release)
        | (Some(StepAction::StartWriteback { file, range }), WindowAction::StartWriteback)
            if *file == in_file.id && range.end == new.start =>
        {
            range.end = new.end;
        }
        (_, WindowAction::Release) => actions.push(StepAction::Release { file: in_file.id, range: new }),
        (_, WindowAction::StartWriteback) => {
            actions.push(StepAction::StartWriteback { file: in_file.id, range: new });
        }
    }
}

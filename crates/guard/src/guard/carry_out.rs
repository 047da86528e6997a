//! Carrying out what was decided: each act on the very file that it was decided for, or reported in a dry run.
//!
//! An act that fails is reported, and keeps no other from being done. What there is no time for is left: it is decided anew
//! at the next tick, so that signals are heeded in between.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{Error, Flush, InspectedFile, ReleaseOptions, release, start_writeback};
use pagekeeper_policy::FileId;

use super::report::Report;
use super::watched::Watched;
use crate::budget::{Slice, Turn};
use crate::config::Settings;
use crate::decision::{Action, Decision, FileAct};
use crate::directory::DatabaseKey;
use crate::event::Event;

/// A tick acts for its own length, and at least so long.
const LEAST_TIME: Duration = Duration::from_millis(250);
/// Longer ranges are released in pieces of this many bytes, between which the time is checked.
const PIECE: u64 = 1 << 30;

/// What became of a decision.
#[derive(Debug, Default)]
pub(super) struct CarriedOut {
    /// Bytes.
    pub(super) released: u64,
    /// What there was no time for.
    pub(super) not_done: Vec<(FileId, Range<u64>)>,
}

/// Carries out what was decided, or reports it in a dry run.
pub(super) fn carry_out(
    decision: Decision,
    watched: &mut Watched,
    settings: &Settings,
    report: &mut Report,
) -> CarriedOut {
    let warnings = decision.warnings.into_iter();
    report
        .events
        .extend(warnings.map(|warning| Event::Warning { path: warning.path, warning: warning.text }));
    let mut carried_out = CarriedOut::default();
    if settings.options.dry_run {
        report.events.extend(decision.acts.into_iter().map(|act| Event::Would {
            path: act.path,
            action: act.action,
            start: act.range.start,
            end: act.range.end,
        }));
        return carried_out;
    }
    let deadline = Instant::now() + settings.options.tick.max(LEAST_TIME);
    let mut by_database: HashMap<DatabaseKey, Vec<FileAct>> = HashMap::new();
    for act in decision.acts {
        by_database.entry(watched.directories[act.directory].database()).or_default().push(act);
    }
    let mut order = watched.turns.order(&watched.directories);
    order.retain(|(key, _)| by_database.contains_key(key));
    let mut waiting = u32::try_from(order.len()).unwrap_or(u32::MAX);
    for (key, _) in order {
        let Some(acts) = by_database.remove(&key) else { continue };
        // What one does not need of its part is the others'.
        let left = deadline.saturating_duration_since(Instant::now()) / waiting.max(1);
        waiting = waiting.saturating_sub(1);
        let slice = watched.turns.slice_on_account(&key);
        let turn = slice.map(|slice| Turn::begin(Slice { wall: left, ..slice }));
        let done = act_for_one(acts, turn.as_ref(), Instant::now() + left, watched, report);
        if let Some(turn) = turn {
            watched.turns.spend_on_release(&key, turn.spent(), done.released);
        }
        carried_out.released += done.released;
        carried_out.not_done.extend(done.not_done);
    }
    carried_out
}

/// Does what was decided for one database, as far as its turn lasts.
fn act_for_one(
    acts: Vec<FileAct>,
    turn: Option<&Turn>,
    deadline: Instant,
    watched: &mut Watched,
    report: &mut Report,
) -> CarriedOut {
    let mut carried_out = CarriedOut::default();
    // Acts on one file follow each other.
    let mut opened: Option<(FileId, InspectedFile)> = None;
    for act in acts {
        if turn.is_none_or(Turn::is_over) {
            carried_out.not_done.push((act.file, act.range));
            continue;
        }
        match do_act(&act, &mut opened, deadline, watched, report) {
            Ok(done) => {
                carried_out.released += done.released;
                carried_out.not_done.extend(done.not_done);
            }
            Err(error) if error.is_gone() => watched.directories[act.directory].stale = true,
            Err(error) => report.problem(act.path, &error),
        }
    }
    carried_out
}

/// Does one thing to one file.
fn do_act(
    act: &FileAct,
    opened: &mut Option<(FileId, InspectedFile)>,
    deadline: Instant,
    watched: &mut Watched,
    report: &mut Report,
) -> Result<CarriedOut, Error> {
    let directory = &mut watched.directories[act.directory];
    if opened.as_ref().is_none_or(|(file, _)| *file != act.file) {
        *opened = None;
        let Some(file) = directory.open_file(&watched.proc, &act.path, act.inode)? else {
            directory.stale = true;
            return Ok(CarriedOut::default());
        };
        *opened = Some((act.file, file));
    }
    let Some((_, file)) = opened else { return Ok(CarriedOut::default()) };
    let (mut done, mut kept) = (CarriedOut::default(), 0);
    match act.action {
        Action::StartWriteback => start_writeback(file, act.range.clone())?,
        Action::Release => {
            (done, kept) = release_pieces(act, file, deadline)?;
            directory.take_sample(&act.path, file, act.range.clone())?;
        }
    }
    report.act_done(act, directory, done.released, kept);
    Ok(done)
}

/// Releases a range, as far as there is time; also the bytes that resisted.
fn release_pieces(
    act: &FileAct,
    file: &InspectedFile,
    deadline: Instant,
) -> Result<(CarriedOut, u64), Error> {
    let (mut done, mut kept) = (CarriedOut::default(), 0);
    let mut start = act.range.start;
    while start < act.range.end {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() && start > act.range.start {
            done.not_done.push((act.file, start..act.range.end));
            break;
        }
        let options = ReleaseOptions {
            flush: Flush::Watch,
            patience: left,
            retry_pause: Duration::ZERO,
            explain: false,
        };
        let end = (start + PIECE).min(act.range.end);
        let report = release(file, start..end, &options)?;
        done.released += report.released;
        kept += report.kept();
        start = end;
    }
    Ok((done, kept))
}

//! Carrying out what was decided: each act on the very file that it was decided for, or reported in a dry run.
//!
//! An act that fails is reported, and keeps no other from being done. What there is no time for is left: it is decided anew
//! at the next tick, so that signals are heeded in between.

use std::time::{Duration, Instant};

use pagekeeper_kernel::{Error, Flush, InspectedFile, ReleaseOptions, release, start_writeback};

use super::report::Report;
use super::watched::Watched;
use crate::config::Settings;
use crate::decision::{Action, Decision, FileAct};
use crate::event::Event;

/// A tick acts for its own length, and at least so long.
const LEAST_TIME: Duration = Duration::from_millis(250);
/// Longer ranges are released in pieces of this many bytes, between which the time is checked.
const PIECE: u64 = 1 << 30;

/// What became of a decision.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CarriedOut {
    /// Bytes.
    pub(super) released: u64,
    /// Whether there was no time for some of it.
    pub(super) unfinished: bool,
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
    for act in decision.acts {
        if Instant::now() >= deadline {
            carried_out.unfinished = true;
            break;
        }
        match do_act(&act, deadline, watched, report) {
            Ok(done) => {
                carried_out.released += done.released;
                carried_out.unfinished |= done.unfinished;
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
    deadline: Instant,
    watched: &mut Watched,
    report: &mut Report,
) -> Result<CarriedOut, Error> {
    let directory = &mut watched.directories[act.directory];
    let Some(file) = directory.open_file(&watched.proc, &act.path, act.inode)? else {
        directory.stale = true;
        return Ok(CarriedOut::default());
    };
    let (mut done, mut kept) = (CarriedOut::default(), 0);
    match act.action {
        Action::StartWriteback => start_writeback(&file, act.range.clone())?,
        Action::Release => {
            (done, kept) = release_pieces(act, &file, deadline)?;
            directory.take_sample(&act.path, &file)?;
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
            done.unfinished = true;
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

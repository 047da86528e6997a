//! Carries out decisions: each act on the very file that it was decided for. In a dry run, and for
//! anything outside the canary, acts are only reported.
//!
//! An act that fails is reported and does not stop the others. Acts for which there is no time are
//! left: they are decided again at the next tick, so that signals are heeded in between.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, InspectedFile, release_pieces, start_writeback};
use pagekeeper_policy::turns::Slice;
use pagekeeper_policy::{FileId, WindowFacts};

use super::jobs::{Job, JobPlace, Turns};
use super::report::Report;
use super::watched::WatchList;
use crate::budget::Turn;
use crate::config::Settings;
use crate::decision::{Action, Decision, FileAct};
use crate::directory::{DatabaseKey, Directory};
use crate::event::Event;

/// A tick acts for its own length, but at least this long.
const ACT_TIME_MIN: Duration = Duration::from_millis(250);
/// The longest time for the acts of a tick: a job that takes longer counts as hung.
const ACT_TIME_MAX: Duration = Duration::from_secs(1);

/// Ranges of files.
type Ranges = Vec<(FileId, Range<u64>)>;

/// The result of carrying out a decision.
#[derive(Debug, Default)]
pub(super) struct CarriedOut {
    /// Bytes released.
    pub(super) released: u64,
    /// The ranges that were released.
    pub(super) ranges: Vec<ReleasedRange>,
    /// Acts for which there was no time, or that hang.
    pub(super) not_done: Ranges,
}

/// A range that was released.
#[derive(Debug)]
pub(super) struct ReleasedRange {
    pub(super) file: FileId,
    pub(super) range: Range<u64>,
    /// The pages resident in it just after the release.
    pub(super) left: Vec<WindowFacts>,
}

/// Carries out a decision, or reports it.
pub(super) fn carry_out(
    decision: Decision,
    watched: &mut WatchList,
    settings: &Settings,
    report: &mut Report,
) -> CarriedOut {
    for warning in decision.warnings {
        report.warning(&mut watched.directories[warning.directory].warned, warning.path, warning.text);
    }
    let mut carried_out = CarriedOut::default();
    let is_done = |act: &FileAct| !settings.options.dry_run && watched.directories[act.directory].acts;
    let (done, only_reported): (Vec<_>, Vec<_>) = decision.acts.into_iter().partition(is_done);
    report.events.extend(only_reported.into_iter().map(|act| Event::Would {
        path: act.path,
        action: act.action,
        start: act.range.start,
        end: act.range.end,
    }));
    if done.is_empty() {
        return carried_out;
    }
    let deadline = Instant::now() + settings.options.tick.clamp(ACT_TIME_MIN, ACT_TIME_MAX);
    // Acts are removed once their job has come back.
    let by_database: RefCell<HashMap<DatabaseKey, Vec<FileAct>>> = RefCell::default();
    for act in done {
        let database = watched.directories[act.directory].database();
        by_database.borrow_mut().entry(database).or_default().push(act);
    }
    let mut waiting = u32::try_from(by_database.borrow().len()).unwrap_or(u32::MAX);
    let WatchList { proc, directories, jobs, .. } = watched;
    let prepare = |turns: &mut Turns, key: &DatabaseKey, indices: &[usize], _: &mut [Box<Directory>]| {
        let mut acts = by_database.borrow().get(key)?.clone();
        for act in &mut acts {
            act.directory = indices.iter().position(|index| *index == act.directory)?;
        }
        // Time that one database does not need goes to the others.
        let left = deadline.saturating_duration_since(Instant::now()) / waiting.max(1);
        waiting = waiting.saturating_sub(1);
        let slice = turns.slice_on_account(key).map(|slice| Slice { wall: left, ..slice });
        let proc = proc.clone();
        let job: Job<DatabaseActs> =
            Box::new(move |own, place| DatabaseActs::carry_out(acts, own, place, &proc, slice));
        Some(job)
    };
    let done = |turns: &mut Turns, key: &DatabaseKey, own: &mut [Box<Directory>], acts: DatabaseActs| {
        by_database.borrow_mut().remove(key);
        let released = acts.done.iter().map(|done| done.released).sum();
        turns.earn(key, acts.spent, released);
        carried_out.released += released;
        carried_out.ranges.extend(acts.ranges);
        carried_out.not_done.extend(acts.not_done);
        for done in acts.done {
            report.act_done(&done.act, &mut own[done.act.directory], done.released, done.kept);
        }
        for (path, error) in acts.problems {
            report.problem(path, &error);
        }
    };
    jobs.serve(directories, prepare, done);
    let left = by_database.into_inner().into_values().flatten();
    carried_out.not_done.extend(left.map(|act| (act.file, act.range)));
    carried_out
}

/// The results of the acts on the files of one database.
#[derive(Default)]
struct DatabaseActs {
    done: Vec<DoneAct>,
    ranges: Vec<ReleasedRange>,
    not_done: Ranges,
    problems: Vec<(PathBuf, Error)>,
    spent: Duration,
}

struct DoneAct {
    act: FileAct,
    released: u64,
    /// Bytes that stayed in the page cache.
    kept: u64,
}

impl DatabaseActs {
    /// Carries out the acts for one database while its turn lasts, and none without a turn.
    /// Directories are identified by their indices in `own`.
    fn carry_out(
        acts: Vec<FileAct>,
        own: &mut [Box<Directory>],
        place: &JobPlace,
        proc: &ProcRoot,
        slice: Option<Slice>,
    ) -> Self {
        let mut all = Self::default();
        let turn = slice.map(|slice| (Turn::begin(slice), Instant::now() + slice.wall));
        // Acts on one file are adjacent.
        let mut opened: Option<(FileId, InspectedFile)> = None;
        for act in acts {
            let Some((_, deadline)) = turn.as_ref().filter(|(turn, _)| !turn.is_over()) else {
                all.not_done.push((act.file, act.range));
                continue;
            };
            place.at(act.directory);
            let directory = &mut own[act.directory];
            match all.do_act(&act, directory, &mut opened, *deadline, proc) {
                Ok(Some((released, kept))) => all.done.push(DoneAct { act, released, kept }),
                // Another file of that name.
                Ok(None) => directory.stale = true,
                Err(error) if error.is_gone() => directory.stale = true,
                Err(error) => all.problems.push((act.path, error)),
            }
        }
        all.spent = turn.map_or(Duration::ZERO, |(turn, _)| turn.spent());
        all
    }

    /// Does one act on one file. Returns the bytes released and those that stayed; `None` if the
    /// file is gone.
    fn do_act(
        &mut self,
        act: &FileAct,
        directory: &mut Directory,
        opened: &mut Option<(FileId, InspectedFile)>,
        deadline: Instant,
        proc: &ProcRoot,
    ) -> Result<Option<(u64, u64)>, Error> {
        if opened.as_ref().is_none_or(|(file, _)| *file != act.file) {
            *opened = None;
            let Some(file) = directory.open_file(proc, &act.path, act.inode)? else {
                return Ok(None);
            };
            *opened = Some((act.file, file));
        }
        let Some((_, file)) = opened else { return Ok(None) };
        match act.action {
            Action::StartWriteback => {
                start_writeback(file, act.range.clone())?;
                Ok(Some((0, 0)))
            }
            Action::Release => {
                let (released, kept, rest) = release_pieces(file, &act.range, deadline)?;
                let end = rest.as_ref().map_or(act.range.end, |rest| rest.start);
                self.not_done.extend(rest.map(|rest| (act.file, rest)));
                let left = directory.take_sample(&act.path, file, act.range.clone())?;
                self.ranges.push(ReleasedRange { file: act.file, range: act.range.start..end, left });
                Ok(Some((released, kept)))
            }
        }
    }
}

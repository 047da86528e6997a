//! `pagekeeper doctor`: inspects databases, watches them for a while, inspects them again, and reports what they
//! lose to the page cache, with the evidence and the fix.
//!
//! It only reads, except with `--fix`, which evicts pages that direct I/O left behind. SIGINT and SIGTERM end the
//! watch early, and the report covers the time until then. A finding is a failure only with `--check`.

mod args;
mod fix;
mod gather;
mod holders;
mod syncs;
mod watch;

use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use pagekeeper_doctor::{Observation, Report, Severity, examine, was_read_through_cache};
use pagekeeper_kernel::hang;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_observe::{Observer, ObserverOptions, Scope};
use pagekeeper_trace::{TraceLevel, TraceOptions, TraceSource};
use serde::Serialize;

pub(crate) use self::args::Args;
use self::gather::Gathered;
use self::syncs::SyncWatch;
use crate::output;
use crate::problems::{self, Problem};
use crate::signals::Stop;

/// Version of the schema; it changes with each field that is added, removed or changed in meaning.
const SCHEMA_VERSION: u32 = 2;

/// The command's output, as `report.schema.json` of pagekeeper-doctor describes it.
#[derive(Debug, Serialize)]
struct Output {
    schema_version: u32,
    #[serde(flatten)]
    report: Report,
    /// The results of `--fix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fixed: Option<Vec<fix::Fixed>>,
    errors: Vec<Problem>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals().context("catch signals")?;
    let given = args.disk_profile.as_deref().map(pagekeeper_catalog::disks::read).transpose()?;
    let snapshot = args.snapshot.as_deref().map(gather::snapshot).transpose()?;
    let mut observer = Observer::start(ObserverOptions {
        scope: scope(args),
        trace: Some(TraceOptions::default()),
        ..ObserverOptions::default()
    })?;
    let before = observer.snapshot()?;
    let mut sync_watch = SyncWatch::start(&before);
    let judged = watch::watch(args, &before, &stop, || sync_watch.tick())?;
    let (syncs, syncs_unseen) = sync_watch.finish();
    let after = Arc::new(observer.snapshot()?);
    let traced = match observer.source().map(TraceSource::level) {
        Some(TraceLevel::Bpf) => "events counted in the kernel",
        Some(TraceLevel::Tracefs) => "events read from tracefs",
        // The visibility gaps give the reason.
        Some(TraceLevel::Counters) | None => "the machine's counters alone, without events",
    };

    let judged = Arc::new(judged);
    let Gathered { settings, journals, disks, unmeasured, stretches, streamers, releasable } =
        gather::all(&after, &judged, given, &SysRoots::default())?;
    let observation = Observation {
        journals,
        settings,
        snapshot,
        disks,
        releasable,
        kept: judged.kept.clone(),
        stretches,
        streamers,
        recovery_target: args.recovery_target,
        ..Observation::new(&before, &after)
    }
    .with_syncs(syncs);
    let mut report = Report::new(&observation, examine(&observation), traced);
    report.visibility_gaps.extend(gather::cut_settings(&after, &observation.settings));
    report.visibility_gaps.extend(gather::without_snapshot(&observation).into_iter().chain(unmeasured));
    report.visibility_gaps.extend(syncs_unseen);
    // Only on request: the search opens files of all users.
    if args.elsewhere {
        let (largest, gap) = holders::search(&after, &stop);
        report.inspected.largest_elsewhere = largest;
        report.visibility_gaps.extend(gap);
    }
    for gap in pagekeeper_observe::unanswered() {
        // The duration in it has changed.
        report.visibility_gaps.retain(|known| known.what != gap.what);
        report.visibility_gaps.push(gap);
    }
    let (fixed, errors) = if args.fix {
        // A writer or reader may have appeared meanwhile.
        let now = Arc::new(observer.snapshot()?);
        let later = Observation::new(&after, &now);
        let of = |observation: &Observation<'_>| {
            let read = observation.after.files.iter();
            let read = read.filter(|file| was_read_through_cache(observation, file));
            read.map(|file| file.inode).collect::<Vec<_>>()
        };
        let read = Arc::new(HashSet::from_iter([of(&observation), of(&later)].concat()));
        let (fixed, errors) = hang::patiently(|| {
            let (now, read) = (Arc::clone(&now), Arc::clone(&read));
            move || fix::fix(&now, &read)
        })?;
        (Some(fixed), errors)
    } else {
        (None, Vec::new())
    };
    let output = Output { schema_version: SCHEMA_VERSION, report, fixed, errors };
    show(&output, args.json)?;
    let unwell = args.check
        && (output.report.worst() >= Some(Severity::Warning) || is_blind(&output.report, &args.pid));
    Ok(if unwell || !output.errors.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Whether nothing was seen of a database, so that the lack of findings means nothing: there is none, or one of
/// the `named` processes has ended. An empty directory counts as seen.
fn is_blind(report: &Report, named: &[u32]) -> bool {
    let databases = &report.inspected.databases;
    let ended = |pid: &u32| !databases.iter().any(|database| database.pid == Some(*pid));
    databases.is_empty()
        || named.iter().any(ended)
        || databases.iter().any(|database| {
            database.files == 0 && (database.pid.is_some() || !report.visibility_gaps.is_empty())
        })
}

fn scope(args: &Args) -> Scope {
    if !args.pid.is_empty() {
        Scope::Pids(args.pid.clone())
    } else if !args.dirs.is_empty() {
        Scope::Directories(args.dirs.clone())
    } else {
        Scope::All
    }
}

fn show(output: &Output, json: bool) -> std::io::Result<()> {
    if json {
        return crate::output::json(output);
    }
    let mut out = output::stdout();
    write!(out, "{}", output.report)?;
    if let Some(fixed) = &output.fixed {
        fix::show(fixed, &mut out)?;
    }
    out.flush()?;
    problems::report(&output.errors);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_doctor::{Inspected, InspectedDatabase, VisibilityGap};

    fn report(pid: Option<u32>, files: usize, gaps: usize) -> Report {
        let database = InspectedDatabase {
            name: "mariadb".to_owned(),
            pid,
            profile: "mariadb".to_owned(),
            directories: Vec::new(),
            root: None,
            files,
            settings_from: Vec::new(),
            settings_unread: Vec::new(),
        };
        let gap = VisibilityGap { what: "a directory".to_owned(), why: "denied".to_owned(), needs: None };
        Report {
            findings: Vec::new(),
            inspected: Inspected { databases: vec![database], ..Inspected::default() },
            visibility_gaps: vec![gap; gaps],
        }
    }

    #[test]
    fn a_database_of_which_nothing_was_seen_is_not_well() {
        assert!(is_blind(&report(Some(7), 0, 1), &[7]));
        assert!(!is_blind(&report(Some(7), 3, 1), &[7]));
        assert!(is_blind(&report(None, 0, 1), &[]));
        assert!(!is_blind(&report(None, 0, 0), &[]), "an empty directory");
        assert!(is_blind(&report(Some(7), 3, 0), &[7, 8]), "one of them has ended");
        let mut none = report(Some(7), 3, 0);
        none.inspected.databases.clear();
        assert!(is_blind(&none, &[]), "there is none");
    }
}

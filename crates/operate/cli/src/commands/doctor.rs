//! `pagekeeper doctor`: inspects databases, watches them for a while, inspects them again, and
//! reports what they lose to the page cache, with the evidence and the fix.
//!
//! It only reads, except with `--fix`, which evicts pages that direct I/O left behind. SIGINT and
//! SIGTERM end the watch early, and the report covers the time until then. The exit code says what
//! was found only with `--check`, as monitoring plugins do.

mod args;
mod watch;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pagekeeper_doctor::{
    GatheredData, Observation, ReadWatch, Report, SavedSnapshot, Severity, SwapWatch, SyncWatch,
    evict_leftovers, examine, largest_elsewhere, missing_snapshot,
};
use pagekeeper_kernel::hang;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_observe::saved_pages::SavedPages;
use pagekeeper_observe::{Observer, ObserverOptions, ObserverScope, WalkProgress};
use pagekeeper_text::{ByteSize, escaped};
use pagekeeper_trace::{TraceLevel, TraceOptions, TraceSource};
use serde::Serialize;

pub(crate) use self::args::DoctorArgs;
use crate::commands::evict::EvictedFile;
use crate::output::{self, StandardOutput};
use crate::problems::{self, Problem, Problems};
use crate::signals::Stop;

/// Version of the schema; it changes with each field that is added, removed or changed in meaning.
const DOCTOR_SCHEMA_VERSION: u32 = 2;

/// Longest walk over the host's files for those who hold page cache beside the databases.
const WALK_TIME_MAX: Duration = Duration::from_secs(5);

/// The command's output, as `docs/schemas/doctor.json` describes it.
#[derive(Debug, Serialize)]
struct Output {
    #[serde(flatten)]
    report: Report,
    /// The results of `--fix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fixed: Option<Vec<EvictedFile>>,
    errors: Vec<Problem>,
}

/// The exit codes of `--check`.
const WARNING: u8 = 1;
const SERIOUS: u8 = 2;
const NOT_INSPECTED: u8 = 3;

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    inspect(args).or_else(|error| {
        let code = output::exit_code(&error);
        Ok(if args.check { ExitCode::from(NOT_INSPECTED) } else { code })
    })
}

fn inspect(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals().context("catch signals")?;
    let given = args.disk_profile.as_deref().map(pagekeeper_catalog::disks::read).transpose()?;
    let snapshot = args.snapshot.as_deref().map(saved_snapshot).transpose()?;
    let mut observer = Observer::start(ObserverOptions {
        scope: scope(args),
        unknown_databases: true,
        trace: Some(TraceOptions::default()),
        ..ObserverOptions::default()
    })?;
    let before = observer.snapshot()?;
    let roots = SysRoots::default();
    let swap_watch = SwapWatch::start(&before, &roots);
    let read_watch = ReadWatch::start(&before.databases, &roots.proc);
    let mut sync_watch = SyncWatch::start(&before);
    let judged = watch::watch(args, &before, &stop, || sync_watch.tick())?;
    let (syncs, syncs_unseen) = sync_watch.finish();
    let after = Arc::new(observer.snapshot()?);
    let asked = read_watch.finish(&after.databases);
    let (swaps, swap_unseen) = swap_watch.finish(&after);
    let traced = match observer.source().map(TraceSource::level) {
        Some(TraceLevel::Bpf) => "events counted in the kernel",
        // The visibility gaps give the reason.
        Some(TraceLevel::Counters) | None => "the machine's counters alone, without events",
    };

    let judged = Arc::new(judged);
    let releasable = hang::run_job(|| {
        let (judged, after) = (Arc::clone(&judged), Arc::clone(&after));
        move || judged.releasable(&after)
    })?;
    let mut gathered = GatheredData::read(&after, given, &roots)?;
    let unread = std::mem::take(&mut gathered.visibility_gaps);
    let observation = Observation {
        snapshot,
        releasable,
        kept: judged.kept.clone(),
        recovery_target: args.recovery_target,
        swaps,
        asked,
        ..gathered.observation(&before, &after)
    }
    .with_syncs(syncs);
    let mut report = Report::new(&observation, examine(&observation), traced);
    report.visibility_gaps.extend(unread);
    report
        .visibility_gaps
        .extend(missing_snapshot(&observation).into_iter().chain(syncs_unseen).chain(swap_unseen));
    // Only on request: the search opens files of all users.
    if args.elsewhere {
        let progress = Arc::new(WalkProgress::default());
        let walk = || largest_elsewhere(&after, &progress);
        let (largest, gap) = stop.during(Some(WALK_TIME_MAX), || progress.end_walk(), walk);
        report.inspected.largest_elsewhere = largest;
        report.visibility_gaps.extend(gap);
    }
    for gap in pagekeeper_observe::unanswered() {
        // The duration in it has changed.
        report.visibility_gaps.retain(|known| known.what != gap.what);
        report.visibility_gaps.push(gap);
    }
    let problems = Problems::default();
    let fixed = if args.fix {
        // A writer or reader may have appeared meanwhile.
        let now = Arc::new(observer.snapshot()?);
        let (evicted, errors) = evict_leftovers(&now, [&observation, &Observation::new(&after, &now)])?;
        for error in &errors {
            problems.note(error);
        }
        Some(evicted.into_iter().map(EvictedFile::from).collect())
    } else {
        None
    };
    let output = Output { report, fixed, errors: problems.into_sorted() };
    if args.json {
        output::json(DOCTOR_SCHEMA_VERSION, &output)?;
    } else {
        output::print(|out| {
            write!(out, "{}", output.report)?;
            output.fixed.iter().try_for_each(|fixed| write_fixed(fixed, out))
        })?;
    }
    let code = problems::report(&output.errors, args.json);
    if !args.check {
        return Ok(code);
    }
    Ok(match checked(&output.report, &args.pid) {
        0 if !output.errors.is_empty() => ExitCode::from(NOT_INSPECTED),
        checked => ExitCode::from(checked),
    })
}

/// Returns the exit code of `--check`: a finding counts more than what could not be inspected.
fn checked(report: &Report, named: &[u32]) -> u8 {
    match report.worst() {
        Some(Severity::Serious) => SERIOUS,
        Some(Severity::Warning) => WARNING,
        _ if report.is_blind(named) => NOT_INSPECTED,
        _ => 0,
    }
}

/// Reads a snapshot that the user named.
fn saved_snapshot(path: &Path) -> anyhow::Result<SavedSnapshot> {
    let pages =
        SavedPages::read(path).with_context(|| format!("can't use the snapshot {}", escaped(path)))?;
    Ok(SavedSnapshot { path: path.to_path_buf(), pages })
}

fn scope(args: &DoctorArgs) -> ObserverScope {
    match (args.pid.as_slice(), args.dirs.all()) {
        ([], dirs) if dirs.is_empty() => ObserverScope::All,
        ([], dirs) => ObserverScope::Directories(dirs),
        (pids, _) => ObserverScope::Pids(pids.to_vec()),
    }
}

/// Writes for each file how much was evicted, and how much stayed and why.
fn write_fixed(all: &[EvictedFile], out: &mut StandardOutput) -> io::Result<()> {
    writeln!(out)?;
    all.iter().try_for_each(|file| writeln!(out, "{file}"))?;
    if all.is_empty() {
        return writeln!(out, "Nothing to evict: no file used with direct I/O has pages left.");
    }
    let evicted = all.iter().filter(|file| file.left_alone.is_none());
    let released: u64 = all.iter().map(|file| file.report.released).sum();
    writeln!(out, "Evicted {} of {}.", ByteSize(released), output::files(evicted.count() as u64))
}

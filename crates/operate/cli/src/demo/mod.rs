//! `pagekeeper demo`: a small engine with real log files runs in three parts of equal length: alone, under the
//! guard, and with pagekeeper-log's releasing inside the engine. Finally, a page store is killed while it commits,
//! and opened again.
//!
//! All figures are measured in that run, in separate processes: the engine, the guard and the store are each this
//! program, started with a hidden role. In the first two parts, the engine leaves its pages to the kernel, and
//! does not know of the guard.
//!
//! The demo cleans up after itself, also on Ctrl-C and SIGTERM: it kills its children (the kernel does, if this
//! process is killed), and removes the temporary directory. It is a command like the others: it shares their
//! arguments, output and errors, and uses only the public API of the libraries.
//!
//! Fails with an error when the directory is unsuitable (tmpfs, too little space), when a child ends early, and
//! when the guard can't run.

mod chart;
mod children;
mod compaction;
mod config;
mod engine;
mod follower;
mod logs;
mod place;
mod recovery;
mod report;
mod stage;
mod store;
mod transaction;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use self::children::Role;
use crate::output::{self, Screen};

/// Interval at which the children report and the logs' residency is sampled.
const REPORT_EACH: Duration = Duration::from_millis(250);

/// Show in half a minute what the guard and the libraries do, with a small built-in engine
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper demo                 half a minute; needs no database and no privileges
  pagekeeper demo --dir /srv      the same on the disk that holds /srv

The engine has a redo log, a binlog with a follower, and a compaction. It runs in three parts: first it leaves its pages to the kernel, as \
    databases do; then the guard runs beside it; then its logs release their own pages. \
    At the end a page store is killed while it commits, opened again, and every page and row is checked.

The parts run one after the other, so a disk whose speed varies affects them: the report shows how much \
    single seconds varied, and whether the parts differ by more than that.")]
pub(crate) struct Args {
    /// How long to measure, in seconds: a third alone, a third under the guard, a third with the library's own releases
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(6..=600))]
    seconds: u64,
    /// Print one JSON object with all figures and samples
    #[arg(long)]
    json: bool,
    /// Put the temporary files in DIR, which must be on a disk [default: the system's temporary directory]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// What this process is in the play
    #[arg(long, hide = true, requires = "dir")]
    role: Option<Role>,
    /// The engine's process, for the guard
    #[arg(long, hide = true, requires = "role")]
    pid: Vec<u32>,
}

/// Runs the demo, or one role of it.
#[allow(clippy::needless_pass_by_value, reason = "all commands are run in this form")]
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let (Some(role), Some(dir)) = (args.role, &args.dir) {
        children::play(role, dir, &args.pid)?;
        return Ok(ExitCode::SUCCESS);
    }
    let run = stage::perform(args.seconds, args.dir.as_deref())?;
    let report = report::Report::new(&run);
    if args.json {
        output::json(&report.json())?;
    } else {
        let mut out = output::stdout();
        report.write_text(Screen::of_stdout(), &mut out)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the monotonic clock's time, which all processes of a machine share.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, nanos] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).expect("the clock started at 0"));
    seconds * 1_000_000_000 + nanos
}

/// Sends a report to the parent; `false` if the parent has ended.
fn send_line(report: &impl Serialize) -> anyhow::Result<bool> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    match std::io::stdout().lock().write_all(line.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("can't report"),
    }
}

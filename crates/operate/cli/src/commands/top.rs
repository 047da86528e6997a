//! `pagekeeper top`: shows which files are in the page cache, on a live screen with actions, or as
//! one sample in a table or JSON.
//!
//! [`model`] is the screen's state, which turns keys into actions; [`screen`] draws it; [`live`]
//! combines both with the census, the terminal and the actions, each in its own thread. Invariants:
//! only what the user confirmed is evicted or warmed; the terminal is restored however the program
//! ends, except by SIGKILL. Fails with an error if the terminal can't show the screen.

mod choices;
mod detail;
mod figures;
mod live;
mod model;
mod report;
mod screen;
#[cfg(test)]
mod screen_tests;
mod theme;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_observe::{CensusOptions, GroupBy, ObserveError, PatientCensus, RowQuery, SortKey};

use self::choices::{GROUPS, SORTS};
use crate::arguments::{DirArgs, one_of, parse_limit, parse_time};
use crate::output::{self, StandardOutput};
use crate::signals::Stop;

/// Watch which files are in the page cache, and who brings them in
///
/// Shows all files of the host that have pages in memory, closed ones too: how much of each is
/// resident, how fast that grows, how much is dirty, how much the kernel evicted under memory
/// pressure, and who is throttled for dirty pages or has to reclaim memory.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("top"))]
pub(crate) struct TopArgs {
    #[command(flatten)]
    dirs: DirArgs,
    /// Only files that this process has open or brought in; may be given several times
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Time between samples
    #[arg(short, long, value_name = "TIME", value_parser = parse_interval, default_value = "1s")]
    interval: Duration,
    /// Sort by this figure, greatest first
    #[arg(short, long, value_name = "FIGURE", default_value = "resident", value_parser = one_of(&SORTS))]
    sort: SortKey,
    /// What each row is
    #[arg(short, long, value_name = "BY", default_value = "file", value_parser = one_of(&GROUPS))]
    group: GroupBy,
    /// Only files whose path contains TEXT; capitals count only if there are some in it
    #[arg(short, long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Watch for one interval, print a table, and exit
    #[arg(long)]
    once: bool,
    /// With --once: print one JSON object with all figures, bytes and seconds
    #[arg(long, requires = "once")]
    json: bool,
    /// With --once: show at most N rows
    #[arg(short = 'n', long, alias = "top", value_name = "N", default_value = "20", value_parser = parse_limit)]
    limit: usize,
    /// Count files on network file systems too, whose servers may not answer
    #[arg(long)]
    network: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_millis(100))
}

impl TopArgs {
    fn query(&self) -> RowQuery {
        RowQuery {
            sort: self.sort,
            group: self.group,
            filter: self.filter.clone(),
            pids: self.pid.clone(),
            limit: self.limit,
        }
    }

    fn census(&self) -> CensusOptions {
        CensusOptions {
            directories: self.dirs.all(),
            network: self.network,
            follow: !self.once,
            ..CensusOptions::default()
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    if let Some(&pid) = args.pid.iter().find(|pid| ProcRoot::default().stat(**pid).is_err()) {
        return Err(ObserveError::NoProcess { pid }.into());
    }
    if args.once {
        return once(args);
    }
    live::run(args.query(), args.census(), args.interval)?;
    Ok(ExitCode::SUCCESS)
}

/// Takes and prints one sample.
fn once(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals().context("catch signals")?;
    let began = Instant::now();
    let census = args.census();
    let progress = Arc::clone(&census.progress);
    let mut counting = stop.during(None, || progress.cancel(), || PatientCensus::start(census))?;
    stop.wait(args.interval.saturating_sub(began.elapsed()).max(Duration::from_millis(100)))?;
    let tick = counting.tick()?;
    let rows = counting.census().map(|census| census.rows(&args.query())).unwrap_or_default();
    let write = |out: &mut StandardOutput| report::write(&tick, &rows, args.group, out);
    output::show(args.json, || report::json(&tick, &rows), write)?;
    for gap in tick.visibility_gaps.iter().filter(|_| !args.json) {
        output::warn(report::in_words(gap));
    }
    Ok(ExitCode::SUCCESS)
}

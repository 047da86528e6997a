//! `pagekeeper size`: how much page cache a database needs, by the hit ratio that it would have with
//! more and with less.
//!
//! It only observes. SIGINT and SIGTERM end the watch early, and the report covers the time until
//! then. Where accesses can't be seen the command says why in one line and ends with 1.

mod plot;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use pagekeeper_observe::size::{SizeScope, measure};
use pagekeeper_text::{escaped, parse_period};

use crate::output::{self, UsageError, code};
use crate::signals::Stop;
use report::SizeOutput;

/// Find how much memory a database needs: its hits in the page cache with more and with less
///
/// Watches the accesses of processes, of a memory cgroup or to a directory, simulates the kernel's
/// page cache at other sizes, and reports the hit ratio and the reads at each.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "pagekeeper size [OPTIONS] --pid PID | --cgroup PATH | DIR...",
    after_help = "Examples:
  pagekeeper size --pid 1234                      a process and its children, for two minutes
  pagekeeper size --cgroup /system.slice/mariadb.service
                                                  all processes of a service
  pagekeeper size /var/lib/mysql --duration 10m   all accesses to the files of a directory
  pagekeeper size --pid 1234 --plot curve.svg     also draw the curve

It only observes, and needs Linux 6.12 and root, or CAP_BPF, CAP_PERFMON and
CAP_DAC_READ_SEARCH. Watch under the usual load: the first half of the time
fills the simulations, the second half counts. Accesses through pages that a
process has mapped already are not seen."
)]
pub(crate) struct SizeArgs {
    /// Watch the files in and below this directory; may be given several times
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dirs: Vec<PathBuf>,
    /// Watch this process and its children; may be given several times
    #[arg(long, value_name = "PID", conflicts_with = "dirs")]
    pid: Vec<u32>,
    /// Watch the processes of this memory cgroup: its directory, or its path from the root
    #[arg(long, value_name = "PATH", conflicts_with_all = ["dirs", "pid"], value_hint = clap::ValueHint::DirPath)]
    cgroup: Option<PathBuf>,
    /// How long to watch
    #[arg(long, value_name = "TIME", value_parser = parse_period, default_value = "2m")]
    duration: Duration,
    /// Draw the curve into this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Print one JSON object with all figures, in bytes and seconds
    #[arg(long)]
    json: bool,
}

impl SizeArgs {
    fn scope(&self) -> Result<SizeScope, UsageError> {
        match (&self.cgroup, self.pid.is_empty(), self.dirs.is_empty()) {
            (Some(path), ..) => Ok(SizeScope::Cgroup(path.clone())),
            (None, false, _) => Ok(SizeScope::Processes(self.pid.clone())),
            (None, true, false) => Ok(SizeScope::Directories(self.dirs.clone())),
            (None, true, true) => Err(UsageError("give --pid, --cgroup or a directory".to_owned())),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &SizeArgs) -> anyhow::Result<ExitCode> {
    let scope = args.scope()?;
    let stop = Stop::on_signals().context("catch signals")?;
    let report = measure(&scope, args.duration, &mut |time| stop.wait(time).unwrap_or(true))?;
    let output = SizeOutput::new(&report);
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::svg(&output)).with_context(|| format!("can't write {}", escaped(path)))?;
    }
    output::show(args.json, || &output, |out| output.write(out))?;
    Ok(code(true))
}

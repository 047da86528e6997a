//! `pagekeeper evict`: releases files' pages on request, and reports for each file what stayed and
//! why.
//!
//! Dirty pages are written first. Fails path by path; pages that stayed for a known reason are
//! reported, but are not an error.

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use pagekeeper_doctor::EvictedLeftover;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::{FlushMode, ReleaseOptions, ReleaseReport, release};
use pagekeeper_text::{ByteSize, escaped};
use serde::Serialize;

use crate::devices::MountedDevices;
use crate::output;
use crate::part::{FilePart, parse_part};
use crate::paths::TreeArgs;
use crate::problems::{self, Problem, Problems};

/// Release files' pages, and report what stayed and why
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("evict"))]
pub(crate) struct EvictArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Only this part of each file: A..B, A.. or ..B, in sizes like 64M, or in percent of the file
    /// like ..90%
    #[arg(long, value_name = "RANGE", value_parser = parse_part, default_value = "..", hide_default_value = true)]
    range: FilePart,
    /// Number of files to work on in parallel [default: one per CPU, at most 8]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Report every file that had resident pages, not only those that kept some
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object with all figures in bytes
    #[arg(long)]
    json: bool,
}

/// The figures of a report, as JSON has them.
#[derive(Serialize)]
#[serde(remote = "ReleaseReport")]
struct ReleaseFigures {
    requested: u64,
    resident_before: u64,
    released: u64,
    kept_dirty: u64,
    kept_mapped: u64,
    kept_edge: u64,
    kept_busy: u64,
}

/// The result for one file.
#[derive(Debug, Serialize)]
pub(crate) struct EvictedFile {
    #[serde(serialize_with = "output::json::path")]
    path: PathBuf,
    #[serde(flatten, with = "ReleaseFigures")]
    pub(crate) report: ReleaseReport,
    /// The reason why it was left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_alone: Option<&'static str>,
}

impl From<EvictedLeftover> for EvictedFile {
    fn from(EvictedLeftover { path, report, left_alone }: EvictedLeftover) -> Self {
        Self { path, report, left_alone }
    }
}

/// The result for all files.
#[derive(Debug, Default, Serialize)]
struct EvictedTotal {
    files: u64,
    #[serde(flatten, with = "ReleaseFigures")]
    report: ReleaseReport,
}

#[derive(Debug, Serialize)]
struct EvictReport {
    files: Vec<EvictedFile>,
    total: EvictedTotal,
    errors: Vec<Problem>,
}

/// Runs the command.
pub(crate) fn run(args: &EvictArgs) -> anyhow::Result<ExitCode> {
    let report = evict(args)?;
    output::show(
        args.json,
        || &report,
        |out| {
            for file in report.files.iter().filter(|file| args.verbose || file.report.kept() > 0) {
                writeln!(out, "{file}")?;
            }
            let EvictedTotal { files, report } = &report.total;
            write!(out, "{}", released_in_words(report))?;
            writeln!(out, " in {}{}", output::files(*files), kept_in_words(report))
        },
    )?;
    Ok(problems::report(&report.errors, args.json))
}

fn evict(args: &EvictArgs) -> anyhow::Result<EvictReport> {
    let tree = args.tree.tree()?.with_devices(&args.tree);
    let options = ReleaseOptions::default();
    let clean_only = ReleaseOptions { flush: FlushMode::Never, ..ReleaseOptions::default() };
    let (problems, mounted) = (Problems::default(), MountedDevices::default());
    let done = Mutex::new((Vec::new(), EvictedTotal::default()));
    tree.walk(args.jobs.map(usize::from), &|visited| match visited.and_then(|file| {
        let options = if mounted.has(&file)? { &clean_only } else { &options };
        Ok((release(&file, args.range.of(file.size()), options)?, file))
    }) {
        Ok((report, file)) => {
            let mut done = lock(&done);
            let (files, total) = &mut *done;
            total.files += 1;
            total.report += report;
            if args.json || report.resident_before > 0 && (args.verbose || report.kept() > 0) {
                files.push(EvictedFile { path: file.path().to_path_buf(), report, left_alone: None });
            }
        }
        Err(error) => problems.note(&error),
    });
    let (mut files, total) = ignore_poison(done.into_inner());
    files.sort_by(|a, b| a.path.cmp(&b.path));
    mounted.report("clean pages alone were evicted, and are read again as it needs them");
    Ok(EvictReport { files, total, errors: problems.into_sorted() })
}

impl fmt::Display for EvictedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", escaped(&self.path))?;
        match self.left_alone {
            Some(why) => write!(f, "left alone: {why}"),
            None => write!(f, "{}{}", released_in_words(&self.report), kept_in_words(&self.report)),
        }
    }
}

fn released_in_words(report: &ReleaseReport) -> String {
    format!("evicted {} of {} resident", ByteSize(report.released), ByteSize(report.resident_before))
}

/// Returns "; kept 8 MiB: 4 MiB dirty …", or nothing if nothing stayed.
fn kept_in_words(report: &ReleaseReport) -> String {
    let why: Vec<String> = [
        (report.kept_mapped, "mapped by a process"),
        (report.kept_dirty, "still dirty or being written"),
        (report.kept_edge, "in large pages that reach out of the range"),
        (report.kept_busy, "in use at this moment"),
    ]
    .into_iter()
    .filter(|&(bytes, _)| bytes > 0)
    .map(|(bytes, why)| format!("{} {why}", ByteSize(bytes)))
    .collect();
    if why.is_empty() {
        String::new()
    } else {
        format!("; kept {}: {}", ByteSize(report.kept()), why.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_pages_are_reported_with_their_causes() {
        let report = ReleaseReport { kept_mapped: 4 << 20, kept_edge: 4096, ..ReleaseReport::default() };
        assert_eq!(
            kept_in_words(&report),
            "; kept 4.0 MiB: 4 MiB mapped by a process, 4 KiB in large pages that reach out of the range"
        );
        assert_eq!(kept_in_words(&ReleaseReport { released: 5, ..ReleaseReport::default() }), "");
    }
}

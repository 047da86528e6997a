//! `pagekeeper evict`: releases files' pages on request, and reports for each file what stayed and why.
//!
//! Dirty pages are written first. Fails path by path; pages that stayed for a known reason are reported, but are
//! not an error.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::{Flush, ReleaseOptions, ReleaseReport, release};
use pagekeeper_text::{Size, escaped, parse_range, unescaped};
use serde::Serialize;

use crate::devices::MountedDevices;
use crate::output;
use crate::paths::TreeArgs;
use crate::problems::{self, Problem, Problems};

/// Release files' pages from the page cache, and report what stayed and why
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper evict /backup                          every file below /backup
  pagekeeper evict --range 0..1G /var/lib/data.db   the first GiB of one file
  find . -name '*.log' -print0 | pagekeeper evict --files-from - -0

Dirty pages are written to disk first: no data is lost, and none stay because they are dirty. Pages that a process has \
    mapped or is reading stay; the report shows them, and they are not an error.")]
pub(crate) struct Args {
    #[command(flatten)]
    tree: TreeArgs,
    /// Only these bytes of each file: A..B, A.. or ..B, in sizes like 64M
    #[arg(long, value_name = "RANGE", value_parser = parse_range, default_value = "..", hide_default_value = true)]
    range: Range<u64>,
    /// Number of files to work on in parallel [default: one per CPU, at most 8]
    #[arg(short, long, value_name = "N", value_parser = parse_jobs)]
    jobs: Option<usize>,
    /// Report every file that had resident pages, not only those that kept some
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object with all figures in bytes
    #[arg(long)]
    json: bool,
}

fn parse_jobs(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|jobs| (1..=1024).contains(jobs))
        .ok_or_else(|| "give a number from 1 to 1024".to_owned())
}

/// The result for one file or for all.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) requested: u64,
    pub(crate) resident_before: u64,
    pub(crate) released: u64,
    pub(crate) kept_dirty: u64,
    pub(crate) kept_mapped: u64,
    pub(crate) kept_edge: u64,
    pub(crate) kept_busy: u64,
}

impl From<ReleaseReport> for Figures {
    fn from(report: ReleaseReport) -> Self {
        Self {
            requested: report.requested,
            resident_before: report.resident_before,
            released: report.released,
            kept_dirty: report.kept_dirty,
            kept_mapped: report.kept_mapped,
            kept_edge: report.kept_edge,
            kept_busy: report.kept_busy,
        }
    }
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.requested = self.requested.saturating_add(other.requested);
        self.resident_before += other.resident_before;
        self.released += other.released;
        self.kept_dirty += other.kept_dirty;
        self.kept_mapped += other.kept_mapped;
        self.kept_edge += other.kept_edge;
        self.kept_busy += other.kept_busy;
    }

    fn kept(&self) -> u64 {
        self.kept_dirty + self.kept_mapped + self.kept_edge + self.kept_busy
    }

    /// Returns "kept 8 MiB: 4 MiB dirty …"; `None` if nothing stayed.
    pub(crate) fn kept_in_words(&self) -> Option<String> {
        let why: Vec<String> = [
            (self.kept_mapped, "mapped by a process"),
            (self.kept_dirty, "still dirty or being written"),
            (self.kept_edge, "in large pages that reach out of the range"),
            (self.kept_busy, "in use at this moment"),
        ]
        .into_iter()
        .filter(|&(bytes, _)| bytes > 0)
        .map(|(bytes, why)| format!("{} {why}", Size(bytes)))
        .collect();
        (!why.is_empty()).then(|| format!("kept {}: {}", Size(self.kept()), why.join(", ")))
    }
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    figures: Figures,
}

impl Serialize for File {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            path: std::borrow::Cow<'a, str>,
            #[serde(flatten)]
            figures: Figures,
        }
        Shown { path: unescaped(&self.path), figures: self.figures }.serialize(serializer)
    }
}

#[derive(Debug, Serialize)]
struct Total {
    files: u64,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct Report {
    files: Vec<File>,
    total: Total,
    errors: Vec<Problem>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = evict(args)?;
    if args.json {
        output::json(&report)?;
    } else {
        show(&report, args.verbose)?;
        problems::report(&report.errors);
    }
    Ok(if report.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn evict(args: &Args) -> anyhow::Result<Report> {
    let tree = args.tree.tree()?.with_devices(&args.tree);
    let options = ReleaseOptions::default();
    let clean_only = ReleaseOptions { flush: Flush::Never, ..ReleaseOptions::default() };
    let (problems, mounted) = (Problems::default(), MountedDevices::default());
    let done = Mutex::new((Vec::new(), Total { files: 0, figures: Figures::default() }));
    tree.walk(args.jobs, &|visited| match visited.and_then(|file| {
        let options = if mounted.has(&file)? { &clean_only } else { &options };
        Ok((release(&file, args.range.clone(), options)?, file))
    }) {
        Ok((report, file)) => {
            let figures = Figures::from(report);
            let mut done = lock(&done);
            let (files, total) = &mut *done;
            total.files += 1;
            total.figures.add(&figures);
            if args.json || figures.resident_before > 0 && (args.verbose || figures.kept() > 0) {
                files.push(File { path: file.path().to_path_buf(), figures });
            }
        }
        Err(error) => problems.note(&error),
    });
    let (mut files, total) = ignore_poison(done.into_inner());
    files.sort_by(|a, b| a.path.cmp(&b.path));
    mounted.report("clean pages alone were evicted, and are read again as it needs them");
    Ok(Report { files, total, errors: problems.into_sorted() })
}

fn show(report: &Report, verbose: bool) -> std::io::Result<()> {
    let mut out = output::stdout();
    for File { path, figures } in &report.files {
        let kept = figures.kept_in_words();
        if !verbose && kept.is_none() {
            continue;
        }
        write!(out, "{}", escaped(path))?;
        write!(out, ": evicted {} of {} resident", Size(figures.released), Size(figures.resident_before))?;
        match kept {
            Some(kept) => writeln!(out, "; {kept}")?,
            None => writeln!(out)?,
        }
    }
    let Total { files, figures } = &report.total;
    let (released, before) = (Size(figures.released), Size(figures.resident_before));
    write!(out, "evicted {released} of {before} resident in {}", output::files(*files))?;
    match figures.kept_in_words() {
        Some(kept) => writeln!(out, "; {kept}")?,
        None => writeln!(out)?,
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stayed_is_said_with_its_causes() {
        let figures = Figures { kept_mapped: 4 << 20, kept_edge: 4096, ..Figures::default() };
        assert_eq!(
            figures.kept_in_words().unwrap(),
            "kept 4.0 MiB: 4 MiB mapped by a process, 4 KiB in large pages that reach out of the range"
        );
        assert_eq!(Figures { released: 5, ..Figures::default() }.kept_in_words(), None);
    }
}

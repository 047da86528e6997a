//! `pagekeeper snapshot`: saves which pages of files are resident, for `warm --from` to read them again after a
//! restart.
//!
//! Invariants: the snapshot file is complete or missing; another kind of file is overwritten only on request.
//! Files that fail are reported and left out, the others are saved.

mod file;
mod format;

use std::borrow::Cow;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::{Error, InspectedFile, page_size, resident_extents};
use pagekeeper_text::{Size, count, escaped, unescaped};
use serde::Serialize;

pub(crate) use file::read;
pub(crate) use format::{FileEntry, Snapshot, Time};

use crate::output;
use crate::paths::TreeArgs;
use crate::problems::{self, Problem, Problems};

/// Save which pages of files are in the page cache, to bring them back after a restart
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper snapshot /var/lib/mysql -o /var/lib/pagekeeper/mysql.snapshot
  pagekeeper warm --from /var/lib/pagekeeper/mysql.snapshot

The snapshot lists pages, not their content: a few bytes for each run of pages. It lists only files \
    that have pages in the page cache. Because it names files, only its owner can read it, even if it replaces a file \
    that others could read.")]
pub(crate) struct Args {
    #[command(flatten)]
    tree: TreeArgs,
    /// The file to write; an older snapshot there is replaced
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// Replace FILE even if it is not a snapshot
    #[arg(long)]
    force: bool,
    /// Number of files to read in parallel [default: one per CPU, at most 8]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print one JSON object with all figures in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    output: Cow<'a, str>,
    files: Vec<SavedFile<'a>>,
    total: Total,
    errors: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct SavedFile<'a> {
    path: Cow<'a, str>,
    size: u64,
    resident: u64,
    extents: u64,
}

#[derive(Debug, Default, Serialize)]
struct Total {
    /// Files with resident pages, which are in the snapshot.
    files: u64,
    files_seen: u64,
    resident: u64,
    extents: u64,
    /// Size of the snapshot file in bytes.
    written: u64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    // Before the work, so that a refusal comes first.
    let target = file::Target::new(&args.output, args.force)?;
    let (snapshot, files_seen, problems) = take(args)?;
    crate::frozen::wait_while_frozen(&args.output);
    let written = target.write(&snapshot)?;

    let mut total = Total { files_seen, written, ..Total::default() };
    let mut files = Vec::new();
    for entry in &snapshot.files {
        let resident = entry.resident_pages() * snapshot.page_size;
        let extents = entry.extents.len() as u64;
        total.files += 1;
        total.resident += resident;
        total.extents += extents;
        if args.json {
            files.push(SavedFile { path: unescaped(&entry.path), size: entry.size, resident, extents });
        }
    }
    total.seconds = start.elapsed().as_secs_f64();
    let report = Report { output: unescaped(&args.output), files, total, errors: problems.into_sorted() };
    if args.json {
        output::json(&report)?;
    } else {
        let Total { files, resident, extents, written, .. } = report.total;
        let mut out = output::stdout();
        write!(out, "saved {} resident in {}", Size(resident), output::files(files))?;
        writeln!(out, " ({} extents) in {}", count(extents), Size(written))?;
        out.flush()?;
        problems::report(&report.errors);
    }
    Ok(if report.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Inspects all files; also returns their number, and those that failed.
fn take(args: &Args) -> anyhow::Result<(Snapshot, u64, Problems)> {
    let tree = args.tree.tree()?;
    let problems = Problems::default();
    let seen = Mutex::new((Vec::new(), 0));
    let created = Time::of(SystemTime::now());
    tree.walk(args.jobs.map(usize::from), &|visited| match visited.and_then(|file| entry_of(&file)) {
        Ok(entry) => {
            let mut seen = lock(&seen);
            seen.1 += 1;
            seen.0.extend(entry);
        }
        Err(error) => problems.note(&error),
    });
    let (mut files, files_seen) = ignore_poison(seen.into_inner());
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((Snapshot { created, page_size: page_size(), files }, files_seen, problems))
}

/// Returns a file's entry; `None` if nothing of it is resident.
fn entry_of(file: &InspectedFile) -> Result<Option<FileEntry>, Error> {
    let page = page_size();
    let extents = resident_extents(file, 0..u64::MAX)?
        .map(|extent| extent.map(|extent| extent.start / page..extent.end / page))
        .collect::<Result<Vec<_>, _>>()?;
    if extents.is_empty() {
        return Ok(None);
    }
    let metadata = file.file().metadata().map_err(|e| Error::call("fstat", file.path(), e))?;
    let changed = Time::from_parts(metadata.mtime(), metadata.mtime_nsec());
    let accessed = Time::from_parts(metadata.atime(), metadata.atime_nsec());
    Ok(Some(FileEntry {
        path: lasting_path(file.path()).map_err(|e| Error::call("realpath", file.path(), e))?,
        dev: metadata.dev(),
        ino: metadata.ino(),
        size: metadata.len(),
        changed,
        last_used: changed.max(accessed),
        extents,
    }))
}

/// Returns the path from the root. For a symbolic link (which the user named or asked to follow) it is the path of
/// the file itself, so that restoring follows no links.
fn lasting_path(path: &Path) -> std::io::Result<PathBuf> {
    if std::fs::symlink_metadata(path)?.is_symlink() {
        std::fs::canonicalize(path)
    } else {
        std::path::absolute(path)
    }
}

impl FileEntry {
    /// Returns the number of pages in all extents together.
    pub(crate) fn resident_pages(&self) -> u64 {
        self.extents.iter().map(|extent| extent.end - extent.start).sum()
    }
}

impl Time {
    /// Converts from `stat`'s seconds and nanoseconds. A damaged or hostile file system may return invalid
    /// nanoseconds, which is no reason to stop. They are brought into range, here and when they are compared
    /// later, so the same file has the same time.
    pub(crate) fn from_parts(seconds: i64, nanos: i64) -> Self {
        Self { seconds, nanos: u32::try_from(nanos).unwrap_or(0).min(999_999_999) }
    }

    fn of(time: SystemTime) -> Self {
        // A clock set before 1970 is not worth an error: the time of creation is only shown.
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
    }
}

/// Reads a snapshot file; errors say in words what is wrong with it.
pub(crate) fn open(path: &Path) -> anyhow::Result<Snapshot> {
    read(path).with_context(|| format!("can't restore from {}", escaped(path)))
}

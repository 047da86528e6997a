//! `pagekeeper snapshot`: saves which pages of files are resident, for `warm --from` to read them
//! again after a restart.
//!
//! Files that fail are reported and left out, the others are saved.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_observe::saved_pages::{SavedFile, SavedPages, SnapshotTarget};
use pagekeeper_text::{ByteSize, count, escaped, unescaped};
use serde_json::json;

use crate::output;
use crate::paths::TreeArgs;
use crate::problems::{self, Problems};

/// Save which pages are resident, to restore them after a restart
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("snapshot"))]
pub(crate) struct SnapshotArgs {
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

/// Runs the command.
pub(crate) fn run(args: &SnapshotArgs) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let refusal = || format!("can't write {}", escaped(&args.output));
    // Before the work, so that a refusal comes first.
    let target = SnapshotTarget::new(&args.output, args.force).with_context(refusal)?;
    let (snapshot, files_seen, problems) = take(args)?;
    output::wait_while_frozen(&args.output);
    let written = target.write(&snapshot).with_context(refusal)?;

    let extents_of = |file: &SavedFile| file.extents.len() as u64;
    let resident: u64 = snapshot.files.iter().map(|file| snapshot.resident(file)).sum();
    let extents: u64 = snapshot.files.iter().map(extents_of).sum();
    let errors = problems.into_sorted();
    let file = |file: &SavedFile| {
        json!({
            "path": unescaped(&file.path),
            "size": file.size,
            "resident": snapshot.resident(file),
            "extents": extents_of(file),
        })
    };
    let report = || {
        json!({
            "output": unescaped(&args.output),
            "files": snapshot.files.iter().map(file).collect::<Vec<_>>(),
            "total": {
                "files": snapshot.files.len(),
                "files_seen": files_seen,
                "resident": resident,
                "extents": extents,
                "written": written,
                "seconds": start.elapsed().as_secs_f64(),
            },
            "errors": errors,
        })
    };
    output::show(args.json, report, |out| {
        let files = output::files(snapshot.files.len() as u64);
        write!(out, "saved {} resident in {files}", ByteSize(resident))?;
        writeln!(out, " ({} extents) in {}", count(extents), ByteSize(written))
    })?;
    Ok(problems::report(&errors, args.json))
}

/// Inspects all files; also returns their number, and those that failed.
fn take(args: &SnapshotArgs) -> anyhow::Result<(SavedPages, u64, Problems)> {
    let tree = args.tree.tree()?;
    let problems = Problems::default();
    let seen = Mutex::new((SavedPages::begin(), 0));
    tree.walk(args.jobs.map(usize::from), &|visited| match visited.and_then(|file| SavedFile::of(&file)) {
        Ok(entry) => {
            let (snapshot, files) = &mut *lock(&seen);
            *files += 1;
            snapshot.files.extend(entry);
        }
        Err(error) => problems.note(&error),
    });
    let (mut snapshot, files_seen) = ignore_poison(seen.into_inner());
    snapshot.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((snapshot, files_seen, problems))
}

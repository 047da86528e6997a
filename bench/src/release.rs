//! `release`: the cost of dropping clean pages of a file: the library's call beside the bare system
//! call, and `pagekeeper evict` beside `vmtouch -e` as whole processes.
//!
//! Before each sample the file is written and synced again; after each it must be gone from the
//! page cache (a peer's leftovers are noted). The library's call and the system call are timed
//! within this process on an open file.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pagekeeper_kernel::{Advice, ReleaseOptions, advise, release, residency};

use crate::BenchRun;
use crate::data::{GIB, MIB, open, require_resident, resident, write_synced};
use crate::peers::{InstalledProgram, run as run_process};
use crate::report::FigureUnit;

const LIBRARY_RELEASE_NAME: &str = "release()";
const BARE_FADVISE_NAME: &str = "posix_fadvise";
const EVICT_NAME: &str = "pagekeeper evict";
const VMTOUCH_NAME: &str = "vmtouch -e";

/// The second of a quick run by which the last round ends.
const RELEASE_QUICK_END_SECONDS: u64 = 42;

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    run.note("in process: the call alone, on an open file; the others are whole processes from start to end");
    let vmtouch = run.peer("vmtouch");
    let name = "1 GiB written in 1 MiB calls";
    run.say(name)?;
    run.scratch.require_space(GIB)?;
    let path = run.scratch.path().join("file");
    let pagekeeper = run.pagekeeper.clone();
    let names = [LIBRARY_RELEASE_NAME, BARE_FADVISE_NAME, EVICT_NAME]
        .into_iter()
        .chain(vmtouch.as_ref().map(|_| VMTOUCH_NAME));
    let names: Vec<&'static str> = names.collect();
    let mut left_by_peers = 0;
    let times = run.measure(&names, run.plan(RELEASE_QUICK_END_SECONDS), |turn| {
        make_resident(&path)?;
        let ms = match (names[turn.subject], &vmtouch) {
            (BARE_FADVISE_NAME, _) => advised(&path)?,
            (VMTOUCH_NAME, Some(vmtouch)) => by_process(vmtouch, &["-q", "-e"], &path)?,
            (EVICT_NAME, _) => by_process(&pagekeeper, &["evict"], &path)?,
            _ => released(&path)?,
        };
        let left = resident(&path)?;
        if [LIBRARY_RELEASE_NAME, EVICT_NAME].contains(&names[turn.subject]) {
            ensure!(left == 0, "{left} bytes of {} stayed in the page cache", path.display());
        }
        left_by_peers = left_by_peers.max(left);
        Ok(ms)
    })?;
    run.note(&format!(
        "0 bytes were resident after ours, at most {} MiB after the others",
        left_by_peers / MIB
    ));
    let samples = times.figure(|ms| *ms);
    let (calls, processes) = samples.split_at(2);
    run.report.add_case(&format!("{name}, in process"), FigureUnit::Milliseconds, calls);
    run.report.add_case(&format!("{name}, whole processes"), FigureUnit::Milliseconds, processes);
    run.report.add_ratio(
        "release_vs_fadvise",
        FigureUnit::Milliseconds,
        &samples,
        LIBRARY_RELEASE_NAME,
        BARE_FADVISE_NAME,
    );
    run.report.add_ratio("release_vs_vmtouch", FigureUnit::Milliseconds, &samples, EVICT_NAME, VMTOUCH_NAME);
    std::fs::remove_file(&path).context("can't remove the file")
}

/// Makes the file resident and clean.
fn make_resident(path: &Path) -> Result<()> {
    write_synced(path, GIB)?;
    let counts = residency(&open(path)?, 0..u64::MAX)?;
    ensure!(counts.unwritten() == 0, "{} is not clean after an fsync: {counts:?}", path.display());
    require_resident(counts.resident, GIB)
}

fn released(path: &Path) -> Result<f64> {
    let file = open(path)?;
    let began = Instant::now();
    let report = release(&file, 0..u64::MAX, &ReleaseOptions::default())?;
    let took = began.elapsed();
    ensure!(report.kept() == 0, "{report:?}");
    Ok(took.as_secs_f64() * 1e3)
}

fn advised(path: &Path) -> Result<f64> {
    let file = open(path)?;
    let began = Instant::now();
    advise(&file, Advice::DontNeed, 0..u64::MAX, path)?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

fn by_process(program: &InstalledProgram, arguments: &[&str], path: &Path) -> Result<f64> {
    Ok(run_process(program.command().args(arguments).arg(path))?.seconds * 1e3)
}

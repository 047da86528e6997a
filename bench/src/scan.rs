//! `scan`: the time to report residency, of a tree of 20,000 files and of one file of 20 GiB.
//!
//! All subjects are whole processes that end with a total; every total must be the true one.
//! Nothing is on disk: the files are holes, whose pages are cached like any others, and the tree's
//! inodes are cached, too. If memory for the half-resident cases is short the files are fewer and
//! smaller, and a note reports it.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use pagekeeper_kernel::residency_by_mincore;
use serde_json::Value;

use crate::BenchRun;
use crate::data::{GIB, MIB, make_cold, make_sparse, open, touch_pages};
use crate::drive::join;
use crate::peers::{InstalledProgram, program_beside, run as run_process};
use crate::report::FigureUnit;
use crate::rounds::{SplitMix, SubjectSamples};

const STAT_NAME: &str = "pagekeeper stat";
const SCAN_LIMIT_NAME: &str = "the limit: open, stat, count, close";
const RESOLVED_LIMIT_NAME: &str = "the limit, resolved before it is opened";
const PARTS_LIMIT_NAME: &str = "the limit: open, count its parts";

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    run.note("whole processes from start to end; files are holes with cached pages; fincore is given the list of files, the others walk");
    let peers = ["vmtouch", "fincore", "pagers"].map(|name| run.peer(name));
    let peers: Vec<InstalledProgram> = peers.into_iter().flatten().collect();
    tree(run, &peers)?;
    one_file(run, &peers)
}

/// Returns how many of `whole` fit: half of the data must be resident, with as much memory again
/// left for others.
fn affordable(run: &mut BenchRun, whole: u64, bytes_each: u64) -> u64 {
    let half_of_what_is_there = crate::machine::available_bytes() / 3 * 2;
    let possible = (half_of_what_is_there * 2 / bytes_each).min(whole);
    if possible < whole {
        run.note(&format!(
            "memory for {possible} of {whole} x {} MiB half resident: scaled down",
            bytes_each / MIB
        ));
    }
    possible
}

fn tree(run: &mut BenchRun, peers: &[InstalledProgram]) -> Result<()> {
    const SCANNED_FILES: u64 = 20_000;
    let root = run.scratch.path().join("tree");
    let paths = make_tree(&root, SCANNED_FILES)?;
    let name = format!("{SCANNED_FILES} files of 1 MiB, 1 % resident");
    run.say(&name)?;
    for path in &paths {
        make_cold(path)?;
        touch_share(path, MIB, 0.01, &mut run.random)?;
    }
    let lists = FileLists::new(&root, &paths)?;
    let samples =
        measure(run, peers, &lists, &[(SCAN_LIMIT_NAME, "named"), (RESOLVED_LIMIT_NAME, "resolved")], 14)?;
    run.report.add_case(&name, FigureUnit::Milliseconds, &samples);
    for (ratio, ours, theirs) in [
        ("scan_20k_vs_vmtouch", STAT_NAME, "vmtouch"),
        ("scan_20k_vs_pagers", STAT_NAME, "pagers"),
        ("scan_20k_vs_limit", STAT_NAME, SCAN_LIMIT_NAME),
        ("scan_20k_vs_resolved", STAT_NAME, RESOLVED_LIMIT_NAME),
        ("scan_20k_limit_vs_vmtouch", SCAN_LIMIT_NAME, "vmtouch"),
        ("scan_20k_resolved_vs_vmtouch", RESOLVED_LIMIT_NAME, "vmtouch"),
    ] {
        run.report.add_ratio(ratio, FigureUnit::Milliseconds, &samples, ours, theirs);
    }
    std::fs::remove_dir_all(&root).context("can't remove the tree")
}

fn one_file(run: &mut BenchRun, peers: &[InstalledProgram]) -> Result<()> {
    let size = affordable(run, 20, GIB) * GIB;
    let path = run.scratch.path().join("large");
    make_sparse(&path, size)?;
    let name = format!("one file of {} GiB, half resident, random pages", size / GIB);
    run.say(&name)?;
    touch_share(&path, size, 0.5, &mut run.random)?;
    let files = [path.clone()];
    let samples = measure(run, peers, &FileLists::new(&path, &files)?, &[(PARTS_LIMIT_NAME, "named")], 40)?;
    run.report.add_case(&name, FigureUnit::Milliseconds, &samples);
    for (ratio, ours, theirs) in [
        ("scan_one_vs_vmtouch", STAT_NAME, "vmtouch"),
        ("scan_one_vs_pagers", STAT_NAME, "pagers"),
        ("scan_one_vs_limit", STAT_NAME, PARTS_LIMIT_NAME),
        ("scan_one_limit_vs_vmtouch", PARTS_LIMIT_NAME, "vmtouch"),
    ] {
        run.report.add_ratio(ratio, FigureUnit::Milliseconds, &samples, ours, theirs);
    }
    std::fs::remove_file(&path).context("can't remove the file")
}

/// Creates the files, a hundred per directory, with names short enough for all to be arguments of
/// one command.
fn make_tree(root: &Path, files: u64) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for number in 0..files {
        let directory = root.join(format!("{}", number / 100));
        if number % 100 == 0 {
            std::fs::create_dir_all(&directory).context("can't make the tree")?;
        }
        let path = directory.join(format!("{number}"));
        make_sparse(&path, MIB)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Makes each page of a file resident with probability `share`, in two halves at once. The order is
/// random, as in a database's reads, so neighbours in the file are not neighbours in memory.
fn touch_share(path: &Path, size: u64, share: f64, random: &mut SplitMix) -> Result<()> {
    // In units of 2^-32.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is from 0 to 1")]
    let threshold = (share * f64::from(u32::MAX)) as u64;
    if threshold == 0 {
        return Ok(());
    }
    let pages = size / pagekeeper_kernel::page_size();
    let touch = |range: std::ops::Range<u64>, mut random: SplitMix| {
        let mut pages: Vec<u64> = range.filter(|_| random.next_u64() >> 32 <= threshold).collect();
        random.shuffle(&mut pages);
        touch_pages(&open(path)?, pages)
    };
    let (first, second) = (SplitMix::new(random.next_u64()), SplitMix::new(random.next_u64()));
    if size <= MIB {
        return touch(0..pages, first);
    }
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| touch(pages / 2..pages, second));
        touch(0..pages / 2, first)?;
        join(helper)
    })
}

/// The files that the subjects inspect.
struct FileLists<'a> {
    /// The tree, or the one file.
    root: &'a Path,
    /// All files.
    files: &'a [PathBuf],
    /// Resident bytes, by the last mincore.
    truth: Cell<u64>,
}

impl<'a> FileLists<'a> {
    fn new(root: &'a Path, files: &'a [PathBuf]) -> Result<Self> {
        let lists = Self { root, files, truth: Cell::new(0) };
        lists.truth.set(lists.resident_by_mincore()?);
        Ok(lists)
    }

    /// Returns the true count, made in this process by the method least like ours.
    fn resident_by_mincore(&self) -> Result<u64> {
        self.files
            .iter()
            .try_fold(0, |sum, path| Ok(sum + residency_by_mincore(&open(path)?, 0..u64::MAX)?.resident))
    }

    fn measure_peer(&self, peer: &InstalledProgram) -> Result<f64> {
        let mut command = peer.command();
        match peer.name {
            "fincore" => {
                command.args(["--bytes", "--noheadings", "--output", "RES"]);
                // Shorter than whole paths, because of the limit on arguments.
                let parent = self.root.parent().unwrap_or(Path::new("/"));
                command.current_dir(parent);
                command.args(self.files.iter().map(|file| file.strip_prefix(parent).unwrap_or(file)));
                self.measure(command, total_of_fincore)
            }
            "pagers" => {
                command.args(["query", "-o", "kv"]).arg(self.root);
                self.measure(command, total_of_pagers)
            }
            _ => {
                command.arg(self.root);
                self.measure(command, total_of_vmtouch)
            }
        }
    }

    fn measure(&self, mut command: Command, total: fn(&str) -> Option<u64>) -> Result<f64> {
        let finished = run_process(&mut command)?;
        let said = total(&finished.stdout).context("its output is not understood")?;
        let before = self.truth.get();
        if said != before {
            self.truth.set(self.resident_by_mincore()?);
            ensure!(
                is_true(said, before, self.truth.get()),
                "it says {said} bytes are resident, mincore says {} (and {before} before)",
                self.truth.get()
            );
        }
        Ok(finished.seconds * 1000.0)
    }
}

/// A limit: its name in tables, and its word for the program beside this one.
type ScanLimit = (&'static str, &'static str);

fn measure(
    run: &mut BenchRun,
    peers: &[InstalledProgram],
    lists: &FileLists<'_>,
    limits: &[ScanLimit],
    quick_end: u64,
) -> Result<Vec<SubjectSamples>> {
    let own = run.pagekeeper.clone();
    let limit_program = program_beside("pagekeeper-bench-scan")?;
    let names = limits.iter().map(|(name, _)| *name).chain(peers.iter().map(|peer| peer.name));
    let names: Vec<&'static str> = std::iter::once(STAT_NAME).chain(names).collect();
    let measured = run.measure(&names, run.plan(quick_end), |turn| {
        let name = names[turn.subject];
        if name == STAT_NAME {
            let mut command = own.command();
            command.args(["stat", "--json", "--top", "20"]).arg(lists.root);
            return lists.measure(command, total_of_pagekeeper);
        }
        if let Some((_, how)) = limits.iter().find(|(limit, _)| *limit == name) {
            let mut command = Command::new(&limit_program);
            command.arg(how).arg(lists.root);
            return lists.measure(command, |text| text.trim().parse().ok());
        }
        let peer = peers.iter().find(|peer| peer.name == name).context("no such peer")?;
        lists.measure_peer(peer)
    })?;
    Ok(measured.figure(|ms| *ms))
}

/// Whether a count is true: equal to what was resident before, or less by at most what the kernel
/// reclaimed until after. More than 2 % reclaimed means that memory is too short for this
/// measurement.
fn is_true(said: u64, before: u64, after: u64) -> bool {
    (after..=before).contains(&said) && before - after <= before / 50
}

fn total_of_pagekeeper(text: &str) -> Option<u64> {
    serde_json::from_str::<Value>(text).ok()?["total"]["resident"].as_u64()
}

/// Parses `  Resident Pages: 768/1024  3M/4M  75%`.
fn total_of_vmtouch(text: &str) -> Option<u64> {
    let pages = text.lines().find_map(|line| line.trim().strip_prefix("Resident Pages:"))?;
    let pages: u64 = pages.split('/').next()?.trim().parse().ok()?;
    Some(pages * pagekeeper_kernel::page_size())
}

/// Returns a number of bytes for each file.
fn total_of_fincore(text: &str) -> Option<u64> {
    text.lines().map(|line| line.trim().parse::<u64>().ok()).sum()
}

/// Returns a line `TotalResidentSize=3145728` among others.
fn total_of_pagers(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("TotalResidentSize="))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_from_the_output_of_programs() {
        let page = pagekeeper_kernel::page_size();
        let vmtouch =
            "           Files: 3\n  Resident Pages: 768/1024  3M/4M  75%\n         Elapsed: 0.0 seconds\n";
        assert_eq!(total_of_vmtouch(vmtouch), Some(768 * page));
        assert_eq!(total_of_fincore("  4096\n0\n8192\n"), Some(12288));
        assert_eq!(total_of_fincore("x"), None);
        assert_eq!(total_of_pagers("TotalResidentPages=2\nTotalResidentSize=8192\n"), Some(8192));
        assert_eq!(total_of_pagekeeper(r#"{"files":[],"total":{"resident":5}}"#), Some(5));
        assert_eq!(total_of_pagekeeper(r#"{"files":[],"total":{"resident":null}}"#), None);
    }

    #[test]
    fn a_count_may_miss_only_reclaimed_pages() {
        assert!(is_true(1000, 1000, 1000) && is_true(990, 1000, 985));
        assert!(!is_true(1001, 1000, 985) && !is_true(984, 1000, 985));
        assert!(!is_true(950, 1000, 950), "too much went away");
    }

    #[test]
    fn about_the_share_asked_for_is_touched() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        make_sparse(&path, 16 * MIB).unwrap();
        touch_share(&path, 16 * MIB, 0.25, &mut SplitMix::new(1)).unwrap();
        let share = crate::data::resident(&path).unwrap() as f64 / (16 * MIB) as f64;
        assert!((0.22..0.28).contains(&share), "{share}");
        let files = [path];
        let lists = FileLists::new(&files[0], &files).unwrap();
        assert_eq!(lists.truth.get(), crate::data::resident(&files[0]).unwrap());
    }
}

//! `beside`: commits to a synced log beside a copy to the same slow disk: plain, under `pagekeeper run`, under ionice
//! and nocache, by rsync with a limit, and without a copy.
//!
//! There are two loads:
//! - One writer syncs each 4 KiB and pauses between commits.
//! - 1,500 commits a second are due whether or not the disk keeps up, and one sync takes all that wait, as engines with
//!   group commit do. Their latency counts from when a commit was due.
//!
//! Invariants:
//! - All subjects of a case use one disk and one source.
//! - The count runs from the start of the copy until the copy is durable.
//! - Each copy is compared with its source, and each sample begins with nothing dirty.
//!
//! Fails with a plain message without root.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_bulk::{BulkMode, BulkWriter};
use pagekeeper_testing::ThrottledDisk;

use crate::Run;
use crate::data::{GIB, MIB, write_synced};
use crate::drive::join;
use crate::latencies::Latencies;
use crate::peers::{Program, run as run_program};
use crate::report::{Report, Unit};
use crate::rounds::{Plan, Samples, ratio};
use crate::scratch::Stop;
use crate::slow_device::{self, settle};

/// Write rate of the disk, in bytes per second.
const RATE: u64 = 100_000_000;
/// rsync's limit in KiB/s: half of the disk, which an operator has to guess.
const RSYNC_LIMIT: &str = "--bwlimit=48828";
/// Bytes that the bulk writer is given at a time.
const PIECE: usize = 1 << 20;
/// Bytes of a commit of the single writer, and of one of the commits that are due.
const RECORD: usize = 4096;
const SMALL_RECORD: usize = 512;
/// The single writer's pause between two commits.
const PAUSE: Duration = Duration::from_millis(2);
/// Commits that are due each second, and the number of threads that wait at most.
const DUE: u32 = 1500;
const WAITING_MAX: u64 = 64;

const UNDER_RUN: &str = "cp under run";
const ALONE: &str = "no copy";
const PLAIN: &str = "cp";
const STATIC: &str = "a static cp under run";
const IONICE: &str = "ionice -c3 cp";
const NOCACHE: &str = "nocache cp";
const RSYNC: &str = "rsync --bwlimit, half the disk";
const BULK: &str = "the library's bulk writer, paced";
const BULK_DIRECT: &str = "the library's bulk writer, direct";

/// The load of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    OneWriter,
    Due,
}

impl Load {
    const fn name(self) -> &'static str {
        match self {
            Self::OneWriter => "one writer, a sync for each 4 KiB",
            Self::Due => "1,500 commits a second are due",
        }
    }
}

/// A commit: when it ended, in seconds since the start, and its latency.
#[derive(Debug, Clone, Copy)]
struct Commit {
    end: f64,
    took: Duration,
}

/// The figures of a sample.
#[derive(Debug, Clone)]
struct Sample {
    /// Commits per second.
    rate: f64,
    took: Latencies,
    /// MiB/s of the copy, until it was durable.
    copy: f64,
}

/// The surroundings of a sample.
struct Site<'a> {
    disk: ThrottledDisk,
    source: PathBuf,
    bytes: u64,
    alone: Duration,
    pagekeeper: Program,
    stop: &'a Stop,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, rounds: Option<u16>) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench makes a slow disk, and follows programs by events of the kernel: run it as root"
    );
    // A sample takes as long as its copy.
    run.rounds = rounds.map_or(if run.quick { 1 } else { 3 }, usize::from);
    let bytes = if run.quick { 256 * MIB } else { GIB };
    let mut subjects = vec![UNDER_RUN, ALONE, PLAIN];
    if !run.quick {
        subjects.extend([BULK, BULK_DIRECT]);
        for (name, peer) in [(STATIC, "busybox"), (IONICE, "ionice"), (NOCACHE, "nocache"), (RSYNC, "rsync")]
        {
            if run.peer(peer).is_some() {
                subjects.push(name);
            }
        }
    }
    run.note(&format!(
        "a disk of {} MB/s (a loop device under a throttle); {} MiB are copied to it, and synced by who copies",
        RATE / 1_000_000,
        bytes / MIB
    ));
    let source = run.scratch.path().join("source");
    write_synced(&source, bytes)?;
    let kinds: &[&'static str] = if run.quick { &["ext4"] } else { &["ext4", "xfs", "btrfs"] };
    for kind in kinds {
        let stop = run.stop.clone();
        let disk = slow_device::new(&run.scratch, kind, 2 * bytes + GIB, RATE)?;
        let alone = Duration::from_secs(bytes / RATE + 1);
        let pagekeeper = run.pagekeeper.clone();
        let site = Site { disk, source: source.clone(), bytes, alone, pagekeeper, stop: &stop };
        let loads: &[Load] = if run.quick { &[Load::Due] } else { &[Load::OneWriter, Load::Due] };
        for load in loads {
            run.say(&format!("{kind}, {}", load.name()))?;
            case(run, &site, kind, *load, &subjects)?;
        }
    }
    Ok(())
}

fn case(run: &mut Run, site: &Site<'_>, kind: &str, load: Load, names: &[&'static str]) -> Result<()> {
    let plan = Plan { rounds: run.rounds, until: None, warm_up: false };
    let measured = run.measure(names, plan, |turn| site.sample(names[turn.subject], load))?;
    let title = format!("{kind}, {}", load.name());
    let report = &mut run.report;
    let commits = measured.figure(|sample| sample.rate);
    report.add_case(&title, Unit::CommitsPerSecond, &commits);
    let median = measured.figure(|sample| sample.took.ms(50.0));
    report.add_case(&format!("{title}: median"), Unit::Milliseconds, &median);
    let p99 = measured.figure(|sample| sample.took.ms(99.0));
    report.add_case(&format!("{title}: p99"), Unit::Milliseconds, &p99);
    let longest = measured.figure(|sample| sample.took.ms(100.0));
    report.add_case(&format!("{title}: longest"), Unit::Milliseconds, &longest);
    let mut copies = measured.figure(|sample| sample.copy);
    copies.retain(|samples| samples.subject != ALONE);
    report.add_case(&format!("{title}: the copy, until it is on disk"), Unit::MibPerSecond, &copies);
    let (ms, rate) = (Unit::Milliseconds, Unit::CommitsPerSecond);
    match load {
        Load::OneWriter => {
            add_worst(report, "beside_commits_vs_alone", rate, &commits, ALONE);
            add_worst(report, "beside_commits_vs_plain", rate, &commits, PLAIN);
        }
        Load::Due => {
            add_worst(report, "beside_due_vs_alone", rate, &commits, ALONE);
            add_worst(report, "beside_p99_vs_alone", ms, &p99, ALONE);
            add_worst(report, "beside_longest_vs_alone", ms, &longest, ALONE);
            add_worst(report, "beside_longest_vs_plain", ms, &longest, PLAIN);
        }
    }
    add_worst(report, "beside_copy_vs_plain", Unit::MibPerSecond, &copies, PLAIN);
    Ok(())
}

/// Adds the ratio of the file system and load with the worst result.
fn add_worst(report: &mut Report, name: &'static str, unit: Unit, samples: &[Samples], theirs: &'static str) {
    let of =
        |subject| samples.iter().find(|samples| samples.subject == subject).map(|found| &found.values[..]);
    let new = of(UNDER_RUN).zip(of(theirs)).and_then(|(ours, theirs)| ratio(ours, theirs, unit.better()));
    if new.is_some_and(|new| report.ratios.get(name).is_none_or(|known| new < *known)) {
        report.add_ratio(name, unit, samples, UNDER_RUN, theirs);
    }
}

impl Site<'_> {
    /// Measures commits beside one copy.
    fn sample(&self, subject: &'static str, load: Load) -> Result<Sample> {
        let (log, copy) = (self.disk.path().join("log"), self.disk.path().join("copy"));
        settle(&self.disk)?;
        let ended = AtomicBool::new(false);
        let began = Instant::now();
        let (commits, (from, to)) = std::thread::scope(|scope| -> Result<_> {
            let committer = scope.spawn(|| match load {
                Load::OneWriter => commit_one_by_one(&ended, &log, began),
                Load::Due => commit_what_is_due(&ended, &log, began),
            });
            let copied = self.copy(subject, &copy, began);
            ended.store(true, Ordering::Relaxed);
            let commits = join(committer)?;
            Ok((commits, copied?))
        })?;
        if subject != ALONE {
            run_program(Command::new("cmp").arg(&self.source).arg(&copy))?;
            std::fs::remove_file(&copy).context("can't remove a file")?;
        }
        std::fs::remove_file(&log).context("can't remove a file")?;
        let within = commits.iter().filter(|commit| (from..=to).contains(&commit.end)).count();
        // A commit that was due within the copy and ended after it was waited for, too.
        let of_sample = |commit: &&Commit| commit.end >= from && commit.end - commit.took.as_secs_f64() <= to;
        Ok(Sample {
            rate: within as f64 / (to - from),
            took: commits.iter().filter(of_sample).map(|commit| commit.took).collect(),
            copy: self.bytes as f64 / MIB as f64 / (to - from),
        })
    }

    /// Copies as an engine does that writes its own output.
    fn write_in_bulk(&self, mode: BulkMode, copy: &Path) -> Result<()> {
        let mut source = File::open(&self.source).context("can't open the source")?;
        let mut output = BulkWriter::options().mode(mode).create(copy)?;
        let mut piece = vec![0; PIECE];
        loop {
            self.stop.check()?;
            let length = source.read(&mut piece).context("can't read the source")?;
            if length == 0 {
                break;
            }
            output.write_all(&piece[..length])?;
        }
        output.finish()?;
        Ok(())
    }

    /// Copies and syncs the copy, one second after the load has begun. Returns when it began and ended, in seconds
    /// since the load's start.
    fn copy(&self, subject: &'static str, copy: &Path, began: Instant) -> Result<(f64, f64)> {
        self.stop.sleep(Duration::from_secs(1))?;
        let from = began.elapsed().as_secs_f64();
        let words: &[&str] = match subject {
            ALONE => {
                self.stop.sleep(self.alone)?;
                return Ok((from, began.elapsed().as_secs_f64()));
            }
            BULK | BULK_DIRECT => {
                let mode = if subject == BULK { BulkMode::Paced } else { BulkMode::Direct };
                self.write_in_bulk(mode, copy)?;
                return Ok((from, began.elapsed().as_secs_f64()));
            }
            STATIC => &["busybox", "cp"],
            IONICE => &["ionice", "-c3", "cp"],
            NOCACHE => &["nocache", "cp"],
            RSYNC => &["rsync", "--inplace", "--whole-file", RSYNC_LIMIT],
            _ => &["cp"],
        };
        let mut command = if matches!(subject, UNDER_RUN | STATIC) {
            let mut run = self.pagekeeper.command();
            run.args(["run", "--", words[0]]);
            run
        } else {
            Command::new(words[0])
        };
        run_program(command.args(&words[1..]).arg(&self.source).arg(copy))?;
        let file = File::open(copy).with_context(|| format!("can't open {}", copy.display()))?;
        file.sync_data().with_context(|| format!("can't sync {}", copy.display()))?;
        Ok((from, began.elapsed().as_secs_f64()))
    }
}

fn new_log(path: &Path) -> Result<File> {
    File::options()
        .append(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("can't make {}", path.display()))
}

fn commit(log: &mut File, bytes: &[u8]) -> Result<()> {
    log.write_all(bytes).and_then(|()| log.sync_data()).context("can't commit")
}

fn commit_one_by_one(stop: &AtomicBool, path: &Path, first: Instant) -> Result<Vec<Commit>> {
    let mut log = new_log(path)?;
    let mut commits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        commit(&mut log, &[7; RECORD])?;
        commits.push(Commit { end: first.elapsed().as_secs_f64(), took: began.elapsed() });
        std::thread::sleep(PAUSE);
    }
    Ok(commits)
}

/// Commits until `stop`: each sync takes all commits that are due, up to [`WAITING_MAX`].
fn commit_what_is_due(stop: &AtomicBool, path: &Path, first: Instant) -> Result<Vec<Commit>> {
    let mut log = new_log(path)?;
    let mut commits = Vec::new();
    let due_at = |number: u64| number as f64 / f64::from(DUE);
    let mut done: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = first.elapsed().as_secs_f64();
        let waiting = (0..WAITING_MAX).take_while(|more| due_at(done + more) <= now).count();
        if waiting == 0 {
            std::thread::sleep(Duration::from_secs_f64((due_at(done) - now).max(0.0)));
            continue;
        }
        commit(&mut log, &vec![7; waiting * SMALL_RECORD])?;
        let end = first.elapsed().as_secs_f64();
        for _ in 0..waiting {
            commits.push(Commit { end, took: Duration::from_secs_f64((end - due_at(done)).max(0.0)) });
            done += 1;
        }
    }
    Ok(commits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_file_systems_the_ratio_is_that_of_the_worse() {
        let samples = |ours: f64| {
            [(UNDER_RUN, ours), (ALONE, 10.0)]
                .map(|(subject, rate)| Samples { subject, values: vec![rate, rate] })
        };
        let mut report = crate::report::tests::example();
        for ours in [9.0, 8.0, 9.5] {
            add_worst(&mut report, "beside_due_vs_alone", Unit::CommitsPerSecond, &samples(ours), ALONE);
        }
        assert!((report.ratios["beside_due_vs_alone"] - 0.8).abs() < 1e-9, "{:?}", report.ratios);
    }

    #[test]
    fn a_commit_that_is_late_counts_from_when_it_was_due() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let late = Duration::from_millis(200);
        let first = Instant::now().checked_sub(late).unwrap();
        let commits = std::thread::scope(|scope| {
            let committer = scope.spawn(|| commit_what_is_due(&stop, &dir.path().join("log"), first));
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
            committer.join().unwrap().unwrap()
        });
        assert!(commits[0].took >= Duration::from_millis(199), "{:?}", commits[0]);
        assert!(commits.windows(2).all(|pair| pair[0].end <= pair[1].end));
    }
}

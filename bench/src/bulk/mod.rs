//! `bulk`: puts into `RocksDB`, whose log is never synced, while flushes and compactions write
//! tables to the same slow disk.
//!
//! The kernel lets a put's write into the page cache return at once until much is dirty. Then it
//! pauses every writer, whoever made the pages dirty. The subjects are `db_bench` under
//! `pagekeeper run`, as it is by default, with direct flushes and compactions, and with writeback
//! that it requests itself (`bytes_per_sync`).
//!
//! Invariants: all subjects of a round use one file system, one rate, one pair of dirty limits and
//! one sequence of keys; each sample has a new database and begins with nothing dirty. Fails with a
//! plain message without root.

mod db_bench;
mod load;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use pagekeeper_testing::{LowDirtyLimits, ThrottledDisk};

use crate::BenchRun;
use crate::data::MIB;
use crate::peers::{InstalledProgram, run as run_process};
use crate::report::FigureUnit;
use crate::rounds::{MeasuredSamples, RoundPlan};
use crate::scratch::StopRequest;
use crate::slow_device::{self, settle};
use load::{PutFigures, PutPhase};

/// Write rate of the disk, in bytes per second. Each byte that is put is written to the log, to a
/// table, and once or twice more by merging, which is more than the disk can take.
const DISK_BYTES_PER_SECOND: u64 = 60_000_000;
const PUTS_UNDER_RUN_NAME: &str = "under pagekeeper run";
const DEFAULT_PUTS_NAME: &str = "default";
const DIRECT_PUTS_NAME: &str = "direct flush and compaction";
const SYNCED_PUTS_NAME: &str = "bytes_per_sync 1M, log 512K";

/// The subjects, with options of `db_bench`.
const PUT_CASES: [(&str, &[&str]); 4] = [
    (PUTS_UNDER_RUN_NAME, &[]),
    (DEFAULT_PUTS_NAME, &[]),
    (DIRECT_PUTS_NAME, &["--use_direct_io_for_flush_and_compaction=true"]),
    (SYNCED_PUTS_NAME, &["--bytes_per_sync=1048576", "--wal_bytes_per_sync=524288"]),
];

/// The size of a run.
#[derive(Debug, Clone, Copy)]
struct BulkScale {
    /// Seconds of puts in a sample.
    seconds: u64,
    /// Dirty bytes at which background writeback begins, and at which writers wait.
    limits: (u64, u64),
    /// Number of cases.
    cases: usize,
    /// Default number of rounds.
    rounds: u16,
}

const FULL_SCALE: BulkScale =
    BulkScale { seconds: 40, limits: (64 * MIB, 128 * MIB), cases: PUT_CASES.len(), rounds: 3 };
/// The limits are lower so that they are reached in the shorter time.
const QUICK_SCALE: BulkScale = BulkScale { seconds: 17, limits: (32 * MIB, 64 * MIB), cases: 2, rounds: 1 };

/// The surroundings of a sample.
struct SampleSetup<'a> {
    disk: ThrottledDisk,
    pagekeeper: InstalledProgram,
    db_bench: InstalledProgram,
    scratch: PathBuf,
    seconds: u64,
    stop: &'a StopRequest,
}

/// Runs the benchmark; `rounds` comes from the command line.
pub(crate) fn run(run: &mut BenchRun, rounds: Option<u16>) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench slows a loop device down and lowers the kernel's dirty limits: it needs root"
    );
    let scale = if run.quick { QUICK_SCALE } else { FULL_SCALE };
    let Some(db_bench) = run.peer("db_bench") else {
        // The rest of the benchmark is RocksDB's puts.
        return Ok(());
    };
    run.note(&format!(
        "an ext4 on a loop device held to {} MB/s; dirty limits {} and {} MiB (background, writers); {} s of puts in each sample, at a nice value of -15{}",
        DISK_BYTES_PER_SECOND / 1_000_000,
        scale.limits.0 / MIB,
        scale.limits.1 / MIB,
        scale.seconds,
        if run.quick { "; without --quick 64 and 128 MiB, and 40 s" } else { "" }
    ));
    run.note(
        "the dirty limits are the whole machine's: whatever else writes during the run holds puts up, too",
    );
    let launcher = ["run", "--profile", "rocksdb", "--"];
    run_process(run.pagekeeper.command().args(launcher).arg("true"))
        .context("pagekeeper run does not work")?;

    run.say("making a slow disk")?;
    // Tables, their copies during merges, and logs not yet removed.
    let bytes = DISK_BYTES_PER_SECOND * scale.seconds * 2 + 1024 * MIB;
    let disk = slow_device::new(&run.scratch, "ext4", bytes, DISK_BYTES_PER_SECOND)?;
    let limits = LowDirtyLimits::new(scale.limits.0, scale.limits.1);
    let (stop, pagekeeper) = (run.stop.clone(), run.pagekeeper.clone());
    let scratch = run.scratch.path().to_path_buf();
    let setup = SampleSetup { disk, pagekeeper, db_bench, scratch, seconds: scale.seconds, stop: &stop };
    let cases = &PUT_CASES[..scale.cases];
    let names: Vec<&'static str> = cases.iter().map(|(name, _)| *name).collect();
    let plan = RoundPlan { rounds: usize::from(rounds.unwrap_or(scale.rounds)), until: None, warm_up: false };
    let (first, began) = (run.random.next_u64() >> 32, run.began);
    let measured = run.measure(&names, plan, |turn| {
        let (name, options) = cases[turn.subject];
        eprintln!("{:>5.1} s  {name}", began.elapsed().as_secs_f64());
        // All subjects of a round put the same keys; a seed of 0 would mean the clock.
        setup.sample(name, options, PutPhase { seconds: setup.seconds, seed: first + turn.round as u64 + 1 })
    })?;
    drop(limits);
    report(run, &measured);
    Ok(())
}

impl SampleSetup<'_> {
    /// Puts into a new database and removes it at the end.
    fn sample(&self, name: &str, options: &[&str], puts: PutPhase) -> Result<PutFigures> {
        let database = self.disk.path().join("database");
        let pagekeeper = self.pagekeeper.path.to_str().context("the path of pagekeeper is not UTF-8")?;
        let launcher = [pagekeeper, "run", "--profile", "rocksdb", "--"];
        let launcher = if name == PUTS_UNDER_RUN_NAME { &launcher[..] } else { &[] };
        let place = (database.as_path(), &*self.scratch.join("db_bench"));
        let figures = load::put(launcher, &self.db_bench, place, puts, options, self.stop)?;
        std::fs::remove_dir_all(&database).context("can't remove the database")?;
        settle(&self.disk)?;
        Ok(figures)
    }
}

fn report(run: &mut BenchRun, samples: &MeasuredSamples<PutFigures>) {
    let longest = samples.figure(|sample| sample.longest_ms);
    let rates = samples.figure(|sample| sample.per_second);
    let report = &mut run.report;
    report.add_case("the longest put", FigureUnit::Milliseconds, &longest);
    report.add_case("put p99.9", FigureUnit::Microseconds, &samples.figure(|sample| sample.p999_us));
    report.add_case("puts", FigureUnit::OperationsPerSecond, &rates);
    report.add_ratio(
        "bulk_max_put_vs_default",
        FigureUnit::Milliseconds,
        &longest,
        PUTS_UNDER_RUN_NAME,
        DEFAULT_PUTS_NAME,
    );
    report.add_ratio(
        "bulk_vs_direct",
        FigureUnit::Milliseconds,
        &longest,
        PUTS_UNDER_RUN_NAME,
        DIRECT_PUTS_NAME,
    );
    report.add_ratio(
        "bulk_vs_bytes_per_sync",
        FigureUnit::Milliseconds,
        &longest,
        PUTS_UNDER_RUN_NAME,
        SYNCED_PUTS_NAME,
    );
    report.add_ratio(
        "bulk_throughput",
        FigureUnit::OperationsPerSecond,
        &rates,
        PUTS_UNDER_RUN_NAME,
        DEFAULT_PUTS_NAME,
    );
}

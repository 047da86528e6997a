//! `bulk`: puts into `RocksDB`, whose log is never synced, while flushes and compactions write tables to the same slow
//! disk.
//!
//! The kernel lets a put's write into the page cache return at once until much is dirty. Then it pauses every writer,
//! whoever made the pages dirty. The subjects are `db_bench` under `pagekeeper run`, as it is by default, with direct
//! flushes and compactions, and with writeback that it requests itself (`bytes_per_sync`). The limit is a `db_bench`
//! that writes no tables, beside a [writer](plain) that keeps the disk as busy but hands over only a few milliseconds
//! of its work at a time.
//!
//! Invariants: all subjects of a round use one file system, one rate, one pair of dirty limits and one sequence of
//! keys; each sample has a new database and begins with nothing dirty. Fails with a plain message without root.

mod load;
mod plain;
pub(crate) mod server;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use pagekeeper_trace::{TraceCounts, TraceOptions, Tracer};

use crate::Run;
use crate::data::MIB;
use crate::peers::{Program, run as run_process};
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, extremes, run as run_rounds};
use crate::scratch::Stop;
use crate::stall::disk::SlowDisk;
use crate::stall::limits::Limits;
use crate::stall::settle;
use load::{Measured, Puts};

/// Write rate of the disk, in bytes per second. Each byte that is put is written to the log, to a table, and once or
/// twice more by merging, which is more than the disk can take.
const RATE: u64 = 60_000_000;
/// The note on the limits for readers.
const WHOLE_MACHINE: &str =
    "the dirty limits are the whole machine's: whatever else writes during the run holds puts up, too";
/// The share of the dirty limits that other disks may take without a report.
const DISTURBED: f64 = 0.25;
/// The writer's thread has its program's name; the threads that flush and merge have other names.
const WRITER: &str = "db_bench";

const UNDER_RUN: &str = "under pagekeeper run";
const DEFAULT: &str = "default";
const DIRECT: &str = "direct flush and compaction";
const BYTES_PER_SYNC: &str = "bytes_per_sync 1M, log 512K";
const LIMIT: &str = "no tables, beside a writer of 4 ms at a time";

/// A subject.
struct Case {
    /// Its name in tables.
    name: &'static str,
    under_run: bool,
    /// Whether a plain writer replaces flushes and merges.
    beside_plain: bool,
    /// Options of `db_bench`.
    options: &'static [&'static str],
}

const CASES: [Case; 5] = [
    Case { name: UNDER_RUN, under_run: true, beside_plain: false, options: &[] },
    Case { name: DEFAULT, under_run: false, beside_plain: false, options: &[] },
    Case {
        name: DIRECT,
        under_run: false,
        beside_plain: false,
        options: &["--use_direct_io_for_flush_and_compaction=true"],
    },
    Case {
        name: BYTES_PER_SYNC,
        under_run: false,
        beside_plain: false,
        options: &["--bytes_per_sync=1048576", "--wal_bytes_per_sync=524288"],
    },
    Case {
        name: LIMIT,
        under_run: false,
        beside_plain: true,
        // Larger than all puts together, so nothing is flushed before the end. The last option given counts.
        options: &["--write_buffer_size=2147483648", "--disable_auto_compactions=true"],
    },
];

/// The size of a run.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Seconds of puts in a sample.
    seconds: u64,
    /// Dirty bytes at which background writeback begins, and at which writers wait.
    limits: (u64, u64),
    /// Number of cases.
    cases: usize,
    /// Default number of rounds.
    rounds: u16,
}

const FULL: Scale = Scale { seconds: 40, limits: (64 * MIB, 128 * MIB), cases: CASES.len(), rounds: 3 };
/// The limits are lower so that they are reached in the shorter time.
const QUICK: Scale = Scale { seconds: 17, limits: (32 * MIB, 64 * MIB), cases: 2, rounds: 1 };

/// The figures of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    measured: Measured,
    /// `None` where the kernel does not report pauses.
    pauses: Option<Pauses>,
}

/// The kernel's pauses of the writer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Pauses {
    count: u64,
    total_ms: f64,
    /// Means at the start of the pauses, in bytes: dirty data of other disks, and the threshold at which pauses begin.
    elsewhere: f64,
    threshold: f64,
}

/// The surroundings of a sample.
struct SampleSetup<'a> {
    disk: SlowDisk,
    /// The disk's number as the kernel prints it in pause events: `7:0`.
    device: String,
    pagekeeper: &'a Program,
    db_bench: Program,
    scratch: &'a Path,
    seconds: u64,
    stop: &'a Stop,
}

/// Runs the benchmark with `RocksDB` or another server; `rounds` comes from the command line.
pub(crate) fn run(run: &mut Run, server: Option<server::Name>, rounds: Option<u16>) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench slows a loop device down and lowers the kernel's dirty limits: it needs root"
    );
    if let Some(name) = server {
        return server::run(run, name, rounds);
    }
    let scale = if run.quick { QUICK } else { FULL };
    let Some(db_bench) = run.peer("db_bench") else {
        // The rest of the benchmark is RocksDB's puts.
        return Ok(());
    };
    run.note(&format!(
        "an ext4 on a loop device held to {} MB/s; dirty limits {} and {} MiB (background, writers); {} s of puts in each sample, at a nice value of -15{}",
        RATE / 1_000_000,
        scale.limits.0 / MIB,
        scale.limits.1 / MIB,
        scale.seconds,
        if run.quick { "; without --quick 64 and 128 MiB, and 40 s" } else { "" }
    ));
    run.note(WHOLE_MACHINE);
    let launcher = ["run", "--profile", "rocksdb", "--"];
    run_process(run.pagekeeper.command().args(launcher).arg("true"))
        .context("pagekeeper run does not work")?;

    run.say("making a slow disk")?;
    // Tables, their copies during merges, and logs not yet removed.
    let bytes = RATE * scale.seconds * 2 + 1024 * MIB;
    let disk = SlowDisk::new(&run.scratch, "ext4", bytes, RATE)?;
    let device = disk.device_number()?;
    let limits = Limits::lower(scale.limits.0, scale.limits.1)?;
    let stop = run.stop.clone();
    let place = SampleSetup {
        disk,
        device,
        pagekeeper: &run.pagekeeper,
        db_bench,
        scratch: run.scratch.path(),
        seconds: scale.seconds,
        stop: &stop,
    };
    let cases = &CASES[..scale.cases];
    let seen: Vec<RefCell<Vec<Sample>>> = cases.iter().map(|_| RefCell::default()).collect();
    let plan = Plan { rounds: usize::from(rounds.unwrap_or(scale.rounds)), until: None, warm_up: false };
    // All subjects of a round put the same keys.
    let (taken, first) = (Cell::new(0), run.random.next_u64() >> 32);
    let began = run.began;
    let mut subjects: Vec<Subject> = cases
        .iter()
        .zip(&seen)
        .map(|(case, seen)| {
            let (place, taken) = (&place, &taken);
            Subject::new(case.name, move || {
                eprintln!("{:>5.1} s  {}", began.elapsed().as_secs_f64(), case.name);
                let round = taken.replace(taken.get() + 1) / cases.len() as u64;
                // A seed of 0 would mean the clock.
                let puts = Puts { seconds: place.seconds, seed: first + round + 1 };
                let sample = place.sample(case, puts)?;
                seen.borrow_mut().push(sample);
                Ok(sample.measured.longest_ms)
            })
        })
        .collect();
    let longest = run_rounds(&mut subjects, plan, &mut run.random, &stop)?;
    drop(subjects);
    drop(place);
    drop(limits);
    let seen: Vec<Vec<Sample>> = seen.into_iter().map(RefCell::into_inner).collect();
    report(run, &longest, &seen);
    Ok(())
}

impl SampleSetup<'_> {
    /// Puts into a new database and removes it at the end.
    fn sample(&self, case: &Case, puts: Puts) -> Result<Sample> {
        let database = self.disk.path().join("database");
        let pagekeeper = self.pagekeeper.path.to_str().context("the path of pagekeeper is not UTF-8")?;
        let launcher = [pagekeeper, "run", "--profile", "rocksdb", "--"];
        let launcher = if case.under_run { &launcher[..] } else { &[] };
        let options = TraceOptions { pages: false, reclaim: false, ..TraceOptions::default() };
        let mut tracer = Tracer::start(&options)?;
        let place = (database.as_path(), &*self.scratch.join("db_bench"));
        let put = || load::put(launcher, &self.db_bench, place, puts, case.options, self.stop);
        let measured = if case.beside_plain { self.beside_plain(put)? } else { put()? };
        let counts = tracer.take()?;
        std::fs::remove_dir_all(&database).context("can't remove the database")?;
        settle(self.disk.path())?;
        Ok(Sample { measured, pauses: pauses_in(&counts, &self.device) })
    }

    /// Runs `put` beside a plain writer; removes the writer's files at the end.
    fn beside_plain(&self, put: impl FnOnce() -> Result<Measured>) -> Result<Measured> {
        let (directory, done) = (self.disk.path().join("plain"), AtomicBool::new(false));
        let (measured, written) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| plain::write(&directory, &done));
            let measured = put();
            done.store(true, Ordering::Relaxed);
            (measured, writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (measured, written) = (measured?, written?);
        std::fs::remove_dir_all(&directory).context("can't remove what the plain writer wrote")?;
        eprintln!(
            "        beside it {} MiB were written, {} ms of the disk's work at a time",
            written / MIB,
            plain::AT_ONCE_MS
        );
        Ok(measured)
    }
}

/// Returns the writer's pauses for this device.
fn pauses_in(counts: &TraceCounts, device: &str) -> Option<Pauses> {
    let all = counts.pauses.as_ref()?;
    let of_writer = all.iter().filter(|pauses| pauses.device == device && pauses.task.name == WRITER);
    let mut sum = Pauses::default();
    for one in of_writer {
        let (count, levels) = (one.pauses.count(), one.levels);
        let mean = |before: f64, bytes: u64| {
            (before * sum.count as f64 + bytes as f64 * count as f64) / (sum.count + count).max(1) as f64
        };
        sum = Pauses {
            elsewhere: mean(sum.elsewhere, levels.dirty.saturating_sub(levels.device_dirty)),
            threshold: mean(sum.threshold, levels.threshold()),
            count: sum.count + count,
            total_ms: sum.total_ms + one.pauses.total().as_secs_f64() * 1e3,
        };
    }
    Some(sum)
}

fn report(run: &mut Run, longest: &[Samples], seen: &[Vec<Sample>]) {
    let figure = |of: &dyn Fn(&Sample) -> f64| -> Vec<Samples> {
        let of_subject = |(samples, seen): (&Samples, &Vec<Sample>)| Samples {
            subject: samples.subject,
            values: seen.iter().map(of).collect(),
        };
        longest.iter().zip(seen).map(of_subject).collect()
    };
    let rates = figure(&|sample| sample.measured.per_second);
    let report = &mut run.report;
    report.add_case("the longest put", Unit::Milliseconds, longest);
    report.add_case("put p99.9", Unit::Microseconds, &figure(&|sample| sample.measured.p999_us));
    report.add_case("put p99.99", Unit::Microseconds, &figure(&|sample| sample.measured.p9999_us));
    report.add_case("puts", Unit::OperationsPerSecond, &rates);
    report.add_ratio("bulk_max_put_vs_default", Unit::Milliseconds, longest, UNDER_RUN, DEFAULT);
    report.add_ratio("bulk_vs_direct", Unit::Milliseconds, longest, UNDER_RUN, DIRECT);
    report.add_ratio("bulk_vs_limit", Unit::Milliseconds, longest, UNDER_RUN, LIMIT);
    report.add_ratio("bulk_limit_vs_direct", Unit::Milliseconds, longest, LIMIT, DIRECT);
    report.add_ratio("bulk_vs_bytes_per_sync", Unit::Milliseconds, longest, UNDER_RUN, BYTES_PER_SYNC);
    report.add_ratio("bulk_throughput", Unit::OperationsPerSecond, &rates, UNDER_RUN, DEFAULT);
    if seen.iter().flatten().any(|sample| sample.pauses.is_none()) {
        run.note("this kernel does not tell how writers are paused: no pauses are shown");
        return;
    }
    let of = |figure: fn(&Pauses) -> f64| move |sample: &Sample| sample.pauses.as_ref().map_or(0.0, figure);
    let pauses = figure(&of(|pauses| pauses.count as f64));
    report.add_case("pauses of the writer", Unit::Count, &pauses);
    let total = figure(&of(|pauses| pauses.total_ms));
    report.add_case("pauses of the writer, together", Unit::Milliseconds, &total);
    let elsewhere = figure(&of(|pauses| pauses.elsewhere / MIB as f64));
    report.add_case("dirty pages of other disks as the writer was paused", Unit::Mib, &elsewhere);
    let disturbed = |sample: &Sample| {
        sample
            .pauses
            .is_some_and(|pauses| pauses.count > 0 && pauses.elsewhere > pauses.threshold * DISTURBED)
    };
    let rounds = seen.first().map_or(0, |ours| ours.iter().filter(|sample| disturbed(sample)).count());
    if rounds > 0 {
        run.note(&format!(
            "DISTURBED: in {rounds} of {} rounds under run the writer was paused while other programs' dirty pages on other disks took much of the limits",
            seen[0].len()
        ));
    }
    if let Some((_, most)) = pauses.first().and_then(|ours| extremes(&ours.values)) {
        run.report.ratios.insert("bulk_writer_pauses", most);
    }
}

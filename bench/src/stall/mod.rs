//! `stall`: small appends to an unsynced log, beside a bulk writer on the same slow disk, in each of the writer's
//! modes.
//!
//! The kernel lets a write into the page cache return at once until much is dirty. Then it delays every writer, whoever
//! made the pages dirty. The subjects are pagekeeper's bulk writer paced and direct, a buffered one, and no bulk writer.
//!
//! Invariants: all subjects use one file system, one rate and one pair of dirty limits; each sample begins with nothing
//! dirty, and its output is verified. Fails with a plain message without root.

mod append;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_bulk::{BulkMode, BulkWriter};
use pagekeeper_testing::{LowDirtyLimits, ThrottledDisk};

use crate::Run;
use crate::data::MIB;
use crate::drive::join;
use crate::latencies::Latencies;
use crate::pattern;
use crate::report::Unit;
use crate::rounds::{Measured, median};
use crate::scratch::Stop;
use crate::slow_device::{self, settle};

/// Write rate of the disk, in bytes per second.
const RATE: u64 = 100_000_000;
/// Dirty bytes at which background writeback begins, and at which writers wait.
const LIMITS: (u64, u64) = (8 * MIB, 16 * MIB);
/// Bytes per call of the bulk writer.
const PIECE: usize = 1 << 20;
/// The second of a quick run by which the last round ends.
const QUICK_END: u64 = 40;

const PACED: &str = "pagekeeper, paced";
const DIRECT: &str = "pagekeeper, direct";
const BUFFERED: &str = "buffered";
const IDLE: &str = "no bulk writer";

/// The subjects, with the mode of the writer beside the log.
const SUBJECTS: [(&str, Option<BulkMode>); 4] = [
    (PACED, Some(BulkMode::Paced)),
    (DIRECT, Some(BulkMode::Direct)),
    (BUFFERED, Some(BulkMode::Buffered)),
    (IDLE, None),
];

/// The surroundings of a sample.
struct SampleSetup<'a> {
    disk: ThrottledDisk,
    window: Duration,
    stop: &'a Stop,
}

/// The figures of a sample.
struct Sample {
    appends: Latencies,
    /// MiB/s of the bulk writer, including its last sync.
    rate: f64,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench slows a loop device down and lowers the kernel's dirty limits: it needs root"
    );
    let window = Duration::from_millis(if run.quick { 2000 } else { 5000 });
    // The largest sample is what the disk writes in a window, plus a reserve.
    let bytes = RATE * window.as_secs() * 2 + 400 * MIB;
    run.say("making a slow disk with an XFS")?;
    let disk = slow_device::new(&run.scratch, "xfs", bytes, RATE)?;
    let subjects = subjects_here(run, &disk)?;
    let limits = LowDirtyLimits::new(LIMITS.0, LIMITS.1);
    run.note(&format!(
        "an XFS on a loop device held to {} MB/s, dirty limits {} and {} MiB; 4 KiB are appended each millisecond and never synced",
        RATE / 1_000_000,
        LIMITS.0 / MIB,
        LIMITS.1 / MIB
    ));
    run.note(
        "the dirty limits are the whole machine's: whatever else writes during the run holds appends up, too",
    );
    let stop = run.stop.clone();
    let setup = SampleSetup { disk, window, stop: &stop };
    let content = run.random.next_u64();
    run.say("appending beside each bulk writer")?;
    let names: Vec<&'static str> = subjects.iter().map(|(name, _)| *name).collect();
    let measured =
        run.measure(&names, run.plan(QUICK_END), |turn| setup.sample(subjects[turn.subject].1, content))?;
    drop(limits);
    report(run, &measured);
    Ok(())
}

/// Returns the subjects that this disk supports.
fn subjects_here(run: &mut Run, disk: &ThrottledDisk) -> Result<Vec<(&'static str, Option<BulkMode>)>> {
    let mut found = Vec::new();
    for (name, mode) in SUBJECTS {
        let path = disk.path().join("probe");
        let requested = mode.unwrap_or(BulkMode::Buffered);
        let probe = BulkWriter::options().mode(requested).create(&path)?;
        std::fs::remove_file(&path).context("can't remove a file")?;
        if probe.mode() == requested {
            found.push((name, mode));
        } else {
            run.note(&format!("left out: {name}: {}", probe.why()));
        }
    }
    Ok(found)
}

impl SampleSetup<'_> {
    /// Appends beside the bulk writer.
    fn sample(&self, mode: Option<BulkMode>, seed: u64) -> Result<Sample> {
        let (log, output) = (self.disk.path().join("log"), self.disk.path().join("output"));
        let ended = AtomicBool::new(false);
        let (appends, rate) = std::thread::scope(|scope| -> Result<_> {
            let appender = scope.spawn(|| append::append_until(&ended, &log, seed));
            let rate = mode.map_or_else(
                || self.stop.sleep(self.window).map(|()| 0.0),
                |mode| self.write_bulk(mode, &output, seed ^ 1),
            );
            // However the bulk writer ends.
            ended.store(true, Ordering::Relaxed);
            Ok((join(appender)?, rate?))
        })?;
        if mode.is_some() {
            std::fs::remove_file(&output).context("can't remove a file")?;
        }
        std::fs::remove_file(&log).context("can't remove a file")?;
        settle(&self.disk)?;
        Ok(Sample { appends, rate })
    }

    /// Writes for the time of a sample, and returns MiB/s until everything was durable.
    fn write_bulk(&self, mode: BulkMode, path: &Path, seed: u64) -> Result<f64> {
        let began = Instant::now();
        let mut piece = vec![0; PIECE];
        pattern::fill(seed, 0, &mut piece);
        let mut output = BulkWriter::options().mode(mode).create(path)?;
        while began.elapsed() < self.window {
            self.stop.check()?;
            piece[..8].copy_from_slice(&output.written().to_le_bytes());
            output.write_all(&piece)?;
        }
        let bytes = output.finish()?.bytes;
        let rate = bytes as f64 / MIB as f64 / began.elapsed().as_secs_f64();
        check(path, bytes, seed)?;
        Ok(rate)
    }
}

/// Checks the length and some pieces; reading everything would take as long as writing it.
fn check(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let file = File::open(path).with_context(|| format!("can't open {}", path.display()))?;
    let found = file.metadata().with_context(|| format!("can't stat {}", path.display()))?.len();
    ensure!(found == bytes, "{} has {found} bytes instead of {bytes}", path.display());
    let mut piece = vec![0; PIECE];
    let pieces = bytes / PIECE as u64;
    for number in [0, pieces / 3, pieces / 2, pieces - 1] {
        let offset = number * PIECE as u64;
        file.read_exact_at(&mut piece, offset).with_context(|| format!("can't read {}", path.display()))?;
        ensure!(piece[..8] == offset.to_le_bytes(), "{}: another piece at {offset}", path.display());
        pattern::check(seed, 8, &piece[8..]).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// An append that takes longer, in microseconds, waits for dirty pages: a wait for a processor is shorter.
const DISTURBED: f64 = 1000.0;

fn report(run: &mut Run, measured: &Measured<Sample>) {
    let of = |percentile| measured.figure(move |sample| sample.appends.us(percentile));
    let p999 = of(99.9);
    let idle =
        p999.iter().find(|samples| samples.subject == IDLE).and_then(|samples| median(&samples.values));
    if let Some(us) = idle.filter(|us| *us > DISTURBED) {
        run.note(&format!(
            "DISTURBED: with no bulk writer at all one of a thousand appends took {:.1} ms: other programs keep the machine at its dirty limits, and this run tells nothing",
            us / 1000.0
        ));
    }
    let report = &mut run.report;
    for (name, percentile) in [("p99.9", 99.9), ("p50", 50.0), ("p99", 99.0), ("longest", 100.0)] {
        report.add_case(&format!("append, {name}"), Unit::Microseconds, &of(percentile));
    }
    let mut rates = measured.figure(|sample| sample.rate);
    rates.retain(|samples| samples.subject != IDLE);
    report.add_case("bulk output", Unit::MibPerSecond, &rates);

    let us = Unit::Microseconds;
    report.add_ratio("stall_p999_paced_vs_buffered", us, &p999, PACED, BUFFERED);
    report.add_ratio("stall_p999_paced_vs_idle", us, &p999, PACED, IDLE);
    report.add_ratio("stall_p999_direct_vs_buffered", us, &p999, DIRECT, BUFFERED);
    report.add_ratio("stall_p999_direct_vs_idle", us, &p999, DIRECT, IDLE);
    report.add_ratio("stall_bulk_vs_buffered", Unit::MibPerSecond, &rates, PACED, BUFFERED);
    report.add_ratio("stall_bulk_direct_vs_buffered", Unit::MibPerSecond, &rates, DIRECT, BUFFERED);
}

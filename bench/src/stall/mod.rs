//! `stall`: small appends to an unsynced log, beside a bulk writer on the same slow disk, in each of the writer's
//! modes.
//!
//! The kernel lets a write into the page cache return at once until much is dirty. Then it delays every writer, whoever
//! made the pages dirty. The subjects are pagekeeper's bulk writer paced, direct and uncached; a buffered one; one that
//! only uses uncached writes, as a program that just sets the flag; and no bulk writer.
//!
//! Invariants: all subjects use one file system, one rate and one pair of dirty limits; each sample begins with nothing
//! dirty, and its output is verified. Fails with a plain message without root.

mod append;
pub(crate) mod disk;
pub(crate) mod limits;

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use pagekeeper_io::{Access, Create, Io, WriteMode};
use pagekeeper_log::{BulkMode, BulkWriter};

use crate::Run;
use crate::data::MIB;
use crate::pattern;
use crate::report::{Curve, Unit};
use crate::rounds::{Samples, Subject, median};
use crate::scratch::Stop;
pub(crate) use append::{Latency, settle};
use disk::SlowDisk;
use limits::Limits;

/// Write rate of the disk, in bytes per second.
const RATE: u64 = 100_000_000;
/// Dirty bytes at which background writeback begins, and at which writers wait.
const LIMITS: (u64, u64) = (8 * MIB, 16 * MIB);
/// Bytes per call of the bulk writer.
const PIECE: usize = 1 << 20;
/// Points of a curve.
const PARTS: usize = 60;

const PACED: &str = "pagekeeper, paced";
const DIRECT: &str = "pagekeeper, direct";
const UNCACHED: &str = "pagekeeper, uncached";
const BUFFERED: &str = "buffered";
const PLAIN: &str = "RWF_DONTCACHE alone";
const IDLE: &str = "no bulk writer";

/// The file system of the slow disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }
}

/// The writer beside the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bulk {
    Mode(BulkMode),
    /// Uncached writes without any pacing.
    Plain,
    None,
}

const SUBJECTS: [(&str, Bulk); 6] = [
    (PACED, Bulk::Mode(BulkMode::Paced)),
    (DIRECT, Bulk::Mode(BulkMode::Direct)),
    (BUFFERED, Bulk::Mode(BulkMode::Buffered)),
    (IDLE, Bulk::None),
    (UNCACHED, Bulk::Mode(BulkMode::Uncached)),
    (PLAIN, Bulk::Plain),
];

/// The surroundings of a sample.
struct SampleSetup<'a> {
    disk: SlowDisk,
    window: Duration,
    io: Arc<dyn Io>,
    stop: &'a Stop,
}

/// The figures of a sample.
#[derive(Debug, Clone, Default)]
struct Sample {
    latency: Latency,
    /// MiB/s of the bulk writer, including its last sync.
    rate: f64,
    /// The longest append of each part of the time.
    curve: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, kind: Kind) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench slows a loop device down and lowers the kernel's dirty limits: it needs root"
    );
    let window = Duration::from_millis(if run.quick { 2000 } else { 5000 });
    // The largest sample is what the disk writes in a window, plus a reserve.
    let bytes = RATE * window.as_secs() * 2 + 400 * MIB;
    run.say(&format!("making a slow disk with {}", kind.name()))?;
    let disk = SlowDisk::new(&run.scratch, kind.name(), bytes, RATE)?;
    let io = pagekeeper_io::best();
    let subjects = subjects_here(run, &disk, &io)?;
    let limits = Limits::lower(LIMITS.0, LIMITS.1)?;
    run.note(&format!(
        "{} on a loop device held to {} MB/s, dirty limits {} and {} MiB; 4 KiB are appended each millisecond and never synced",
        kind.name(),
        RATE / 1_000_000,
        LIMITS.0 / MIB,
        LIMITS.1 / MIB
    ));
    run.note(
        "the dirty limits are the whole machine's: whatever else writes during the run holds appends up, too",
    );
    let stop = run.stop.clone();
    let place = SampleSetup { disk, window, io, stop: &stop };
    let seen: Vec<RefCell<Vec<Sample>>> = subjects.iter().map(|_| RefCell::default()).collect();
    let content = run.random.next_u64();
    let place = &place;
    let mut measured: Vec<Subject> = subjects
        .iter()
        .zip(&seen)
        .map(|(&(name, bulk), seen)| {
            Subject::new(name, move || {
                let sample = place.sample(bulk, content)?;
                let p999 = sample.latency.p999;
                seen.borrow_mut().push(sample);
                Ok(p999)
            })
        })
        .collect();
    run.say("appending beside each bulk writer")?;
    let p999 = run.rounds(&mut measured, 40)?;
    drop(measured);
    drop(limits);
    let seen: Vec<Vec<Sample>> = seen
        .into_iter()
        .zip(&p999)
        // The first round does not count, and an unfinished one left no sample of the others.
        .map(|(seen, p999)| seen.into_inner().into_iter().skip(1).take(p999.values.len()).collect())
        .collect();
    report(run, window, &p999, &seen);
    Ok(())
}

/// Returns the subjects that this disk supports.
fn subjects_here(run: &mut Run, disk: &SlowDisk, io: &Arc<dyn Io>) -> Result<Vec<(&'static str, Bulk)>> {
    let mut found = Vec::new();
    let few = if run.quick { 4 } else { SUBJECTS.len() };
    for &(name, bulk) in &SUBJECTS[..few] {
        let requested = match bulk {
            Bulk::Mode(mode) => mode,
            Bulk::Plain => BulkMode::Uncached,
            Bulk::None => BulkMode::Buffered,
        };
        let path = disk.path().join("probe");
        let probe = BulkWriter::options().mode(requested).io(Arc::clone(io)).create(&path)?;
        std::fs::remove_file(&path).context("can't remove a file")?;
        if probe.mode() == requested {
            found.push((name, bulk));
        } else {
            run.note(&format!("left out: {name}: {}", probe.why()));
        }
    }
    Ok(found)
}

impl SampleSetup<'_> {
    /// Appends beside the bulk writer.
    fn sample(&self, bulk: Bulk, seed: u64) -> Result<Sample> {
        let (log, output) = (self.disk.path().join("log"), self.disk.path().join("output"));
        let ended = AtomicBool::new(false);
        let began = Instant::now();
        let (appends, rate) = std::thread::scope(|scope| -> Result<_> {
            let appender = scope.spawn(|| append::append_until(&ended, &log, seed));
            // However the bulk writer ends.
            let rate = self.write_bulk(bulk, &output, seed ^ 1);
            ended.store(true, Ordering::Relaxed);
            let appends = appender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((appends, rate?))
        })?;
        let seconds = began.elapsed().as_secs_f64();
        if bulk != Bulk::None {
            std::fs::remove_file(&output).context("can't remove a file")?;
        }
        std::fs::remove_file(&log).context("can't remove a file")?;
        settle(self.disk.path())?;
        Ok(Sample {
            latency: Latency::of(&appends),
            rate,
            curve: append::longest_of_parts(&appends, seconds, PARTS),
        })
    }

    /// Writes for the time of a sample, and returns MiB/s until everything was durable.
    fn write_bulk(&self, bulk: Bulk, path: &Path, seed: u64) -> Result<f64> {
        let began = Instant::now();
        let mut piece = vec![0; PIECE];
        pattern::fill(seed, 0, &mut piece);
        let bytes = match bulk {
            Bulk::None => {
                self.stop.sleep(self.window)?;
                return Ok(0.0);
            }
            Bulk::Mode(mode) => {
                let mut output = BulkWriter::options().mode(mode).io(Arc::clone(&self.io)).create(path)?;
                while began.elapsed() < self.window {
                    self.stop.check()?;
                    number_piece(&mut piece, output.written());
                    output.write_all(&piece)?;
                }
                output.finish()?.bytes
            }
            Bulk::Plain => {
                let file = self.io.open_writable(path, Access::Buffered, Create::New)?;
                let mut bytes = 0;
                while began.elapsed() < self.window {
                    self.stop.check()?;
                    number_piece(&mut piece, bytes);
                    file.write_at(bytes, &piece, WriteMode::Uncached)?;
                    bytes += PIECE as u64;
                }
                file.sync_data()?;
                bytes
            }
        };
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

/// Writes its offset into a piece.
fn number_piece(piece: &mut [u8], offset: u64) {
    piece[..8].copy_from_slice(&offset.to_le_bytes());
}

/// A figure of a latency: its name, and how to get it.
type Figure = (&'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 3] = [
    ("append p50", |sample| sample.latency.p50),
    ("append p99", |sample| sample.latency.p99),
    ("longest append", |sample| sample.latency.longest / 1e3),
];

/// An append that takes longer, in microseconds, waits for dirty pages: a wait for a processor is shorter.
const DISTURBED: f64 = 1000.0;

fn report(run: &mut Run, window: Duration, p999: &[Samples], seen: &[Vec<Sample>]) {
    let idle =
        p999.iter().find(|samples| samples.subject == IDLE).and_then(|samples| median(&samples.values));
    if let Some(us) = idle.filter(|us| *us > DISTURBED) {
        run.note(&format!(
            "DISTURBED: with no bulk writer at all one of a thousand appends took {:.1} ms: other programs keep the machine at its dirty limits, and this run tells nothing",
            us / 1000.0
        ));
    }
    let figure = |of: fn(&Sample) -> f64| -> Vec<Samples> {
        let of_subject = |(samples, seen): (&Samples, &Vec<Sample>)| Samples {
            subject: samples.subject,
            values: seen.iter().map(of).collect(),
        };
        p999.iter().zip(seen).map(of_subject).collect()
    };
    let report = &mut run.report;
    report.add_case("append p99.9", Unit::Microseconds, p999);
    for (name, of) in FIGURES {
        let unit = if name.starts_with("longest") { Unit::Milliseconds } else { Unit::Microseconds };
        report.add_case(name, unit, &figure(of));
    }
    let mut rates = figure(|sample| sample.rate);
    rates.retain(|samples| samples.subject != IDLE);
    report.add_case("bulk output", Unit::MibPerSecond, &rates);

    let us = Unit::Microseconds;
    report.add_ratio("stall_p999_paced_vs_buffered", us, p999, PACED, BUFFERED);
    report.add_ratio("stall_p999_paced_vs_idle", us, p999, PACED, IDLE);
    report.add_ratio("stall_p999_direct_vs_buffered", us, p999, DIRECT, BUFFERED);
    report.add_ratio("stall_p999_direct_vs_idle", us, p999, DIRECT, IDLE);
    report.add_ratio("stall_p999_uncached_vs_plain", us, p999, UNCACHED, PLAIN);
    report.add_ratio("stall_bulk_vs_buffered", Unit::MibPerSecond, &rates, PACED, BUFFERED);
    report.add_ratio("stall_bulk_direct_vs_buffered", Unit::MibPerSecond, &rates, DIRECT, BUFFERED);

    for (samples, seen) in p999.iter().zip(seen) {
        let Some(last) = seen.last() else { continue };
        report.curves.push(Curve {
            case: format!(
                "the last round's longest append in each {} ms, in us",
                window.as_millis() / PARTS as u128
            ),
            subject: samples.subject.to_owned(),
            points: last.curve.iter().enumerate().map(|(part, us)| (label(part), *us)).collect(),
        });
    }
}

/// Returns the position of a curve's point in the sample's time.
fn label(part: usize) -> &'static str {
    match part * 4 {
        0 => "begin",
        PARTS => "1/4",
        half if half == 2 * PARTS => "1/2",
        most if most == 3 * PARTS => "3/4",
        last if last == 4 * (PARTS - 1) => "end",
        _ => "",
    }
}

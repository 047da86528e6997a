//! `log`: records through the redo log and the binlog beside plain files, raft-engine, `RocksDB`'s log, and fio.
//!
//! *Volume*: one thread appends 64 KiB at a time, synced each MiB or never. *Commits*: threads wait until 512 bytes are
//! durable, in a loop. Every sample has a log of its own in an empty directory, whose content is checked at the end.
//! Invariants: every subject syncs at the same points; acknowledged records are found again in our logs; resident bytes
//! are counted while the log is still open. Fails where a log fails or holds other records.

mod commits;
pub(crate) mod fio;
mod ours;
mod plain;
#[cfg(feature = "raft-engine")]
mod raft;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;
#[cfg(test)]
mod tests;
mod volume;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::Run;
use crate::data::{GIB, MIB};
use crate::image::Image;
use crate::report::{Report, Unit};
use crate::rounds::{Samples, Subject};

/// A log to measure, which is closed on drop.
pub(super) trait Log: Send + Sync {
    /// Appends a record; with `sync` it returns when this record and all before it are durable.
    fn append(&self, body: &[u8], sync: bool) -> Result<()>;

    /// Hands all appended records to the kernel without making them durable.
    fn hand_over(&self) -> Result<()> {
        Ok(())
    }
}

/// The use for which a log is created.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// Approximate bytes that will be appended; 0 if unknown.
    bytes: u64,
    /// Whether anything will be synced.
    synced: bool,
}

/// A function that creates a log in an empty directory.
type Make = fn(&Path, Load) -> Result<Box<dyn Log>>;

/// A function that passes all records of a log's directory to the closure, in the order of their appends.
type Check = fn(&Path, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

/// A kind of log.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    make: Make,
    /// `None` for logs that this benchmark cannot read.
    check: Option<Check>,
}

/// The parent of a directory that is new for each sample.
struct SampleDirectory {
    parent: PathBuf,
}

impl SampleDirectory {
    /// Runs `measure` in an empty directory and removes the directory at the end.
    fn fresh<T>(&self, measure: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let dir = tempfile::tempdir_in(&self.parent)
            .with_context(|| format!("can't make a directory in {}", self.parent.display()))?;
        measure(dir.path())
    }
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let parent = run.scratch.path().to_path_buf();
    let volume = if run.quick { 192 * MIB } else { 2 * GIB };
    run.scratch.require_space(2 * volume)?;
    if cfg!(feature = "raft-engine") {
        run.report.machine.versions.insert("raft-engine".to_owned(), "0.4".to_owned());
    } else {
        run.note("built without the feature raft-engine: left out");
    }
    #[cfg(feature = "rocksdb")]
    run.report.machine.versions.insert("rocksdb".to_owned(), crate::hit::rocksdb::version());
    if !cfg!(feature = "rocksdb") {
        run.note("built without the feature rocksdb: left out");
    }
    run.note("raft-engine and RocksDB put each record into a memtable, too, as their users do; plain files, fio and ours do not");
    let fio = run.peer("fio");
    let place = SampleDirectory { parent };
    volume::run(run, &place, fio.as_ref(), volume, None)?;
    commits::run(run, &place, fio.as_ref(), None)?;
    if run.quick {
        run.note("left out of a quick run: XFS, the single modes of writing, and what is never synced");
        return Ok(());
    }
    match Image::new(&run.scratch, "xfs", 3 * volume) {
        Ok(image) => {
            let place = SampleDirectory { parent: image.path().to_path_buf() };
            volume::run(run, &place, fio.as_ref(), volume, Some("XFS"))?;
            commits::run(run, &place, fio.as_ref(), Some("XFS"))?;
        }
        Err(error) => run.note(&format!("no XFS on a loop device: {error:#}")),
    }
    Ok(())
}

/// Returns a case's name, with the file system where it is another.
fn case_name(what: &str, on: Option<&str>) -> String {
    on.map_or_else(|| what.to_owned(), |on| format!("{what}, {on}"))
}

/// A sample of a subject: its rate, the latencies of calls, and the resident bytes.
struct Sample {
    rate: f64,
    took: Histogram<u64>,
    resident: u64,
}

/// The rates of all subjects, and the samples of each kind of log.
type Compared = (Vec<Samples>, Vec<(&'static str, Vec<Sample>)>);

/// Measures kinds of logs in turn, each sample in a directory of its own, and `limit` beside them.
fn compare<'a>(
    run: &mut Run,
    place: &'a SampleDirectory,
    kinds: &[Kind],
    limit: Option<Subject<'a>>,
    quick_end: u64,
    one: impl Fn(Kind, &Path) -> Result<Sample>,
) -> Result<Compared> {
    let one = &one;
    let seen: Vec<RefCell<Vec<Sample>>> = kinds.iter().map(|_| RefCell::default()).collect();
    let of_kind = |(kind, seen): (&Kind, _)| {
        let (kind, seen): (Kind, &RefCell<Vec<Sample>>) = (*kind, seen);
        Subject::new(kind.name, move || {
            let sample = place.fresh(|dir| one(kind, dir))?;
            let rate = sample.rate;
            seen.borrow_mut().push(sample);
            Ok(rate)
        })
    };
    let mut subjects: Vec<Subject<'_>> = kinds.iter().zip(&seen).map(of_kind).chain(limit).collect();
    let rates = run.rounds(&mut subjects, quick_end)?;
    drop(subjects);
    let rounds = rates.first().map_or(0, |first| first.values.len());
    let seen = kinds.iter().zip(seen).map(|(kind, seen)| {
        // The uncounted round went first.
        let mut samples = seen.into_inner();
        samples.drain(..samples.len().saturating_sub(rounds));
        (kind.name, samples)
    });
    Ok((rates, seen.collect()))
}

/// A figure of the calls: its name, and how to get it from a sample, in microseconds.
type Figure = (&'static str, fn(&Sample) -> f64);

fn percentile_us(sample: &Sample, percent: f64) -> f64 {
    sample.took.value_at_percentile(percent) as f64 / 1e3
}

const FIGURES: [Figure; 4] = [
    ("p50", |sample| percentile_us(sample, 50.0)),
    ("p99", |sample| percentile_us(sample, 99.0)),
    ("p99.9", |sample| percentile_us(sample, 99.9)),
    ("longest", |sample| sample.took.max() as f64 / 1e3),
];

/// Adds call latencies and resident bytes.
fn add_figures(report: &mut Report, case: &str, call: &str, seen: &[(&'static str, Vec<Sample>)]) {
    let of = |figure: &dyn Fn(&Sample) -> f64| -> Vec<Samples> {
        seen.iter()
            .map(|(subject, samples)| Samples { subject, values: samples.iter().map(figure).collect() })
            .collect()
    };
    for (label, figure) in FIGURES {
        report.add_case(&format!("{case}: {call}, {label}"), Unit::Microseconds, &of(&figure));
    }
    let mib = |sample: &Sample| sample.resident as f64 / MIB as f64;
    report.add_case(&format!("{case}: resident at the end"), Unit::Mib, &of(&mib));
}

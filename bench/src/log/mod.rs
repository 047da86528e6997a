//! `log`: records through the redo log and the binlog beside plain files, raft-engine, `RocksDB`'s
//! log, and fio.
//!
//! *Volume*: one thread appends 64 KiB at a time, synced each MiB. *Commits*: threads wait until
//! 512 bytes are durable, in a loop. Every sample has a log of its own in an empty directory, whose
//! content is checked at the end. Invariants: every subject syncs at the same points; acknowledged
//! records are found again in our logs; resident bytes are counted while the log is still open.
//! Fails where a log fails or holds other records.

mod commits;
pub(crate) mod fio;
mod ours;
mod plain;
#[cfg(feature = "raft-engine")]
mod raft;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(test)]
mod tests;
mod volume;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::BenchRun;
use crate::data::{GIB, MIB};
use crate::latencies::Latencies;
use crate::report::{FigureUnit, Report};
use crate::rounds::MeasuredSamples;

/// A log to measure, which is closed on drop.
pub(super) trait MeasuredLog: Send + Sync {
    /// Appends a record; with `sync` it returns when this record and all before it are durable.
    fn append(&self, body: &[u8], sync: bool) -> Result<()>;

    /// Hands all appended records to the kernel without making them durable.
    fn hand_over(&self) -> Result<()> {
        Ok(())
    }
}

/// The use for which a log is created.
#[derive(Debug, Clone, Copy)]
struct LogLoad {
    /// Approximate bytes that will be appended; 0 if unknown.
    bytes: u64,
}

/// A function that creates a log in an empty directory.
type LogMaker = fn(&Path, LogLoad) -> Result<Box<dyn MeasuredLog>>;

/// A function that passes all records of a log's directory to the closure, in the order of their
/// appends.
type LogCheck = fn(&Path, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

/// A kind of log.
#[derive(Clone, Copy)]
struct LogKind {
    name: &'static str,
    make: LogMaker,
    /// `None` for logs that this benchmark cannot read.
    check: Option<LogCheck>,
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
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    let parent = run.scratch.path().to_path_buf();
    let volume = if run.quick { 192 * MIB } else { 2 * GIB };
    run.scratch.require_space(2 * volume)?;
    if cfg!(feature = "raft-engine") {
        run.report.machine.versions.insert("raft-engine".to_owned(), "0.4".to_owned());
    } else {
        run.note("built without the feature raft-engine: left out");
    }
    #[cfg(feature = "rocksdb")]
    run.report.machine.versions.insert("rocksdb".to_owned(), crate::rocksdb::version());
    if !cfg!(feature = "rocksdb") {
        run.note("built without the feature rocksdb: left out");
    }
    run.note("raft-engine and RocksDB put each record into a memtable, too, as their users do; plain files, fio and ours do not");
    let fio = run.peer("fio");
    let place = SampleDirectory { parent };
    volume::run(run, &place, fio.as_ref(), volume)?;
    commits::run(run, &place, fio.as_ref())
}

/// A sample of a subject: its rate, the latencies of calls, and the resident bytes; fio's has a
/// rate alone.
struct LogSample {
    rate: f64,
    took: Latencies,
    resident: u64,
}

impl LogSample {
    fn of_limit(rate: f64) -> Self {
        Self { rate, took: Latencies::new(), resident: 0 }
    }
}

const LATENCY_PERCENTILES: [(&str, f64); 4] =
    [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9), ("longest", 100.0)];

/// Adds rates, call latencies and resident bytes; `limit` has only a rate.
fn add_case(
    report: &mut Report,
    case: &str,
    unit: FigureUnit,
    call: &str,
    measured: &MeasuredSamples<LogSample>,
    limit: &str,
) {
    report.add_case(case, unit, &measured.figure(|sample| sample.rate));
    let of = |figure: &dyn Fn(&LogSample) -> f64| {
        let mut samples = measured.figure(figure);
        samples.retain(|samples| samples.subject != limit);
        samples
    };
    for (label, percentile) in LATENCY_PERCENTILES {
        let took = of(&|sample| sample.took.us(percentile));
        report.add_case(&format!("{case}: {call}, {label}"), FigureUnit::Microseconds, &took);
    }
    let resident = of(&|sample| sample.resident as f64 / MIB as f64);
    report.add_case(&format!("{case}: resident at the end"), FigureUnit::Mib, &resident);
}

//! One thread that appends a volume, 64 KiB at a time.
//!
//! Each MiB is synced, and the time ends when everything is durable. Each record holds its number,
//! which is compared when the log is read again. Fails as the logs do.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{LogKind, LogLoad, LogSample, SampleDirectory, add_case, fio, ours, plain};
use crate::BenchRun;
use crate::data::{MIB, resident_in};
use crate::latencies::Latencies;
use crate::peers::InstalledProgram;
use crate::report::FigureUnit;

/// Bytes of a record.
pub(super) const VOLUME_RECORD_BYTES: usize = 64 << 10;
const VOLUME_LOG_KINDS: [LogKind; 4] = [ours::REDO_LOG, plain::PLAIN_RING, ours::BINLOG, plain::PLAIN_FILES];
/// The second by which a quick run's last round ends.
const VOLUME_QUICK_END_SECONDS: u64 = 22;

/// Measures the case.
pub(super) fn run(
    run: &mut BenchRun,
    place: &SampleDirectory,
    limit: Option<&InstalledProgram>,
    volume: u64,
) -> Result<()> {
    let name = format!("{} MiB in records of 64 KiB, synced each MiB", volume / MIB);
    run.say(&name)?;
    let load = LogLoad { bytes: volume };
    let names: Vec<&'static str> =
        VOLUME_LOG_KINDS.iter().map(|kind| kind.name).chain(limit.map(|_| fio::FIO_VOLUME_NAME)).collect();
    let measured = run.measure(&names, run.plan(VOLUME_QUICK_END_SECONDS), |turn| {
        place.fresh(|dir| match (VOLUME_LOG_KINDS.get(turn.subject), limit) {
            (None, Some(fio)) => Ok(LogSample::of_limit(fio::volume(fio, dir, volume)?)),
            (kind, _) => one(*kind.unwrap_or(&ours::REDO_LOG), dir, load),
        })
    })?;
    let (report, unit) = (&mut run.report, FigureUnit::MibPerSecond);
    add_case(report, &name, unit, "one append", &measured, fio::FIO_VOLUME_NAME);
    let rates = measured.figure(|sample| sample.rate);
    report.add_ratio("log_redo_vs_buffered", unit, &rates, ours::REDO_LOG.name, plain::PLAIN_RING.name);
    report.add_ratio("log_bin_vs_buffered", unit, &rates, ours::BINLOG.name, plain::PLAIN_FILES.name);
    let logs = [ours::REDO_LOG, ours::BINLOG].map(|kind| measured.of(kind.name));
    if let Some(most) = logs.into_iter().flatten().map(|sample| sample.resident).max() {
        report.ratios.insert("log_resident_mib", most as f64 / MIB as f64);
    }
    Ok(())
}

/// Writes a record's number into its first words.
fn mark(record: &mut [u8], number: u64) {
    record[..8].copy_from_slice(&number.to_le_bytes());
    let end = record.len() - 8;
    record[end..].copy_from_slice(&(!number).to_le_bytes());
}

pub(super) fn one(kind: LogKind, dir: &std::path::Path, load: LogLoad) -> Result<LogSample> {
    let log = (kind.make)(dir, load)?;
    let mut record = vec![0xa5; VOLUME_RECORD_BYTES];
    let records = load.bytes / VOLUME_RECORD_BYTES as u64;
    let each = MIB / VOLUME_RECORD_BYTES as u64;
    let mut took = Latencies::new();
    let began = Instant::now();
    for number in 0..records {
        mark(&mut record, number);
        let start = Instant::now();
        log.append(&record, number % each == each - 1)?;
        took.record(start.elapsed());
    }
    log.hand_over()?;
    let seconds = began.elapsed().as_secs_f64();
    let resident = resident_in(dir)?;
    drop(log);
    if let Some(check) = kind.check {
        let mut last = None;
        check(dir, &mut |body| {
            ensure!(body.len() == VOLUME_RECORD_BYTES, "a record of {} bytes", body.len());
            let number = u64::from_le_bytes(*body.first_chunk().unwrap_or(&[0; 8]));
            ensure!(last.is_none_or(|last| number == last + 1), "record {number} after {last:?}");
            ensure!(body.ends_with(&(!number).to_le_bytes()), "record {number} is garbled");
            last = Some(number);
            Ok(())
        })?;
        ensure!(last == Some(records - 1), "the last record found is {last:?} of {records}");
    }
    Ok(LogSample { rate: load.bytes as f64 / MIB as f64 / seconds, took, resident })
}

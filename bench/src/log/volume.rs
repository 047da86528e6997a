//! One thread that appends a volume, 64 KiB at a time.
//!
//! The time ends when the kernel has everything, or, where each MiB is synced, when everything is durable. Each record
//! holds its number, which is compared when the log is read again. Fails as the logs do.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{Kind, Load, Sample, SampleDirectory, add_figures, case_name, compare, fio, ours, plain};
use crate::Run;
use crate::data::{MIB, resident_in};
use crate::gauges::latencies;
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::Subject;

/// Bytes of a record.
pub(super) const RECORD: usize = 64 << 10;

/// Measures all cases.
pub(super) fn run(
    run: &mut Run,
    place: &SampleDirectory,
    program: Option<&Program>,
    volume: u64,
    on: Option<&str>,
) -> Result<()> {
    let cases: &[bool] = if run.quick { &[true] } else { &[true, false] };
    for &synced in cases {
        let what = if synced { "synced each MiB" } else { "never synced" };
        let name = case_name(&format!("{} MiB in records of 64 KiB, {what}", volume / MIB), on);
        run.say(&name)?;
        let load = Load { bytes: volume, synced };
        let mut kinds = vec![ours::REDO, plain::RING, ours::BIN, plain::FILES];
        if !run.quick {
            kinds.extend(ours::REDO_MODES);
            kinds.extend(ours::BIN_MODES);
            #[cfg(feature = "raft-engine")]
            kinds.push(super::raft::KIND);
            #[cfg(feature = "rocksdb")]
            kinds.push(super::rocksdb::KIND);
        }
        let limit = program.map(|program| {
            Subject::new(fio::VOLUME, move || place.fresh(|dir| fio::volume(program, dir, volume, synced)))
        });
        let (rates, seen) = compare(run, place, &kinds, limit, 22, |kind, dir| one(kind, dir, load))?;
        run.report.add_case(&name, Unit::MibPerSecond, &rates);
        add_figures(&mut run.report, &name, "one append", &seen);
        if synced && on.is_none() {
            let unit = Unit::MibPerSecond;
            run.report.add_ratio("log_redo_vs_buffered", unit, &rates, ours::REDO.name, plain::RING.name);
            run.report.add_ratio("log_bin_vs_buffered", unit, &rates, ours::BIN.name, plain::FILES.name);
            let logs = seen.iter().filter(|(name, _)| [ours::REDO.name, ours::BIN.name].contains(name));
            let most = logs.flat_map(|(_, samples)| samples).map(|sample| sample.resident).max();
            if let Some(most) = most {
                run.report.ratios.insert("log_resident_mib", most as f64 / MIB as f64);
            }
        }
    }
    Ok(())
}

/// Writes a record's number into its first words.
fn mark(record: &mut [u8], number: u64) {
    record[..8].copy_from_slice(&number.to_le_bytes());
    let end = record.len() - 8;
    record[end..].copy_from_slice(&(!number).to_le_bytes());
}

pub(super) fn one(kind: Kind, dir: &std::path::Path, load: Load) -> Result<Sample> {
    let log = (kind.make)(dir, load)?;
    let mut record = vec![0xa5; RECORD];
    let records = load.bytes / RECORD as u64;
    let each = MIB / RECORD as u64;
    let mut took = latencies();
    let began = Instant::now();
    for number in 0..records {
        mark(&mut record, number);
        let start = Instant::now();
        log.append(&record, load.synced && number % each == each - 1)?;
        took.saturating_record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    log.hand_over()?;
    let seconds = began.elapsed().as_secs_f64();
    let resident = resident_in(dir)?;
    drop(log);
    if let Some(check) = kind.check {
        let mut last = None;
        check(dir, &mut |body| {
            ensure!(body.len() == RECORD, "a record of {} bytes", body.len());
            let number = u64::from_le_bytes(*body.first_chunk().unwrap_or(&[0; 8]));
            ensure!(last.is_none_or(|last| number == last + 1), "record {number} after {last:?}");
            ensure!(body.ends_with(&(!number).to_le_bytes()), "record {number} is garbled");
            last = Some(number);
            Ok(())
        })?;
        // Records that were never synced need not survive a crash, but a close writes them.
        ensure!(last == Some(records - 1), "the last record found is {last:?} of {records}");
    }
    Ok(Sample { rate: load.bytes as f64 / MIB as f64 / seconds, took, resident })
}

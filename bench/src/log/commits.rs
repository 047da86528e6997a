//! Threads that append 512 bytes and wait until they are durable, in a loop.
//!
//! Each record names its thread and its number. Acknowledged records must be found when the log is
//! read again. Fails as the logs do.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{LogKind, LogLoad, LogSample, SampleDirectory, add_case, fio, ours, plain};
use crate::BenchRun;
use crate::data::resident_in;
use crate::drive::join;
use crate::latencies::Latencies;
use crate::peers::InstalledProgram;
use crate::report::FigureUnit;
use crate::rounds::{SubjectSamples, median};

/// Bytes of a record.
const COMMIT_RECORD_BYTES: usize = 512;
/// Threads, and the ratio to the best other log.
const LOG_COMMIT_CASES: [(usize, &str); 2] =
    [(32, "log_commits_32T_vs_best_peer"), (1, "log_commits_1T_vs_best_peer")];
pub(super) const COMMIT_LOG_KINDS: &[LogKind] = &[
    ours::REDO_LOG,
    ours::BINLOG,
    plain::PLAIN_FILES,
    #[cfg(feature = "raft-engine")]
    super::raft::RAFT_ENGINE_LOG,
    #[cfg(feature = "rocksdb")]
    super::rocksdb::ROCKSDB_LOG,
];

/// Measures all cases.
pub(super) fn run(
    run: &mut BenchRun,
    place: &SampleDirectory,
    limit: Option<&InstalledProgram>,
) -> Result<()> {
    let duration = Duration::from_millis(if run.quick { 400 } else { 2000 });
    let names: Vec<&'static str> =
        COMMIT_LOG_KINDS.iter().map(|kind| kind.name).chain(limit.map(|_| fio::FIO_COMMITS_NAME)).collect();
    for (index, (threads, ratio)) in LOG_COMMIT_CASES.into_iter().enumerate() {
        let plural = if threads == 1 { "" } else { "s" };
        let name = format!("durable commits of 512 bytes, {threads} thread{plural}");
        run.say(&name)?;
        let measured = run.measure(&names, run.plan(32 + 10 * index as u64), |turn| {
            place.fresh(|dir| match (COMMIT_LOG_KINDS.get(turn.subject), limit) {
                (None, Some(fio)) => Ok(LogSample::of_limit(fio::commits(fio, dir, duration)?)),
                (kind, _) => one(*kind.unwrap_or(&ours::REDO_LOG), dir, threads, duration),
            })
        })?;
        add_case(
            &mut run.report,
            &name,
            FigureUnit::CommitsPerSecond,
            "one commit",
            &measured,
            fio::FIO_COMMITS_NAME,
        );
        add_ratio_to_best(run, ratio, &measured.figure(|sample| sample.rate));
    }
    Ok(())
}

/// Adds the ratio to the best other log; plain files are a peer, too.
fn add_ratio_to_best(run: &mut BenchRun, name: &'static str, rates: &[SubjectSamples]) {
    let none = [ours::REDO_LOG.name, ours::BINLOG.name, fio::FIO_COMMITS_NAME];
    let peers = rates.iter().filter(|samples| !none.contains(&samples.subject));
    let middle = |samples: &&SubjectSamples| median(&samples.values).unwrap_or(0.0);
    if let Some(best) = peers.max_by(|a, b| middle(a).total_cmp(&middle(b))) {
        run.report.add_ratio(name, FigureUnit::CommitsPerSecond, rates, ours::REDO_LOG.name, best.subject);
    }
}

fn one(kind: LogKind, dir: &Path, threads: usize, duration: Duration) -> Result<LogSample> {
    let owned = (kind.make)(dir, LogLoad { bytes: 0 })?;
    let (start, over) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let (log, start, over) = (&*owned, &start, &over);
    let (seconds, ended) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut body = [thread.to_le_bytes()[0]; COMMIT_RECORD_BYTES];
                    let (mut took, mut count) = (Latencies::new(), 0_u64);
                    start.wait();
                    while !over.load(Ordering::Relaxed) {
                        body[8..16].copy_from_slice(&count.to_le_bytes());
                        let began = Instant::now();
                        log.append(&body, true)?;
                        took.record(began.elapsed());
                        count += 1;
                    }
                    Ok((took, count))
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(duration);
        let seconds = began.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        (seconds, workers.into_iter().map(join).collect::<Result<Vec<_>>>())
    });
    let ended = ended?;
    let resident = resident_in(dir)?;
    drop(owned);
    let counts: Vec<u64> = ended.iter().map(|(_, count)| *count).collect();
    let mut took = Latencies::new();
    for (of_thread, _) in &ended {
        took.add(of_thread);
    }
    check(kind, dir, &counts)?;
    Ok(LogSample { rate: counts.iter().sum::<u64>() as f64 / seconds, took, resident })
}

/// Fails unless each thread's records are there in their order, except those whose log space was
/// freed before.
fn check(kind: LogKind, dir: &Path, counts: &[u64]) -> Result<()> {
    let Some(check) = kind.check else { return Ok(()) };
    let mut next = vec![None; counts.len()];
    check(dir, &mut |body| {
        ensure!(body.len() == COMMIT_RECORD_BYTES, "a record of {} bytes", body.len());
        let number = u64::from_le_bytes(body[8..16].try_into()?);
        let thread = next.get_mut(usize::from(body[0])).context("a record of no thread")?;
        ensure!(thread.is_none_or(|next| next == number), "record {number} where {thread:?} should be");
        *thread = Some(number + 1);
        Ok(())
    })?;
    let ends: Vec<u64> = next.into_iter().map(Option::unwrap_or_default).collect();
    ensure!(ends == counts, "records end at {ends:?}, acknowledged were {counts:?}");
    Ok(())
}

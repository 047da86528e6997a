//! Threads that append 512 bytes and wait until they are durable, in a loop.
//!
//! Each record names its thread and its number. Acknowledged records must be found when the log is read again. Fails as
//! the logs do.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Kind, Load, Sample, SampleDirectory, add_figures, case_name, compare, fio, ours, plain};
use crate::Run;
use crate::data::resident_in;
use crate::gauges::latencies;
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::{Samples, Subject};

/// Bytes of a record.
const RECORD: usize = 512;

/// Measures all cases.
pub(super) fn run(
    run: &mut Run,
    place: &SampleDirectory,
    program: Option<&Program>,
    on: Option<&str>,
) -> Result<()> {
    let duration = Duration::from_millis(if run.quick { 400 } else { 2000 });
    let cases: [(usize, &'static str); 2] = match on {
        None => [(32, "log_commits_32T_vs_best_peer"), (1, "log_commits_1T_vs_best_peer")],
        Some(_) => [(32, "log_commits_32T_xfs_vs_best_peer"), (1, "log_commits_1T_xfs_vs_best_peer")],
    };
    for (index, (threads, ratio)) in cases.into_iter().enumerate() {
        let plural = if threads == 1 { "" } else { "s" };
        let name = case_name(&format!("durable commits of 512 bytes, {threads} thread{plural}"), on);
        run.say(&name)?;
        let mut kinds = vec![ours::REDO, ours::BIN, plain::FILES];
        #[cfg(feature = "raft-engine")]
        kinds.push(super::raft::KIND);
        #[cfg(feature = "rocksdb")]
        kinds.push(super::rocksdb::KIND);
        if !run.quick {
            kinds.extend(ours::REDO_MODES);
            kinds.extend(ours::BIN_MODES);
        }
        let limit = program.map(|program| {
            Subject::new(fio::COMMITS, move || place.fresh(|dir| fio::commits(program, dir, duration)))
        });
        let quick_end = 32 + 10 * index as u64;
        let (rates, seen) =
            compare(run, place, &kinds, limit, quick_end, |kind, dir| one(kind, dir, threads, duration))?;
        run.report.add_case(&name, Unit::CommitsPerSecond, &rates);
        add_figures(&mut run.report, &name, "one commit", &seen);
        add_ratio_to_best(run, ratio, &rates);
    }
    Ok(())
}

/// Adds the ratio to the best other log; plain files are a peer, too.
fn add_ratio_to_best(run: &mut Run, name: &'static str, rates: &[Samples]) {
    let peers = rates.iter().filter(|samples| {
        let modes = ours::REDO_MODES.iter().chain(&ours::BIN_MODES);
        let ours = [ours::REDO, ours::BIN].iter().chain(modes).any(|kind| kind.name == samples.subject);
        !ours && samples.subject != fio::COMMITS
    });
    let middle = |samples: &&Samples| crate::rounds::median(&samples.values).unwrap_or(0.0);
    if let Some(best) = peers.max_by(|a, b| middle(a).total_cmp(&middle(b))) {
        let best = best.subject;
        run.report.add_ratio(name, Unit::CommitsPerSecond, rates, ours::REDO.name, best);
    }
}

fn one(kind: Kind, dir: &Path, threads: usize, duration: Duration) -> Result<Sample> {
    let owned = (kind.make)(dir, Load { bytes: 0, synced: true })?;
    let (start, over) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let (log, start, over) = (&*owned, &start, &over);
    let (seconds, ended) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut body = [thread.to_le_bytes()[0]; RECORD];
                    let (mut took, mut count) = (latencies(), 0_u64);
                    start.wait();
                    while !over.load(Ordering::Relaxed) {
                        body[8..16].copy_from_slice(&count.to_le_bytes());
                        let began = Instant::now();
                        log.append(&body, true)?;
                        took.saturating_record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
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
        let ended: Result<Vec<_>> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (seconds, ended)
    });
    let ended = ended?;
    let resident = resident_in(dir)?;
    drop(owned);
    let counts: Vec<u64> = ended.iter().map(|(_, count)| *count).collect();
    let mut took = latencies();
    for (of_thread, _) in &ended {
        took.add(of_thread).context("histograms of one kind")?;
    }
    check(kind, dir, &counts)?;
    Ok(Sample { rate: counts.iter().sum::<u64>() as f64 / seconds, took, resident })
}

/// Fails unless each thread's records are there in their order, except those whose log space was freed before.
fn check(kind: Kind, dir: &Path, counts: &[u64]) -> Result<()> {
    let Some(check) = kind.check else { return Ok(()) };
    let mut next = vec![None; counts.len()];
    check(dir, &mut |body| {
        ensure!(body.len() == RECORD, "a record of {} bytes", body.len());
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

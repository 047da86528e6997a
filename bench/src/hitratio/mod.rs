//! `hitratio`: the hit ratio of a trace, for the cache itself and for simulated peers with the same number of frames.
//!
//! One thread reads the trace's pages in their order, starting with an empty cache. Everything is counted and nothing
//! timed, so one pass suffices: the same trace gives the same figures. The cache reads from a disk that costs nothing,
//! and every page it returns is checked. Its simulated rule shows what the concurrency of the real cache costs. Fails
//! where a trace cannot be read, where the cache fails, or where it counts other misses than its disk has reads.

mod cache;
mod lists;
mod ours;
mod peers;
mod trace;

use std::path::PathBuf;

use anyhow::Result;

use self::cache::Replayed;
use self::ours::Ours;
use self::peers::{Arc, Clock, Lru, Policy, S3Fifo, Sieve, hits};
use self::trace::{Trace, Zipf};
use crate::Run;
use crate::data::MIB;
use crate::report::{Report, Unit};
use crate::rounds::Samples;

/// Sizes of the cache, as shares of the pages that a trace reads.
const SHARES: [(&str, f64); 3] = [("0.1 %", 0.001), ("1 %", 0.01), ("10 %", 0.1)];
/// The reads of each trace in a quick run, at most.
const QUICK_READS: usize = 1_500_000;

const OURS: &str = "pagekeeper-cache";
const LRU: &str = "LRU";
const S3_FIFO: &str = "S3-FIFO";
const S3_FIFO_AT_1: &str = "S3-FIFO, promoting at 1";

type Make = fn(usize, usize) -> Box<dyn Policy>;
/// The simulated policies, each created from the trace's number of pages and the frames.
const SIMULATED: [(&str, Make); 7] = [
    ("its rule, simulated", |pages, frames| Box::new(Ours::new(pages, frames))),
    (S3_FIFO, |pages, frames| Box::new(S3Fifo::new(pages, frames, 2))),
    (S3_FIFO_AT_1, |pages, frames| Box::new(S3Fifo::new(pages, frames, 1))),
    ("ARC", |pages, frames| Box::new(Arc::new(pages, frames))),
    ("SIEVE", |pages, frames| Box::new(Sieve::new(pages, frames))),
    ("CLOCK, 2 bits", |pages, frames| Box::new(Clock::new(pages, frames))),
    (LRU, |pages, frames| Box::new(Lru::new(pages, frames))),
];

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, paths: &[PathBuf]) -> Result<()> {
    run.note("counted, not timed: one pass, since the same reads give the same figures; the first read of a page counts as a miss");
    run.note("the peers and the rule are simulated; pagekeeper-cache is the real one, on a disk that costs nothing");
    if paths.is_empty() {
        run.note("no trace was given: only the made-up one is read; name traces to have theirs");
    }
    run.say("making up a trace")?;
    let (pages, reads) = if run.quick { (200_000, 1_000_000) } else { (1_000_000, 6_000_000) };
    measure(run, &Trace::zipf_with_scans(&Zipf::new(pages, 0.9), reads, run.report.seed))?;
    for path in paths {
        run.say(&format!("reading {}", path.display()))?;
        let mut trace = Trace::open(path)?;
        if run.quick && trace.reads.len() > QUICK_READS {
            run.note(&format!("of {} the first {QUICK_READS} reads of {}", trace.name, trace.reads.len()));
            trace = trace.shortened(QUICK_READS);
        }
        measure(run, &trace)?;
    }
    Ok(())
}

fn measure(run: &mut Run, trace: &Trace) -> Result<()> {
    let pages = trace.pages();
    let mut frames_before = 0;
    let mut budgets = Vec::new();
    for (label, share) in SHARES {
        let wanted = share_of(pages, share);
        let Replayed { frames, memory, hits } = cache::replay(&run.stop, trace, wanted)?;
        if frames == frames_before {
            run.note(&format!(
                "{}: left out at {label}, for the cache has no fewer than {frames} frames",
                trace.name
            ));
            continue;
        }
        frames_before = frames;
        budgets.push(format!("{:.1} MiB for {frames} frames", memory as f64 / MIB as f64));
        let case = format!("{} with {frames} frames, {label} of its {pages} pages", trace.name);
        run.say(&case)?;
        let mut samples = vec![sample(OURS, hits, trace)];
        samples.extend(simulate(trace, frames));
        run.report.add_case(&case, Unit::Percent, &samples);
        keep_worst(&mut run.report, "hitratio_worst_vs_s3fifo_points", &samples, &[S3_FIFO, S3_FIFO_AT_1]);
        keep_worst(&mut run.report, "hitratio_worst_vs_lru_points", &samples, &[LRU]);
    }
    run.note(&format!("{}: budgets of the cache, its tables included: {}", trace.name, budgets.join(", ")));
    Ok(())
}

/// Returns a share of the pages, at least one.
fn share_of(pages: usize, share: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
    let wanted = (pages as f64 * share) as usize;
    wanted.max(1)
}

fn sample(subject: &'static str, hits: u64, trace: &Trace) -> Samples {
    Samples { subject, values: vec![hits as f64 * 100.0 / trace.reads.len() as f64] }
}

/// Simulates each policy in a thread of its own, as many at once as there are processors.
fn simulate(trace: &Trace, frames: usize) -> Vec<Samples> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut samples = Vec::new();
    for some in SIMULATED.chunks(threads) {
        std::thread::scope(|scope| {
            let running: Vec<_> = some
                .iter()
                .map(|&(name, make)| {
                    scope.spawn(move || {
                        let hits = hits(make(trace.pages(), frames).as_mut(), &trace.reads);
                        sample(name, hits, trace)
                    })
                })
                .collect();
            samples.extend(
                running
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
            );
        });
    }
    samples
}

/// Keeps the smallest value, over all cases, of ours minus the best of `theirs`, in points of the hit ratio.
fn keep_worst(report: &mut Report, name: &'static str, samples: &[Samples], theirs: &[&str]) {
    let best = samples.iter().filter(|of| theirs.contains(&of.subject)).map(|of| of.values[0]);
    let points = samples[0].values[0] - best.fold(f64::NEG_INFINITY, f64::max);
    let worst = report.ratios.entry(name).or_insert(points);
    *worst = worst.min(points);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_difference_is_kept_in_points_against_the_better_peer() {
        let mut report = crate::report::tests::example();
        let of = |ours, at_2, at_1| {
            [(OURS, ours), (S3_FIFO, at_2), (S3_FIFO_AT_1, at_1)]
                .map(|(subject, value)| Samples { subject, values: vec![value] })
        };
        for samples in [of(50.0, 49.0, 48.0), of(10.0, 9.0, 10.25), of(7.0, 7.125, 7.0)] {
            keep_worst(&mut report, "points", &samples, &[S3_FIFO, S3_FIFO_AT_1]);
        }
        assert!((report.ratios["points"] + 0.25).abs() < 1e-9);
    }

    #[test]
    fn every_policy_reads_the_same_trace() {
        let trace = Trace::zipf_with_scans(&Zipf::new(2000, 0.9), 8000, 5);
        let samples = simulate(&trace, 2000);
        assert_eq!(samples.len(), SIMULATED.len());
        // With room for all pages, a policy misses only the first read of each page.
        let first = trace.pages() as f64 * 100.0 / trace.reads.len() as f64;
        assert!(samples.iter().all(|of| (of.values[0] + first - 100.0).abs() < 1e-9), "{samples:?}");
        assert_eq!([share_of(2000, 0.001), share_of(10, 0.01)], [2, 1]);
    }
}

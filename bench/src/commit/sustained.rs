//! `sustained`: commits of random pages for minutes, over much more data than memory.
//!
//! Invariants: journal and memory sizes are sampled throughout, and latencies are kept for each sixtieth of the time,
//! so that no stall hides in a mean. Fails when journal or memory exceeds its bound, and when a page lacks an
//! acknowledged change.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use pagekeeper_store::Store;

use super::content::{CHANGED, Ledger, VALUE};
use super::load::{Load, Pages, Record, Room, commit_while, verify};
use super::ours::{self, Ours};
use crate::Run;
use crate::data::{GIB, MIB};
use crate::gauges::latencies;
use crate::report::{Curve, Unit};
use crate::rounds::Samples;

/// Number of parts of the time with figures of their own.
const PARTS: u32 = 60;
/// Interval of the samples of journal and memory.
const EACH: Duration = Duration::from_millis(10);
/// The store's memory budget, in bytes.
const MEMORY: u64 = 512 * MIB;
/// Bytes that the process may use beyond it: stacks, the allocator's slack, this benchmark's histograms.
const BESIDE: u64 = 32 * MIB;
/// Threads that commit.
const THREADS: usize = 8;
/// Pages of each commit.
const PAGES: usize = 4;
/// The second of a quick run by which commits end; the rest is for the check of all pages.
const QUICK_END: u64 = 37;

/// The latencies of all threads' commits in one part.
struct Part<'a>(&'a Mutex<Histogram<u64>>);

impl Record for Part<'_> {
    fn record(&mut self, took: Duration) {
        locked(self.0).saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

fn locked(part: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The figures of one part of the time.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    rate: f64,
    median: f64,
    p999: f64,
    longest: f64,
    /// The largest number of journal bytes that a recovery would have read.
    journal: u64,
    /// The largest memory in bytes, above what the process had before it opened the store.
    memory: u64,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, minutes: u64) -> Result<()> {
    let bytes = if run.quick { GIB } else { 8 * GIB };
    let room = Room { pages: bytes / super::PAGE, memory: MEMORY };
    run.scratch.require_space(bytes + GIB)?;
    run.note(&format!(
        "{} GiB, a budget of {} MiB; {THREADS} threads, each commit of {PAGES} pages, {CHANGED} bytes of {VALUE} changed in each",
        bytes / GIB,
        MEMORY / MIB
    ));
    let dir = run.scratch.path().join("sustained");
    std::fs::create_dir(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    let ledger = Ledger::new(room.pages);
    let before = memory()?;
    run.say("filling the store")?;
    let store = Ours::open(&dir, room)?;
    store.fill()?;
    let left = (run.began + Duration::from_secs(QUICK_END)).saturating_duration_since(Instant::now());
    let duration =
        if run.quick { left.min(Duration::from_secs(30)) } else { Duration::from_secs(60 * minutes) };
    run.say(&format!("commits for {:.0} s", duration.as_secs_f64()))?;
    let load = Load { threads: THREADS, pages: PAGES, seed: run.random.next_u64() };
    let (seen, all) = watch(run, &store, &ledger, load, duration, before)?;
    let cap = store.store.stat().max_journal_bytes;
    report(run, duration, &seen, &all, cap);
    drop(store);
    run.say("looking at all pages")?;
    verify(ours::KIND, &dir, room, &ledger)?;
    let most = |of: fn(&Seen) -> u64| seen.iter().map(of).max().unwrap_or(0);
    let (journal, memory) = (most(|seen| seen.journal), most(|seen| seen.memory));
    ensure!(journal <= cap, "the journal had {journal} bytes, its cap is {cap}");
    ensure!(
        memory <= MEMORY + BESIDE,
        "the store took {memory} bytes of memory, its budget is {MEMORY}, and {BESIDE} are granted beside it"
    );
    Ok(())
}

/// Returns this process's memory without files behind it, in bytes.
fn memory() -> Result<u64> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).with_context(|| format!("can't read {path}"))?;
    let field =
        |name| crate::machine::kib_field(&text, name).with_context(|| format!("{path} has no {name}"));
    Ok(field("RssAnon")? + field("RssShmem")?)
}

/// Commits and samples the store meanwhile. Returns the figures of each part, and the latencies of all commits.
fn watch(
    run: &Run,
    ours: &Ours,
    ledger: &Ledger,
    load: Load,
    duration: Duration,
    before: u64,
) -> Result<(Vec<Seen>, Histogram<u64>)> {
    let part = Mutex::new(latencies());
    let mut all = latencies();
    let mut seen = Vec::new();
    commit_while(
        ours,
        ledger,
        load,
        || Part(&part),
        |over| {
            let began = Instant::now();
            for number in 1..=PARTS {
                let end = began + duration * number / PARTS;
                let start = Instant::now();
                let mut now = Seen::default();
                while Instant::now() < end && !over.load(Ordering::Relaxed) {
                    sample(&ours.store, before, &mut now)?;
                    run.stop.sleep(EACH)?;
                }
                let took = {
                    let mut part = locked(&part);
                    let took = part.clone();
                    part.reset();
                    took
                };
                let us = |percent| took.value_at_percentile(percent) as f64 / 1e3;
                (now.median, now.p999, now.longest) = (us(50.0), us(99.9), us(100.0));
                now.rate = took.len() as f64 / start.elapsed().as_secs_f64();
                all.add(&took).context("histograms of one kind")?;
                seen.push(now);
            }
            Ok(())
        },
    )?;
    Ok((seen, all))
}

fn sample(store: &Store, before: u64, seen: &mut Seen) -> Result<()> {
    seen.journal = seen.journal.max(store.stat().journal_bytes);
    seen.memory = seen.memory.max(memory()?.saturating_sub(before));
    Ok(())
}

/// A figure of the parts: its name, its unit, and how to get it.
type Figure = (&'static str, Unit, fn(&Seen) -> f64);

fn report(run: &mut Run, duration: Duration, seen: &[Seen], all: &Histogram<u64>, cap: u64) {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let each = format!("in each {:.1} s", duration.as_secs_f64() / f64::from(PARTS));
    let figures: [Figure; 6] = [
        ("durable commits", Unit::CommitsPerSecond, |seen| seen.rate),
        ("one commit, median", Unit::Microseconds, |seen| seen.median),
        ("one commit, p99.9", Unit::Microseconds, |seen| seen.p999),
        ("longest commit", Unit::Milliseconds, |seen| seen.longest / 1e3),
        ("most bytes of the journal", Unit::Mib, |seen| seen.journal as f64 / MIB as f64),
        ("most memory", Unit::Mib, |seen| seen.memory as f64 / MIB as f64),
    ];
    for (what, unit, of) in figures {
        let values = seen.iter().map(of).collect();
        let samples = [Samples { subject: ours::KIND.name, values }];
        run.report.add_case(&format!("{what}, {each}"), unit, &samples);
    }
    let most = |of: fn(&Seen) -> u64| mib(seen.iter().map(of).max().unwrap_or(0));
    let ratios: BTreeMap<&'static str, f64> = [
        ("sustained_p999_us", all.value_at_percentile(99.9) as f64 / 1e3),
        ("sustained_longest_us", all.max() as f64 / 1e3),
        ("sustained_journal_mib", most(|seen| seen.journal)),
        ("sustained_journal_cap_mib", mib(cap)),
        ("sustained_memory_mib", most(|seen| seen.memory)),
        ("sustained_memory_budget_mib", mib(MEMORY)),
    ]
    .into();
    run.report.ratios.extend(ratios);
    run.report.add_case(
        "all commits",
        Unit::CommitsPerSecond,
        &[Samples { subject: ours::KIND.name, values: vec![all.len() as f64 / duration.as_secs_f64()] }],
    );
    let mut curve = |case: &str, subject: &str, of: &dyn Fn(&Seen) -> f64| {
        let points = seen.iter().enumerate().map(|(part, seen)| (label(part), of(seen)));
        run.report.curves.push(Curve {
            case: case.to_owned(),
            subject: subject.to_owned(),
            points: points.collect(),
        });
    };
    let latency = format!("one commit, us, {each}");
    curve(&latency, "p99.9", &|seen| seen.p999);
    curve(&latency, "longest", &|seen| seen.longest);
    curve(&latency, "median", &|seen| seen.median);
    let bytes = format!("most bytes, MiB, {each}");
    curve(&bytes, "journal", &|seen| mib(seen.journal));
    curve(&bytes, "its cap", &|_| mib(cap));
    curve(&bytes, "memory", &|seen| mib(seen.memory));
    curve(&bytes, "its budget", &|_| mib(MEMORY));
}

/// Returns the position of a part in the time.
fn label(part: usize) -> &'static str {
    match part {
        0 => "begin",
        15 => "1/4",
        30 => "1/2",
        45 => "3/4",
        59 => "end",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_has_its_labels() {
        let labels: Vec<&str> =
            (0..usize::try_from(PARTS).unwrap()).map(label).filter(|label| !label.is_empty()).collect();
        assert_eq!(labels, ["begin", "1/4", "1/2", "3/4", "end"]);
    }

    #[test]
    fn memory_that_is_touched_counts() {
        // Repeated, because other tests of this process may free memory meanwhile.
        let counts = || {
            let before = memory().unwrap();
            let touched = vec![1_u8; 64 << 20];
            memory().unwrap() >= before + std::hint::black_box(&touched).len() as u64 / 2
        };
        assert!((0..20).any(|_| counts()));
    }
}

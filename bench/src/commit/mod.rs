//! `commit`: durable commits of random pages by several threads: the page store's ordered map beside LMDB, fjall,
//! `SQLite`, redb and `RocksDB`; bare pages of the store; and fio as the limit. `read`: read transactions of the same
//! subjects. `sustained`: commits for minutes over much data with little memory.
//!
//! All subjects hold the same values, made before the first sample, and keep them through all cases. Invariants:
//! - Each commit reads its pages and changes the same number of bytes.
//! - A sample begins when the one before has left no background work.
//! - At the end each store is reopened and must have exactly the acknowledged changes.
//!
//! Fails where a subject fails or has lost something.

mod content;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
mod load;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod locks;
mod ours;
pub(crate) mod read;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod sustained;
#[cfg(test)]
mod tests;
mod tree;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::Run;
use crate::data::MIB;
use crate::gauges::latencies;
use crate::log::fio;
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::{self, Plan, Random, Samples, Subject, median};
use crate::scratch::Stop;
use content::{CHANGED, Ledger, VALUE};
use load::{Kind, Load, Pages, Record, Room, commit_while, verify, wait};

/// Bytes of a page on the disk, in most subjects.
const PAGE: u64 = 4096;
/// The second of a quick run by which the last round ends.
const QUICK_END: u64 = 35;
/// The time between two checks of whether a thread has failed.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// The limit's name in tables.
const LIMIT: &str = "the limit: fio's syncs, each for all threads";

/// A subject with its filled store.
struct Compared {
    kind: Kind,
    dir: PathBuf,
    pages: Box<dyn Pages>,
    ledger: Ledger,
    /// The samples of the current case.
    seen: RefCell<Vec<Sample>>,
}

/// The figures of one sample.
struct Sample {
    /// Commits per second.
    rate: f64,
    took: Histogram<u64>,
    /// Seconds until no background work was left.
    settled: f64,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let bytes = if run.quick { 128 * MIB } else { 512 * MIB };
    let room = Room { pages: bytes / PAGE, memory: 2 * bytes };
    let kinds = kinds();
    note_peers(run);
    // RocksDB may hold all data twice while it compacts, and logs come on top.
    run.scratch.require_space(3 * bytes * kinds.len() as u64)?;
    run.note(&format!(
        "{} values of {VALUE} bytes; a commit reads each of its pages, changes {CHANGED} bytes at a random place in it, and is durable when it ends",
        room.pages
    ));
    let mut compared = Vec::new();
    for (number, kind) in kinds.into_iter().enumerate() {
        run.say(&format!("filling {}", kind.name))?;
        compared.push(fill(run, kind, number, room).with_context(|| kind.name)?);
    }
    let fio = run.peer("fio");
    let cases: Vec<(usize, usize)> = if run.quick {
        run.note("left out of a quick run: commits of 1 and of 16 pages");
        [8, 32, 1].map(|threads| (4, threads)).into()
    } else {
        [1, 4, 16].into_iter().flat_map(|pages| [1, 8, 32].map(|threads| (pages, threads))).collect()
    };
    for (index, &(pages, threads)) in cases.iter().enumerate() {
        let case = Case { pages, threads, left: cases.len() - index, quick_end: QUICK_END };
        measure(run, &compared, fio.as_ref(), case)?;
    }
    for Compared { kind, dir, pages, ledger, .. } in compared {
        run.say(&format!("looking at all pages: {}", kind.name))?;
        drop(pages);
        verify(kind, &dir, room, &ledger)?;
    }
    Ok(())
}

/// Returns the page store as a map and by bare pages, and the peers that this program was built with.
fn kinds() -> Vec<Kind> {
    vec![
        tree::KIND,
        ours::KIND,
        #[cfg(feature = "lmdb")]
        lmdb::KIND,
        #[cfg(feature = "fjall")]
        fjall::KIND,
        #[cfg(feature = "sqlite")]
        sqlite::KIND,
        #[cfg(feature = "redb")]
        redb::KIND,
        #[cfg(feature = "rocksdb")]
        rocksdb::KIND,
    ]
}

/// Notes the versions of the peers, and names the peers that this program was built without as missing.
fn note_peers(run: &mut Run) {
    #[cfg(feature = "lmdb")]
    crate::hit::note_version(run, "lmdb-master-sys");
    #[cfg(feature = "fjall")]
    crate::hit::note_version(run, "fjall");
    #[cfg(feature = "sqlite")]
    run.report.machine.versions.insert("SQLite".to_owned(), sqlite::version());
    #[cfg(feature = "redb")]
    crate::hit::note_version(run, "redb");
    #[cfg(feature = "rocksdb")]
    run.report.machine.versions.insert("rocksdb".to_owned(), crate::hit::rocksdb::version());
    let peers = [
        ("lmdb", cfg!(feature = "lmdb")),
        ("fjall", cfg!(feature = "fjall")),
        ("sqlite", cfg!(feature = "sqlite")),
        ("redb", cfg!(feature = "redb")),
        ("rocksdb", cfg!(feature = "rocksdb")),
    ];
    for (name, _) in peers.into_iter().filter(|(_, there)| !there) {
        run.report.add_missing(name);
        run.note(&format!("built without the feature `{name}`; `make bench` builds with it"));
    }
}

fn fill(run: &Run, kind: Kind, number: usize, room: Room) -> Result<Compared> {
    let dir = run.scratch.path().join(format!("{number}"));
    std::fs::create_dir(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    let pages = (kind.open)(&dir, room)?;
    pages.fill()?;
    pages.settle()?;
    Ok(Compared { kind, dir, pages, ledger: Ledger::new(room.pages), seen: RefCell::default() })
}

/// A case: the threads and the pages per transaction.
#[derive(Debug, Clone, Copy)]
struct Case {
    pages: usize,
    threads: usize,
    /// The cases that share the remaining time of a quick run, and the second by which it ends.
    left: usize,
    quick_end: u64,
}

impl Case {
    /// Returns the case's name in tables.
    fn name(&self, what: &str) -> String {
        let plural = |count: usize, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
        format!("{what} of {}, {}", plural(self.pages, "page"), plural(self.threads, "thread"))
    }
}

/// A function that takes one sample of a subject.
type One = dyn Fn(&Compared, Load, Duration, &Stop) -> Result<f64>;

/// Measures one case; all subjects of a round get the same random choices.
fn sample_all(
    run: &mut Run,
    compared: &[Compared],
    case: Case,
    one: &One,
    limit: impl FnOnce(Duration) -> Option<Subject<'static>>,
) -> Result<Vec<Samples>> {
    let window = Duration::from_millis(if run.quick { 250 } else { 1000 });
    let now = Instant::now();
    let share = (run.began + Duration::from_secs(case.quick_end)).saturating_duration_since(now)
        / u32::try_from(case.left).unwrap_or(1);
    let plan = Plan { rounds: run.rounds, until: run.quick.then(|| now + share), warm_up: true };
    let seed = run.random.next_u64();
    let stop = run.stop.clone();
    let mut subjects: Vec<Subject<'_>> = compared
        .iter()
        .map(|subject| {
            let mut seeds = Random::new(seed);
            let stop = &stop;
            Subject::new(subject.kind.name, move || {
                let load = Load { threads: case.threads, pages: case.pages, seed: seeds.next_u64() };
                one(subject, load, window, stop)
            })
        })
        .collect();
    subjects.extend(limit(window));
    rounds::run(&mut subjects, plan, &mut run.random, &run.stop)
}

fn measure(run: &mut Run, compared: &[Compared], fio: Option<&Program>, case: Case) -> Result<()> {
    let name = case.name("durable commits");
    run.say(&name)?;
    let place = run.scratch.path().to_path_buf();
    let (fio, threads) = (fio.cloned(), case.threads as f64);
    let one = |subject: &Compared, load: Load, window: Duration, stop: &Stop| {
        let sample = one(subject, load, window, stop)?;
        let rate = sample.rate;
        subject.seen.borrow_mut().push(sample);
        Ok(rate)
    };
    let rates = sample_all(run, compared, case, &one, |window| {
        fio.map(|fio| Subject::new(LIMIT, move || Ok(fio::commits(&fio, &place, window)? * threads)))
    })?;
    run.report.add_case(&name, Unit::CommitsPerSecond, &rates);
    add_figures(run, &name, compared, rates.first().map_or(0, |first| first.values.len()));
    let ratios = match (case.pages, case.threads) {
        (4, 1) => ["commit_1T_vs_best_peer", "commit_1T_pages_vs_best_peer"],
        (4, 8) => ["commit_8T_vs_best_peer", "commit_8T_pages_vs_best_peer"],
        (4, 32) => ["commit_32T_vs_best_peer", "commit_32T_pages_vs_best_peer"],
        _ => return Ok(()),
    };
    add_ratios(run, ratios, "commits of 4 pages", Unit::CommitsPerSecond, &rates);
    Ok(())
}

/// One thread's commit latencies of a sample.
struct Timed(Histogram<u64>);

impl Record for Timed {
    fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

fn one(subject: &Compared, load: Load, window: Duration, stop: &Stop) -> Result<Sample> {
    let pages = &*subject.pages;
    let meanwhile = |over: &_| wait(window, over, stop);
    let (recorded, worked) = commit_while(pages, &subject.ledger, load, || Timed(latencies()), meanwhile)?;
    let began = Instant::now();
    pages.settle()?;
    let settled = began.elapsed().as_secs_f64();
    let mut took = latencies();
    for Timed(of_thread) in &recorded {
        took.add(of_thread).context("histograms of one kind")?;
    }
    Ok(Sample { rate: took.len() as f64 / worked.as_secs_f64(), took, settled })
}

/// A figure of the samples: its name, its unit, and how to get it.
type Figure = (&'static str, Unit, fn(&Sample) -> f64);

fn percentile_us(sample: &Sample, percent: f64) -> f64 {
    sample.took.value_at_percentile(percent) as f64 / 1e3
}

const FIGURES: [Figure; 4] = [
    ("one commit, median", Unit::Microseconds, |sample| percentile_us(sample, 50.0)),
    ("one commit, p99", Unit::Microseconds, |sample| percentile_us(sample, 99.0)),
    ("one commit, p99.9", Unit::Microseconds, |sample| percentile_us(sample, 99.9)),
    ("work left to the background, then", Unit::Milliseconds, |sample| sample.settled * 1e3),
];

/// Adds the latencies of the last `rounds` samples of a case and clears them.
fn add_figures(run: &mut Run, case: &str, compared: &[Compared], rounds: usize) {
    for (what, unit, of) in FIGURES {
        let of_subject = |subject: &Compared| {
            let seen = subject.seen.borrow();
            // The uncounted round went first.
            let counted = seen.iter().skip(seen.len().saturating_sub(rounds));
            Samples { subject: subject.kind.name, values: counted.map(of).collect() }
        };
        let samples: Vec<Samples> = compared.iter().map(of_subject).collect();
        run.report.add_case(&format!("{case}: {what}"), unit, &samples);
    }
    for subject in compared {
        subject.seen.borrow_mut().clear();
    }
}

/// Adds two ratios: the map against the best peer, which compares like with like, and bare pages against the same peer.
fn add_ratios(run: &mut Run, ratios: [&'static str; 2], what: &str, unit: Unit, rates: &[Samples]) {
    let Some(best) = best_peer(rates) else { return };
    for (ours, ratio) in [tree::KIND.name, ours::KIND.name].into_iter().zip(ratios) {
        run.report.add_ratio(ratio, unit, rates, ours, best);
        run.note(&format!("{ratio}: {what}, {ours} against {best}"));
    }
}

/// Returns the peer with the highest rate.
fn best_peer(rates: &[Samples]) -> Option<&'static str> {
    let none = [tree::KIND.name, ours::KIND.name, LIMIT];
    let peers = rates.iter().filter(|samples| !none.contains(&samples.subject));
    let medians = peers.filter_map(|samples| Some((samples.subject, median(&samples.values)?)));
    medians.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(subject, _)| subject)
}

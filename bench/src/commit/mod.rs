//! `commit`: threads that change random pages and wait until that is durable, again and again: the page store beside
//! LMDB, fjall, `SQLite`, redb and `RocksDB`, and what the disk can do. `read`: read transactions of the same. `sustained`: the same for minutes over much data with little
//! memory.
//!
//! All subjects hold the same values, made before the first sample, and keep them through all cases. Invariants: each commit
//! reads its pages and changes as much of them; a sample begins when nothing is left of the one before in the
//! background; at the end each is opened again, and has exactly what was acknowledged. Fails where a subject fails or has lost something.

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
mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod sustained;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
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
use load::{Kind, Load, Pages, Record, Room, commit_while, verify};

/// Bytes that a page has on the disk, in most subjects.
const PAGE: u64 = 4096;
/// The second of a quick run by which the last round ends.
const QUICK_END: u64 = 35;
/// Between two checks of whether a thread has failed.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// As tables name it.
const LIMIT: &str = "the limit: fio's syncs, each for all threads";

/// One of the compared, with its pages in it.
struct Compared {
    kind: Kind,
    dir: PathBuf,
    pages: Box<dyn Pages>,
    ledger: Ledger,
    /// Of the case at hand.
    seen: RefCell<Vec<Sample>>,
}

/// What one sample came to.
struct Sample {
    /// Commits per second.
    rate: f64,
    took: Histogram<u64>,
    /// Until nothing was left to do in the background, in seconds.
    settled: f64,
}

/// Runs it.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let bytes = if run.quick { 128 * MIB } else { 512 * MIB };
    let room = Room { pages: bytes / PAGE, memory: 2 * bytes };
    let kinds = kinds();
    note_peers(run);
    // RocksDB may have all twice while it compacts, and logs come on top.
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
        measure(run, &compared, fio.as_ref(), pages, threads, cases.len() - index)?;
    }
    for Compared { kind, dir, pages, ledger, .. } in compared {
        run.say(&format!("looking at all pages: {}", kind.name))?;
        drop(pages);
        verify(kind, &dir, room, &ledger)?;
    }
    Ok(())
}

/// The page store, and the peers that this program was built with.
fn kinds() -> Vec<Kind> {
    vec![
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

/// Notes the versions of the peers; those that this program was built without are named as missing.
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

/// Measures one case; `left` cases share what a quick run has left.
fn measure(
    run: &mut Run,
    compared: &[Compared],
    fio: Option<&Program>,
    pages: usize,
    threads: usize,
    left: usize,
) -> Result<()> {
    let plural = |count: usize, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
    let name = format!("durable commits of {}, {}", plural(pages, "page"), plural(threads, "thread"));
    run.say(&name)?;
    let window = Duration::from_millis(if run.quick { 250 } else { 1000 });
    let now = Instant::now();
    let share = (run.began + Duration::from_secs(QUICK_END)).saturating_duration_since(now)
        / u32::try_from(left).unwrap_or(1);
    let plan = Plan { rounds: run.rounds, until: run.quick.then(|| now + share), warm_up: true };
    // In a round, all have the same random choices.
    let seed = run.random.next_u64();
    let stop = run.stop.clone();
    let mut subjects: Vec<Subject<'_>> = compared
        .iter()
        .map(|subject| {
            let mut seeds = Random::new(seed);
            let stop = &stop;
            Subject::new(subject.kind.name, move || {
                let load = Load { threads, pages, seed: seeds.next_u64() };
                let sample = one(subject, load, window, stop)?;
                let rate = sample.rate;
                subject.seen.borrow_mut().push(sample);
                Ok(rate)
            })
        })
        .collect();
    let place = run.scratch.path().to_path_buf();
    subjects.extend(
        fio.map(|fio| Subject::new(LIMIT, move || Ok(fio::commits(fio, &place, window)? * threads as f64))),
    );
    let rates = rounds::run(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    run.report.add_case(&name, Unit::CommitsPerSecond, &rates);
    add_figures(run, &name, compared, rates.first().map_or(0, |first| first.values.len()));
    add_ratio(run, pages, threads, &rates);
    Ok(())
}

/// One thread's commits of a sample.
struct Timed(Histogram<u64>);

impl Record for Timed {
    fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

fn one(subject: &Compared, load: Load, window: Duration, stop: &Stop) -> Result<Sample> {
    let pages = &*subject.pages;
    let mut seconds = 0.0;
    let recorded = commit_while(
        pages,
        &subject.ledger,
        load,
        || Timed(latencies()),
        |over| {
            let began = Instant::now();
            while began.elapsed() < window && !over.load(Ordering::Relaxed) {
                stop.sleep(window.saturating_sub(began.elapsed()).min(CHECK_EVERY))?;
            }
            over.store(true, Ordering::Relaxed);
            seconds = began.elapsed().as_secs_f64();
            Ok(())
        },
    )?;
    let began = Instant::now();
    pages.settle()?;
    let settled = began.elapsed().as_secs_f64();
    let mut took = latencies();
    for Timed(of_thread) in &recorded {
        took.add(of_thread).context("histograms of one kind")?;
    }
    Ok(Sample { rate: took.len() as f64 / seconds, took, settled })
}

/// A figure of the samples: what it is called, its unit, and how to have it.
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

/// Adds what single commits took in the last `rounds` samples of a case, and forgets them.
fn add_figures(run: &mut Run, case: &str, compared: &[Compared], rounds: usize) {
    for (what, unit, of) in FIGURES {
        let of_subject = |subject: &Compared| {
            let seen = subject.seen.borrow();
            // The round that does not count went first.
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

/// The ratios are those of commits of four pages.
fn add_ratio(run: &mut Run, pages: usize, threads: usize, rates: &[Samples]) {
    let name = match (pages, threads) {
        (4, 1) => "commit_1T_vs_best_peer",
        (4, 8) => "commit_8T_vs_best_peer",
        (4, 32) => "commit_32T_vs_best_peer",
        _ => return,
    };
    let Some(best) = best_peer(rates) else { return };
    run.report.add_ratio(name, Unit::CommitsPerSecond, rates, ours::KIND.name, best);
    run.note(&format!("{name}: commits of 4 pages, against {best}"));
}

/// The one of the others that commits most.
fn best_peer(rates: &[Samples]) -> Option<&'static str> {
    let peers = rates.iter().filter(|samples| ![ours::KIND.name, LIMIT].contains(&samples.subject));
    let medians = peers.filter_map(|samples| Some((samples.subject, median(&samples.values)?)));
    medians.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(subject, _)| subject)
}

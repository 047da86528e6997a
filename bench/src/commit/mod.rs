//! `commit`: durable commits of random pages by several threads: the page store's ordered map
//! beside LMDB, fjall, `SQLite`, redb and `RocksDB`; and fio as the limit.
//!
//! All subjects hold the same values, made before the first sample, and keep them through all
//! cases. Invariants:
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
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;
mod tree;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::BenchRun;
use crate::data::MIB;
use crate::latencies::Latencies;
use crate::log::fio;
use crate::peers::InstalledProgram;
use crate::report::FigureUnit;
use crate::rounds::{MeasuredSamples, RoundPlan, SplitMix, SubjectSamples, SubjectTurn, median};
use crate::scratch::StopRequest;
use content::{ChangeLedger, STORED_VALUE_BYTES, VALUE_CHANGE_BYTES};
use load::{CommitLoad, PageStore, StoreKind, StoreSize, commit_while, verify};

/// Bytes of a page on the disk, in most subjects.
const STORE_PAGE_BYTES: u64 = 4096;
/// Pages of a commit.
const COMMIT_PAGES: usize = 4;
/// Threads that commit, for each case.
const COMMIT_THREADS: [usize; 3] = [8, 32, 1];
/// The time after which a quick run begins no more rounds.
const COMMIT_QUICK_END: Duration = Duration::from_secs(35);
/// The time between two checks of whether a thread has failed.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The limit's name in tables.
const COMMIT_LIMIT_NAME: &str = "the limit: fio's syncs, each for all threads";

/// A subject with its filled store.
struct FilledStore {
    kind: StoreKind,
    dir: PathBuf,
    pages: Box<dyn PageStore>,
    ledger: ChangeLedger,
}

/// The figures of one sample.
struct CommitSample {
    /// Commits per second.
    rate: f64,
    took: Latencies,
    /// Time until no background work was left.
    settled: Duration,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    let bytes = if run.quick { 128 * MIB } else { 512 * MIB };
    let room = StoreSize { pages: bytes / STORE_PAGE_BYTES, memory: 2 * bytes };
    let kinds = kinds();
    note_peers(run);
    // RocksDB may hold all data twice while it compacts, and logs come on top.
    run.scratch.require_space(3 * bytes * kinds.len() as u64)?;
    run.note(&format!(
        "{} values of {STORED_VALUE_BYTES} bytes; a commit reads each of its pages, changes {VALUE_CHANGE_BYTES} bytes at a random place in it, and is durable when it ends",
        room.pages
    ));
    let mut compared = Vec::new();
    for (number, kind) in kinds.into_iter().enumerate() {
        run.say(&format!("filling {}", kind.name))?;
        compared.push(fill(run, kind, number, room).with_context(|| kind.name)?);
    }
    let fio = run.peer("fio");
    for (index, threads) in COMMIT_THREADS.into_iter().enumerate() {
        let share = (run.began + COMMIT_QUICK_END).saturating_duration_since(Instant::now())
            / u32::try_from(COMMIT_THREADS.len() - index)?;
        let until = run.quick.then(|| Instant::now() + share);
        let plan = RoundPlan { rounds: run.rounds, until, warm_up: true };
        measure(run, &compared, fio.as_ref(), threads, plan)?;
    }
    for FilledStore { kind, dir, pages, ledger, .. } in compared {
        run.say(&format!("looking at all pages: {}", kind.name))?;
        drop(pages);
        verify(kind, &dir, room, &ledger)?;
    }
    Ok(())
}

/// Returns the page store, and the peers that this program was built with.
fn kinds() -> Vec<StoreKind> {
    vec![
        tree::TREE_STORE,
        #[cfg(feature = "lmdb")]
        lmdb::LMDB_STORE,
        #[cfg(feature = "fjall")]
        fjall::FJALL_STORE,
        #[cfg(feature = "sqlite")]
        sqlite::SQLITE_STORE,
        #[cfg(feature = "redb")]
        redb::REDB_STORE,
        #[cfg(feature = "rocksdb")]
        rocksdb::ROCKSDB_STORE,
    ]
}

/// Notes the versions of the peers, and names the peers that this program was built without as
/// missing.
fn note_peers(run: &mut BenchRun) {
    #[cfg(feature = "sqlite")]
    run.report.machine.versions.insert("SQLite".to_owned(), sqlite::version());
    #[cfg(feature = "rocksdb")]
    run.report.machine.versions.insert("rocksdb".to_owned(), crate::rocksdb::version());
    let peers = [
        ("lmdb", cfg!(feature = "lmdb"), Some("lmdb-master-sys")),
        ("fjall", cfg!(feature = "fjall"), Some("fjall")),
        ("sqlite", cfg!(feature = "sqlite"), None),
        ("redb", cfg!(feature = "redb"), Some("redb")),
        ("rocksdb", cfg!(feature = "rocksdb"), None),
    ];
    for (name, is_there, in_crate) in peers {
        if !is_there {
            run.report.add_missing(name);
            run.note(&format!("built without the feature `{name}`; `make bench` builds with it"));
        } else if let Some(version) = in_crate {
            run.note_version(version);
        }
    }
}

fn fill(run: &BenchRun, kind: StoreKind, number: usize, room: StoreSize) -> Result<FilledStore> {
    let dir = run.scratch.path().join(format!("{number}"));
    std::fs::create_dir(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    let pages = (kind.open)(&dir, room)?;
    pages.fill()?;
    pages.settle()?;
    Ok(FilledStore { kind, dir, pages, ledger: ChangeLedger::new(room.pages) })
}

/// Measures the case of this many threads; all subjects of a round get the same random choices.
fn measure(
    run: &mut BenchRun,
    compared: &[FilledStore],
    fio: Option<&InstalledProgram>,
    threads: usize,
    plan: RoundPlan,
) -> Result<()> {
    let plural = if threads == 1 { "" } else { "s" };
    let name = format!("durable commits of {COMMIT_PAGES} pages, {threads} thread{plural}");
    run.say(&name)?;
    let window = Duration::from_millis(if run.quick { 250 } else { 1000 });
    let (place, stop) = (run.scratch.path().to_path_buf(), run.stop.clone());
    let seed = run.random.next_u64();
    let names: Vec<&'static str> =
        compared.iter().map(|subject| subject.kind.name).chain(fio.map(|_| COMMIT_LIMIT_NAME)).collect();
    let measured =
        run.measure(&names, plan, |SubjectTurn { subject, round }| match (compared.get(subject), fio) {
            (Some(subject), _) => {
                let seed = SplitMix::new(seed ^ round as u64).next_u64();
                one(subject, CommitLoad { threads, pages: COMMIT_PAGES, seed }, window, &stop)
            }
            (None, fio) => limit(fio, &place, window, threads),
        })?;
    let rates = measured.figure(|sample| sample.rate);
    run.report.add_case(&name, FigureUnit::CommitsPerSecond, &rates);
    add_figures(run, &name, &measured);
    let ratio = match threads {
        1 => "commit_1T_vs_best_peer",
        8 => "commit_8T_vs_best_peer",
        _ => "commit_32T_vs_best_peer",
    };
    if let Some(best) = best_peer(&rates) {
        run.report.add_ratio(ratio, FigureUnit::CommitsPerSecond, &rates, tree::TREE_STORE.name, best);
        run.note(&format!("{ratio}: {} against {best}", tree::TREE_STORE.name));
    }
    Ok(())
}

/// Returns the rate of fio's syncs, as if each were one for all threads.
fn limit(
    fio: Option<&InstalledProgram>,
    place: &Path,
    window: Duration,
    threads: usize,
) -> Result<CommitSample> {
    let rate = fio::commits(fio.context("no fio")?, place, window)? * threads as f64;
    Ok(CommitSample { rate, took: Latencies::new(), settled: Duration::ZERO })
}

fn one(
    subject: &FilledStore,
    load: CommitLoad,
    window: Duration,
    stop: &StopRequest,
) -> Result<CommitSample> {
    let pages = &*subject.pages;
    let (took, worked) = commit_while(pages, &subject.ledger, load, window, stop)?;
    let began = Instant::now();
    pages.settle()?;
    Ok(CommitSample { rate: took.count() as f64 / worked.as_secs_f64(), took, settled: began.elapsed() })
}

/// Adds the figures other than the rates.
fn add_figures(run: &mut BenchRun, case: &str, measured: &MeasuredSamples<CommitSample>) {
    let mut add = |what: &str, unit: FigureUnit, of: &dyn Fn(&CommitSample) -> f64| {
        let mut samples = measured.figure(of);
        samples.retain(|samples| samples.subject != COMMIT_LIMIT_NAME);
        run.report.add_case(&format!("{case}: {what}"), unit, &samples);
    };
    for (what, percentile) in [("median", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
        add(&format!("one commit, {what}"), FigureUnit::Microseconds, &|sample| sample.took.us(percentile));
    }
    let settled = |sample: &CommitSample| sample.settled.as_secs_f64() * 1e3;
    add("work left to the background, then", FigureUnit::Milliseconds, &settled);
}

/// Returns the peer with the highest rate.
fn best_peer(rates: &[SubjectSamples]) -> Option<&'static str> {
    let none = [tree::TREE_STORE.name, COMMIT_LIMIT_NAME];
    let peers = rates.iter().filter(|samples| !none.contains(&samples.subject));
    let medians = peers.filter_map(|samples| Some((samples.subject, median(&samples.values)?)));
    medians.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(subject, _)| subject)
}

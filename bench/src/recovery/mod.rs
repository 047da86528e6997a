//! `recovery`: 25,000 random pages of 2 GiB are changed, and the process is killed before any page is applied; then the
//! store is opened on a disk that takes 2 ms per request and serves 64 at once.
//!
//! It measures the time until the store is open, until a changed page was read, and until everything is applied.
//! Subjects are pagekeeper's store, serial replay into a mapping, replay after `MADV_WILLNEED` for every page,
//! `SQLite`, redb, LMDB, fjall, `RocksDB`, and the limit of such a disk. Further cases are a journal of 1 GiB, and
//! openings with nothing to recover. Invariants: all subjects have the same changes; each finds the disk cold and uses
//! it alone; every changed page is compared afterwards. Fails where a store fails or has lost something, and with a
//! plain message without root.

mod changes;
mod child;
#[cfg(feature = "fjall")]
mod fjall;
mod large;
mod least;
#[cfg(feature = "lmdb")]
mod lmdb;
mod map;
mod nothing;
mod ours;
#[cfg(any(feature = "fjall", feature = "lmdb", feature = "rocksdb"))]
mod peer;
#[cfg(feature = "redb")]
mod redb;
mod replay;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod site;
#[cfg(feature = "sqlite")]
mod sqlite;
mod wide;

use std::any::Any;
use std::cell::RefCell;
use std::path::Path;

use anyhow::Result;

use crate::Run;
use crate::data::{GIB, MIB};
use crate::drive::PAGE;
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, median, run as run_rounds};
use crate::scratch::Stop;
use crate::slowdisk::SlowDisk;
use changes::{CHANGE, Load, PER_COMMIT};
use replay::Way;
use site::{LATENCY, RecoveryDisk, WIDTH};

pub(crate) use child::{Arguments as ChildArguments, run as be_killed};
pub(crate) use nothing::{Arguments as OpeningArguments, child as open_once};

const SERIAL: &str = "serial replay into a map";
const READ_AROUND: &str = "the same with read-around";
const WILL_NEED: &str = "WILLNEED, then replay into a map";
const LIMIT: &str = "pages / width x latency";
const WIDE: &str = "the same bytes, read wide";
const LEAST: &str = "the least: its epoch, these reads, sums, an index, a sync";
const LARGE: &str = "1 TiB";
const SMALL: &str = "1 GiB";

/// Number of changed pages.
const CHANGES: usize = 25_000;
/// Bytes of the data file.
const BYTES: u64 = 2 * GIB;
/// Serial replay is measured on this fraction of the file, and scaled.
const PART: u64 = 10;
/// Number of changed pages where only the file's size matters.
const FEW_CHANGES: usize = 1000;

/// A store that recovers what a killed process has left.
#[derive(Debug, Clone, Copy)]
struct Engine {
    /// Its name in tables.
    name: &'static str,
    /// Its name in files and arguments.
    word: &'static str,
    /// Creates a store in the directory if there is none, and changes pages; the returned value keeps the store open.
    prepare: fn(&Path, &Load) -> Result<Box<dyn Any>>,
    /// Opens it on the slow disk.
    recover: fn(&SlowDisk, &Path, &Load) -> Result<Recovered>,
    /// Compares every changed page, off the slow disk.
    check: fn(&Path, &Load) -> Result<()>,
}

/// The engines that this program was built with; ours is the first.
const ENGINES: &[Engine] = &[
    ours::ENGINE,
    #[cfg(feature = "sqlite")]
    sqlite::ENGINE,
    #[cfg(feature = "redb")]
    redb::ENGINE,
    #[cfg(feature = "lmdb")]
    lmdb::ENGINE,
    #[cfg(feature = "fjall")]
    fjall::ENGINE,
    #[cfg(feature = "rocksdb")]
    rocksdb::ENGINE,
];

fn engine(word: &str) -> Option<Engine> {
    ENGINES.iter().chain([&large::ENGINE]).find(|engine| engine.word == word).copied()
}

/// A recovery; times are in ms from its beginning.
#[derive(Debug, Clone, Copy)]
struct Recovered {
    /// Reads and writes are accepted.
    open: f64,
    /// A changed page was read.
    first: f64,
    /// Everything is durable in the data file.
    applied: Option<f64>,
    ours: Option<Account>,
}

/// The details of our own recovery, and of its limits.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// Time from the opening until everything was applied, in ms.
    apply: f64,
    /// Time of reading the journal, in ms.
    journal: f64,
    /// Time of reading the same bytes with full width, in ms.
    wide: f64,
    /// Time of reading, checksumming and indexing the same bytes, in ms.
    least: f64,
    journal_bytes: u64,
    /// Mean number of requests in flight while it applied.
    depth: f64,
    /// Requests until it was open.
    open_requests: u64,
    /// Requests while it applied.
    apply_requests: u64,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, xfs: bool) -> Result<()> {
    run.note(&format!(
        "{CHANGES} pages of {} MiB, {CHANGE} bytes of each, in transactions of {PER_COMMIT} that are synced; then SIGKILL",
        BYTES / MIB
    ));
    run.note(&format!(
        "files are in memory, and while a store opens behind a disk that takes {LATENCY:?} and serves {WIDTH} at once"
    ));
    run.note(&format!("serial replay is measured on a {PART}th of the file and its changes, and scaled"));
    if xfs {
        run.note("on an XFS on a loop device over that disk");
    }
    note_peers(run);
    nothing::run(run)?;
    let site = RecoveryDisk::new(&run.scratch, if run.quick { 4 } else { 11 } * GIB, xfs)?;
    recover(run, &site)?;
    if !run.quick {
        sizes(run, &site)?;
        large::run(run, &site)?;
    }
    Ok(())
}

/// Notes the peers' versions, or that they are missing.
fn note_peers(run: &mut Run) {
    #[cfg(feature = "sqlite")]
    run.report.machine.versions.insert("SQLite".to_owned(), sqlite::version().to_owned());
    #[cfg(feature = "redb")]
    crate::hit::note_version(run, "redb");
    #[cfg(feature = "lmdb")]
    crate::hit::note_version(run, "lmdb-master-sys");
    #[cfg(feature = "fjall")]
    crate::hit::note_version(run, "fjall");
    #[cfg(feature = "rocksdb")]
    run.report.machine.versions.insert("rocksdb".to_owned(), crate::hit::rocksdb::version());
    let peers = [
        ("SQLite", cfg!(feature = "sqlite")),
        ("redb", cfg!(feature = "redb")),
        ("LMDB", cfg!(feature = "lmdb")),
        ("fjall", cfg!(feature = "fjall")),
        ("RocksDB", cfg!(feature = "rocksdb")),
    ];
    for (name, built) in peers {
        if run.quick {
            run.note(&format!("left out with --quick: {name}"));
        } else if !built {
            run.report.add_missing(name);
        }
    }
}

/// A figure of our own recovery: its name, and how to get it.
type Figure = (&'static str, fn(&Account) -> f64);

/// A subject with its recovery.
type Who<'a> = (&'static str, Box<dyn Fn(&Load) -> Result<Recovered> + 'a>);

fn recover(run: &mut Run, site: &RecoveryDisk) -> Result<()> {
    let (seed, stop) = (run.random.next_u64(), run.stop.clone());
    let few = if run.quick { 1 } else { ENGINES.len() };
    let mut all: Vec<Who<'_>> = Vec::new();
    for &engine in &ENGINES[..few] {
        let stop = &stop;
        all.push((
            engine.name,
            Box::new(move |load| killed_and_recovered(engine, engine.word, site, load, stop)),
        ));
    }
    let ways =
        [(SERIAL, Way::Serial, PART), (READ_AROUND, Way::ReadAround, PART), (WILL_NEED, Way::WillNeed, 1)];
    for (name, way, part) in ways {
        let stop = &stop;
        if way != Way::ReadAround || !run.quick {
            all.push((name, Box::new(move |load| replayed(way, part, site, load, stop))));
        }
    }
    run.say("changing pages, killing, recovering")?;
    let measured: Vec<RefCell<Vec<Recovered>>> = all.iter().map(|_| RefCell::default()).collect();
    let mut subjects: Vec<Subject<'_>> = all
        .iter()
        .zip(&measured)
        .map(|((name, recover), measured)| {
            Subject::new(name, move || {
                let round = measured.borrow().len() as u64;
                let recovered = recover(&Load { pages: BYTES / PAGE, changes: CHANGES, seed, round })?;
                measured.borrow_mut().push(recovered);
                Ok(recovered.open)
            })
        })
        .collect();
    let until = run.quick.then(|| run.began + std::time::Duration::from_secs(43));
    let rounds = if run.quick { run.rounds.min(2) } else { run.rounds };
    // Every sample begins with nothing cached, so no uncounted round is needed.
    let open = run_rounds(&mut subjects, Plan { rounds, until, warm_up: false }, &mut run.random, &run.stop)?;
    drop(subjects);
    let measured: Vec<Vec<Recovered>> = measured.into_iter().map(RefCell::into_inner).collect();
    report(run, &open, &measured);
    Ok(())
}

/// Recovers the killed store in the directory of that name.
fn killed_and_recovered(
    engine: Engine,
    name: &str,
    site: &RecoveryDisk,
    load: &Load,
    stop: &Stop,
) -> Result<Recovered> {
    site.at_once(name, |dir| child::change_and_kill(engine.word, dir, load, stop))?;
    let recovered = site.on_disk(name, |disk, dir| (engine.recover)(disk, dir, load))?;
    stop.check()?;
    site.at_once(name, |dir| (engine.check)(dir, load))?;
    if engine.word != ours::ENGINE.word {
        // There is no memory for all of them at the same time.
        site.remove(name)?;
    }
    Ok(recovered)
}

fn replayed(way: Way, part: u64, site: &RecoveryDisk, load: &Load, stop: &Stop) -> Result<Recovered> {
    site.at_once("map", |dir| replay::prepare(dir, load))?;
    let recovered = site.on_disk("map", |_, dir| replay::recover(dir, load, way, part, stop))?;
    site.at_once("map", |dir| replay::check(dir, load, part))?;
    Ok(recovered)
}

fn report(run: &mut Run, open: &[Samples], seen: &[Vec<Recovered>]) {
    let ms = Unit::Milliseconds;
    let figure = |of: &dyn Fn(&Recovered) -> Option<f64>| -> Vec<Samples> {
        let of_subject = |(samples, seen): (&Samples, &Vec<Recovered>)| Samples {
            subject: samples.subject,
            values: seen.iter().filter_map(of).collect(),
        };
        open.iter().zip(seen).map(of_subject).filter(|samples| !samples.values.is_empty()).collect()
    };
    let first = figure(&|recovered| Some(recovered.first));
    let applied = figure(&|recovered| recovered.applied);
    let of_ours = |subject: &'static str, of: fn(&Account) -> f64| Samples {
        subject,
        values: seen.iter().flatten().filter_map(|recovered| recovered.ours.as_ref()).map(of).collect(),
    };
    let report = &mut run.report;
    report.add_case("time to open", ms, open);
    report.add_case("time to the first read of a changed page", ms, &first);
    report.add_case("time until all is applied", ms, &applied);
    let apply = [of_ours(ours::NAME, |ours| ours.apply), of_ours(LIMIT, |_| RecoveryDisk::limit_ms(CHANGES))];
    report.add_case("from open until all is applied", ms, &apply);
    let journal = [
        of_ours(ours::NAME, |ours| ours.journal),
        of_ours(WIDE, |ours| ours.wide),
        of_ours(LEAST, |ours| ours.least),
    ];
    report.add_case("reading the journal", ms, &journal);
    let counts: [Figure; 3] = [
        ("requests until open", |ours| ours.open_requests as f64),
        ("requests while it applies", |ours| ours.apply_requests as f64),
        ("mean depth while it applies", |ours| ours.depth),
    ];
    for (case, of) in counts {
        report.add_case(case, Unit::Count, &[of_ours(ours::NAME, of)]);
    }
    let mib = of_ours(ours::NAME, |ours| ours.journal_bytes as f64 / MIB as f64);
    report.add_case("journal", Unit::Mib, &[mib]);

    report.add_ratio("open_vs_serial_mmap", ms, open, ours::NAME, SERIAL);
    report.add_ratio("open_vs_willneed", ms, open, ours::NAME, WILL_NEED);
    #[cfg(feature = "sqlite")]
    report.add_ratio("open_vs_sqlite", ms, open, ours::NAME, sqlite::ENGINE.name);
    #[cfg(feature = "redb")]
    report.add_ratio("open_vs_redb", ms, open, ours::NAME, redb::ENGINE.name);
    #[cfg(feature = "lmdb")]
    report.add_ratio("first_read_vs_lmdb", ms, &first, ours::NAME, lmdb::ENGINE.name);
    #[cfg(feature = "fjall")]
    report.add_ratio("first_read_vs_fjall", ms, &first, ours::NAME, fjall::ENGINE.name);
    #[cfg(feature = "rocksdb")]
    report.add_ratio("first_read_vs_rocksdb", ms, &first, ours::NAME, rocksdb::ENGINE.name);
    report.add_ratio("apply_vs_limit", ms, &apply, ours::NAME, LIMIT);
    report.add_ratio("journal_vs_limit", ms, &journal, ours::NAME, WIDE);
    report.add_ratio("journal_vs_least", ms, &journal, ours::NAME, LEAST);
    report.add_ratio("journal_least_vs_limit", ms, &journal, LEAST, WIDE);
}

/// Compares the opening of a store of a large file and of a small one with the same number of changed pages.
fn sizes(run: &mut Run, site: &RecoveryDisk) -> Result<()> {
    run.say("opening files of 1 GiB and 1 TiB")?;
    let (seed, stop) = (run.random.next_u64(), run.stop.clone());
    let of_size = |name: &'static str, bytes: u64| {
        let (stop, mut round) = (&stop, 0);
        Subject::new(name, move || {
            let load = Load { pages: bytes / PAGE, changes: FEW_CHANGES, seed, round };
            round += 1;
            Ok(killed_and_recovered(ours::ENGINE, name, site, &load, stop)?.open)
        })
    };
    let mut subjects = [of_size(LARGE, 1024 * GIB), of_size(SMALL, GIB)];
    let plan = Plan { rounds: 2 * run.rounds + 1, until: None, warm_up: true };
    let open = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    let report = &mut run.report;
    let case = format!("time to open, {FEW_CHANGES} changed pages of a sparse data file");
    report.add_case(&case, Unit::Milliseconds, &open);
    // Different rounds have different disturbances, so the medians of such short times decide.
    if let [Some(large), Some(small)] = [&open[0], &open[1]].map(|samples| median(&samples.values)) {
        report.ratios.insert("open_1tib_vs_1gib", small / large);
    }
    Ok(())
}

//! `recovery`: 25,000 random pages of 2 GiB are changed, and the process is killed before any page is applied; then the
//! store is opened on a disk that takes 2 ms per request and serves 64 at once.
//!
//! It measures the time until the store is open, until a changed page was read, and until everything is applied.
//! Subjects are pagekeeper's store, serial replay into a mapping, and replay after `MADV_WILLNEED` for every page. Further
//! cases are files of two sizes, and openings with nothing to recover. Invariants: all subjects have the same changes;
//! each finds the disk cold and uses it alone; every changed page is compared afterwards. Fails where a store fails or
//! has lost something, and with a plain message without root.

mod changes;
mod child;
mod journal;
mod nothing;
mod ours;
mod replay;
mod site;

use anyhow::Result;

use crate::Run;
use crate::data::{GIB, MIB};
use crate::drive::PAGE;
use crate::report::Unit;
use crate::rounds::{Measured, Plan, Samples, Turn, median};
use crate::scratch::Stop;
use changes::{CHANGE, Load, PER_COMMIT};
use replay::Way;
use site::{LATENCY, RecoveryDisk, WIDTH};

pub(crate) use child::{Arguments as ChildArguments, run as be_killed};
pub(crate) use nothing::{Arguments as OpeningArguments, child as open_once};

const SERIAL: &str = "serial replay into a map";
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

/// The subjects of a recovery: ours, then replays with the part of the file that each replays.
const SUBJECTS: [&str; 3] = [ours::NAME, SERIAL, WILL_NEED];

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
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    run.note(&format!(
        "{CHANGES} pages of {} MiB, {CHANGE} bytes of each, in transactions of {PER_COMMIT} that are synced; then SIGKILL",
        BYTES / MIB
    ));
    run.note(&format!(
        "files are in memory, and while a store opens behind a disk that takes {LATENCY:?} and serves {WIDTH} at once"
    ));
    run.note(&format!("serial replay is measured on a {PART}th of the file and its changes, and scaled"));
    nothing::run(run)?;
    let site = RecoveryDisk::new(&run.scratch, if run.quick { 4 } else { 6 } * GIB)?;
    recover(run, &site)?;
    if !run.quick {
        sizes(run, &site)?;
    }
    Ok(())
}

fn recover(run: &mut Run, site: &RecoveryDisk) -> Result<()> {
    let (seed, stop) = (run.random.next_u64(), run.stop.clone());
    run.say("changing pages, killing, recovering")?;
    let until = run.quick.then(|| run.began + std::time::Duration::from_secs(43));
    let rounds = if run.quick { run.rounds.min(2) } else { run.rounds };
    // Every sample begins with nothing cached, so no uncounted round is needed.
    let plan = Plan { rounds, until, warm_up: false };
    let measured = run.measure(&SUBJECTS, plan, |Turn { subject, round }| {
        let load = Load { pages: BYTES / PAGE, changes: CHANGES, seed, round: round as u64 };
        match SUBJECTS[subject] {
            SERIAL => replayed(Way::Serial, PART, site, &load, &stop),
            WILL_NEED => replayed(Way::WillNeed, 1, site, &load, &stop),
            name => killed_and_recovered(name, site, &load, &stop),
        }
    })?;
    report(run, &measured);
    Ok(())
}

/// Recovers the killed store in the directory of that name.
fn killed_and_recovered(name: &str, site: &RecoveryDisk, load: &Load, stop: &Stop) -> Result<Recovered> {
    site.at_once(name, |dir| child::change_and_kill(dir, load, stop))?;
    let recovered = site.on_disk(name, |dir| ours::recover(dir, load))?;
    stop.check()?;
    site.at_once(name, |dir| ours::check(dir, load))?;
    Ok(recovered)
}

fn replayed(way: Way, part: u64, site: &RecoveryDisk, load: &Load, stop: &Stop) -> Result<Recovered> {
    site.at_once("map", |dir| replay::prepare(dir, load))?;
    let recovered = site.on_disk("map", |dir| replay::recover(dir, load, way, part, stop))?;
    site.at_once("map", |dir| replay::check(dir, load, part))?;
    Ok(recovered)
}

fn report(run: &mut Run, measured: &Measured<Recovered>) {
    let ms = Unit::Milliseconds;
    let open = measured.figure(|recovered| recovered.open);
    let first = measured.figure(|recovered| recovered.first);
    let applied = |(subject, seen): (&'static str, &[Recovered])| Samples {
        subject,
        values: seen.iter().filter_map(|recovered| recovered.applied).collect(),
    };
    let applied: Vec<Samples> =
        measured.iter().map(applied).filter(|samples| !samples.values.is_empty()).collect();
    let ours = measured.of(ours::NAME).iter().filter_map(|recovered| recovered.ours);
    let ours: Vec<Account> = ours.collect();
    let of_ours = |subject: &'static str, of: fn(&Account) -> f64| Samples {
        subject,
        values: ours.iter().map(of).collect(),
    };
    let report = &mut run.report;
    report.add_case("time to open", ms, &open);
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
    report.add_ratio("open_vs_serial_mmap", ms, &open, ours::NAME, SERIAL);
    report.add_ratio("open_vs_willneed", ms, &open, ours::NAME, WILL_NEED);
    report.add_ratio("apply_vs_limit", ms, &apply, ours::NAME, LIMIT);
    report.add_ratio("journal_vs_limit", ms, &journal, ours::NAME, WIDE);
    report.add_ratio("journal_vs_least", ms, &journal, ours::NAME, LEAST);
    report.add_ratio("journal_least_vs_limit", ms, &journal, LEAST, WIDE);
}

/// Compares the opening of a store of a large file and of a small one with the same number of changed pages.
fn sizes(run: &mut Run, site: &RecoveryDisk) -> Result<()> {
    run.say("opening files of 1 GiB and 1 TiB")?;
    let (seed, stop) = (run.random.next_u64(), run.stop.clone());
    let plan = Plan { rounds: 2 * run.rounds + 1, until: None, warm_up: true };
    let sizes = [(LARGE, 1024 * GIB), (SMALL, GIB)];
    let open = run.measure(&sizes.map(|(name, _)| name), plan, |Turn { subject, round }| {
        let (name, bytes) = sizes[subject];
        let load = Load { pages: bytes / PAGE, changes: FEW_CHANGES, seed, round: round as u64 };
        Ok(killed_and_recovered(name, site, &load, &stop)?.open)
    })?;
    let open = open.figure(|ms| *ms);
    let report = &mut run.report;
    let case = format!("time to open, {FEW_CHANGES} changed pages of a sparse data file");
    report.add_case(&case, Unit::Milliseconds, &open);
    // Different rounds have different disturbances, so the medians of such short times decide.
    if let [Some(large), Some(small)] = [&open[0], &open[1]].map(|samples| median(&samples.values)) {
        report.ratios.insert("open_1tib_vs_1gib", small / large);
    }
    Ok(())
}

//! `recovery`: 25,000 random pages of 2 GiB are changed, and the process is killed before any page
//! is applied; then the store is opened on a disk that takes 2 ms per request and serves 64 at
//! once.
//!
//! It measures the time until the store is open, until a changed page was read, and until
//! everything is applied. Subjects are pagekeeper's store, serial replay into a mapping, and replay
//! after `MADV_WILLNEED` for every page. Further cases are files of two sizes, and openings with
//! nothing to recover. Invariants: all subjects have the same changes; each finds the disk cold and
//! uses it alone; every changed page is compared afterwards. Fails where a store fails or has lost
//! something, and with a plain message without root.

mod changes;
mod child;
mod journal;
mod nothing;
mod ours;
mod replay;
pub(crate) mod site;

use anyhow::Result;

use crate::BenchRun;
use crate::data::{GIB, MIB};
use crate::drive::FILE_PAGE_BYTES;
use crate::report::FigureUnit;
use crate::rounds::{MeasuredSamples, RoundPlan, SubjectSamples, SubjectTurn, median};
use crate::scratch::StopRequest;
use changes::{CHANGE_BYTES, ChangeLoad, PAGES_PER_COMMIT};
use replay::ReplayLoading;
use site::{DISK_WIDTH, REQUEST_LATENCY, RecoveryDisk};

pub(crate) use child::{ChildArguments, run as be_killed};
pub(crate) use nothing::{OpeningArguments, child as open_once};

const SERIAL_REPLAY_NAME: &str = "serial replay into a map";
const WILL_NEED_NAME: &str = "WILLNEED, then replay into a map";
const WIDTH_LIMIT_NAME: &str = "pages / width x latency";
const WIDE_READ_NAME: &str = "the same bytes, read wide";
const LEAST_RECOVERY_NAME: &str = "the least: its epoch, these reads, sums, an index, a sync";
const LARGE_FILE_NAME: &str = "1 TiB";
const SMALL_FILE_NAME: &str = "1 GiB";

/// Number of changed pages.
const CHANGED_PAGES: usize = 25_000;
/// Bytes of the data file.
const DATA_FILE_BYTES: u64 = 2 * GIB;
/// Serial replay is measured on this fraction of the file, and scaled.
const SERIAL_PART: u64 = 10;
/// Number of changed pages where only the file's size matters.
const FEW_CHANGED_PAGES: usize = 1000;

/// The subjects of a recovery: ours, then replays with the part of the file that each replays.
const RECOVERY_SUBJECTS: [&str; 3] = [ours::OUR_RECOVERY_NAME, SERIAL_REPLAY_NAME, WILL_NEED_NAME];

/// A recovery; times are in ms from its beginning.
#[derive(Debug, Clone, Copy)]
struct RecoveryTimes {
    /// Reads and writes are accepted.
    open: f64,
    /// A changed page was read.
    first: f64,
    /// Everything is durable in the data file.
    applied: Option<f64>,
    ours: Option<RecoveryDetails>,
}

/// The details of our own recovery, and of its limits.
#[derive(Debug, Clone, Copy)]
struct RecoveryDetails {
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
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    run.note(&format!(
        "{CHANGED_PAGES} pages of {} MiB, {CHANGE_BYTES} bytes of each, in transactions of {PAGES_PER_COMMIT} that are synced; then SIGKILL",
        DATA_FILE_BYTES / MIB
    ));
    run.note(&format!(
        "files are in memory, and while a store opens behind a disk that takes {REQUEST_LATENCY:?} and serves {DISK_WIDTH} at once"
    ));
    run.note(&format!(
        "serial replay is measured on a {SERIAL_PART}th of the file and its changes, and scaled"
    ));
    nothing::run(run)?;
    let site = RecoveryDisk::new(&run.scratch, if run.quick { 4 } else { 6 } * GIB)?;
    recover(run, &site)?;
    if !run.quick {
        sizes(run, &site)?;
    }
    Ok(())
}

fn recover(run: &mut BenchRun, site: &RecoveryDisk) -> Result<()> {
    let (seed, stop) = (run.random.next_u64(), run.stop.clone());
    run.say("changing pages, killing, recovering")?;
    let until = run.quick.then(|| run.began + std::time::Duration::from_secs(43));
    let rounds = if run.quick { run.rounds.min(2) } else { run.rounds };
    // Every sample begins with nothing cached, so no uncounted round is needed.
    let plan = RoundPlan { rounds, until, warm_up: false };
    let measured = run.measure(&RECOVERY_SUBJECTS, plan, |SubjectTurn { subject, round }| {
        let load = ChangeLoad {
            pages: DATA_FILE_BYTES / FILE_PAGE_BYTES,
            changes: CHANGED_PAGES,
            seed,
            round: round as u64,
        };
        match RECOVERY_SUBJECTS[subject] {
            SERIAL_REPLAY_NAME => replayed(ReplayLoading::Serial, SERIAL_PART, site, &load, &stop),
            WILL_NEED_NAME => replayed(ReplayLoading::WillNeed, 1, site, &load, &stop),
            name => killed_and_recovered(name, site, &load, &stop),
        }
    })?;
    report(run, &measured);
    Ok(())
}

/// Recovers the killed store in the directory of that name.
fn killed_and_recovered(
    name: &str,
    site: &RecoveryDisk,
    load: &ChangeLoad,
    stop: &StopRequest,
) -> Result<RecoveryTimes> {
    site.at_once(name, |dir| child::change_and_kill(dir, load, stop))?;
    let recovered = site.on_disk(name, |dir| ours::recover(dir, load))?;
    stop.check()?;
    site.at_once(name, |dir| ours::check(dir, load))?;
    Ok(recovered)
}

fn replayed(
    way: ReplayLoading,
    part: u64,
    site: &RecoveryDisk,
    load: &ChangeLoad,
    stop: &StopRequest,
) -> Result<RecoveryTimes> {
    site.at_once("map", |dir| replay::prepare(dir, load))?;
    let recovered = site.on_disk("map", |dir| replay::recover(dir, load, way, part, stop))?;
    site.at_once("map", |dir| replay::check(dir, load, part))?;
    Ok(recovered)
}

fn report(run: &mut BenchRun, measured: &MeasuredSamples<RecoveryTimes>) {
    let ms = FigureUnit::Milliseconds;
    let open = measured.figure(|recovered| recovered.open);
    let first = measured.figure(|recovered| recovered.first);
    let applied = |(subject, seen): (&'static str, &[RecoveryTimes])| SubjectSamples {
        subject,
        values: seen.iter().filter_map(|recovered| recovered.applied).collect(),
    };
    let applied: Vec<SubjectSamples> =
        measured.iter().map(applied).filter(|samples| !samples.values.is_empty()).collect();
    let ours = measured.of(ours::OUR_RECOVERY_NAME).iter().filter_map(|recovered| recovered.ours);
    let ours: Vec<RecoveryDetails> = ours.collect();
    let of_ours = |subject: &'static str, of: fn(&RecoveryDetails) -> f64| SubjectSamples {
        subject,
        values: ours.iter().map(of).collect(),
    };
    let report = &mut run.report;
    report.add_case("time to open", ms, &open);
    report.add_case("time to the first read of a changed page", ms, &first);
    report.add_case("time until all is applied", ms, &applied);
    let apply = [
        of_ours(ours::OUR_RECOVERY_NAME, |ours| ours.apply),
        of_ours(WIDTH_LIMIT_NAME, |_| RecoveryDisk::limit_ms(CHANGED_PAGES)),
    ];
    report.add_case("from open until all is applied", ms, &apply);
    let journal = [
        of_ours(ours::OUR_RECOVERY_NAME, |ours| ours.journal),
        of_ours(WIDE_READ_NAME, |ours| ours.wide),
        of_ours(LEAST_RECOVERY_NAME, |ours| ours.least),
    ];
    report.add_case("reading the journal", ms, &journal);
    report.add_ratio("open_vs_serial_mmap", ms, &open, ours::OUR_RECOVERY_NAME, SERIAL_REPLAY_NAME);
    report.add_ratio("open_vs_willneed", ms, &open, ours::OUR_RECOVERY_NAME, WILL_NEED_NAME);
    report.add_ratio("apply_vs_limit", ms, &apply, ours::OUR_RECOVERY_NAME, WIDTH_LIMIT_NAME);
    report.add_ratio("journal_vs_limit", ms, &journal, ours::OUR_RECOVERY_NAME, WIDE_READ_NAME);
    report.add_ratio("journal_vs_least", ms, &journal, ours::OUR_RECOVERY_NAME, LEAST_RECOVERY_NAME);
    report.add_ratio("journal_least_vs_limit", ms, &journal, LEAST_RECOVERY_NAME, WIDE_READ_NAME);
}

/// Compares the opening of a store of a large file and of a small one with the same number of
/// changed pages.
fn sizes(run: &mut BenchRun, site: &RecoveryDisk) -> Result<()> {
    run.say("opening files of 1 GiB and 1 TiB")?;
    let (seed, stop) = (run.random.next_u64(), run.stop.clone());
    let plan = RoundPlan { rounds: 2 * run.rounds + 1, until: None, warm_up: true };
    let sizes = [(LARGE_FILE_NAME, 1024 * GIB), (SMALL_FILE_NAME, GIB)];
    let open = run.measure(&sizes.map(|(name, _)| name), plan, |SubjectTurn { subject, round }| {
        let (name, bytes) = sizes[subject];
        let load = ChangeLoad {
            pages: bytes / FILE_PAGE_BYTES,
            changes: FEW_CHANGED_PAGES,
            seed,
            round: round as u64,
        };
        Ok(killed_and_recovered(name, site, &load, &stop)?.open)
    })?;
    let open = open.figure(|ms| *ms);
    let report = &mut run.report;
    let case = format!("time to open, {FEW_CHANGED_PAGES} changed pages of a sparse data file");
    report.add_case(&case, FigureUnit::Milliseconds, &open);
    // Different rounds have different disturbances, so the medians of such short times decide.
    if let [Some(large), Some(small)] = [&open[0], &open[1]].map(|samples| median(&samples.values)) {
        report.ratios.insert("open_1tib_vs_1gib", small / large);
    }
    Ok(())
}

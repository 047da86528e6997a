//! A journal of 1 GiB: the time of an opening against reading the journal once.
//!
//! 262,144 random pages of a file of 2 GiB are written in full, in synced transactions, and none is applied before the
//! process is killed. The comparison reads every byte of the same journal that the opening needs, and does nothing with
//! it. It reads past the page cache, with as many requests in flight as the opening has, into memory that exists
//! already. Both find the disk cold, one after the other, in each round. Fails where the store does, or has lost
//! something.

use std::any::Any;
use std::cell::RefCell;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pagekeeper_store::{Durability, Store};

use super::changes::{BODY, Load, PER_COMMIT};
use super::site::RecoveryDisk;
use super::{Account, BYTES, Engine, LEAST, Recovered, child, least, ours, wide};
use crate::Run;
use crate::data::{GIB, MIB};
use crate::drive::PAGE;
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, run as run_rounds};
use crate::slowdisk::SlowDisk;

/// The store; only the child process knows it by name.
pub(super) const ENGINE: Engine =
    Engine { name: ours::NAME, word: "pagekeeper-large", prepare, recover, check: ours::check };

const READ: &str = "its journal, read once";
/// Memory of the killed store, in bytes: unapplied pages may take up a quarter of it.
const MEMORY: u64 = 8 * GIB;
/// Limit of its journal, in bytes.
const JOURNAL: u64 = 2 * GIB;

fn prepare(dir: &Path, load: &Load) -> Result<Box<dyn Any>> {
    let store = Store::options().background_apply(false).memory(MEMORY).journal_bytes(JOURNAL).open(dir)?;
    let mut transaction = store.begin()?;
    let first = transaction.allocate_run(load.pages)?;
    ensure!(first == 0, "the first page is {first}");
    transaction.commit(Durability::Sync)?;
    let mut body = vec![0; store.payload_size()];
    ensure!(body.len() >= BODY, "a page has {} bytes", body.len());
    for pages in load.changed().chunks(PER_COMMIT) {
        let mut transaction = store.begin()?;
        for page in pages {
            load.expected(*page, &mut body);
            transaction.write(*page, &body)?;
        }
        transaction.commit(Durability::Sync)?;
    }
    Ok(Box::new(store))
}

fn recover(disk: &SlowDisk, dir: &Path, load: &Load) -> Result<Recovered> {
    let changed = load.changed();
    disk.reset()?;
    let began = Instant::now();
    // As anybody opens it, except that nothing is applied meanwhile, because the journal is read again.
    let store = Store::options().background_apply(false).open(dir)?;
    let open = began.elapsed();
    let page = store.begin_read()?.read(changed[0])?;
    let first = began.elapsed();
    let open_requests = disk.stats()?.requests();
    load.check(changed[0], &page)?;
    drop(page);
    let opening = store.stat().opening;
    drop(store);
    ensure!(opening.pages == load.changes as u64, "{} pages were found to apply", opening.pages);
    let journal = dir.join("journal");
    let io = pagekeeper_io::best();
    let wide = wide::least_time(&*io, &journal, opening.journal_bytes)?;
    let least = least::least_time(&*io, &journal, opening.journal_bytes, &changed)?;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    Ok(Recovered {
        open: ms(open),
        first: ms(first),
        applied: None,
        ours: Some(Account {
            apply: 0.0,
            journal: ms(opening.journal_read),
            wide: ms(wide),
            least: ms(least),
            journal_bytes: opening.journal_bytes,
            depth: 0.0,
            open_requests,
            apply_requests: 0,
        }),
    })
}

/// Runs the case.
pub(super) fn run(run: &mut Run, site: &RecoveryDisk) -> Result<()> {
    run.say("opening with a journal of 1 GiB")?;
    let (seed, stop) = (run.random.next_u64(), run.stop.clone());
    let (pages, changes) = (BYTES / PAGE, usize::try_from(GIB / PAGE)?);
    let recovered = RefCell::new(Vec::new());
    let mut subjects = [Subject::new(ENGINE.name, || {
        let load = Load { pages, changes, seed, round: recovered.borrow().len() as u64 };
        site.at_once(ENGINE.word, |dir| child::change_and_kill(ENGINE.word, dir, &load, &stop))?;
        let found = site.on_disk(ENGINE.word, |disk, dir| recover(disk, dir, &load))?;
        site.at_once(ENGINE.word, |dir| (ENGINE.check)(dir, &load))?;
        site.remove(ENGINE.word)?;
        recovered.borrow_mut().push(found);
        Ok(found.open)
    })];
    let plan = Plan { rounds: run.rounds.min(5), until: None, warm_up: false };
    let open = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    let recovered = recovered.into_inner();
    let of = |subject, what: fn(&Account) -> f64| Samples {
        subject,
        values: recovered.iter().filter_map(|found| found.ours.as_ref()).map(what).collect(),
    };
    let (read, least) = (of(READ, |account| account.wide), of(LEAST, |account| account.least));
    let open = [open.into_iter().next().context("there is one subject")?, read, least];
    let report = &mut run.report;
    let ms = Unit::Milliseconds;
    report.add_case("time to open with a journal of 1 GiB (goal: 2 x its reading)", ms, &open);
    let times = |found: &Recovered| Some(found.open / found.ours?.wide);
    let times = Samples { subject: ours::NAME, values: recovered.iter().filter_map(times).collect() };
    report.add_case("the same, in readings of the journal (goal: at most 2)", Unit::Count, &[times]);
    let mib = of(ours::NAME, |account| account.journal_bytes as f64 / MIB as f64);
    report.add_case("its journal", Unit::Mib, &[mib]);
    report.add_ratio("open_1gib_vs_reading", ms, &open, ours::NAME, READ);
    report.add_ratio("open_1gib_vs_least", ms, &open, ours::NAME, LEAST);
    Ok(())
}

//! Openings with nothing, or next to nothing, to recover, on the given disk: a closed store, and
//! redo logs.
//!
//! Each opening is the first of its own process, so its one-time costs count. A ring is filled once
//! round, with its checkpoint 1 MiB before the end. It was closed, or its process ended without
//! closing it. Fails where the store or the log does.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use pagekeeper_store::{Durability, PageNo, Store};
use pagekeeper_wal::{FlushPolicy, RedoLog};

use super::ours;
use crate::BenchRun;
use crate::data::{GIB, MIB};
use crate::peers::{run as run_program, this_program};
use crate::report::FigureUnit;
use crate::rounds::{RoundPlan, SubjectSamples};

const GOAL_NAME: &str = "the goal";
/// Pages of the store.
const STORE_PAGES: u64 = 4096;
const FILL_RECORD_BYTES: usize = 64 << 10;
/// Bytes of records beyond the checkpoint.
const UNCHECKPOINTED_BYTES: u64 = MIB;

/// The task of a child process.
#[derive(Debug, clap::Args)]
pub(crate) struct OpeningArguments {
    what: OpeningTask,
    dir: PathBuf,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OpeningTask {
    OpenStore,
    OpenLog,
    /// Makes records in a ring, and ends without closing it.
    FillLog,
}

/// Runs in the child.
pub(crate) fn child(arguments: &OpeningArguments) -> Result<()> {
    let OpeningArguments { what, dir } = arguments;
    let began = Instant::now();
    match what {
        OpeningTask::OpenStore => {
            let store = Store::options().open(dir)?;
            println!("{}", began.elapsed().as_secs_f64() * 1e3);
            store.close()?;
        }
        OpeningTask::OpenLog => {
            let log = RedoLog::options().open(dir)?;
            println!("{}", began.elapsed().as_secs_f64() * 1e3);
            // Nothing was written, so the next opening finds the same state.
            drop(log);
        }
        OpeningTask::FillLog => {
            let log = RedoLog::options().flush_policy(FlushPolicy::Os).open(dir)?;
            fill(&log)?;
            // Ends without running any destructor.
            std::process::exit(0);
        }
    }
    Ok(())
}

/// Fills the ring once round, and a little further.
fn fill(log: &RedoLog) -> Result<()> {
    let body = vec![7; FILL_RECORD_BYTES];
    let end = log.end() + log.capacity() + log.capacity() / 8;
    let mut upto = log.checkpoint_lsn();
    while log.end() < end {
        let before = upto;
        for _ in 0..UNCHECKPOINTED_BYTES / FILL_RECORD_BYTES as u64 {
            upto = log.append(&body)?;
        }
        log.wait_flushed(upto)?;
        log.sync_upto(upto)?;
        log.checkpoint(before)?;
    }
    Ok(())
}

fn open_in_a_child(what: &str, dir: &Path) -> Result<f64> {
    let finished = run_program(this_program()?.arg("opening-child").arg(what).arg(dir))?;
    finished.stdout.trim().parse().with_context(|| format!("{:?} is no time", finished.stdout))
}

/// Runs the cases.
pub(super) fn run(run: &mut BenchRun) -> Result<()> {
    run.say("opening where there is nothing to recover")?;
    let store = run.scratch.path().join("closed");
    make_store(&store)?;
    measure(
        run,
        "opening a store that was closed, in a new process",
        "open-store",
        &store,
        5.0,
        "open_nothing_vs_goal",
    )?;
    let rings: &[_] = if run.quick {
        &[(64 * MIB, "64 MiB", "open_ring_64mib_vs_goal")]
    } else {
        &[(64 * MIB, "64 MiB", "open_ring_64mib_vs_goal"), (4 * GIB, "4 GiB", "open_ring_4gib_vs_goal")]
    };
    for &(bytes, words, ratio) in rings {
        run.scratch.require_space(bytes)?;
        let dir = run.scratch.path().join("ring");
        RedoLog::options().files(4).file_bytes(bytes / 4).create(&dir)?.close()?;
        run_program(this_program()?.arg("opening-child").arg("fill-log").arg(&dir))?;
        let case = format!("opening a redo log of {words} that was not closed, in a new process");
        measure(run, &case, "open-log", &dir, 20.0, ratio)?;
        std::fs::remove_dir_all(&dir).with_context(|| format!("can't remove {}", dir.display()))?;
    }
    Ok(())
}

fn make_store(dir: &Path) -> Result<()> {
    let store = Store::options().open(dir)?;
    let mut transaction = store.begin_write()?;
    let first = transaction.allocate_run(STORE_PAGES)?;
    let body = vec![7; store.payload_size()];
    for page in PageNo::each(first..first + STORE_PAGES) {
        transaction.write(page, &body)?;
    }
    transaction.commit(Durability::Sync)?;
    store.sync()?;
    Ok(store.close()?)
}

fn measure(
    run: &mut BenchRun,
    case: &str,
    what: &str,
    dir: &Path,
    goal: f64,
    ratio: &'static str,
) -> Result<()> {
    let plan = RoundPlan { rounds: run.rounds, until: None, warm_up: true };
    let took =
        run.measure(&[ours::OUR_RECOVERY_NAME], plan, |_| open_in_a_child(what, dir))?.figure(|ms| *ms);
    let goal = SubjectSamples { subject: GOAL_NAME, values: vec![goal; took[0].values.len()] };
    let samples = [took, vec![goal]].concat();
    run.report.add_case(case, FigureUnit::Milliseconds, &samples);
    run.report.add_ratio(ratio, FigureUnit::Milliseconds, &samples, ours::OUR_RECOVERY_NAME, GOAL_NAME);
    Ok(())
}

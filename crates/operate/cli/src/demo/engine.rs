//! The demo's engine: threads that commit transactions through a redo log and a binlog, as mysqld's commit does,
//! with a follower of the binlog and a compaction beside them.
//!
//! There are no tables, and nothing is recovered: the logs and the compaction's output are the whole load. Two
//! engines differ only in whether the kernel or the library decides which pages stay resident ([`Pages`]).
//! Invariant: everything that a report counts as committed is on disk. Fails permanently when the first thread
//! fails: the process then ends with an error.

use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pagekeeper_kernel::mutex::lock;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::compaction::Compaction;
use super::follower::{Seen, follow};
use super::logs::{Housekeeper, Logs, Pages};
use super::transaction::Transaction;
use super::{REPORT_EACH, config, monotonic_ns, send_line};

/// Interval at which the checkpoint and the binlog's files are checked.
const TEND_EACH: Duration = Duration::from_millis(10);

/// The ways in which files are written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Modes {
    pub(super) redo: String,
    pub(super) binlog: String,
    /// Empty as long as there is no output.
    pub(super) bulk: String,
}

/// The engine's report to its parent, sent each [`REPORT_EACH`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// Start of the time that it covers, in nanoseconds of the monotonic clock.
    pub(super) from_ns: u64,
    /// End of that time.
    pub(super) to_ns: u64,
    /// Duration of each commit in that time, in microseconds.
    pub(super) commits_us: Vec<u32>,
    /// Redo written since the start, in bytes.
    pub(super) redo_bytes: u64,
    /// Binlog written since the start, in bytes.
    pub(super) binlog_bytes: u64,
    /// Output of the compaction since the start, in bytes.
    pub(super) bulk_bytes: u64,
    /// Events that the follower has read and verified since the start.
    pub(super) events: u64,
    /// The longest time from an event's append to its reading, in nanoseconds.
    pub(super) lag_max_ns: u64,
    pub(super) modes: Modes,
}

/// Runs the engine in `dir` until the parent has ended.
pub(super) fn run(dir: &Path, pages: Pages) -> anyhow::Result<()> {
    let logs = Arc::new(Logs::create(dir, pages)?);
    let compaction = Arc::new(Compaction::create(dir, pages)?);
    let taken_us = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::new(Seen::default());
    let (failed, failure) = mpsc::channel();
    let follower = logs.binlog.follow(logs.binlog.first())?;
    let following = Arc::clone(&seen);
    start("follower", &failed, move || follow(follower, &following))?;
    let tended = Arc::clone(&logs);
    start("housekeeper", &failed, move || {
        let mut housekeeper = Housekeeper::default();
        loop {
            housekeeper.tend(&tended)?;
            thread::sleep(TEND_EACH);
        }
    })?;
    let compacting = Arc::clone(&compaction);
    start("compaction", &failed, move || compacting.run())?;
    for committer in (0_u64..).take(config::COMMITTERS) {
        let (logs, taken_us) = (Arc::clone(&logs), Arc::clone(&taken_us));
        start(&format!("commit-{committer}"), &failed, move || commit_for_ever(&logs, committer, &taken_us))?;
    }
    let mut from_ns = monotonic_ns();
    loop {
        if let Ok(error) = failure.recv_timeout(REPORT_EACH) {
            return Err(error);
        }
        let commits_us = std::mem::take(&mut *lock(&taken_us));
        let to_ns = monotonic_ns();
        let (events, lag_max_ns) = seen.take();
        let modes = Modes {
            redo: logs.redo.mode().to_string(),
            binlog: logs.binlog.mode().0.to_string(),
            bulk: compaction.how().map_or_else(String::new, |mode| mode.to_string()),
        };
        let report = Report {
            from_ns,
            to_ns,
            commits_us,
            redo_bytes: logs.redo.metrics().written,
            binlog_bytes: logs.binlog_bytes(),
            bulk_bytes: compaction.written(),
            events,
            lag_max_ns,
            modes,
        };
        if !send_line(&report)? {
            return Ok(());
        }
        from_ns = to_ns;
    }
}

/// Starts a thread whose failure ends the engine.
pub(super) fn start(
    name: &str,
    failed: &Sender<anyhow::Error>,
    work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let failed = failed.clone();
    let work = move || {
        if let Err(error) = work() {
            // The first failure ends the process; later ones are not received.
            let _ = failed.send(error);
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).context("can't start a thread")?;
    Ok(())
}

fn commit_for_ever(logs: &Logs, committer: u64, taken_us: &Mutex<Vec<u32>>) -> anyhow::Result<()> {
    let mut random = committer + 1;
    for number in 1.. {
        let mut transaction = Transaction::make(&mut random, committer, number);
        let start_ns = monotonic_ns();
        logs.commit(&mut transaction)?;
        let us = (monotonic_ns() - start_ns) / 1000;
        lock(taken_us).push(u32::try_from(us).unwrap_or(u32::MAX));
    }
    Ok(())
}

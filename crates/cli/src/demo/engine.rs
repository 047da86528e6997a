//! The demo's engine: threads that commit transactions through a redo ring and a binlog, as mysqld's commit does.
//!
//! A commit writes its redo and its change to the logs and returns once both are on disk. Commits go in groups: the
//! first to come leads, and takes along all that wait when it begins (mysqld's flush, sync and commit stages in one).
//! Invariants: one leader at a time, so the binlog has one writer; what a report counts as committed is on disk.
//! There are no tables, and nothing is recovered: the logs are the whole load.
//! Fails for good with the first log that can't be written: then the process ends with a sentence.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::binlog::Binlog;
use super::redo::{Redo, Ring};
use super::{REPORT_EACH, config, monotonic_ns, send_line};

/// What the engine tells its parent each [`REPORT_EACH`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// The time it covers, in nanoseconds of the monotonic clock: from …
    pub(super) from_ns: u64,
    /// … to.
    pub(super) to_ns: u64,
    /// How long each commit of that time took, in microseconds.
    pub(super) commits_us: Vec<u32>,
    /// Redo written since the start, in bytes.
    pub(super) redo_bytes: u64,
    /// Binlog written since the start, in bytes.
    pub(super) binlog_bytes: u64,
}

/// Runs the engine in `dir` until the parent is gone.
pub(super) fn run(dir: &Path) -> anyhow::Result<()> {
    let redo = Redo::start(Ring::create(dir, config::REDO_FILES, config::REDO_FILE_BYTES)?)?;
    let binlog = Binlog::create(dir, config::BINLOG_FILE_BYTES, config::BINLOG_FILES_MAX)?;
    let commits = Arc::new(Commits::new(redo, binlog));
    let taken_us = Arc::new(Mutex::new(Vec::new()));
    let (failed, failure) = mpsc::channel();
    for number in 1..=config::COMMITTERS {
        let (commits, taken_us, failed) = (Arc::clone(&commits), Arc::clone(&taken_us), failed.clone());
        let commit_on = move || {
            let Err(error) = commit_for_ever(&commits, number, &taken_us);
            // The first failure ends the process; nobody takes the later ones.
            let _ = failed.send(error);
        };
        thread::Builder::new()
            .name(format!("commit-{number}"))
            .spawn(commit_on)
            .context("can't start a thread")?;
    }
    let mut from_ns = monotonic_ns();
    loop {
        if let Ok(error) = failure.recv_timeout(REPORT_EACH) {
            return Err(error);
        }
        let commits_us = std::mem::take(&mut *lock(&taken_us));
        let to_ns = monotonic_ns();
        let (redo_bytes, binlog_bytes) =
            (commits.redo.flushed(), commits.binlog_bytes.load(Ordering::Relaxed));
        if !send_line(&Report { from_ns, to_ns, commits_us, redo_bytes, binlog_bytes })? {
            return Ok(());
        }
        from_ns = to_ns;
    }
}

fn commit_for_ever(commits: &Commits, seed: u64, taken_us: &Mutex<Vec<u32>>) -> anyhow::Result<Infallible> {
    let mut random = seed;
    loop {
        let transaction = Transaction::make(&mut random);
        let start_ns = monotonic_ns();
        commits.commit(transaction)?;
        let us = (monotonic_ns() - start_ns) / 1000;
        lock(taken_us).push(u32::try_from(us).unwrap_or(u32::MAX));
    }
}

/// What one commit brings to the logs: bytes that do not repeat, by xorshift64 (Marsaglia, 2003).
struct Transaction(Vec<u8>);

impl Transaction {
    fn make(random: &mut u64) -> Self {
        let len = config::REDO_PER_COMMIT_BYTES + config::BINLOG_PER_COMMIT_BYTES;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            bytes.extend_from_slice(&random.to_le_bytes());
        }
        Self(bytes)
    }

    fn redo(&self) -> &[u8] {
        &self.0[..config::REDO_PER_COMMIT_BYTES]
    }

    fn change(&self) -> &[u8] {
        &self.0[config::REDO_PER_COMMIT_BYTES..]
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Transaction>,
    /// Tickets given out …
    tickets: u64,
    /// … and the one up to which all are committed.
    done: u64,
    /// The leader holds it while it writes; after a failure it never comes back.
    binlog: Option<Binlog>,
    failed: bool,
}

/// Group commit.
struct Commits {
    redo: Arc<Redo>,
    binlog_bytes: AtomicU64,
    queue: Mutex<Queue>,
    turn: Condvar,
}

impl Commits {
    fn new(redo: Arc<Redo>, binlog: Binlog) -> Self {
        let queue = Mutex::new(Queue { binlog: Some(binlog), ..Queue::default() });
        Self { redo, binlog_bytes: AtomicU64::new(0), queue, turn: Condvar::new() }
    }

    /// Returns when the transaction is on disk in both logs.
    fn commit(&self, transaction: Transaction) -> anyhow::Result<()> {
        let mut queue = lock(&self.queue);
        queue.waiting.push(transaction);
        queue.tickets += 1;
        let ticket = queue.tickets;
        queue = self
            .turn
            .wait_while(queue, |queue| queue.done < ticket && queue.binlog.is_none() && !queue.failed)
            .unwrap_or_else(PoisonError::into_inner);
        ensure!(!queue.failed, "an earlier commit failed");
        if queue.done >= ticket {
            return Ok(());
        }
        let mut binlog = queue.binlog.take().context("two leaders")?;
        let group = std::mem::take(&mut queue.waiting);
        let last = queue.tickets;
        drop(queue);
        let written = self.write(&mut binlog, &group);
        let mut queue = lock(&self.queue);
        match &written {
            Ok(()) => (queue.binlog, queue.done) = (Some(binlog), last),
            Err(_) => queue.failed = true,
        }
        self.turn.notify_all();
        written
    }

    /// The leader's work.
    fn write(&self, binlog: &mut Binlog, group: &[Transaction]) -> anyhow::Result<()> {
        let lsn = self.redo.append(group.iter().map(Transaction::redo));
        self.redo.wait_flushed(lsn)?;
        let written = binlog.commit(group.iter().map(Transaction::change), monotonic_ns())?;
        self.binlog_bytes.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::follower::Tail;
    use super::super::redo::BLOCK;
    use super::*;

    #[test]
    fn every_commit_of_every_thread_reaches_both_logs() {
        let dir = tempfile::tempdir().unwrap();
        let redo = Redo::start(Ring::create(dir.path(), 2, 16 * BLOCK).unwrap()).unwrap();
        let commits = Commits::new(redo, Binlog::create(dir.path(), 50_000, 1000).unwrap());
        thread::scope(|scope| {
            for seed in 1..=4 {
                let commits = &commits;
                scope.spawn(move || {
                    let mut random = seed;
                    for _ in 0..25 {
                        commits.commit(Transaction::make(&mut random)).unwrap();
                    }
                });
            }
        });
        let mut tail = Tail::open(dir.path()).unwrap();
        let events = std::iter::from_fn(|| tail.next().unwrap()).count();
        assert_eq!(events, 100);
        let redo_bytes_min = 100 * config::REDO_PER_COMMIT_BYTES as u64;
        assert!(commits.redo.flushed() >= redo_bytes_min);
    }

    #[test]
    fn after_a_failed_write_no_commit_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let redo = Redo::start(Ring::create(dir.path(), 2, 16 * BLOCK).unwrap()).unwrap();
        let commits = Commits::new(redo, Binlog::create(dir.path(), 1, 1000).unwrap());
        // The first rotation finds its next file there already.
        std::fs::write(dir.path().join("binlog.000002"), b"").unwrap();
        let error = commits.commit(Transaction::make(&mut 1)).unwrap_err();
        assert!(error.to_string().contains("binlog.000002"), "{error}");
        assert!(commits.commit(Transaction::make(&mut 1)).is_err());
    }
}

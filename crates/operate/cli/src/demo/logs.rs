//! The logs of the demo's engine: a [`RedoLog`] and a [`BinLog`], and the choice of who manages their pages.
//!
//! Invariants: a commit returns when it is durable in both logs. The checkpoint follows half a wraparound behind
//! the end of the redo log, as if pages had been written up to there. Only the newest binlog files are kept. Fails
//! permanently when a log can't be written, and when a file is to be purged that the follower has not read.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use pagekeeper_log::{BinLog, BinLogOptions, LogMode, Lsn, Position, Purge, RedoLog};

use super::config::{
    BINLOG_FILE_BYTES, BINLOG_FILES_MAX, CHECKPOINT_BEHIND_BYTES, REDO_FILE_BYTES, REDO_FILES,
};
use super::monotonic_ns;
use super::transaction::Transaction;

/// The manager of the pages of the engine's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    /// The kernel: everything is written through the page cache and left there, as databases do today.
    Left,
    /// The library: it writes in the best way for this file system, and releases pages.
    Released,
}

/// Both logs.
pub(super) struct Logs {
    /// The redo log.
    pub(super) redo: RedoLog,
    /// The binlog.
    pub(super) binlog: BinLog,
    /// The greatest LSN that is durable and just after a record.
    committed: AtomicU64,
}

impl Logs {
    /// Makes both logs in `dir`.
    pub(super) fn create(dir: &Path, pages: Pages) -> anyhow::Result<Self> {
        let mut redo = RedoLog::options().files(REDO_FILES).file_bytes(REDO_FILE_BYTES);
        let mut binlog = BinLogOptions::new().max_segment_bytes(BINLOG_FILE_BYTES);
        if pages == Pages::Left {
            redo = redo.mode(LogMode::Buffered).release(false);
            binlog = binlog.mode(LogMode::Buffered).release(false);
        }
        Ok(Self {
            redo: redo.create(&dir.join("redo")).context("can't make the redo log")?,
            binlog: binlog.open(dir.join("binlog")).context("can't make the binlog")?,
            committed: AtomicU64::new(0),
        })
    }

    /// Returns when the transaction is durable in both logs.
    pub(super) fn commit(&self, transaction: &mut Transaction) -> anyhow::Result<()> {
        let end = self.redo.append(transaction.redo())?;
        self.redo.wait_flushed(end)?;
        self.committed.fetch_max(end, Ordering::Relaxed);
        self.binlog.append_group(&[transaction.change(monotonic_ns())])?;
        Ok(())
    }

    /// Returns the bytes ever written to the binlog. Closed files count as full, which they are except for at most
    /// a group.
    pub(super) fn binlog_bytes(&self) -> u64 {
        let Position { segment, offset } = self.binlog.end();
        (segment - 1) * BINLOG_FILE_BYTES + offset
    }
}

/// Moves the checkpoint and purges the binlog.
#[derive(Default)]
pub(super) struct Housekeeper {
    /// Ends of records that the checkpoint has not reached yet, ascending.
    ends: VecDeque<Lsn>,
}

impl Housekeeper {
    /// Moves the checkpoint and purges files if that is due.
    pub(super) fn tend(&mut self, logs: &Logs) -> anyhow::Result<()> {
        let end = logs.committed.load(Ordering::Relaxed);
        if self.ends.back().is_none_or(|&last| last < end) {
            self.ends.push_back(end);
        }
        // Not for each record: a checkpoint needs its own sync.
        let due = logs.redo.checkpoint_lsn() + CHECKPOINT_BEHIND_BYTES * 5 / 4;
        if end >= due {
            let reached = self.ends.partition_point(|&lsn| lsn + CHECKPOINT_BEHIND_BYTES <= end);
            if let Some(lsn) = self.ends.drain(..reached).next_back() {
                logs.redo.checkpoint(lsn)?;
            }
        }
        let (first, last) = (logs.binlog.first().segment, logs.binlog.end().segment);
        if last - first >= BINLOG_FILES_MAX {
            let keep = Position { segment: last + 1 - BINLOG_FILES_MAX, offset: 0 };
            logs.binlog.purge_to(keep, Purge::UnlessFollowed).context("can't purge the binlog")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::transaction::Checker;
    use super::*;

    #[test]
    fn every_commit_of_every_thread_reaches_both_logs() {
        for pages in [Pages::Left, Pages::Released] {
            let dir = tempfile::tempdir_in("/var/tmp").unwrap();
            let logs = Logs::create(dir.path(), pages).unwrap();
            std::thread::scope(|scope| {
                for committer in 0..4 {
                    let logs = &logs;
                    scope.spawn(move || {
                        for number in 1..=25 {
                            let mut transaction = Transaction::make(&mut (committer + 1), committer, number);
                            logs.commit(&mut transaction).unwrap();
                        }
                    });
                }
            });
            let mut follower = logs.binlog.follow(logs.binlog.first()).unwrap();
            let mut checker = Checker::default();
            let events = std::iter::from_fn(|| follower.try_next().unwrap());
            assert_eq!(events.map(|event| checker.check(&event).unwrap()).count(), 100);
            let redo = logs.redo.read_from(logs.redo.checkpoint_lsn()).unwrap();
            assert_eq!(redo.collect::<Result<Vec<_>, _>>().unwrap().len(), 100);
        }
    }

    #[test]
    fn the_checkpoint_follows_half_a_lap_behind_and_old_files_are_purged() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let logs = Logs::create(dir.path(), Pages::Released).unwrap();
        let mut housekeeper = Housekeeper::default();
        // Larger than any transaction, so that a wraparound takes less time.
        let record = vec![1; 8 << 20];
        for _ in 0..(2 * REDO_FILES * 8) {
            let end = logs.redo.try_append(&record).unwrap();
            logs.redo.wait_flushed(end).unwrap();
            logs.committed.fetch_max(end, Ordering::Relaxed);
            housekeeper.tend(&logs).unwrap();
            let behind = end - logs.redo.checkpoint_lsn();
            assert!(behind <= CHECKPOINT_BEHIND_BYTES * 3 / 2, "{behind}");
        }
        assert!(logs.redo.checkpoint_lsn() > logs.redo.capacity(), "{}", logs.redo.checkpoint_lsn());
        for _ in 0..BINLOG_FILES_MAX + 5 {
            logs.binlog.append_group(&[b"change"]).unwrap();
            logs.binlog.rotate().unwrap();
            housekeeper.tend(&logs).unwrap();
        }
        assert_eq!(logs.binlog.end().segment - logs.binlog.first().segment + 1, BINLOG_FILES_MAX);
    }
}

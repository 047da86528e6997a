//! The demo's engine: threads that commit through a redo log and a binlog, as mysqld's commit does,
//! with a follower of the binlog and a compaction beside them.
//!
//! There are no tables, and nothing is recovered: the logs and the compaction's output are the
//! whole load. Invariants: a commit is counted once it is durable in both logs; each committer
//! numbers its changes from 1, so the follower finds a lost, doubled or reordered change. The first
//! failure of a thread ends all threads and is the run's error.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pagekeeper_bulk::{BulkMode, BulkWriter};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_text::escaped;
use pagekeeper_wal::{BinLog, LogMode, Lsn, Position, PurgeMode, RedoLog};
use serde::Serialize;
use serde_json::{Value, json};

// Files are smaller than a server's, so that rotation and wraparounds happen within seconds. The
// bytes per commit are those of an update of a few dozen rows.
const REDO_FILES: u32 = 4;
const REDO_FILE_BYTES: u64 = 64 << 20;
/// Shortest distance of the checkpoint behind the end of the redo log; the longest is twice as
/// much.
const CHECKPOINT_BEHIND_BYTES: u64 = REDO_FILES as u64 * REDO_FILE_BYTES / 4;
const BINLOG_FILE_BYTES: u64 = 32 << 20;
const BINLOG_FILES_MAX: u64 = 40;
const ENGINE_COMMITTERS: usize = 8;
const REDO_PER_COMMIT_BYTES: usize = 10 << 10;
const BINLOG_PER_COMMIT_BYTES: usize = 5 << 10;
/// The compaction's outputs: their size, how many stay, how often one is begun, and how fast it is
/// written.
const BULK_FILE_BYTES: u64 = 64 << 20;
const BULK_FILES_MAX: u64 = 4;
const BULK_INTERVAL: Duration = Duration::from_secs(2);
const BULK_BYTES_PER_SECOND: u64 = 64 << 20;
const BULK_STEP_BYTES: usize = 1 << 20;
/// Time between looks of the threads that have nothing to do.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// More bytes than the files take at any time. The store is created after they are removed, and
/// takes less.
pub(super) const DISK_BYTES_MAX: u64 = 2 << 30;

/// Totals since the engine's start, and resident bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct EngineSample {
    /// Time since the start of the demo.
    pub(super) seconds: f64,
    pub(super) commits: usize,
    pub(super) log_written_bytes: u64,
    pub(super) bulk_written_bytes: u64,
    /// Events that the follower has read and verified.
    pub(super) follower_events: u64,
    pub(super) log_resident_bytes: u64,
    pub(super) bulk_resident_bytes: u64,
}

/// The engine; it works during [`Engine::run_during`].
pub(super) struct Engine {
    redo: RedoLog,
    binlog: BinLog,
    dir: PathBuf,
    releases: bool,
    over: AtomicBool,
    /// The greatest LSN that is durable and just after a record.
    committed: AtomicU64,
    /// The duration of each commit, in microseconds.
    commits_us: Mutex<Vec<u32>>,
    events: AtomicU64,
    bulk_bytes: AtomicU64,
}

impl Engine {
    /// Makes its files in the new directory `dir`. Unless it `releases` its pages itself,
    /// everything is written through the page cache and left to the kernel, as databases do today.
    pub(super) fn create(dir: &Path, releases: bool) -> anyhow::Result<Self> {
        let bulk_dir = dir.join("bulk");
        std::fs::create_dir_all(&bulk_dir).with_context(|| format!("can't create {}", escaped(&bulk_dir)))?;
        let mut redo = RedoLog::options().files(REDO_FILES).file_bytes(REDO_FILE_BYTES);
        let mut binlog = BinLog::options().max_segment_bytes(BINLOG_FILE_BYTES);
        if !releases {
            redo = redo.mode(LogMode::Buffered).release(false);
            binlog = binlog.mode(LogMode::Buffered).release(false);
        }
        Ok(Self {
            redo: redo.create(dir.join("redo")).context("can't make the redo log")?,
            binlog: binlog.open(dir.join("binlog")).context("can't make the binlog")?,
            dir: dir.to_path_buf(),
            releases,
            over: AtomicBool::new(false),
            committed: AtomicU64::new(0),
            commits_us: Mutex::default(),
            events: AtomicU64::new(0),
            bulk_bytes: AtomicU64::new(0),
        })
    }

    /// Runs the engine for as long as `body` takes. Fails with the first failure of a thread, or
    /// with that of `body`.
    pub(super) fn run_during<T>(&self, body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let failure = Mutex::new(None);
        let ending = |done: anyhow::Result<()>| {
            self.over.store(true, Ordering::Relaxed);
            if let Err(error) = done {
                lock(&failure).get_or_insert(error);
            }
        };
        let result = thread::scope(|scope| {
            for committer in (0_u64..).take(ENGINE_COMMITTERS) {
                scope.spawn(move || ending(self.commit_for_ever(committer)));
            }
            for work in [Self::follow, Self::checkpoint_and_purge, Self::compact] {
                scope.spawn(move || ending(work(self)));
            }
            let result = body();
            ending(Ok(()));
            result
        });
        failure.into_inner().ok().flatten().map_or(result, Err)
    }

    /// Whether the body is over, or a thread has failed.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Returns the durations of the commits with these numbers, in microseconds.
    pub(super) fn commits_us(&self, numbers: Range<usize>) -> Vec<u32> {
        lock(&self.commits_us)[numbers].to_vec()
    }

    /// Returns the ways in which the logs are written.
    pub(super) fn modes(&self) -> Value {
        json!({ "redo": self.redo.mode().to_string(), "binlog": self.binlog.mode().to_string() })
    }

    /// Returns the totals and the residency now, at a time since `begun`.
    pub(super) fn sample(&self, begun: Instant) -> anyhow::Result<EngineSample> {
        // Closed files count as full, which they are except for at most a group.
        let Position { segment, offset } = self.binlog.end();
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [redo, binlog, bulk] =
            ["redo", "binlog", "bulk"].map(|name| resident_bytes(&self.dir.join(name)));
        Ok(EngineSample {
            seconds: begun.elapsed().as_secs_f64(),
            commits: lock(&self.commits_us).len(),
            log_written_bytes: self.redo.stats().written + (segment - 1) * BINLOG_FILE_BYTES + offset,
            bulk_written_bytes: total(&self.bulk_bytes),
            follower_events: total(&self.events),
            log_resident_bytes: redo? + binlog?,
            bulk_resident_bytes: bulk?,
        })
    }

    fn commit_for_ever(&self, committer: u64) -> anyhow::Result<()> {
        let mut random = committer + 1;
        for number in (1..).take_while(|_| !self.is_over()) {
            let redo = random_bytes(REDO_PER_COMMIT_BYTES, &mut random);
            let change = change(committer, number, &mut random);
            let begun = Instant::now();
            let end = self.redo.append(&redo)?;
            self.redo.wait_flushed(end)?;
            self.committed.fetch_max(end.get(), Ordering::Relaxed);
            self.binlog.append_group(&[&change])?;
            let us = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
            lock(&self.commits_us).push(us);
        }
        Ok(())
    }

    /// Reads the binlog near the writer, as the sender of a replica does, and checks every event.
    fn follow(&self) -> anyhow::Result<()> {
        let mut follower = self.binlog.follow(self.binlog.first())?;
        let mut last = [0; ENGINE_COMMITTERS];
        while !self.is_over() {
            if let Some(event) = follower.next_timeout(POLL_INTERVAL)? {
                check(&event.bytes, &mut last).with_context(|| format!("binlog {}", event.position))?;
                self.events.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Moves the checkpoint, as if pages had been written up to there, and purges the binlog.
    fn checkpoint_and_purge(&self) -> anyhow::Result<()> {
        let mut next_checkpoint = 0;
        while !self.is_over() {
            let end = self.committed.load(Ordering::Relaxed);
            if end >= next_checkpoint + CHECKPOINT_BEHIND_BYTES {
                if next_checkpoint > 0 {
                    self.redo.checkpoint(Lsn::new(next_checkpoint))?;
                }
                next_checkpoint = end;
            }
            let (first, last) = (self.binlog.first().segment, self.binlog.end().segment);
            if last - first >= BINLOG_FILES_MAX {
                let keep = Position { segment: last + 1 - BINLOG_FILES_MAX, offset: 0 };
                self.binlog.purge_to(keep, PurgeMode::UnlessFollowed).context("can't purge the binlog")?;
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Writes outputs at intervals, and keeps the newest.
    fn compact(&self) -> anyhow::Result<()> {
        let path = |number: u64| self.dir.join(format!("bulk/{number:06}.sst"));
        for number in (1..).take_while(|_| !self.is_over()) {
            let begun = Instant::now();
            let written = self.write_output(&path(number));
            written.with_context(|| format!("can't write {}", escaped(&path(number))))?;
            if number > BULK_FILES_MAX {
                std::fs::remove_file(path(number - BULK_FILES_MAX)).context("can't remove an old output")?;
            }
            while begun.elapsed() < BULK_INTERVAL && !self.is_over() {
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    fn write_output(&self, path: &Path) -> anyhow::Result<()> {
        let mode = if self.releases { BulkMode::Auto } else { BulkMode::Buffered };
        let begun = Instant::now();
        let mut output = BulkWriter::options().mode(mode).create(path)?;
        let mut random = 1;
        while output.written() < BULK_FILE_BYTES && !self.is_over() {
            output.write_all(&random_bytes(BULK_STEP_BYTES, &mut random))?;
            self.bulk_bytes.fetch_add(BULK_STEP_BYTES as u64, Ordering::Relaxed);
            let due = Duration::from_secs_f64(output.written() as f64 / BULK_BYTES_PER_SECOND as f64);
            thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        output.finish()?;
        Ok(())
    }
}

/// Counts the resident bytes of a directory's files; those that are purged meanwhile are left out.
fn resident_bytes(dir: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("can't list {}", escaped(dir)))? {
        let counted =
            InspectedFile::open(entry?.path(), Links::Refuse).and_then(|file| residency(&file, 0..u64::MAX));
        match counted {
            Err(error) if error.is_gone() => {}
            counted => sum += counted?.resident,
        }
    }
    Ok(sum)
}

/// Returns bytes that do not repeat, by xorshift64 (Marsaglia, 2003). The length is a multiple of
/// 8, and `random` is not 0.
pub(super) fn random_bytes(len: usize, random: &mut u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for chunk in bytes.as_chunks_mut::<8>().0 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *chunk = random.to_le_bytes();
    }
    bytes
}

/// Returns a change for the binlog: its committer and number, then random bytes.
fn change(committer: u64, number: u64, random: &mut u64) -> Vec<u8> {
    let mut change = random_bytes(BINLOG_PER_COMMIT_BYTES, random);
    change[..8].copy_from_slice(&committer.to_le_bytes());
    change[8..16].copy_from_slice(&number.to_le_bytes());
    change
}

/// Checks that a change follows the last one of its committer. The log's checksum covers the other
/// bytes.
fn check(change: &[u8], last: &mut [u64; ENGINE_COMMITTERS]) -> anyhow::Result<()> {
    let [committer, number] =
        [0, 8].map(|start| change[start..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
    let last = usize::try_from(committer).ok().and_then(|committer| last.get_mut(committer));
    let last = last.with_context(|| format!("an event of committer {committer}"))?;
    let expected = *last + 1;
    ensure!(number == expected, "change {number} of committer {committer} stands where {expected} should");
    *last = number;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_doubled_or_foreign_change_is_found() {
        let mut last = [0; ENGINE_COMMITTERS];
        for (committer, number) in [(0, 1), (7, 1), (0, 2), (3, 1)] {
            check(&change(committer, number, &mut 7), &mut last).unwrap();
        }
        for (committer, number, reason) in [
            (3, 3, "change 3 of committer 3 stands where 2 should"),
            (3, 1, "change 1 of committer 3 stands where 2 should"),
            (8, 1, "an event of committer 8"),
        ] {
            let error = check(&change(committer, number, &mut 7), &mut last).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }
}

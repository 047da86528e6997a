//! The redo log: a ring of preallocated files that many threads append to.

mod again;
mod begin;
mod buffer;
mod checkpoint;
mod chunks;
mod control;
mod core;
mod create;
mod event_count;
mod group_commit;
mod journal;
mod mapping;
mod memory;
mod metrics;
#[cfg(test)]
mod model;
mod open;
mod options;
mod own_blocks;
mod read;
mod release;
mod ring;
mod salt;
mod salvage;
mod state;
mod sync;
#[cfg(test)]
mod tests;
mod threads;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

pub use journal::Recovered;
pub use metrics::RedoMetrics;
pub use options::{Backpressure, FlushPolicy, RedoOptions};
pub use read::{RedoReader, RedoRecord};
pub use ring::Lsn;
pub use salvage::Salvaged;

use bytes::Bytes;

use self::core::Core;

use crate::{Error, LogMode};

/// A redo log: a ring of files of fixed size, written over and over, read only after a crash.
///
/// Any number of threads [`append`](Self::append): each reserves its room by one atomic step and copies its record into the
/// log buffer without a lock. A thread `log_writer` writes whole blocks as they fill up; a thread `log_flusher` syncs
/// what nobody waits for, and gives the pages of what was written back to the kernel. A thread that
/// commits calls [`wait_flushed`](Self::wait_flushed): one of the waiting threads, the leader, writes and syncs for all, while the next
/// group gathers.
///
/// Once the engine has made changes durable elsewhere it moves the [`checkpoint`](Self::checkpoint), and the
/// ring may be written over up to there. When the ring is full appends wait.
///
/// After a write or sync has failed, nothing is appended or acknowledged any more: all calls fail with
/// [`Error::Poisoned`]. Open the log again to find out what the disk has. A full disk is no such failure, as long as the log
/// [`is_overwritten_in_place`](Self::is_overwritten_in_place).
///
/// A log belongs to the process that opened it: in a forked child every call fails with [`Forked`](pagekeeper_io::Error::Forked) and a drop
/// does nothing.
///
/// ```
/// use pagekeeper_log::RedoLog;
///
/// # let temp = tempfile::tempdir_in(".")?;
/// # let dir = &temp.path().join("redo");
/// let log = RedoLog::options().files(4).file_bytes(1 << 20).create(dir)?;
/// let lsn = log.append(b"page 7: balance = 100")?;
/// log.wait_flushed(lsn)?; // durable
/// log.append(b"page 9: balance = 20")?;
/// log.close()?;
///
/// // Later, or after a crash: what was appended since the checkpoint is done again.
/// let log = RedoLog::options().open(dir)?;
/// let mut end = log.checkpoint_lsn();
/// for record in log.read_from(end)? {
///     let record = record?;
///     println!("{}: {}", record.lsn, String::from_utf8_lossy(&record.body));
///     end = record.end;
/// }
/// // The pages are durable now: the records are of no more use.
/// log.checkpoint(end)?;
/// assert_eq!(log.read_from(end)?.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedoLog {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl RedoLog {
    /// The settings, to create or open one with.
    pub fn options() -> RedoOptions {
        RedoOptions::default()
    }

    fn new(core: Core) -> Result<Self, Error> {
        let core = Arc::new(core);
        let threads = if core.config.has_threads { threads::start(&core)? } else { Vec::new() };
        Ok(Self { core, threads })
    }

    /// Appends a record, and returns the LSN just past it: what [`Self::wait_flushed`] takes. It is not durable yet.
    ///
    /// Waits while the log buffer or the ring is full; the latter lasts until another thread moves the checkpoint.
    ///
    /// Fails with [`Error::RecordTooLarge`] for a body longer than [`Self::longest_record`], and after any error of a write or
    /// sync.
    pub fn append(&self, body: &[u8]) -> Result<Lsn, Error> {
        self.core.process.require()?;
        self.core.append(body, true)
    }

    /// As [`Self::append`], but fails with [`Error::RingFull`] where that would wait for a checkpoint: for threads that move it
    /// themselves.
    pub fn try_append(&self, body: &[u8]) -> Result<Lsn, Error> {
        self.core.process.require()?;
        self.core.append(body, false)
    }

    /// Returns when all records before `lsn` are durable, or written, as the [`FlushPolicy`] says. Fails for an LSN past the end.
    pub fn wait_flushed(&self, lsn: Lsn) -> Result<(), Error> {
        self.core.process.require()?;
        self.check_end(lsn)?;
        match self.core.config.policy {
            FlushPolicy::EachCommit => self.core.wait_durable(lsn),
            FlushPolicy::Every(_) | FlushPolicy::Os => self.core.wait_written(lsn),
        }
    }

    /// Returns when all records before `lsn` are durable, whatever the policy. Fails for an LSN past the end.
    pub fn sync_upto(&self, lsn: Lsn) -> Result<(), Error> {
        self.core.process.require()?;
        self.check_end(lsn)?;
        self.core.wait_durable(lsn)
    }

    fn check_end(&self, lsn: Lsn) -> Result<(), Error> {
        let end = self.end();
        if lsn > end {
            return Err(Error::NotInLog { lsn, from: self.checkpoint_lsn(), upto: end });
        }
        Ok(())
    }

    /// Releases all records before `lsn`, an LSN that an append or a reader returned: they may be overwritten. Syncs the log up to
    /// there first, and returns when the checkpoint is durable.
    pub fn checkpoint(&self, lsn: Lsn) -> Result<(), Error> {
        self.core.process.require()?;
        self.core.move_checkpoint(lsn)
    }

    /// Where the first record begins that was not released.
    pub fn checkpoint_lsn(&self) -> Lsn {
        self.core.checkpoint()
    }

    /// Where the next record would begin, but for padding before it.
    pub fn end(&self) -> Lsn {
        self.core.buffer.reserved()
    }

    /// Everything before this LSN is durable.
    pub fn durable_lsn(&self) -> Lsn {
        self.core.durable()
    }

    /// The records from `lsn` on, which the checkpoint, an append or a reader gave, up to what is durable now (written, where commits
    /// do not wait for syncs).
    pub fn read_from(&self, lsn: Lsn) -> Result<RedoReader, Error> {
        self.core.process.require()?;
        RedoReader::new(&self.core, lsn)
    }

    /// What stands at these places of the log, in their order, read once more, past the page cache: parts of bodies that
    /// [`RedoOptions::recover_into`] gave, for who kept where they stand in place of the bytes
    /// ([`Recovered::body_lsn`]).
    ///
    /// Blocks of 4 KiB are read, with what is between them where that is little: no more than `at_once` bytes at a time, but for a place
    /// that is longer. What is given takes up no more than the bytes of the places and a seventh part more; they share
    /// memory, which is there as long as one of them is. Nothing is verified, since a place may be any part of a body: keep a checksum
    /// of your own.
    ///
    /// Fails as the disk does; with [`Error::NotInLog`] where a place is before the checkpoint, or behind what is durable, and with
    /// [`Error::Overtaken`] where that came to be so meanwhile.
    ///
    /// ```
    /// use pagekeeper_log::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// log.wait_flushed(log.append(b"as it was")?)?;
    /// drop(log);
    ///
    /// let mut places = Vec::new();
    /// let log = RedoLog::options().recover_into(dir, None, |record| {
    ///     let body = record.body_lsn();
    ///     places.push(body + 3..body + record.body.len() as u64);
    /// })?;
    /// assert_eq!(log.read_again(&places, 1 << 20)?[0], &b"it was"[..]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_again(&self, places: &[Range<Lsn>], at_once: usize) -> Result<Vec<Bytes>, Error> {
        self.core.process.require()?;
        again::read(&self.core, places, at_once)
    }

    /// Bytes of the longest body that can be appended: the smallest of log buffer, ring and
    /// [`RedoOptions::max_unsynced`], less five blocks.
    pub fn longest_record(&self) -> usize {
        self.core.longest()
    }

    /// The random number that it was given when it was made.
    pub fn id(&self) -> u64 {
        self.core.config.log_id
    }

    /// What is wrong with the two slots of the control file, as the device has them now: the number of each, 0 or 1, that is not
    /// whole, and why. Either of them is enough; but where one is lost, the other one must not be. A crash may have torn one: of a log
    /// that is open to write none is named before something was appended, which writes both.
    ///
    /// Fails where the file can't be opened.
    pub fn control_faults(&self) -> Result<Vec<(usize, String)>, Error> {
        self.core.process.require()?;
        // Not while one of them is being written.
        let control = pagekeeper_kernel::mutex::lock(&self.core.checkpoint.control);
        let is_known = self.core.config.read_only || self.core.has_begun();
        if is_known { control.faults() } else { Ok(Vec::new()) }
    }

    /// The paddings behind the checkpoint that were damaged when the log was opened: the file of each, and the byte in it at which the
    /// padding begins. Padding fills up what a sync writes, and holds nothing: the log has all its records.
    ///
    /// ```
    /// use std::os::unix::fs::FileExt;
    /// use pagekeeper_log::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// let end = log.append(b"one")?;
    /// log.close()?;
    /// let file = std::fs::File::options().write(true).open(dir.join("redo.000"))?;
    /// file.write_all_at(b"rot", end + 100)?;
    ///
    /// let (log, records) = RedoLog::options().recover(dir, None)?;
    /// assert_eq!(records.len(), 1);
    /// assert_eq!(log.damaged_paddings(), [(dir.join("redo.000"), end)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn damaged_paddings(&self) -> Vec<(PathBuf, u64)> {
        let Core { config, sources, .. } = &*self.core;
        let from = self.checkpoint_lsn();
        let locate = |lsn: &Lsn| {
            let (index, offset) = config.geometry.locate(*lsn);
            (sources[index].path().to_path_buf(), offset)
        };
        config.damaged_paddings.iter().filter(|lsn| **lsn >= from).map(locate).collect()
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> u64 {
        self.core.config.geometry.capacity()
    }

    /// How the files are written; never [`LogMode::Auto`]. Found out by trying, which takes a few milliseconds, when it is asked for
    /// or the first record is appended.
    pub fn mode(&self) -> LogMode {
        if self.core.process.is_current() {
            return self.core.writing_mode().mode;
        }
        // In a forked child nothing is tried.
        self.core.write.mode.get().map_or(LogMode::Buffered, |found| found.mode)
    }

    /// Whether writing over the ring is known to need no room, so that a full disk does not end the log. As the file system has
    /// the files now: a snapshot or `cp --reflink` may change that at any time.
    ///
    /// True on ext4, XFS and btrfs for a ring that shares no block with other files. On XFS the first append gives the ring blocks of its own
    /// and fails if there is no room for them. False on btrfs for a ring that was made without the attribute `C` (no copy on write, see
    /// chattr(1)), which [`RedoOptions::create`] sets; on file systems of which nothing is known; and in a forked child.
    pub fn is_overwritten_in_place(&self) -> bool {
        self.core.process.is_current()
            && self.core.sources.iter().all(|file| own_blocks::has_own_blocks(&**file))
    }

    /// What the log did since it was opened.
    pub fn metrics(&self) -> RedoMetrics {
        let core = &self.core;
        core.counters
            .snapshot(core.buffer.reserved() - core.config.start, core.buffer.taken() - core.config.start)
    }

    /// Begins as the first append does, where the log was not closed when it was opened: its end is noted then, and of what was found every
    /// later change is found, too, once it is closed. Without this a log to which nothing is appended is left as it is.
    ///
    /// Does nothing where there is no room for another epoch; fails as an append does.
    pub fn settle(&self) -> Result<(), Error> {
        self.core.process.require()?;
        if self.core.is_unsettled() { self.core.begin().map(drop) } else { Ok(()) }
    }

    /// Makes everything durable, notes where the log ends, and closes it: whatever of it changes from then on is found by who opens
    /// it. Dropping it does the same, but can't report an error. A log to which nothing was appended is left as it is.
    pub fn close(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Err(error) = self.core.process.require() {
            // The parent has its threads, and what it has open is never dropped here.
            std::mem::forget((std::mem::take(&mut self.threads), Arc::clone(&self.core)));
            return Err(error.into());
        }
        threads::stop(&self.core, std::mem::take(&mut self.threads));
        self.core.check()?;
        self.core.wait_durable(self.core.buffer.reserved())?;
        self.core.note_end()?;
        threads::release_all(&self.core);
        Ok(())
    }
}

impl RedoOptions {
    /// Makes a log in a directory that is empty, or not there yet, and opens it. All its files are written and synced, so
    /// that later no write allocates anything: that takes a while for large rings. On btrfs they are exempt from copying on
    /// write. [`RedoLog::is_overwritten_in_place`] says whether that worked.
    ///
    /// Fails with [`Error::NotEmpty`] where something else is, with [`Error::Setting`] for sizes that can't be. What was made
    /// before an error is removed. After a crash in it, [`Self::open`] says [`Error::Unfinished`], and it can be called again.
    pub fn create(self, directory: &Path) -> Result<RedoLog, Error> {
        self.check()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        RedoLog::new(create::create(&self, directory)?)
    }

    /// Opens a log: finds its end, and makes durable what it keeps. Sizes are those it was made with. Nothing is written before the
    /// first append or checkpoint.
    ///
    /// Fails, having changed nothing, where there is no log ([`Error::NoLog`]), another has it open
    /// ([`pagekeeper_io::Error::Locked`]), a file is missing or of another size, or records that were acknowledged are lost
    /// ([`Error::Corrupt`]).
    pub fn open(self, directory: &Path) -> Result<RedoLog, Error> {
        self.check()?;
        RedoLog::new(open::open(&self, directory)?)
    }

    /// Opens a log as [`Self::open`] does, with the same errors, and gives the records that it has: from the checkpoint on, or
    /// from `from` on, an LSN past the checkpoint that an append or a reader gave. The journal is read once, wide, and its
    /// checksums are verified on all processors; bodies are parts of the memory that was read into, which goes in chunks of
    /// 4 MiB when nobody has a part of it any more.
    ///
    /// Fails as well, having changed nothing, where `from` is not in the log ([`Error::NotInLog`]), or no record begins or ends
    /// there ([`Error::NotARecord`]).
    ///
    /// ```
    /// use pagekeeper_log::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// let first = log.append(b"one")?;
    /// log.wait_flushed(log.append(b"two")?)?;
    /// drop(log);
    ///
    /// let (log, records) = RedoLog::options().recover(dir, Some(first))?;
    /// assert_eq!(records.iter().map(|record| &record.body[..]).collect::<Vec<_>>(), [b"two"]);
    /// assert_eq!(log.checkpoint_lsn(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recover(self, directory: &Path, from: Option<Lsn>) -> Result<(RedoLog, Vec<Recovered>), Error> {
        let mut records = Vec::new();
        let log = self.recover_into(directory, from, |record| records.push(record))?;
        Ok((log, records))
    }

    /// The same, but that each record is given to `take` as soon as it was verified, in order and on this thread, while what comes behind
    /// it is still being read: what `take` does with records takes no time of its own as long as the disk is slower.
    ///
    /// Records before an error were given, too, and count for nothing.
    ///
    /// ```
    /// use pagekeeper_log::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// log.wait_flushed(log.append(b"one")?)?;
    /// drop(log);
    ///
    /// let mut bytes = 0;
    /// RedoLog::options().recover_into(dir, None, |record| bytes += record.body.len())?;
    /// assert_eq!(bytes, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recover_into(
        self,
        directory: &Path,
        from: Option<Lsn>,
        mut take: impl FnMut(Recovered),
    ) -> Result<RedoLog, Error> {
        self.check()?;
        Self::check_from(from)?;
        RedoLog::new(open::recover(&self, directory, from, &mut take)?)
    }
}

impl RedoOptions {
    /// The id of the log in a directory ([`RedoLog::id`]); `None` where there is none, or one that was never finished, or whose control
    /// file is not whole. Reads that file alone, whoever has the log open.
    ///
    /// ```
    /// use pagekeeper_log::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// assert_eq!(RedoLog::options().read_id(dir)?, Some(log.id()));
    /// assert_eq!(RedoLog::options().read_id(temp.path())?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_id(&self, directory: &Path) -> Result<Option<u64>, Error> {
        open::read_id(self, directory)
    }

    /// What can still be read of a log, however much of it is lost: its records from the checkpoint on, or from `from` on, up to the first
    /// that is lost. Writes nothing, and never fails: why there is no more is said.
    ///
    /// ```
    /// use pagekeeper_log::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// log.append(b"one")?;
    /// log.close()?;
    /// let salvaged = RedoLog::options().salvage(dir, None);
    /// assert!(salvaged.records.len() == 1 && salvaged.fault.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn salvage(self, directory: &Path, from: Option<Lsn>) -> Salvaged {
        salvage::salvage(self, directory, from)
    }
}

impl Drop for RedoLog {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl fmt::Debug for RedoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedoLog")
            .field("checkpoint", &self.checkpoint_lsn())
            .field("durable", &self.durable_lsn())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}

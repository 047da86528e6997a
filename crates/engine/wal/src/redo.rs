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
mod lsn;
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
use std::time::Duration;

pub(crate) use event_count::EventCount;
pub use journal::RecoveredRecord;
pub use lsn::Lsn;
pub use metrics::RedoStats;
pub use options::{Backpressure, FlushPolicy, RedoOptions};
pub use read::{RedoReader, RedoRecord};
pub use salvage::SalvagedLog;

use bytes::Bytes;

use self::core::Core;

use crate::{Error, LogMode};

/// A redo log: a ring of files of fixed size, overwritten again and again, read only after a crash.
///
/// Any number of threads [`append`](Self::append): each reserves its room by one atomic step and
/// copies its record into the log buffer without a lock. A thread `log_writer` writes whole blocks
/// as they fill up. A thread `log_flusher` syncs records that nobody waits for, and releases the
/// pages of written records. A thread that commits calls [`wait_flushed`](Self::wait_flushed): one
/// of the waiting threads, the leader, writes and syncs for all, while the next group gathers.
///
/// Once the engine has made changes durable elsewhere, it moves the
/// [`checkpoint`](Self::checkpoint), and the ring may be overwritten up to there. When the ring is
/// full, appends wait.
///
/// After a write or sync has failed, nothing more is appended or acknowledged: all calls fail with
/// [`Error::Poisoned`]. Open the log again to find out what the disk has. A full disk causes no
/// such failure, as long as the log [`is_overwritten_in_place`](Self::is_overwritten_in_place).
///
/// A log belongs to the process that opened it: in a forked child every call fails with
/// [`Forked`](pagekeeper_io::Error::Forked) and a drop does nothing.
///
/// ```
/// use pagekeeper_wal::RedoLog;
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
    /// Returns the settings with which a log is created or opened.
    pub fn options() -> RedoOptions {
        RedoOptions::default()
    }

    fn new(core: Core) -> Result<Self, Error> {
        let core = Arc::new(core);
        let threads = if core.config.has_threads { threads::start(&core)? } else { Vec::new() };
        Ok(Self { core, threads })
    }

    /// Appends a record, and returns the LSN past it, for [`Self::wait_flushed`]. The record is not
    /// durable yet.
    ///
    /// Waits while the log buffer or the ring is full; the latter lasts until another thread moves
    /// the checkpoint.
    ///
    /// Fails with [`Error::RecordTooLarge`] for a body longer than [`Self::longest_record`], and
    /// after any error of a write or sync.
    pub fn append(&self, body: &[u8]) -> Result<Lsn, Error> {
        self.core.process.require()?;
        self.core.append(body, true).map(Lsn::new)
    }

    /// Appends a record like [`Self::append`], but fails with [`Error::RingFull`] instead of
    /// waiting for a checkpoint. This is for threads that move the checkpoint themselves.
    pub fn try_append(&self, body: &[u8]) -> Result<Lsn, Error> {
        self.core.process.require()?;
        self.core.append(body, false).map(Lsn::new)
    }

    /// Returns when all records before `lsn` are durable, or written, depending on the
    /// [`FlushPolicy`]. Fails for an LSN past the end.
    pub fn wait_flushed(&self, lsn: Lsn) -> Result<(), Error> {
        self.core.process.require()?;
        self.check_end(lsn)?;
        match self.core.config.policy {
            FlushPolicy::EachCommit => self.core.wait_durable(lsn.get()),
            FlushPolicy::Every(_) | FlushPolicy::Os => self.core.wait_written(lsn.get()),
        }
    }

    /// Waits for at most this long until the syncs of other callers have made all records before
    /// `lsn` durable. For a caller that would rather share a sync than be early: it calls
    /// [`Self::sync_upto`] next. Fails for an LSN past the end.
    pub fn wait_for_others(&self, lsn: Lsn, max: Duration) -> Result<(), Error> {
        self.core.process.require()?;
        self.check_end(lsn)?;
        self.core.wait_for_others(lsn.get(), max);
        Ok(())
    }

    /// Returns when all records before `lsn` are durable, whatever the policy. Fails for an LSN
    /// past the end.
    pub fn sync_upto(&self, lsn: Lsn) -> Result<(), Error> {
        self.core.process.require()?;
        self.check_end(lsn)?;
        self.core.wait_durable(lsn.get())
    }

    fn check_end(&self, lsn: Lsn) -> Result<(), Error> {
        let end = self.end();
        if lsn > end {
            return Err(Error::NotInLog { lsn, from: self.checkpoint_lsn(), upto: end });
        }
        Ok(())
    }

    /// Releases all records before `lsn`, an LSN from an append or a reader: they may be
    /// overwritten. Syncs the log up to there first, and returns when the checkpoint is durable.
    /// Does nothing if the checkpoint is past `lsn` already, as when another thread moved it
    /// meanwhile.
    pub fn checkpoint(&self, lsn: Lsn) -> Result<(), Error> {
        self.core.process.require()?;
        self.core.move_checkpoint(lsn.get())
    }

    /// Returns the start of the first record that was not released.
    pub fn checkpoint_lsn(&self) -> Lsn {
        Lsn::new(self.core.checkpoint())
    }

    /// Returns the start of the next record, apart from padding before it.
    pub fn end(&self) -> Lsn {
        Lsn::new(self.core.buffer.reserved())
    }

    /// Returns the LSN before which everything is durable.
    pub fn durable_lsn(&self) -> Lsn {
        Lsn::new(self.core.durable())
    }

    /// Reads the records from `lsn` on, an LSN from the checkpoint, an append or a reader. Reads up
    /// to the current durable end, or to the written end if commits do not wait for syncs. The
    /// reader fails with [`Error::NotARecord`] if no record begins at `lsn`.
    pub fn read_from(&self, lsn: Lsn) -> Result<RedoReader, Error> {
        self.core.process.require()?;
        RedoReader::new(&self.core, lsn.get())
    }

    /// Reads these places of the log once more, past the page cache, and returns their bytes in the
    /// same order. This is for callers that kept the positions of bodies from
    /// [`RedoOptions::recover_into`] instead of their bytes ([`RecoveredRecord::body_lsn`]).
    ///
    /// Reads blocks of 4 KiB, and small gaps between them: at most `at_once` bytes at a time,
    /// unless one place is longer. The result takes up at most the bytes of the places and a
    /// seventh more. The parts share memory, which is kept as long as one of them is. Nothing is
    /// verified, since a place may be any part of a body: keep a checksum of your own.
    ///
    /// Fails as the disk does, with [`Error::NotInLog`] if a place is before the checkpoint or past
    /// the durable end, and with [`Error::Overtaken`] if it was overwritten meanwhile.
    ///
    /// ```
    /// use pagekeeper_wal::RedoLog;
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
        let places: Vec<_> = places.iter().map(|place| place.start.get()..place.end.get()).collect();
        again::read(&self.core, &places, at_once)
    }

    /// Returns the maximum length of a body in bytes: the smallest of log buffer, ring and
    /// [`RedoOptions::max_unsynced`], less five blocks.
    pub fn longest_record(&self) -> usize {
        self.core.longest()
    }

    /// Returns the random number that the log got at its creation.
    pub fn id(&self) -> u64 {
        self.core.config.log_id
    }

    /// Returns the faults of the control file as it is on the device now: the index of each damaged
    /// slot, 0 or 1, and the reason. Either slot is enough, but once one is lost, the other one
    /// must not be. A crash may have torn one. For a log that is open for writing, no fault is
    /// reported before the first append, which writes both slots.
    ///
    /// Fails if the file can't be opened.
    pub fn control_faults(&self) -> Result<Vec<(usize, String)>, Error> {
        self.core.process.require()?;
        // The lock keeps the slots from being written meanwhile.
        let control = pagekeeper_kernel::mutex::lock(&self.core.checkpoint.control);
        let is_known = self.core.config.read_only || self.core.has_begun();
        if is_known { control.faults() } else { Ok(Vec::new()) }
    }

    /// Returns the paddings behind the checkpoint that were damaged when the log was opened: the
    /// file of each, and the byte in it at which the padding begins. Padding fills up the writes of
    /// a sync and holds nothing: the log has all its records.
    ///
    /// ```
    /// use std::os::unix::fs::FileExt;
    /// use pagekeeper_wal::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// let end = log.append(b"one")?;
    /// log.close()?;
    /// let file = std::fs::File::options().write(true).open(dir.join("redo.000"))?;
    /// file.write_all_at(b"rot", end.get() + 100)?;
    ///
    /// let (log, records) = RedoLog::options().recover(dir, None)?;
    /// assert_eq!(records.len(), 1);
    /// assert_eq!(log.damaged_paddings(), [(dir.join("redo.000"), end.get())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn damaged_paddings(&self) -> Vec<(PathBuf, u64)> {
        let Core { config, sources, .. } = &*self.core;
        let from = self.core.checkpoint();
        let locate = |lsn: &u64| {
            let (index, offset) = config.geometry.locate(*lsn);
            (sources[index].path().to_path_buf(), offset)
        };
        config.damaged_paddings.iter().filter(|lsn| **lsn >= from).map(locate).collect()
    }

    /// Returns the bytes of the ring.
    pub fn capacity(&self) -> u64 {
        self.core.config.geometry.capacity()
    }

    /// Returns how the files are written; never [`LogMode::Auto`]. The mode is found by a test,
    /// which takes a few milliseconds, on the first call of this or at the first append.
    pub fn mode(&self) -> LogMode {
        if self.core.process.is_current() {
            return self.core.writing_mode().mode;
        }
        // Nothing is tested in a forked child.
        self.core.write.mode.get().map_or(LogMode::Buffered, |found| found.mode)
    }

    /// Whether overwriting the ring is known to need no room, so that a full disk does not end the
    /// log. This holds for the current state of the files: a snapshot or `cp --reflink` may change
    /// it at any time.
    ///
    /// True on ext4, XFS and btrfs for a ring that shares no block with other files. On XFS the
    /// first append gives the ring blocks of its own, and fails if there is no room for them. False
    /// in these cases:
    /// - on btrfs, for a ring that was created without the attribute `C` (no copy on write, see
    ///   chattr(1)), which [`RedoOptions::create`] sets;
    /// - on unknown file systems;
    /// - in a forked child.
    pub fn is_overwritten_in_place(&self) -> bool {
        self.core.process.is_current()
            && self.core.sources.iter().all(|file| own_blocks::has_own_blocks(&**file))
    }

    /// Returns the counters of the log since it was opened.
    pub fn stats(&self) -> RedoStats {
        let core = &self.core;
        core.counters
            .snapshot(core.buffer.reserved() - core.config.start, core.buffer.taken() - core.config.start)
    }

    /// Begins like the first append if the log was not closed before it was opened. The end of the
    /// log is then recorded, and once the log is closed, every later change to its recovered
    /// records is detected, too. Without this call, a log to which nothing is appended is left as
    /// it is.
    ///
    /// Does nothing if there is no room for another epoch. Fails as an append does.
    pub fn settle(&self) -> Result<(), Error> {
        self.core.process.require()?;
        if self.core.is_unsettled() { self.core.begin().map(drop) } else { Ok(()) }
    }

    /// Makes everything durable, records the end of the log, and closes it: the next opening
    /// detects any later change. Dropping the log does the same, but can't report an error. A log
    /// to which nothing was appended is left as it is.
    pub fn close(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Err(error) = self.core.process.require() {
            // The threads are the parent's, and the parent's resources are never dropped here.
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
    /// Creates a log in a directory that is empty or does not exist yet, and opens it. All its
    /// files are written and synced, so that later no write allocates anything. This takes a while
    /// for large rings. On btrfs the files are exempt from copying on write;
    /// [`RedoLog::is_overwritten_in_place`] tells whether that worked.
    ///
    /// Fails with [`Error::NotEmpty`] if there is something else, and with [`Error::Setting`] for
    /// invalid sizes. Files created before an error are removed. After a crash during the creation,
    /// [`Self::open`] returns [`Error::Unfinished`], and this can be called again.
    pub fn create(self, directory: impl AsRef<Path>) -> Result<RedoLog, Error> {
        self.check()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        RedoLog::new(create::create(&self, directory.as_ref())?)
    }

    /// Opens a log: finds its end, and makes the kept records durable. The sizes are those of its
    /// creation. Nothing is written before the first append or checkpoint.
    ///
    /// Fails, and changes nothing, in these cases:
    /// - There is no log ([`Error::NoLog`]).
    /// - Another process has it open ([`pagekeeper_io::Error::Locked`]).
    /// - A file is missing or of another size.
    /// - Acknowledged records are lost ([`Error::Corrupt`]).
    pub fn open(self, directory: impl AsRef<Path>) -> Result<RedoLog, Error> {
        self.check()?;
        RedoLog::new(open::open(&self, directory.as_ref())?)
    }

    /// Opens a log like [`Self::open`], with the same errors, and returns its records. They begin
    /// at the checkpoint, or at `from`, an LSN past the checkpoint from an append or a reader.
    ///
    /// The journal is read once, with many requests in flight, and its checksums are verified on
    /// all processors. Bodies are parts of the memory that was read into, which is freed in chunks
    /// of 4 MiB once nobody holds a part of it.
    ///
    /// Also fails, and changes nothing, if `from` is not in the log ([`Error::NotInLog`]), or no
    /// record begins or ends there ([`Error::NotARecord`]).
    ///
    /// ```
    /// use pagekeeper_wal::{Lsn, RedoLog};
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
    /// assert_eq!(log.checkpoint_lsn(), Lsn::new(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recover(
        self,
        directory: impl AsRef<Path>,
        from: Option<Lsn>,
    ) -> Result<(RedoLog, Vec<RecoveredRecord>), Error> {
        let mut records = Vec::new();
        let log = self.recover_into(directory, from, |record| records.push(record))?;
        Ok((log, records))
    }

    /// Opens a log like [`Self::recover`], but passes each record to `take` as soon as it was
    /// verified, in order and on this thread, while later ones are still being read. As long as the
    /// disk is slower, the work of `take` costs no extra time.
    ///
    /// Records before an error were passed, too; ignore them.
    ///
    /// ```
    /// use pagekeeper_wal::RedoLog;
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
        directory: impl AsRef<Path>,
        from: Option<Lsn>,
        mut take: impl FnMut(RecoveredRecord),
    ) -> Result<RedoLog, Error> {
        self.check()?;
        Self::check_from(from)?;
        RedoLog::new(open::recover(&self, directory.as_ref(), from.map(Lsn::get), &mut take)?)
    }
}

impl RedoOptions {
    /// Returns the id of the log in a directory ([`RedoLog::id`]). Returns `None` if there is no
    /// log, if it was never finished, or if its control file is damaged. Reads only the control
    /// file, even while another process has the log open.
    ///
    /// ```
    /// use pagekeeper_wal::RedoLog;
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("redo");
    /// let log = RedoLog::options().files(1).file_bytes(1 << 20).create(dir)?;
    /// assert_eq!(RedoLog::options().read_id(dir)?, Some(log.id()));
    /// assert_eq!(RedoLog::options().read_id(temp.path())?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_id(&self, directory: impl AsRef<Path>) -> Result<Option<u64>, Error> {
        open::read_id(self, directory.as_ref())
    }

    /// Returns the readable records of a log, however much of it is lost: those from the checkpoint
    /// or from `from` on, up to the first lost one. Writes nothing, and never fails: the result
    /// holds the reason why there are no more.
    ///
    /// ```
    /// use pagekeeper_wal::RedoLog;
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
    pub fn salvage(self, directory: impl AsRef<Path>, from: Option<Lsn>) -> SalvagedLog {
        salvage::salvage(self, directory.as_ref(), from)
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

//! A log in segments, with followers.
//!
//! | module | what it is |
//! |---|---|
//! | `options` | settings, and opening |
//! | `position`, `segment`, `index`, `frame` | the contents of the directory and of a segment |
//! | `segment_store`, `recover` | creating segments, and recovery after a crash |
//! | `group_commit`, `writer` | leader election, and writing |
//! | `progress`, `follower` | the ends of the log, and its readers |
//! | `page_releaser` | the pages that stay resident |
//! | `release_events`, `release_thread` | the thread that releases the others |
//! | `sync` | the primitives by which `group_commit` and `progress` coordinate threads; the models replace them |
//!
//! Data is durable once it is synced: see [`BinLogOptions::sync_every`]. A group is there as a
//! whole or not at all, also after a crash.

mod follower;
mod frame;
mod group_commit;
mod index;
mod injected_fault;
mod metrics;
#[cfg(test)]
mod model;
mod options;
mod page_releaser;
mod progress;
mod recover;
mod release_events;
mod release_thread;
mod segment;
mod segment_store;
mod shared;
mod sync;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use pagekeeper_io::{Access, FileLock, WriteMode};

use crate::limits::RECORD_BYTES_MAX;
use crate::position::Position;
use crate::{Error, LogMode};
pub use follower::{Event, Follower};
use group_commit::{Leader, PlacedPart, Submitted};
pub use metrics::BinLogStats;
pub use options::BinLogOptions;
use progress::{LogProgress, Segment};
use segment_store::SegmentStore;
use shared::SharedLog;
use writer::SegmentWriter;

/// The treatment of followers by [`BinLog::purge_to`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PurgeMode {
    /// Fails if a follower has yet to read a segment that would be removed.
    UnlessFollowed,
    /// Cuts off followers that have yet to read a removed segment: they get [`Error::Purged`].
    Forced,
}

/// A log in segments. Any number of threads append to it, any number of followers read it, and it
/// releases its pages.
///
/// A thread `log_releaser` starts writeback and releases pages.
///
/// If it is dropped without [`BinLog::close`], the log is as after a crash: nothing that was
/// acknowledged as durable is lost.
///
/// After a failed write or sync the log accepts nothing more, and every call fails with
/// [`Error::Poisoned`]. The kernel reports such a failure once, so earlier writes can't be trusted
/// either. Followers still get the synced records. Open the log again to find out what it holds.
///
/// A full disk is different: only the write of that group failed. The append returns the error and
/// may be repeated.
///
/// A log and its followers belong to the process that opened it. In a forked child every call fails
/// with [`Forked`](pagekeeper_io::Error::Forked), positions are zeros, and a drop does nothing.
///
/// ```
/// use pagekeeper_simdisk::SimDisk;
/// use pagekeeper_wal::BinLog;
/// use std::sync::Arc;
///
/// let log = BinLog::options().io(Arc::new(SimDisk::new())).open("/binlog")?;
/// let mut follower = log.follow(log.first())?;
/// let position = log.append_group(&[b"insert", b"commit"])?;
/// let event = follower.try_next()?.unwrap();
/// assert_eq!((&*event.bytes, event.ends_group), (&b"insert"[..], false));
/// let event = follower.try_next()?.unwrap();
/// assert_eq!((&*event.bytes, event.next), (&b"commit"[..], position));
/// log.close()?;
/// # Ok::<(), pagekeeper_wal::Error>(())
/// ```
pub struct BinLog {
    shared: Arc<SharedLog<SegmentWriter>>,
    thread: Option<JoinHandle<()>>,
    _lock: Option<FileLock>,
}

impl BinLog {
    /// Returns the settings with which a log is opened.
    pub fn options() -> BinLogOptions {
        BinLogOptions::default()
    }

    fn open(dir: &Path, options: BinLogOptions) -> Result<Self, Error> {
        options.check()?;
        let io = options.io.clone().unwrap_or_else(pagekeeper_io::best);
        let store = SegmentStore::new(io, dir.to_path_buf(), options);
        let opened = recover::open(&store)?;
        let progress = LogProgress::new(opened.segments, opened.writer.end);
        let shared = SharedLog::new(store, opened.writer, progress);
        let thread = release_thread::start(&shared);
        Ok(Self { shared, thread, _lock: opened.lock })
    }

    /// Appends records that belong together, and returns the position past them. If
    /// [`BinLogOptions::sync_every`] is 1, they are durable when this returns.
    ///
    /// Threads that append at the same time share a write and a sync. The order of the groups is
    /// that of the calls.
    ///
    /// A group takes 24 extra bytes for each record, and is never split between segments. Fails
    /// with [`Error::GroupTooLarge`] if it is larger than a segment, with [`Error::EmptyGroup`], or
    /// with the error of a failed write.
    pub fn append_group(&self, records: &[&[u8]]) -> Result<Position, Error> {
        self.shared.process.require()?;
        if records.is_empty() {
            return Err(Error::EmptyGroup);
        }
        self.check_writable()?;
        let (len, room) = (frame::padded_size(records), self.shared.store.options.room());
        let longest = records.iter().map(|record| record.len()).max().unwrap_or(0);
        if len > room || longest > RECORD_BYTES_MAX {
            return Err(Error::GroupTooLarge { bytes: len, max: room });
        }
        let (placed, end) = self.submit(records, false)?;
        let of_group = |part: &&PlacedPart| end <= part.upto;
        match placed.iter().find(of_group) {
            Some(PlacedPart { from, at: Ok((segment, offset)), .. }) => {
                Ok(Position { segment: *segment, offset: offset + (end - from) as u64 })
            }
            Some(PlacedPart { at: Err(error), .. }) => Err(error.clone()),
            None => Err(Error::Abandoned),
        }
    }

    /// Makes everything appended before durable, and returns the durable end.
    pub fn sync(&self) -> Result<Position, Error> {
        self.shared.process.require()?;
        let (placed, _) = self.submit(&[], true)?;
        match placed.last() {
            Some(PlacedPart { at: Err(error), .. }) => Err(error.clone()),
            _ => Ok(self.durable_end()),
        }
    }

    fn check_writable(&self) -> Result<(), Error> {
        if self.shared.store.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Submits a group or a request for a sync, and writes the batch if this caller leads. Returns
    /// the placement of the batch's parts, and the end of the caller's group in the batch.
    fn submit(&self, records: &[&[u8]], sync: bool) -> Result<(Arc<[PlacedPart]>, usize), Error> {
        let (submitted, end) = self.shared.queue.submit(records, sync)?;
        let placed = match submitted {
            Submitted::Written(placed) => placed,
            Submitted::Leader(mut leader, mut batch) => {
                let placed: Arc<[PlacedPart]> = leader.writer().write_batch(&self.shared, &mut batch).into();
                let spare = std::mem::take(&mut batch.bytes);
                self.hand_over(leader, Some(spare));
                batch.complete(&placed);
                placed
            }
        };
        Ok((placed, end))
    }

    fn hand_over(&self, mut leader: Leader<'_, SegmentWriter>, spare: Option<Vec<u8>>) {
        let may_release = std::mem::take(&mut leader.writer().may_release);
        leader.hand_over(spare);
        if may_release {
            self.shared.release_pages();
        }
    }

    /// Seals the current segment and begins a new one. Returns the start of the new segment.
    /// Everything appended before is then durable. An empty segment is left as it is.
    pub fn rotate(&self) -> Result<Position, Error> {
        self.shared.process.require()?;
        self.check_writable()?;
        let mut leader = self.shared.queue.exclusive()?;
        let writer = leader.writer();
        let rotated =
            if writer.end > segment::SEGMENT_HEADER_BYTES { writer.rotate(&self.shared) } else { Ok(()) };
        let at = Position { segment: writer.segment, offset: writer.end };
        self.hand_over(leader, None);
        rotated.map(|()| at)
    }

    /// Follows the log from a position on: [`Self::first`], [`Self::end`], or one from an append or
    /// a follower. The follower sees each record as soon as it is written. After a crash, an
    /// unsynced record may be gone from the log.
    ///
    /// Fails if the position was purged, or lies past the end of the log or of its segment.
    pub fn follow(&self, from: Position) -> Result<Follower, Error> {
        self.shared.process.require()?;
        Follower::new(&self.shared, from, false)
    }

    /// Follows the log like [`Self::follow`], but sees each record only when it is durable.
    pub fn follow_durable(&self, from: Position) -> Result<Follower, Error> {
        self.shared.process.require()?;
        Follower::new(&self.shared, from, true)
    }

    /// Removes the segments before that of the position, and returns their number.
    ///
    /// Fails with [`Error::Followed`] if a follower has yet to read one of them, unless forced, and
    /// with [`Error::PastEnd`] if the position's segment does not exist yet.
    pub fn purge_to(&self, position: Position, purge: PurgeMode) -> Result<u64, Error> {
        self.shared.process.require()?;
        self.check_writable()?;
        let end = self.end();
        if position.segment > end.segment {
            return Err(Error::PastEnd { position, end });
        }
        let mut leader = self.shared.queue.exclusive()?;
        let purged = leader.writer().purge(&self.shared, position.segment, purge == PurgeMode::Forced);
        self.hand_over(leader, None);
        let purged = purged?;
        if let Some(releaser) = self.shared.releaser.get() {
            releaser.purged(position.segment);
        }
        for segment in &purged {
            index::remove_if_there(&*self.shared.store.io, &self.shared.store.segment_path(segment.number))?;
        }
        Ok(purged.len() as u64)
    }

    /// Removes all records after a position: one from an append or a follower, such as the last
    /// record on which a majority agrees. Returns when that is durable; the next record then begins
    /// a new segment. After a crash, either all of them are there or none is.
    ///
    /// Fails with [`Error::Followed`] if a follower is in the position's segment or a later one,
    /// unless forced: then it gets [`Error::Truncated`]. Fails with [`Error::NoRecord`] if no group
    /// ends there, and as [`follow`](Self::follow) does.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use pagekeeper_simdisk::SimDisk;
    /// use pagekeeper_wal::{BinLog, PurgeMode};
    ///
    /// # let options = BinLog::options().io(Arc::new(SimDisk::new()));
    /// let log = options.open("/raft")?;
    /// let agreed = log.append_group(&[b"term 1: x = 1"])?;
    /// log.append_group(&[b"term 1: x = 2"])?;
    /// log.truncate_after(agreed, PurgeMode::UnlessFollowed)?;
    /// log.append_group(&[b"term 2: x = 3"])?;
    /// let mut follower = log.follow(agreed)?;
    /// assert_eq!(&*follower.try_next()?.unwrap().bytes, b"term 2: x = 3");
    /// # Ok::<(), pagekeeper_wal::Error>(())
    /// ```
    pub fn truncate_after(&self, position: Position, purge: PurgeMode) -> Result<(), Error> {
        self.shared.process.require()?;
        self.check_writable()?;
        let position = Position { offset: position.offset.max(segment::SEGMENT_HEADER_BYTES), ..position };
        let mut leader = self.shared.queue.exclusive()?;
        let truncated = leader.writer().truncate(&self.shared, position, purge == PurgeMode::Forced);
        self.hand_over(leader, None);
        truncated
    }

    /// Returns the start of the oldest segment that was written to at or after this time, by the
    /// times of the files: earlier records in it come first. Returns the end if there is none.
    ///
    /// With [`purge_to`](Self::purge_to), this keeps records for a time:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::{Duration, SystemTime};
    /// # use pagekeeper_simdisk::SimDisk;
    /// use pagekeeper_wal::{BinLog, PurgeMode};
    ///
    /// # let log = BinLog::options().io(Arc::new(SimDisk::new())).open("/binlog")?;
    /// let week = Duration::from_secs(7 * 86_400);
    /// log.purge_to(log.since(SystemTime::now() - week)?, PurgeMode::UnlessFollowed)?;
    /// log.purge_to(log.last_bytes(64 << 30), PurgeMode::UnlessFollowed)?; // and at most 64 GiB
    /// # Ok::<(), pagekeeper_wal::Error>(())
    /// ```
    pub fn since(&self, time: SystemTime) -> Result<Position, Error> {
        self.shared.process.require()?;
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos());
        for Segment { number, .. } in self.shared.progress.segments() {
            if self.shared.store.open(number)?.stat()?.modified >= since {
                return Ok(Position { segment: number, offset: segment::SEGMENT_HEADER_BYTES });
            }
        }
        Ok(self.end())
    }

    /// Returns the start of the oldest segment from which on the log has at most this many bytes;
    /// that of the last segment if that alone has more.
    pub fn last_bytes(&self, bytes: u64) -> Position {
        self.position(|progress| {
            let end = progress.end();
            let mut left = bytes;
            let segments = progress.segments().into_iter().rev().take_while(|segment| {
                let size = segment.sealed.unwrap_or(end.offset);
                let fits = left.checked_sub(size);
                left = fits.unwrap_or(0);
                fits.is_some()
            });
            let segment = segments.last().map_or(end.segment, |oldest| oldest.number);
            Position { segment, offset: segment::SEGMENT_HEADER_BYTES }
        })
    }

    /// Returns the position of the first record for which `is_before` is false, or the end, as
    /// [`slice::partition_point`] does. Finds a record by a number that is in each record and never
    /// decreases. Reads the first record of some segments, then one segment up to the result.
    ///
    /// Fails with [`Error::Purged`] if a segment that it reads is purged meanwhile, and with
    /// [`Error::Truncated`] or [`Error::PastEnd`] if the log is truncated meanwhile. While it reads,
    /// it follows the log: [`purge_to`](Self::purge_to) and
    /// [`truncate_after`](Self::truncate_after) can fail with [`Error::Followed`] unless forced.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use pagekeeper_simdisk::SimDisk;
    /// use pagekeeper_wal::BinLog;
    ///
    /// # let log = BinLog::options().io(Arc::new(SimDisk::new())).open("/binlog")?;
    /// for number in 1..=100_u64 {
    ///     log.append_group(&[&number.to_be_bytes()])?;
    /// }
    /// let forty = log.partition_point(|bytes| bytes < &40_u64.to_be_bytes()[..])?;
    /// assert_eq!(log.follow(forty)?.try_next()?.unwrap().bytes, 40_u64.to_be_bytes());
    /// # Ok::<(), pagekeeper_wal::Error>(())
    /// ```
    pub fn partition_point(&self, mut is_before: impl FnMut(&[u8]) -> bool) -> Result<Position, Error> {
        self.shared.process.require()?;
        let segments = self.shared.progress.segments();
        let read_from = |segment: &Segment| {
            self.follow(Position { segment: segment.number, offset: segment::SEGMENT_HEADER_BYTES })
        };
        let (mut low, mut high) = (0, segments.len());
        while low < high {
            let middle = low.midpoint(high);
            let first = read_from(&segments[middle])?.try_next()?;
            if first.is_some_and(|first| is_before(&first.bytes)) { low = middle + 1 } else { high = middle }
        }
        let Some(last) = segments[..low].last() else { return Ok(self.first()) };
        let mut follower = read_from(last)?;
        while let Some(event) = follower.try_next()? {
            if !is_before(&event.bytes) {
                return Ok(event.position);
            }
        }
        Ok(follower.position())
    }

    /// Returns the position at which the oldest record of the log begins, or will begin.
    pub fn first(&self) -> Position {
        self.position(LogProgress::first)
    }

    /// Returns the position past the last appended record.
    pub fn end(&self) -> Position {
        self.position(LogProgress::end)
    }

    /// Returns the position before which everything is durable.
    pub fn durable_end(&self) -> Position {
        self.position(LogProgress::durable)
    }

    /// Returns a position; zeros in a forked child.
    fn position(&self, of: impl FnOnce(&LogProgress) -> Position) -> Position {
        let is_own = self.shared.process.is_current();
        if is_own { of(&self.shared.progress) } else { Position { segment: 0, offset: 0 } }
    }

    /// Returns how segments are written; never [`LogMode::Auto`]. Support for [`LogMode::Uncached`]
    /// and [`LogMode::Direct`] is found by a test, which needs some room on the disk. The test runs
    /// at the first append, or when this or [`why`](Self::why) is called.
    pub fn mode(&self) -> LogMode {
        match self.tested().map(|how| (how.access, how.write_mode)) {
            Ok((Access::Direct, _)) => LogMode::Direct,
            Ok((Access::Buffered, WriteMode::Uncached)) => LogMode::Uncached,
            Ok((Access::Buffered, _)) | Err(_) => LogMode::Buffered,
        }
    }

    /// Returns the reason for the [`mode`](Self::mode).
    pub fn why(&self) -> &str {
        self.tested().map_or_else(|why| why, |how| &how.why)
    }

    fn tested(&self) -> Result<&segment_store::WriteMethod, &'static str> {
        if !self.shared.process.is_current() {
            return Err("nothing is tried in a forked child");
        }
        self.shared.store.how().map_err(|_| "nothing can be tried now")
    }

    /// Returns the counters; zeros in a forked child.
    pub fn stats(&self) -> BinLogStats {
        let is_own = self.shared.process.is_current();
        if is_own { self.shared.counters.snapshot() } else { BinLogStats::default() }
    }

    /// Returns the resident bytes of the log, as far as the log tracks them and the kernel reports
    /// them; `None` if the log leaves its pages to the kernel.
    pub fn resident(&self) -> Option<u64> {
        self.shared.process.require().ok()?;
        match self.shared.releaser.get() {
            Some(releaser) => releaser.resident(),
            None => (self.shared.store.access() == Access::Direct).then_some(0),
        }
    }

    /// Makes everything durable and seals the last segment; readers detect any later change in it.
    /// Followers read the remaining records, then end. A log to which nothing was appended is left
    /// as it is.
    pub fn close(self) -> Result<(), Error> {
        self.shared.process.require()?;
        let mut leader = self.shared.queue.exclusive()?;
        let sealed = leader.writer().seal(&self.shared);
        self.hand_over(leader, None);
        sealed
    }
}

impl BinLogOptions {
    /// Opens the log in a directory for appending, or creates one if the directory is empty or
    /// missing. After a crash the log is recovered; no group that was acknowledged as durable is
    /// lost. Nothing is written to an existing log before the first append, rotation or purge,
    /// except to finish an interrupted [`truncate_after`](BinLog::truncate_after).
    ///
    /// Fails, and changes nothing, in these cases:
    /// - Another opener has the log open.
    /// - The directory has other files in it.
    /// - A segment is missing, cut, damaged, or from another log.
    /// - A setting is out of its range.
    pub fn open(self, dir: impl AsRef<Path>) -> Result<BinLog, Error> {
        BinLog::open(dir.as_ref(), self)
    }
}

impl Drop for BinLog {
    fn drop(&mut self) {
        if !self.shared.process.is_current() {
            // The thread is the parent's, and the parent's resources are never dropped here.
            return std::mem::forget((self.thread.take(), Arc::clone(&self.shared)));
        }
        release_thread::stop(&self.shared, self.thread.take());
        self.shared.progress.closed();
    }
}

impl fmt::Debug for BinLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BinLog")
            .field("dir", &self.shared.store.dir)
            .field("end", &self.end())
            .field("durable_end", &self.durable_end())
            .finish_non_exhaustive()
    }
}

//! The log as all its threads share it: appending, writing in order, syncing in groups.
//!
//! Two locks are held over I/O: the writer's and the syncer's. The writer takes whole blocks out of
//! the buffer and writes them, in order. The syncer pads, has everything written, and syncs. Any
//! thread may take these locks: the log's own, or a caller that would otherwise wait for one of
//! those.
//!
//! The parts of [`Core`], by their protection:
//!
//! | group | protected by |
//! |---|---|
//! | [`Configuration`], files to read | nothing: fixed when the log is opened |
//! | [`WriteState`] | nothing: fixed when the first record is appended |
//! | [`LogBuffer`] | its own atomics |
//! | `writer`: the [`BlockTaker`] | its lock |
//! | [`SyncState`] | its lock, whose holder alone raises `durable` |
//! | [`CheckpointState`] | the lock of `control`, whose holder alone moves `lsn` |
//! | [`EpochState`] | the lock of `epochs`, whose holder alone changes the salt and raises `ring_limit` |
//! | [`ReleaseState`] | the lock of `releaser`, whose holder alone moves `considered_upto` |
//! | [`EventCounts`], [`Lifecycle`], [`Counters`] | atomics that any thread changes |
//!
//! Locks are taken in this order: `control`, `epochs`, the syncer's, and last one of the writer's,
//! the group commit's and `releaser`.
//!
//! Invariants:
//! 1. `durable <= taken <= reserved <= taken + capacity`. Only the syncer raises `durable`, after
//!    everything before it was written and synced successfully. It is a block start.
//! 2. After the first error of a write or sync nothing more is written, `durable` stays, and every
//!    call fails.
//! 3. The limit of the buffer is at most the ring's capacity past the block of the checkpoint that
//!    is durable in the control file, and at most `max_unsynced` past `durable`.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_io::{FileLock, Io, IoFile, Process, WriteMode};
use pagekeeper_kernel::mutex::lock;

use super::buffer::{BlockTaker, LogBuffer, NoRoom, PADDING_ROOM_BYTES, ReservedSpan};
use super::group_commit::{SyncLeader, Turn};
use super::metrics::{Counters, count};
use super::options::Backpressure;
use super::release::{self, ReleaseState};
use super::ring::RingSource;
use super::state::{
    CheckpointState, Configuration, EpochState, EventCounts, Lifecycle, SyncState, WriteState, WritingMode,
};
use crate::convert::to_usize;
use crate::injected_fault::injected_fault;
use crate::limits::RECORD_BYTES_MAX;
use crate::record::{self, BLOCK, RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use crate::{Error, LogMode, Lsn};

/// The maximum number of bytes of a write: larger ones gain nothing, and the lock is released
/// between writes.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of bytes of a write if writeback is started explicitly: the device writes one
/// piece while the next one is copied.
const WRITE_BACK_BYTES_MAX: u64 = 256 << 10;
/// A write of at least this many bytes is worth a call to start its writeback at once, instead of
/// leaving it to the next sync.
const EARLY_WRITE_BACK_BYTES: usize = 128 << 10;

/// The log without its threads.
pub(super) struct Core {
    /// Each call from outside checks it before it takes a lock.
    pub(super) process: Process,
    pub(super) config: Configuration,
    pub(super) write: WriteState,
    /// The ring's files, opened for reading.
    pub(super) sources: Arc<[Arc<dyn IoFile>]>,
    pub(super) io: Arc<dyn Io>,
    pub(super) buffer: Arc<LogBuffer>,
    pub(super) writer: Mutex<BlockTaker>,
    pub(super) sync: SyncState,
    pub(super) checkpoint: CheckpointState,
    pub(super) epoch: EpochState,
    pub(super) release: ReleaseState,
    pub(super) events: EventCounts,
    pub(super) lifecycle: Lifecycle,
    pub(super) counters: Counters,
    pub(super) _lock: Option<FileLock>,
}

impl Core {
    pub(super) fn durable(&self) -> u64 {
        self.sync.durable.load(Ordering::Acquire)
    }

    pub(super) fn checkpoint(&self) -> u64 {
        self.checkpoint.lsn.load(Ordering::Acquire)
    }

    /// Returns the ring's files for reading up to `end`.
    pub(super) fn source(&self, end: u64) -> RingSource {
        RingSource::new(Arc::clone(&self.io), self.config.geometry, Arc::clone(&self.sources), end)
    }

    /// Returns the maximum length of a body.
    pub(super) fn longest(&self) -> usize {
        let limit = self.buffer.capacity().min(self.config.geometry.capacity()).min(self.config.max_unsynced);
        let room = limit - PADDING_ROOM_BYTES - 2 * BLOCK;
        to_usize(room.saturating_sub(RECORD_HEADER_BYTES as u64).min(RECORD_BYTES_MAX as u64))
    }

    /// Fails once the log has failed.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.lifecycle
            .poison
            .get()
            .map_or(Ok(()), |cause| Err(Error::Poisoned { cause: Box::new(cause.clone()) }))
    }

    /// Ends all appending forever, and wakes everyone.
    pub(super) fn poison(&self, cause: Error) -> Error {
        let cause = match cause {
            Error::Poisoned { cause } => *cause,
            cause => cause,
        };
        let _ = self.lifecycle.poison.set(cause);
        self.sync.group_commit.wake_all();
        self.events.synced.notify_all();
        self.events.room.notify_all();
        self.events.to_write.notify_all();
        self.events.to_flush.notify_all();
        self.check().err().unwrap_or_else(|| unreachable!("it was just set"))
    }

    /// Appends a record, and returns the LSN past it. Waits for room, but not for the ring if
    /// `wait` is false.
    pub(super) fn append(&self, body: &[u8], wait: bool) -> Result<u64, Error> {
        if body.len() > self.longest() {
            return Err(Error::RecordTooLarge { bytes: body.len() as u64, max: self.longest() as u64 });
        }
        let len = record::size(body.len());
        if len > self.epoch.longest.load(Ordering::Relaxed) {
            self.note_longest(len)?;
        }
        // Computed before the room is reserved: others wait behind it until it is filled.
        let body_crc = crc32c::crc32c(body);
        let span = self.room_for(len, wait)?;
        debug_assert!(span.end() <= self.buffer.taken() + self.buffer.capacity());
        let end = span.end();
        let salt = self.epoch.salt.load(Ordering::Relaxed);
        // Nothing behind the span becomes durable until it is filled.
        let header =
            RecordHeader::new(RecordKind::Data, body, span.lsn(), salt, self.durable()).encode_over(body_crc);
        self.buffer.fill(span, [&header, body]);
        count(&self.counters.appends);
        // May miss a writer that falls asleep just now: the next append wakes it, or the flusher's
        // tick.
        if self.events.to_write.has_waiters() && self.should_write_now() {
            self.events.to_write.notify_all();
        }
        if self.should_sync_now() && self.events.to_flush.has_waiters() {
            self.events.to_flush.notify_all();
        }
        Ok(end)
    }

    /// Whether the log flusher should sync now, so that appends need not wait for it.
    pub(super) fn should_sync_now(&self) -> bool {
        self.config.max_unsynced != u64::MAX
            && self.buffer.reserved().saturating_sub(self.durable()) > self.config.max_unsynced / 2
    }

    /// Raises the limit of the buffer as far as appends may go.
    pub(super) fn raise_limit(&self) {
        if !self.epoch.begun.load(Ordering::SeqCst) {
            return;
        }
        // The last thread to arrive, here or where the ring's limit is raised, sees both values.
        let durable = self.sync.durable.load(Ordering::SeqCst);
        let limit = self
            .epoch
            .ring_limit
            .load(Ordering::SeqCst)
            .min(durable.saturating_add(self.config.max_unsynced));
        self.buffer.raise_limit(limit);
    }

    /// Records that everything before `upto` is durable.
    fn set_durable(&self, upto: u64) {
        debug_assert!(upto.is_multiple_of(BLOCK) && self.durable() <= upto);
        debug_assert!(upto <= self.buffer.taken() && self.buffer.taken() <= self.buffer.reserved());
        self.sync.durable.store(upto, Ordering::SeqCst);
        self.events.synced.notify_all();
        self.raise_limit();
    }

    /// Whether the log writer should write now.
    pub(super) fn should_write_now(&self) -> bool {
        // Between the two loads, reserved bytes and more may be taken.
        self.buffer.reserved().saturating_sub(self.buffer.taken()) >= self.config.write_threshold
            || self.lifecycle.urgent.load(Ordering::Relaxed)
    }

    fn room_for(&self, len: u64, wait: bool) -> Result<ReservedSpan, Error> {
        let mut reported = None;
        loop {
            self.check()?;
            let seen = self.events.room.count();
            let why = match self.buffer.reserve(len) {
                Ok(span) => return Ok(span),
                Err(why) => why,
            };
            let has_ring = || {
                self.buffer.reserved() + len + PADDING_ROOM_BYTES
                    <= self.epoch.ring_limit.load(Ordering::SeqCst)
            };
            if why == NoRoom::Limit && !self.epoch.begun.load(Ordering::SeqCst) {
                if self.config.read_only {
                    return Err(Error::ReadOnly);
                }
                if has_ring() && self.begin()? {
                    continue;
                }
            } else if why == NoRoom::Limit && has_ring() {
                // There is room in the ring, but too much is unsynced.
                self.wait_durable(self.buffer.reserved())?;
                continue;
            }
            if why == NoRoom::Limit && !wait {
                return Err(Error::RingFull { checkpoint: Lsn::new(self.checkpoint()) });
            }
            if reported.replace(why) != Some(why) {
                self.report_wait(why);
            }
            match why {
                NoRoom::LogBuffer if self.config.has_threads => {
                    self.lifecycle.urgent.store(true, Ordering::SeqCst);
                    self.events.to_write.notify_all();
                }
                NoRoom::LogBuffer => {
                    self.write_whole_blocks()?;
                    continue;
                }
                NoRoom::Limit => {}
            }
            self.check()?;
            self.events.room.wait(seen, None);
        }
    }

    /// Counts a wait, and reports a wait for the ring. No lock is held.
    fn report_wait(&self, why: NoRoom) {
        match why {
            NoRoom::LogBuffer => count(&self.counters.waits_for_buffer),
            NoRoom::Limit => {
                count(&self.counters.waits_for_ring);
                if let Some(report) = &self.config.on_backpressure {
                    report(Backpressure {
                        checkpoint: Lsn::new(self.checkpoint()),
                        end: Lsn::new(self.buffer.reserved()),
                        capacity: self.config.geometry.capacity(),
                    });
                }
            }
        }
    }

    /// Appends padding up to the start of a block. Everything before the LSN that it returns can be
    /// written.
    fn seal(&self) -> u64 {
        static ZEROS: [u8; 2 * record::BLOCK_LEN] = [0; 2 * record::BLOCK_LEN];
        let (span, end) = self.buffer.reserve_padding();
        if let Some(span) = span {
            let body = &ZEROS[..to_usize(span.end() - span.lsn()) - RECORD_HEADER_BYTES];
            let salt = self.epoch.salt.load(Ordering::Relaxed);
            let header =
                RecordHeader::new(RecordKind::Padding, body, span.lsn(), salt, self.durable()).encode(body);
            self.buffer.fill(span, [&header, body]);
        }
        end
    }

    /// Writes some whole blocks, which is the log writer's work. Returns the number of bytes.
    pub(super) fn write_whole_blocks(&self) -> Result<usize, Error> {
        let mut taker = lock(&self.writer);
        self.write_ready(&mut taker, u64::MAX, self.plain())
    }

    /// Writes everything before `upto`, which was sealed. Waits for appends that are still filling
    /// their part.
    fn write_upto(&self, taker: &mut BlockTaker, upto: u64, mode: WriteMode) -> Result<(), Error> {
        let mut attempts = 0;
        while taker.at() < upto {
            if self.write_ready(taker, upto, mode)? > 0 {
                attempts = 0;
                continue;
            }
            // A copy takes microseconds, if its thread is running.
            attempts += 1;
            if attempts < 20 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Writes whole blocks once. Returns the number of bytes.
    fn write_ready(&self, taker: &mut BlockTaker, upto: u64, mode: WriteMode) -> Result<usize, Error> {
        self.check()?;
        let Some(ring) = self.write.ring.get() else { return Ok(0) };
        let max = if self.writes_back() { WRITE_BACK_BYTES_MAX } else { WRITE_BYTES_MAX };
        let bytes = taker.ready(max.min(upto - taker.at()));
        if bytes.is_empty() {
            return Ok(0);
        }
        let written = match ring.write(taker.at(), bytes, mode) {
            Err(_) if injected_fault!(self.config, WriteErrorIgnored) => bytes.len(),
            written => written.map_err(|error| self.poison(error))?,
        };
        if self.writes_back() && written >= EARLY_WRITE_BACK_BYTES {
            ring.start_writeback(taker.at(), written).map_err(|error| self.poison(error))?;
        }
        taker.give_back(written);
        count(&self.counters.writes);
        self.lifecycle.urgent.store(false, Ordering::SeqCst);
        self.events.room.notify_all();
        Ok(written)
    }

    /// Whether large writes go to the page cache, with writeback started at once.
    pub(super) fn writes_back(&self) -> bool {
        self.writing_mode().mode == LogMode::Buffered
    }

    /// Returns the write mode of blocks that need not be durable at once.
    fn plain(&self) -> WriteMode {
        if self.writing_mode().mode == LogMode::Uncached { WriteMode::Uncached } else { WriteMode::Plain }
    }

    /// Returns the write mode of blocks that must be durable at once.
    fn committing(&self) -> WriteMode {
        let WritingMode { mode, honours_durable } = self.writing_mode();
        if mode == LogMode::Direct && honours_durable && !injected_fault!(self.config, NoSync) {
            WriteMode::Durable
        } else {
            self.plain()
        }
    }

    /// Returns once everything before `lsn` is written.
    pub(super) fn wait_written(&self, lsn: u64) -> Result<(), Error> {
        if self.buffer.taken() >= lsn {
            return Ok(());
        }
        count(&self.counters.commits);
        let mut taker = lock(&self.writer);
        if taker.at() < lsn {
            let upto = self.seal();
            self.write_upto(&mut taker, upto, self.plain())?;
        }
        Ok(())
    }

    /// Returns once everything before `lsn` is durable.
    pub(super) fn wait_durable(&self, lsn: u64) -> Result<(), Error> {
        if self.durable() >= lsn {
            return Ok(());
        }
        count(&self.counters.commits);
        let result = || if self.durable() >= lsn { Some(Ok(())) } else { self.check().err().map(Err) };
        match self.sync.group_commit.wait(lsn, result) {
            Turn::Done(result) => result,
            Turn::Leads(leader) => self.sync_round(&leader),
        }
    }

    /// Waits until everything before `lsn` is durable, for at most this long. Syncs nothing.
    pub(super) fn wait_for_others(&self, lsn: u64, max: Duration) {
        let until = Instant::now().checked_add(max);
        loop {
            let seen = self.events.synced.count();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if self.durable() >= lsn || self.check().is_err() || left == Some(Duration::ZERO) {
                return;
            }
            self.events.synced.wait(seen, left);
        }
    }

    /// Makes everything that was appended before durable.
    fn sync_round(&self, leader: &SyncLeader<'_>) -> Result<(), Error> {
        let upto = self.seal();
        leader.begin(upto);
        let from = self.durable();
        let mut taker = lock(&self.writer);
        let mode = self.committing();
        let began = taker.at();
        self.write_upto(&mut taker, upto, mode)?;
        drop(taker);
        if injected_fault!(self.config, AckBeforeSync) {
            self.set_durable(upto);
            return Ok(());
        }
        if mode != WriteMode::Durable || began > from {
            self.sync_ring(from..upto).map_err(|error| self.poison(error))?;
        }
        // A disk has one cache for all files. A sync of the control file that failed meanwhile may
        // have lost bytes of this file, whose own sync then had nothing left to fail for. This
        // waits for a sync in progress.
        self.noting(|| self.check())?;
        self.set_durable(upto);
        count(&self.counters.syncs);
        self.nudge_flusher();
        Ok(())
    }

    /// Writes the control file and records a failure as one step, or checks for such a failure.
    pub(super) fn noting(&self, act: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let _noting = lock(&self.sync.noting);
        act()
    }

    fn sync_ring(&self, lsns: Range<u64>) -> Result<(), Error> {
        if injected_fault!(self.config, NoSync) {
            return Ok(());
        }
        let Some(ring) = self.write.ring.get() else { return Ok(()) };
        match ring.sync(lsns.clone()) {
            Err(_) if injected_fault!(self.config, SyncRetried) => ring.sync(lsns),
            synced => synced,
        }
    }

    /// Triggers the release of pages, if there are enough of them.
    pub(super) fn nudge_flusher(&self) {
        if self.unreleased() >= release::RELEASE_STEP_BYTES {
            if self.config.has_threads {
                if self.events.to_flush.has_waiters() {
                    self.events.to_flush.notify_all();
                }
            } else {
                self.release();
            }
        }
    }

    /// Returns the bytes that were written and not yet considered for release; 0 if none are
    /// released.
    pub(super) fn unreleased(&self) -> u64 {
        if !self.config.releases {
            return 0;
        }
        self.buffer.taken().saturating_sub(self.release.considered_upto.load(Ordering::Relaxed))
    }

    /// Releases pages that nobody needs.
    pub(super) fn release(&self) {
        if self.config.releases {
            lock(&self.release.releaser).step(self, true);
        }
    }
}

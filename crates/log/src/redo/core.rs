//! The log itself, as all its threads share it: appending, writing in turn, syncing in groups.
//!
//! Two turns, each a mutex that is held over its I/O: the writer's (takes whole blocks out of the buffer and writes them, in
//! order) and the syncer's (pads, has all written, syncs). Whoever needs a turn takes it: the log's threads, or a caller that
//! would else have to wait for one of them.
//!
//! Invariants:
//! 1. `durable <= taken <= reserved`. `durable` is raised by the syncer alone, after all before it was written and the sync
//!    of that succeeded; it is a block start.
//! 2. After the first error of a write or sync nothing is written any more, `durable` stays, and everyone is told.
//! 3. The limit of the buffer is at most a lap behind the block of the checkpoint that is durable in the control file, and at
//!    most `most_unsynced` behind `durable`.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use pagekeeper_io::{Io, IoFile, Lock, WriteMode};

use super::bell::Bell;
use super::buffer::{Buffer, NoRoom, SLACK, Span, Taker};
use super::control::Control;
use super::group::Groups;
use super::metrics::{Counters, count};
use super::options::{Backpressure, FlushPolicy, OnBackpressure};
use super::planted::planted;
use super::release::Releaser;
use super::ring::Ring;
use crate::record::{self, BLOCK, EpochAt, HEADER, Header, Kind};
use crate::{Error, LogMode};

/// Bytes of a write at most: more at once gains nothing, and the turn is let go between writes.
const MOST_WRITE: u64 = 1 << 20;
/// The same where the kernel has to be told to begin writing back: the device is at work on a piece while the next one is copied.
const MOST_WRITE_BACK: u64 = 256 << 10;
/// Bytes of a write that are worth a call to have them written back at once, and not only by the next sync.
const WRITE_BACK: usize = 128 << 10;

/// The log but for its threads.
pub(super) struct Core {
    pub(super) io: Arc<dyn Io>,
    pub(super) buffer: Arc<Buffer>,
    /// Where the lap ends that begins at the checkpoint, or appends have to stop for an epoch that is due.
    pub(super) ring_limit: AtomicU64,
    /// Bytes that may be appended and not synced; all there are, if the log has no bound.
    pub(super) most_unsynced: u64,
    pub(super) ring: Ring,
    /// The same files, to read.
    pub(super) sources: Arc<[Arc<dyn IoFile>]>,
    pub(super) policy: FlushPolicy,
    pub(super) mode: LogMode,
    /// The salt of the epoch that is written now. It changes before the first record only.
    pub(super) salt: AtomicU32,
    /// The writer's turn.
    pub(super) writer: Mutex<Taker>,
    /// The syncer's turn.
    pub(super) syncer: Mutex<()>,
    pub(super) durable: AtomicU64,
    pub(super) groups: Groups,
    /// Rung when there is room in the buffer or the ring.
    pub(super) room: Bell,
    /// Rung when there is much to write.
    pub(super) to_write: Bell,
    /// Rung when there is much to sync or release.
    pub(super) to_flush: Bell,
    /// Rung when pages were released.
    pub(super) released: Bell,
    /// Set while somebody waits for room, so that little is much.
    pub(super) hurry: AtomicBool,
    pub(super) stopped: AtomicBool,
    pub(super) poison: OnceLock<Error>,
    pub(super) checkpoint: AtomicU64,
    pub(super) control: Mutex<Control>,
    /// All epochs since the checkpoint, and those of this opening.
    pub(super) epochs: Mutex<Epochs>,
    /// Whether pages are given back at all.
    pub(super) releases: bool,
    pub(super) releaser: Mutex<Releaser>,
    /// How far the releaser has looked.
    pub(super) release_at: AtomicU64,
    pub(super) counters: Counters,
    pub(super) start: u64,
    pub(super) on_backpressure: Option<OnBackpressure>,
    /// The log has threads that write and flush.
    pub(super) has_threads: bool,
    /// Bytes in the buffer that are worth waking the writer.
    pub(super) much: u64,
    #[cfg(any(test, feature = "planted"))]
    pub(super) planted: Option<super::planted::Planted>,
    pub(super) _lock: Lock,
}

/// Which salt is in force where.
#[derive(Debug)]
pub(super) struct Epochs {
    /// At the checkpoint.
    pub(super) first: u32,
    pub(super) later: Vec<EpochAt>,
    /// The epoch that this opening has to begin before it appends, if there was no room for it yet: where the log ended.
    pub(super) due: Option<u64>,
}

impl Epochs {
    /// In force at `lsn`.
    pub(super) fn salt_at(&self, lsn: u64) -> u32 {
        self.later.iter().rev().find(|epoch| epoch.start < lsn).map_or(self.first, |epoch| epoch.salt)
    }
}

/// The lock of a mutex whose holders never panic half-way: nothing behind it is ever torn.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn checkpoint(&self) -> u64 {
        self.checkpoint.load(Ordering::Acquire)
    }

    /// The longest body that goes.
    pub(super) fn longest(&self) -> usize {
        let least = self.buffer.capacity().min(self.ring.geometry.capacity()).min(self.most_unsynced);
        let room = least - SLACK - 2 * BLOCK;
        usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(HEADER).min(record::LONGEST)
    }

    /// Fails once anything has.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.poison.get().map_or(Ok(()), |cause| Err(Error::Poisoned { cause: Box::new(cause.clone()) }))
    }

    /// Ends all appending for ever, and tells everyone.
    pub(super) fn poison(&self, cause: Error) -> Error {
        let cause = match cause {
            Error::Poisoned { cause } => *cause,
            cause => cause,
        };
        let _ = self.poison.set(cause);
        self.groups.wake_all();
        self.room.ring();
        self.to_write.ring();
        self.to_flush.ring();
        self.check().err().unwrap_or_else(|| unreachable!("it was just set"))
    }

    /// Appends a record, and gives the LSN just behind it. Waits for room, but not for the ring if `wait` is false.
    pub(super) fn append(&self, body: &[u8], wait: bool) -> Result<u64, Error> {
        if body.len() > self.longest() {
            return Err(Error::RecordTooLarge { bytes: body.len() as u64, most: self.longest() as u64 });
        }
        let len = record::size(body.len());
        // Before the room is reserved: others wait behind it until it is filled.
        let body_crc = crc32c::crc32c(body);
        let span = self.room_for(len, wait)?;
        let end = span.end();
        let salt = self.salt.load(Ordering::Relaxed);
        // Nothing behind the span is durable as long as it is not filled.
        let header = Header::new(Kind::Data, body, span.lsn(), salt, self.durable()).encode_over(body_crc);
        self.buffer.fill(span, [&header, body]);
        count(&self.counters.appends);
        // May miss that the writer falls asleep just now: the next append wakes it, or the flusher's tick.
        if self.to_write.has_sleepers() && self.is_much_to_write() {
            self.to_write.ring();
        }
        if self.is_much_unsynced() && self.to_flush.has_sleepers() {
            self.to_flush.ring();
        }
        Ok(end)
    }

    /// Whether the log flusher should sync now, so that appends need not wait for it.
    pub(super) fn is_much_unsynced(&self) -> bool {
        self.most_unsynced != u64::MAX
            && self.buffer.reserved().saturating_sub(self.durable()) > self.most_unsynced / 2
    }

    /// Lets appends go as far as they may.
    pub(super) fn raise_limit(&self) {
        // Whoever comes last, here or where the ring's limit is raised, sees both.
        let durable = self.durable.load(Ordering::SeqCst);
        let limit = self.ring_limit.load(Ordering::SeqCst).min(durable.saturating_add(self.most_unsynced));
        self.buffer.raise_limit(limit);
    }

    /// All before `upto` is durable.
    fn set_durable(&self, upto: u64) {
        self.durable.store(upto, Ordering::SeqCst);
        self.raise_limit();
    }

    /// Whether the log writer should write now.
    pub(super) fn is_much_to_write(&self) -> bool {
        self.buffer.reserved() - self.buffer.taken() >= self.much || self.hurry.load(Ordering::Relaxed)
    }

    fn room_for(&self, len: u64, wait: bool) -> Result<Span, Error> {
        let mut told = None;
        loop {
            self.check()?;
            let rung = self.room.count();
            let why = match self.buffer.reserve(len) {
                Ok(span) => return Ok(span),
                Err(why) => why,
            };
            if why == NoRoom::Limit
                && self.buffer.reserved() + len + SLACK <= self.ring_limit.load(Ordering::SeqCst)
            {
                // There is room in the ring: what is not synced is too much.
                self.wait_durable(self.buffer.reserved())?;
                continue;
            }
            if why == NoRoom::Limit && !wait {
                return Err(Error::RingFull { checkpoint: self.checkpoint() });
            }
            if told.replace(why) != Some(why) {
                self.tell(why);
            }
            match why {
                NoRoom::Buffer if self.has_threads => {
                    self.hurry.store(true, Ordering::SeqCst);
                    self.to_write.ring();
                }
                NoRoom::Buffer => {
                    self.write_whole_blocks()?;
                    continue;
                }
                NoRoom::Limit => {}
            }
            self.check()?;
            self.room.wait(rung, None);
        }
    }

    /// Counts a wait, and tells of one for the ring. No lock is held.
    fn tell(&self, why: NoRoom) {
        match why {
            NoRoom::Buffer => count(&self.counters.waits_for_buffer),
            NoRoom::Limit => {
                count(&self.counters.waits_for_ring);
                if let Some(told) = &self.on_backpressure {
                    told(Backpressure {
                        checkpoint: self.checkpoint(),
                        end: self.buffer.reserved(),
                        capacity: self.ring.geometry.capacity(),
                    });
                }
            }
        }
    }

    /// Pads to the start of a block; all before the LSN that it gives can be written.
    fn seal(&self) -> u64 {
        static ZEROS: [u8; 2 * record::BLOCK_LEN] = [0; 2 * record::BLOCK_LEN];
        let (span, end) = self.buffer.reserve_pad();
        if let Some(span) = span {
            let body =
                usize::try_from(span.end() - span.lsn()).map_or(&ZEROS[..], |len| &ZEROS[..len - HEADER]);
            let salt = self.salt.load(Ordering::Relaxed);
            let header = Header::new(Kind::Pad, body, span.lsn(), salt, self.durable()).encode(body);
            self.buffer.fill(span, [&header, body]);
        }
        end
    }

    /// Writes some of what is whole: the log writer's work. Gives the number of bytes.
    pub(super) fn write_whole_blocks(&self) -> Result<usize, Error> {
        let mut taker = lock(&self.writer);
        self.write_ready(&mut taker, u64::MAX, self.plain())
    }

    /// Writes all before `upto`, which was sealed. Appends that are still filling their part are waited for.
    fn write_upto(&self, taker: &mut Taker, upto: u64, mode: WriteMode) -> Result<(), Error> {
        let mut looks = 0;
        while taker.at() < upto {
            if self.write_ready(taker, upto, mode)? > 0 {
                looks = 0;
                continue;
            }
            // A copy takes microseconds, if whoever does it runs.
            looks += 1;
            if looks < 20 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// One write of what is whole; gives its length.
    fn write_ready(&self, taker: &mut Taker, upto: u64, mode: WriteMode) -> Result<usize, Error> {
        self.check()?;
        let most = if self.writes_back() { MOST_WRITE_BACK } else { MOST_WRITE };
        let bytes = taker.ready(most.min(upto - taker.at()));
        if bytes.is_empty() {
            return Ok(0);
        }
        let written = self.ring.write(taker.at(), bytes, mode).map_err(|error| self.poison(error))?;
        if self.writes_back() && written >= WRITE_BACK {
            self.ring.start_writeback(taker.at(), written).map_err(|error| self.poison(error))?;
        }
        taker.give_back(written);
        count(&self.counters.writes);
        self.hurry.store(false, Ordering::SeqCst);
        self.room.ring();
        Ok(written)
    }

    /// Whether large writes go to the page cache, and are written back at once.
    pub(super) fn writes_back(&self) -> bool {
        self.mode == LogMode::Buffered
    }

    /// How blocks are written that need not be durable at once.
    fn plain(&self) -> WriteMode {
        if self.mode == LogMode::Uncached { WriteMode::Uncached } else { WriteMode::Plain }
    }

    /// How blocks are written that are to be durable at once.
    fn committing(&self) -> WriteMode {
        if self.mode == LogMode::Direct && !planted!(self, NoSync) {
            WriteMode::Durable
        } else {
            self.plain()
        }
    }

    /// Returns once all before `lsn` is written.
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

    /// Returns once all before `lsn` is durable.
    pub(super) fn wait_durable(&self, lsn: u64) -> Result<(), Error> {
        if self.durable() >= lsn {
            return Ok(());
        }
        count(&self.counters.commits);
        loop {
            let seat = self.groups.seat(lsn);
            if self.durable() >= lsn {
                return Ok(());
            }
            self.check()?;
            match self.syncer.try_lock() {
                Ok(turn) => self.sync_in_turn(turn, lsn)?,
                Err(TryLockError::Poisoned(turn)) => self.sync_in_turn(turn.into_inner(), lsn)?,
                Err(TryLockError::WouldBlock) => seat.wait(),
            }
        }
    }

    fn sync_in_turn(&self, turn: MutexGuard<'_, ()>, lsn: u64) -> Result<(), Error> {
        let result = if self.durable() < lsn { self.sync_round() } else { Ok(()) };
        let round = self.groups.round();
        drop(turn);
        self.groups.end(round);
        result
    }

    /// Makes all durable that was appended before. Only with the syncer's turn.
    fn sync_round(&self) -> Result<(), Error> {
        let upto = self.seal();
        self.groups.begin(upto);
        let from = self.durable();
        let mut taker = lock(&self.writer);
        let mode = self.committing();
        let began = taker.at();
        self.write_upto(&mut taker, upto, mode)?;
        drop(taker);
        if planted!(self, AckBeforeSync) {
            self.set_durable(upto);
            return Ok(());
        }
        if mode != WriteMode::Durable || began > from {
            self.sync_ring(from..upto).map_err(|error| self.poison(error))?;
        }
        // Another's write may have failed meanwhile: what this sync says of its own is true all the same.
        self.set_durable(upto);
        count(&self.counters.syncs);
        self.nudge_flusher();
        Ok(())
    }

    fn sync_ring(&self, lsns: Range<u64>) -> Result<(), Error> {
        if planted!(self, NoSync) {
            return Ok(());
        }
        match self.ring.sync(lsns.clone()) {
            Err(_) if planted!(self, SyncRetried) => self.ring.sync(lsns),
            synced => synced,
        }
    }

    /// Has pages released, if there are enough of them.
    pub(super) fn nudge_flusher(&self) {
        if self.unreleased() >= super::release::STEP {
            if self.has_threads {
                if self.to_flush.has_sleepers() {
                    self.to_flush.ring();
                }
            } else {
                self.release();
            }
        }
    }

    /// Bytes that were written and not yet looked at for release; 0 where none are released.
    pub(super) fn unreleased(&self) -> u64 {
        if !self.releases {
            return 0;
        }
        self.buffer.taken().saturating_sub(self.release_at.load(Ordering::Relaxed))
    }

    /// Gives back pages that nobody needs.
    pub(super) fn release(&self) {
        if self.releases {
            lock(&self.releaser).step(self, true);
        }
    }
}

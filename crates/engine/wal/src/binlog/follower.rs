//! Followers: readers that see each record as soon as it is written.
//!
//! A follower reads the segment files itself, up to the written (or synced) end of the log. While
//! it is near the writer, the pages it reads are still resident. It returns records in order,
//! without a gap, each once. Only whole groups are written, so the rest of a group that was begun
//! always follows.
//!
//! A follower fails if a record is not as it was written ([`Error::Damaged`]), if its segments were
//! purged by force, or if the log fails. It returns nothing more after an error.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, IoFile};
use pagekeeper_policy::WINDOW;

use super::injected_fault::BinLogFault;
use super::progress::{FollowerRegistration, ReadLimit, Segment};
use super::segment::SEGMENT_HEADER_BYTES as START;
use super::shared::SharedLog;
use super::writer::SegmentWriter;
use crate::Error;
use crate::convert::to_usize;
use crate::position::Position;
use crate::record::{self, BLOCK, BLOCK_LEN, RECORD_HEADER_BYTES, RecordHeader, RecordKind};

/// The maximum number of bytes that a near follower reads at once. A far one reads up to the next
/// multiple of 2 MiB.
const NEAR_READ_BYTES: u64 = 256 << 10;

/// A record as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The position of the record.
    pub position: Position,
    /// The position of the next record; follow from here to continue after this one.
    pub next: Position,
    /// Whether the record is the last one of its group.
    pub ends_group: bool,
    /// The bytes that were appended.
    pub bytes: Vec<u8>,
}

/// Reads a binlog from a position on, for as long as it is written.
///
/// The iterator waits for the next record. It ends when the log is closed and all of it was read.
/// Dropping a follower releases the pages and segments that were kept for it.
///
/// ```
/// use pagekeeper_simdisk::SimDisk;
/// use pagekeeper_wal::BinLog;
/// use std::sync::Arc;
///
/// let log = BinLog::options().io(Arc::new(SimDisk::new())).open("/binlog")?;
/// let follower = log.follow(log.first())?;
/// let reader = std::thread::spawn(move || {
///     follower.map(|event| Ok(event?.bytes)).collect::<Result<Vec<_>, pagekeeper_wal::Error>>()
/// });
/// log.append_group(&[b"one", b"two"])?;
/// log.append_group(&[b"three"])?;
/// log.close()?;
/// assert_eq!(reader.join().unwrap()?, [&b"one"[..], b"two", b"three"]);
/// # Ok::<(), pagekeeper_wal::Error>(())
/// ```
pub struct Follower {
    shared: Arc<SharedLog<SegmentWriter>>,
    id: u64,
    durable_only: bool,
    /// The position of the next record.
    at: Position,
    segment: Segment,
    file: Arc<dyn IoFile>,
    size: u64,
    cut_off: Arc<AtomicBool>,
    read: ReadBuffer,
    /// Whether nothing was read yet: `at` is still the caller's position.
    is_new: bool,
    ended: bool,
}

/// Bytes that were read but not returned yet.
#[derive(Default)]
struct ReadBuffer {
    memory: AlignedBuf,
    /// The offset in the segment at which the bytes begin.
    start: u64,
    /// The offset in the segment at which the bytes end, at most the written end.
    end: u64,
}

impl ReadBuffer {
    /// Returns the bytes from an offset on.
    fn from(&self, offset: u64) -> &[u8] {
        let skip = offset.checked_sub(self.start).filter(|_| offset < self.end);
        let len = to_usize(self.end - self.start);
        skip.map_or(&[], |skip| &self.memory[to_usize(skip)..len])
    }
}

/// The result of looking for the next record.
enum NextEvent {
    Event(Event),
    /// No record yet.
    Nothing,
    /// No record will follow.
    End,
}

impl Follower {
    pub(super) fn new(
        shared: &Arc<SharedLog<SegmentWriter>>,
        from: Position,
        durable_only: bool,
    ) -> Result<Self, Error> {
        let FollowerRegistration { id, segment, cut_off } = shared.progress.register(from, durable_only)?;
        let opened = open(shared, segment, from, &cut_off);
        if opened.is_err() {
            shared.progress.left(id);
        }
        let (file, size) = opened?;
        Ok(Self {
            shared: Arc::clone(shared),
            id,
            durable_only,
            at: Position { offset: from.offset.max(START), ..from },
            segment,
            file,
            size,
            cut_off,
            read: ReadBuffer::default(),
            is_new: true,
            ended: false,
        })
    }

    /// Returns the position past the last record that was returned. Follow from here to continue.
    pub fn position(&self) -> Position {
        self.at
    }

    /// Whether nothing more will come: the log was closed and all of it was read, or an error was
    /// returned.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the next record if it is written already. Also returns `Ok(None)` if the log is
    /// closed.
    pub fn try_next(&mut self) -> Result<Option<Event>, Error> {
        match self.find()? {
            NextEvent::Event(event) => Ok(Some(event)),
            NextEvent::Nothing | NextEvent::End => Ok(None),
        }
    }

    /// Waits for the next record for at most `timeout`. Returns `Ok(None)` if there was none, or
    /// the log is closed.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Event>, Error> {
        let until = Instant::now().checked_add(timeout);
        loop {
            match self.find()? {
                NextEvent::Event(event) => return Ok(Some(event)),
                NextEvent::End => return Ok(None),
                NextEvent::Nothing => {}
            }
            if !self.shared.progress.wait(self.at, self.durable_only, &self.cut_off, until) {
                return Ok(None);
            }
        }
    }

    /// Polls for the next record; `None` when the log is closed and all of it was read. It works
    /// with any runtime: the waker is called when there is more. Bytes that are not resident are
    /// read from the disk before this returns.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        loop {
            match self.find() {
                Ok(NextEvent::Event(event)) => return Poll::Ready(Some(Ok(event))),
                Ok(NextEvent::End) => return Poll::Ready(None),
                Ok(NextEvent::Nothing) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            if self.shared.progress.poll(self.id, self.at, context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Returns [`Self::poll_next`] as a future. Dropping it loses nothing.
    pub async fn next_async(&mut self) -> Option<Result<Event, Error>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn find(&mut self) -> Result<NextEvent, Error> {
        if self.ended {
            return Ok(NextEvent::End);
        }
        let found = self.shared.process.require().map_err(Error::from).and_then(|()| {
            let found = self.find_next();
            // What was read may have changed meanwhile.
            let is_cut_off = found.is_err() && self.cut_off.load(Ordering::Acquire);
            if is_cut_off { Err(self.shared.progress.reason(self.at)) } else { found }
        });
        self.ended = !matches!(found, Ok(NextEvent::Event(_) | NextEvent::Nothing));
        found
    }

    fn find_next(&mut self) -> Result<NextEvent, Error> {
        loop {
            if self.cut_off.load(Ordering::Acquire) {
                return Err(self.shared.progress.reason(self.at));
            }
            let wanted = match self.take()? {
                Ok(event) => return Ok(NextEvent::Event(event)),
                Err(wanted) => wanted,
            };
            let limit = match self.shared.progress.limit(self.at, self.durable_only)? {
                None => return Ok(NextEvent::End),
                Some(ReadLimit::Sealed(end)) if self.at.offset >= end => {
                    self.go_on()?;
                    continue;
                }
                Some(ReadLimit::Now(end)) if self.at.offset >= end => return Ok(NextEvent::Nothing),
                Some(ReadLimit::Sealed(end) | ReadLimit::Now(end)) => end,
            };
            if self.at.offset + wanted > limit {
                return Err(self.damaged());
            }
            self.fill(wanted, limit)?;
        }
    }

    /// Takes the next record out of the buffer, or returns how many bytes from `at` on must be read
    /// first.
    fn take(&mut self) -> Result<Result<Event, u64>, Error> {
        loop {
            let bytes = self.read.from(self.at.offset);
            if bytes.len() < RECORD_HEADER_BYTES {
                return Ok(Err(RECORD_HEADER_BYTES as u64));
            }
            let Some(header) = RecordHeader::decode(bytes, self.at.offset, self.segment.salt) else {
                return Err(self.damaged());
            };
            let Some(record) = bytes.get(..to_usize(header.size())) else {
                return Ok(Err(header.size()));
            };
            let is_checked = !self.shared.store.injected_fault(BinLogFault::NoChecksum);
            if is_checked && !record::is_whole(record, header.len) {
                return Err(self.damaged());
            }
            let position = self.at;
            let next = Position { offset: position.offset + header.size(), ..position };
            let ends_group = header.kind == RecordKind::Data;
            if let RecordKind::Unknown(_) = header.kind {
                let path = self.file.path().to_path_buf();
                return Err(Error::UnknownRecord { path, offset: self.at.offset });
            }
            let is_event = matches!(header.kind, RecordKind::Data | RecordKind::Part);
            let bytes = if is_event {
                record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.len].to_vec()
            } else {
                Vec::new()
            };
            self.at = next;
            self.is_new = false;
            if is_event {
                return Ok(Ok(Event { position, next, ends_group, bytes }));
            }
        }
    }

    /// Returns the error for bytes at `at` that are not a record.
    fn damaged(&self) -> Error {
        if self.is_new {
            return Error::NoRecord { position: self.at };
        }
        Error::Damaged { path: self.file.path().to_path_buf(), offset: self.at.offset }
    }

    /// Reads at least `wanted` bytes from `at` on, and none past `limit`.
    fn fill(&mut self, wanted: u64, limit: u64) -> Result<(), Error> {
        let start = self.at.offset - self.at.offset % BLOCK;
        let is_far = self.shared.is_far(self.at.segment);
        let whole = if is_far { (start - start % WINDOW + WINDOW) - start } else { NEAR_READ_BYTES };
        let end = (self.at.offset + wanted).max(start + whole).min(limit);
        self.moved();
        let len = to_usize(end.next_multiple_of(BLOCK) - start);
        let kept = to_usize(WINDOW);
        if self.read.memory.capacity() < len || self.read.memory.capacity() > kept.max(len) {
            self.read.memory = AlignedBuf::new(len.max(BLOCK_LEN));
        }
        self.read.memory.set_len(len);
        (self.read.start, self.read.end) = (start, start);
        if let Some(releaser) = self.shared.releaser.get() {
            releaser.reads(self.segment.number, &self.file, &(start..end), self.size.max(limit));
        }
        let got = self.file.read_at(start, &mut self.read.memory)?;
        self.read.end = end.min(start + got as u64);
        if self.read.end < self.at.offset + wanted {
            return Err(self.damaged());
        }
        Ok(())
    }

    /// Moves on to the next segment, which exists: this one is sealed.
    fn go_on(&mut self) -> Result<(), Error> {
        let next = Position { segment: self.at.segment + 1, offset: START };
        let Some(segment) = self.shared.progress.enter(self.id, next) else {
            return Err(self.shared.progress.reason(self.at));
        };
        (self.file, self.size) = open(&self.shared, segment, self.at, &self.cut_off)?;
        (self.at, self.segment, self.read) = (next, segment, ReadBuffer::default());
        self.shared.release_pages();
        Ok(())
    }

    /// Reports the follower's position to the log, which releases the pages behind it.
    fn moved(&mut self) {
        let last = self.shared.progress.moved(self.id, self.at);
        if last.segment != self.at.segment || last.offset / WINDOW != self.at.offset / WINDOW {
            self.shared.release_pages();
        }
    }
}

/// Opens a segment's file for a follower at `position`. Returns it with its length, or with 0 while
/// the segment is open.
fn open(
    shared: &SharedLog<SegmentWriter>,
    segment: Segment,
    position: Position,
    cut_off: &AtomicBool,
) -> Result<(Arc<dyn IoFile>, u64), Error> {
    match shared.store.open(segment.number) {
        Ok(file) => Ok((file, segment.sealed.unwrap_or(0))),
        // The file was removed after the follower was registered; the follower was cut off before
        // that.
        Err(_) if cut_off.load(Ordering::Acquire) => Err(shared.progress.reason(position)),
        Err(error) => Err(error.into()),
    }
}

impl Iterator for Follower {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.find() {
                Ok(NextEvent::Event(event)) => return Some(Ok(event)),
                Ok(NextEvent::End) => return None,
                Ok(NextEvent::Nothing) => {}
                Err(error) => return Some(Err(error)),
            }
            self.shared.progress.wait(self.at, self.durable_only, &self.cut_off, None);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if !self.shared.process.is_current() {
            return std::mem::forget(Arc::clone(&self.shared));
        }
        self.shared.progress.left(self.id);
        self.shared.release_pages();
    }
}

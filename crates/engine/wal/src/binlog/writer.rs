//! The writer: the last segment, and the writing of batches into it.
//!
//! Invariants:
//! 1. A block with synced records is never written again: a sync begins with padding up to the next
//!    block, in the same write as the records before it. A write that a crash tears therefore hurts
//!    only unsynced records.
//! 2. Past [`SegmentWriter::end`] there are only zeros that were written ahead, and the remains of
//!    a failed write. The remains are cut off before the next write.
//! 3. `durable` moves only after a successful sync. After a failed write or sync the log accepts
//!    nothing more.
//!
//! A full disk is the exception to invariant 3. `ENOSPC` of the write itself means that bytes were
//! not accepted. It does not affect bytes that were accepted before: their pages stay dirty, and
//! their space on the device is reserved. Only that batch fails. The file is cut back to the end
//! and synced. Otherwise a record of the failed batch, which has the right salt and position, could
//! reappear after later ones.
//!
//! `EIO` of a write or sync, and `ENOSPC` of a sync, mean that *accepted* bytes are lost. The
//! kernel reports that only once, so nothing can be trusted afterwards.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pagekeeper_io::{Access, AlignedBuf, Create, IoFile, WriteMode};

use super::frame;
use super::group_commit::{Batch, PlacedPart};
use super::index::{SegmentIndex, remove_if_there};
use super::injected_fault::BinLogFault;
use super::progress::Segment;
use super::recover;
use super::segment::SEGMENT_HEADER_BYTES;
use super::segment_store::{AppendFailure, NewSegment, WriteMethod};
use super::shared::SharedLog;
use crate::Error;
use crate::convert::to_usize;
use crate::position::Position;
use crate::record::{BLOCK, BLOCK_LEN, encode_padding, padding_size};

/// Groups that are written and synced at once are small up to this many bytes.
const SMALL_WRITE_BYTES: u64 = 64 << 10;

/// The last segment, open for writing, and the index.
pub(super) struct SegmentWriter {
    pub(super) file: Arc<dyn IoFile>,
    pub(super) segment: u64,
    pub(super) salt: u32,
    /// The offset of the next record, in bytes. Everything before it is written.
    pub(super) end: u64,
    /// The synced end: a multiple of [`BLOCK`].
    pub(super) durable: u64,
    /// Groups written since the last sync.
    pub(super) unsynced: u64,
    /// The contents of the last, unfinished block, if only whole blocks are written.
    pub(super) tail: Vec<u8>,
    pub(super) index: SegmentIndex,
    /// There may be something to release, once the leader has handed over.
    pub(super) may_release: bool,
    /// The end of the zeros written ahead, if it is past the end.
    zeroed: u64,
    /// The remains of a failed write are not cut off yet.
    ragged: bool,
    /// Set if this segment was found at opening. Nothing is appended to it; the first append begins
    /// another one.
    found: Option<DueRepairs>,
}

/// The repairs due before the first append.
#[derive(Debug, Clone)]
pub(super) struct DueRepairs {
    /// The numbers of files that a crash left over.
    pub(super) leftovers: Vec<u64>,
    /// The index does not list the segment's end.
    pub(super) was_open: bool,
}

impl SegmentWriter {
    /// Creates the writer of an empty segment, the last one of the index.
    pub(super) fn new(begun: NewSegment, index: SegmentIndex) -> Self {
        Self {
            file: begun.file,
            segment: begun.number,
            salt: begun.salt,
            end: SEGMENT_HEADER_BYTES,
            durable: SEGMENT_HEADER_BYTES,
            unsynced: 0,
            tail: Vec::new(),
            index,
            may_release: false,
            zeroed: SEGMENT_HEADER_BYTES,
            ragged: false,
            found: None,
        }
    }

    /// Creates the writer at the end of an existing log to which nothing was appended yet.
    pub(super) fn at_end(last: NewSegment, end: u64, index: SegmentIndex, found: DueRepairs) -> Self {
        Self { end, durable: end, found: Some(found), ..Self::new(last, index) }
    }

    /// Writes a batch. Returns its parts in order, each with its position or its error.
    pub(super) fn write_batch(&mut self, shared: &SharedLog<Self>, batch: &mut Batch) -> Vec<PlacedPart> {
        let mut placed = Vec::new();
        let mut from = 0;
        let mut groups = 0;
        if let Some(error) = shared.queue.failed() {
            return vec![PlacedPart { from, upto: usize::MAX, at: Err(error) }];
        }
        while groups < batch.ends.len() {
            let fitting = self.fitting(shared, &batch.ends[groups..], from);
            let Some(upto) = fitting.checked_sub(1).map(|last| batch.ends[groups + last]) else {
                if let Err(error) = self.rotate(shared) {
                    placed.push(PlacedPart { from, upto: usize::MAX, at: Err(error) });
                    return placed;
                }
                continue;
            };
            groups += fitting;
            let is_last = groups == batch.ends.len();
            let every = shared.store.options.sync_every;
            let due = every > 0 && self.unsynced + fitting as u64 >= every;
            // Groups that do not fit go to the next segment; this one is synced before.
            let sync = due || !is_last || batch.sync;
            let at = self.write_part(shared, batch, from..upto, fitting as u64, sync);
            let failed = at.is_err();
            placed.push(PlacedPart { from, upto: if failed { usize::MAX } else { upto }, at });
            if failed {
                return placed;
            }
            from = upto;
        }
        if batch.ends.is_empty() && batch.sync {
            let at = self.sync(shared).map(|()| (self.segment, self.end));
            placed.push(PlacedPart { from, upto: usize::MAX, at });
        }
        placed
    }

    /// Returns how many of the groups with these ends fit into this segment, each followed by
    /// padding. The first group begins at `from`.
    fn fitting(&self, shared: &SharedLog<Self>, ends: &[usize], from: usize) -> usize {
        if self.found.is_some() {
            return 0;
        }
        let room = |&&end: &&usize| {
            let end = self.end + (end - from) as u64;
            end + padding_size(end) <= shared.store.options.max_segment_bytes
        };
        ends.iter().take_while(room).count()
    }

    fn write_part(
        &mut self,
        shared: &SharedLog<Self>,
        batch: &mut Batch,
        part: Range<usize>,
        groups: u64,
        sync: bool,
    ) -> Result<(u64, u64), Error> {
        self.cut_off(shared)?;
        let at = (self.segment, self.end);
        let records = &mut batch.bytes[part.clone()];
        frame::seal(records, self.end, self.salt, self.durable);
        let bytes = records.len() as u64;
        let end = self.end + bytes;
        if !sync {
            self.write(shared, &batch.bytes[part])?;
        } else if part.end == batch.bytes.len() {
            batch.bytes.extend(encode_padding(end, self.salt, self.durable));
            self.write(shared, &batch.bytes[part.start..])?;
        } else {
            let padded = [&batch.bytes[part], &encode_padding(end, self.salt, self.durable)].concat();
            self.write(shared, &padded)?;
        }
        self.unsynced += groups;
        shared.counters.appended(groups, bytes);
        if sync {
            self.zero_ahead(shared, self.end - at.1)?;
            self.sync_written(shared)?;
        }
        Ok(at)
    }

    /// Writes zeros past the end if small groups are synced one by one. A sync that also records
    /// new blocks and a new file length takes half as long again (ext4, Linux 6.18; blocks that are
    /// only allocated do not help).
    fn zero_ahead(&mut self, shared: &SharedLog<Self>, written: u64) -> Result<(), Error> {
        let options = &shared.store.options;
        let write_mode = how(shared)?.write_mode;
        let max = options.max_segment_bytes;
        let upto = max.min(self.end + options.zero_ahead.min(max).next_multiple_of(BLOCK));
        // Overwritten pages of uncached writes would stay in the page cache.
        let helps = write_mode == WriteMode::Plain && written <= SMALL_WRITE_BYTES;
        if self.end < self.zeroed || self.end >= upto || !helps {
            return Ok(());
        }
        let zeros = AlignedBuf::new(to_usize(upto - self.end));
        match self.file.write_at(self.end, &zeros, write_mode).map_err(AppendFailure::from) {
            // If there is no room for zeros, there may still be some for records.
            Ok(()) | Err(AppendFailure::Passing(_)) => {
                self.zeroed = upto;
                Ok(())
            }
            Err(failure) => Err(shared.failure(failure)),
        }
    }

    /// Cuts off the unused zeros. If a crash undoes that, they do no harm.
    fn cut_zeros(&mut self, shared: &SharedLog<Self>) -> Result<(), Error> {
        if self.zeroed > self.end {
            self.file.set_len(self.end).map_err(|error| shared.failure(error.into()))?;
            self.zeroed = self.end;
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub(super) fn sync(&mut self, shared: &SharedLog<Self>) -> Result<(), Error> {
        self.cut_off(shared)?;
        if self.durable == self.end {
            return Ok(());
        }
        let padding = encode_padding(self.end, self.salt, self.durable);
        self.write(shared, &padding)?;
        self.sync_written(shared)
    }

    fn sync_written(&mut self, shared: &SharedLog<Self>) -> Result<(), Error> {
        debug_assert!(self.end.is_multiple_of(BLOCK));
        if !shared.store.injected_fault(BinLogFault::NoSync) {
            let synced = self.file.sync_data();
            if !shared.store.injected_fault(BinLogFault::SyncErrorIgnored) {
                synced.map_err(|error| shared.stop(error))?;
            }
        }
        self.durable = self.end;
        self.unsynced = 0;
        shared.counters.synced();
        shared.synced(Position { segment: self.segment, offset: self.durable });
        Ok(())
    }

    /// Writes at the end, and moves the end.
    fn write(&mut self, shared: &SharedLog<Self>, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let WriteMethod { access, write_mode, .. } = *how(shared)?;
        let written = match (access, write_mode) {
            (Access::Buffered, WriteMode::Plain) => self.file.write_at(self.end, bytes, write_mode),
            (Access::Direct, _)
            | (Access::Buffered, WriteMode::Uncached | WriteMode::Durable | WriteMode::Atomic) => {
                self.write_blocks(write_mode, bytes)
            }
        };
        let is_ignored = shared.store.injected_fault(BinLogFault::WriteErrorIgnored);
        match if is_ignored { Ok(()) } else { written } {
            Ok(()) => {
                self.end += bytes.len() as u64;
                let end = Position { segment: self.segment, offset: self.end };
                self.may_release |= shared.wrote(end);
                Ok(())
            }
            Err(error) => match AppendFailure::from(error) {
                AppendFailure::Passing(error) => {
                    self.ragged = !shared.store.injected_fault(BinLogFault::RaggedEnd);
                    self.cut_off(shared)?;
                    Err(error.into())
                }
                failure @ AppendFailure::Final(_) => Err(shared.failure(failure)),
            },
        }
    }

    /// Writes whole blocks, from the start of the block with the end. This is for direct writes,
    /// and for pages that may have been dropped: writing a part of a dropped page would first read
    /// it.
    fn write_blocks(&mut self, mode: WriteMode, bytes: &[u8]) -> Result<(), pagekeeper_io::Error> {
        let start = self.end - self.tail.len() as u64;
        let len = self.tail.len() + bytes.len();
        let mut blocks = AlignedBuf::new(len.next_multiple_of(BLOCK_LEN));
        blocks[..self.tail.len()].copy_from_slice(&self.tail);
        blocks[self.tail.len()..len].copy_from_slice(bytes);
        self.file.write_at(start, &blocks, mode)?;
        self.tail.clear();
        self.tail.extend_from_slice(&blocks[len - len % BLOCK_LEN..len]);
        Ok(())
    }

    /// Cuts off the remains of a failed write.
    fn cut_off(&mut self, shared: &SharedLog<Self>) -> Result<(), Error> {
        if self.ragged {
            let cut = self.file.set_len(self.end).and_then(|()| self.file.sync_data());
            cut.map_err(|error| shared.failure(error.into()))?;
            (self.ragged, self.zeroed) = (false, self.end);
        }
        Ok(())
    }

    /// Seals this segment and continues in a new one. If that fails for lack of space or
    /// descriptors, this one stays.
    pub(super) fn rotate(&mut self, shared: &SharedLog<Self>) -> Result<(), Error> {
        if let Some(found) = self.found.clone() {
            return self.begin(shared, &found);
        }
        if !shared.store.injected_fault(BinLogFault::NoSyncAtRotation) {
            self.sync(shared)?;
        }
        self.cut_zeros(shared)?;
        self.go_on(shared)
    }

    /// Begins to append to an existing log, in a segment that never had records.
    fn begin(&mut self, shared: &SharedLog<Self>, found: &DueRepairs) -> Result<(), Error> {
        let store = &shared.store;
        let access = how(shared)?.access;
        shared.release_if_cached();
        // The names that were seen may not be durable yet.
        store.sync_dir().map_err(|failure| shared.failure(failure))?;
        for number in &found.leftovers {
            remove_if_there(&*store.io, &store.segment_path(*number))?;
        }
        if self.end > SEGMENT_HEADER_BYTES || found.was_open {
            return self.go_on(shared);
        }
        let path = store.segment_path(self.segment);
        let file = store
            .io
            .open_writable(&path, access, Create::Never)
            .map_err(|error| shared.failure(error.into()))?;
        let mut index = self.index.clone();
        if let Some(last) = index.segments.last_mut() {
            last.sealed = None;
        }
        self.list(shared, index)?;
        (self.file, self.found) = (file, None);
        Ok(())
    }

    fn go_on(&mut self, shared: &SharedLog<Self>) -> Result<(), Error> {
        let mut index = self.index.clone();
        if let Some(last) = index.segments.last_mut() {
            last.sealed = Some(self.end);
        }
        let begun =
            shared.store.begin_segment(&mut index, self.end).map_err(|failure| shared.failure(failure))?;
        let sealed = self.end;
        *self = Self { may_release: true, ..Self::new(begun, index) };
        shared.rotated(sealed, Segment { number: self.segment, salt: self.salt, sealed: None }, self.end);
        Ok(())
    }

    /// Makes everything durable, and records the log's end in the index. A log to which nothing was
    /// appended is left as it is.
    pub(super) fn seal(&mut self, shared: &SharedLog<Self>) -> Result<(), Error> {
        if self.found.is_some() {
            return Ok(());
        }
        self.sync(shared)?;
        self.cut_zeros(shared)?;
        let mut index = self.index.clone();
        if let Some(last) = index.segments.last_mut() {
            last.sealed = Some(self.end);
        }
        self.list(shared, index)
    }

    /// Removes the segments before `number` from the index and the progress. Returns them, so that
    /// their files can be removed.
    pub(super) fn purge(
        &mut self,
        shared: &SharedLog<Self>,
        number: u64,
        forced: bool,
    ) -> Result<Vec<Segment>, Error> {
        let purged = shared.progress.purge(number, forced)?;
        if purged.is_empty() {
            return Ok(purged);
        }
        if shared.store.injected_fault(BinLogFault::PurgeFilesFirst) {
            purged
                .iter()
                .try_for_each(|segment| shared.store.io.remove(&shared.store.segment_path(segment.number)))?;
        }
        let mut index = self.index.clone();
        index.segments.retain(|listed| listed.number >= number);
        let listed = self.list(shared, index);
        if listed.is_err() {
            shared.progress.restore(&purged);
        }
        listed.map(|()| purged)
    }

    /// Cuts off the log's end after a position. Unless forced, fails if a follower may have read
    /// behind that.
    pub(super) fn truncate(
        &mut self,
        shared: &SharedLog<Self>,
        position: Position,
        forced: bool,
    ) -> Result<(), Error> {
        self.sync(shared)?;
        let Position { segment: number, offset } = position;
        let Some((segment, end)) = shared.progress.place_of(position)? else { return Ok(()) };
        recover::check_end(&shared.store, &segment, end, offset)?;
        shared.progress.check_followers(number, forced)?;
        let mut index = self.index.clone();
        index.segments.retain(|listed| listed.number <= number);
        if let Some(last) = index.segments.last_mut() {
            last.sealed = Some(offset);
        }
        shared.store.begin_truncation(&index).map_err(|failure| shared.failure(failure))?;
        // Before the files change, so that followers in them are told.
        shared.truncated(position);
        let finished = shared.store.finish_truncation(&index, self.segment);
        let file = finished.and_then(|()| shared.store.open(number)).map_err(|error| shared.stop(error))?;
        let leftovers = self.found.take().map_or(Vec::new(), |found| found.leftovers);
        let last = NewSegment { file, number, salt: segment.salt };
        *self = Self::at_end(last, offset, index, DueRepairs { leftovers, was_open: true });
        Ok(())
    }

    fn list(&mut self, shared: &SharedLog<Self>, index: SegmentIndex) -> Result<(), Error> {
        shared.store.replace_index(&index).map_err(|failure| shared.failure(failure))?;
        self.index = index;
        Ok(())
    }
}

/// Returns how segments are written.
fn how(shared: &SharedLog<SegmentWriter>) -> Result<&WriteMethod, Error> {
    shared.store.how().map_err(|failure| shared.failure(failure))
}

impl fmt::Debug for SegmentWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, end, durable, .. } = self;
        f.debug_struct("SegmentWriter")
            .field("segment", segment)
            .field("end", end)
            .field("durable", durable)
            .finish_non_exhaustive()
    }
}

//! The log of the models: its segments are in memory, and its calls act like those of the real one.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex};

use super::group_commit::{CommitQueue, PlacedPart, Submitted};
use super::progress::{LogProgress, Segment};
use super::segment::SEGMENT_HEADER_BYTES;
use super::writer::ModelWriter;
use crate::Error;
use crate::position::Position;

/// Bytes of a group in the models: one record of one byte.
pub(super) const GROUP_BYTES: u64 = 32;

/// The state of the disk. Access is not a step of a model: it orders nothing.
pub(super) struct ModelDisk {
    /// The bytes written to the existing segments, without headers.
    pub(super) segments: BTreeMap<u64, Vec<u8>>,
    pub(super) durable: Position,
    /// Followers were notified of a failure.
    pub(super) failed: bool,
    /// The error after which nothing more may be written.
    pub(super) over: Option<Error>,
}

/// A log.
pub(super) struct ModelLog {
    pub(super) queue: CommitQueue<ModelWriter>,
    pub(super) progress: LogProgress,
    pub(super) disk: Mutex<ModelDisk>,
    /// Each batch is synced.
    pub(super) sync_every: bool,
    /// A sync fails if the log ends past this offset, in bytes.
    pub(super) max_synced: u64,
}

impl ModelLog {
    pub(super) fn new() -> Self {
        let segment = Segment { number: 1, salt: 0, sealed: None };
        let durable = Position { segment: 1, offset: SEGMENT_HEADER_BYTES };
        let segments = BTreeMap::from([(1, Vec::new())]);
        Self {
            queue: CommitQueue::new(ModelWriter::new(1)),
            progress: LogProgress::new(VecDeque::from([segment]), SEGMENT_HEADER_BYTES),
            disk: Mutex::new(ModelDisk { segments, durable, failed: false, over: None }),
            sync_every: true,
            max_synced: u64::MAX,
        }
    }

    pub(super) fn disk<T>(&self, access: impl FnOnce(&mut ModelDisk) -> T) -> T {
        access(&mut self.disk.lock().unwrap())
    }

    /// Acts like `SharedLog::stop`.
    pub(super) fn stop(&self) -> Error {
        let cause = Box::new(Error::EmptyGroup);
        let error = self.queue.fail(Error::Poisoned { cause });
        self.disk(|disk| disk.over = Some(error.clone()));
        self.progress.failed(&error);
        self.disk(|disk| disk.failed = true);
        error
    }

    /// Acts like `BinLog::submit`.
    fn submit(&self, records: &[&[u8]], sync: bool) -> Result<(Arc<[PlacedPart]>, usize), Error> {
        let (submitted, end) = self.queue.submit(records, sync)?;
        let placed = match submitted {
            Submitted::Written(placed) => placed,
            Submitted::Leader(mut leader, mut batch) => {
                let placed: Arc<[PlacedPart]> = leader.writer().write_batch(self, &batch).into();
                let spare = mem::take(&mut batch.bytes);
                leader.hand_over(Some(spare));
                batch.complete(&placed);
                placed
            }
        };
        Ok((placed, end))
    }

    /// Acts like `BinLog::append_group` for one record of one byte.
    pub(super) fn append(&self, byte: u8) -> Result<Position, Error> {
        let (placed, end) = self.submit(&[&[byte]], false)?;
        match placed.iter().find(|part| end <= part.upto) {
            Some(PlacedPart { from, at: Ok((segment, offset)), .. }) => {
                let position = Position { segment: *segment, offset: offset + (end - from) as u64 };
                self.assert_is_at(position, byte);
                Ok(position)
            }
            Some(PlacedPart { at: Err(error), .. }) => Err(error.clone()),
            None => Err(Error::Abandoned),
        }
    }

    /// Asserts that a group of this byte stands before this position, and that it is durable if
    /// each batch is synced.
    fn assert_is_at(&self, position: Position, byte: u8) {
        self.disk(|disk| {
            let end = usize::try_from(position.offset - SEGMENT_HEADER_BYTES).unwrap();
            let group = &disk.segments[&position.segment][..end];
            assert_eq!(group[group.len() - 8], byte);
            assert!(!self.sync_every || position <= disk.durable);
        });
    }

    /// Acts like `BinLog::sync`.
    pub(super) fn sync(&self) -> Result<Position, Error> {
        let (placed, _) = self.submit(&[], true)?;
        match placed.last() {
            Some(PlacedPart { at: Err(error), .. }) => Err(error.clone()),
            _ => Ok(self.progress.durable()),
        }
    }

    /// Acts like `BinLog::rotate`.
    pub(super) fn rotate(&self) -> Result<(), Error> {
        let mut leader = self.queue.exclusive()?;
        let writer = leader.writer();
        let rotated = if writer.end > SEGMENT_HEADER_BYTES { writer.rotate(self) } else { Ok(()) };
        leader.hand_over(None);
        rotated
    }

    /// Acts like `BinLog::purge_to`.
    pub(super) fn purge_to(&self, number: u64, forced: bool) -> Result<u64, Error> {
        let leader = self.queue.exclusive()?;
        let purged = self.progress.purge(number, forced);
        leader.hand_over(None);
        let purged = purged?;
        for segment in &purged {
            self.disk(|disk| disk.segments.remove(&segment.number));
        }
        Ok(purged.len() as u64)
    }

    /// Submits a group, and panics if this caller would lead: unwinding drops the batch, then the
    /// leader. Returns whether it panicked.
    pub(super) fn panic(&self, byte: u8) -> bool {
        match self.queue.submit(&[&[byte]], false) {
            Ok((Submitted::Leader(leader, batch), _)) => {
                self.disk(|disk| _ = disk.over.get_or_insert(Error::Abandoned));
                drop(batch);
                drop(leader);
                true
            }
            Ok((Submitted::Written(_), _)) | Err(_) => false,
        }
    }

    /// Returns the bytes of the groups, in the order of the log.
    pub(super) fn groups(&self) -> Vec<u8> {
        let of = |bytes: &Vec<u8>| bytes.iter().skip(24).step_by(32).copied().collect::<Vec<_>>();
        self.disk(|disk| disk.segments.values().flat_map(of).collect())
    }
}

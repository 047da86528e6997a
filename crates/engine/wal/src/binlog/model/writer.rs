//! Replaces the writer in the models: segments are vectors, and a sync is a number.

use super::group_commit::{Batch, PlacedPart};
use super::progress::Segment;
use super::segment::SEGMENT_HEADER_BYTES;
use super::world::ModelLog;
use crate::Error;
use crate::position::Position;

/// The segment that is written to.
#[derive(Debug)]
pub(super) struct ModelWriter {
    segment: u64,
    pub(super) end: u64,
}

impl ModelWriter {
    pub(super) fn new(segment: u64) -> Self {
        Self { segment, end: SEGMENT_HEADER_BYTES }
    }

    fn at(&self) -> Position {
        Position { segment: self.segment, offset: self.end }
    }

    /// Writes a batch like the real writer, but never splits it.
    pub(super) fn write_batch(&mut self, log: &ModelLog, batch: &Batch) -> Vec<PlacedPart> {
        let at = self.write(log, batch);
        vec![PlacedPart { from: 0, upto: usize::MAX, at }]
    }

    fn write(&mut self, log: &ModelLog, batch: &Batch) -> Result<(u64, u64), Error> {
        if let Some(error) = log.queue.failed() {
            return Err(error);
        }
        assert_eq!(log.disk(|disk| disk.over.clone()), None);
        let at = (self.segment, self.end);
        if !batch.bytes.is_empty() {
            self.end += batch.bytes.len() as u64;
            log.disk(|disk| disk.segments.entry(self.segment).or_default().extend(&batch.bytes));
            log.progress.wrote(self.at());
        }
        if batch.sync || log.sync_every {
            self.sync(log)?;
        }
        Ok(at)
    }

    fn sync(&mut self, log: &ModelLog) -> Result<(), Error> {
        if self.end > log.max_synced {
            return Err(log.stop());
        }
        log.disk(|disk| disk.durable = self.at());
        log.progress.synced(self.at());
        Ok(())
    }

    pub(super) fn rotate(&mut self, log: &ModelLog) -> Result<(), Error> {
        self.sync(log)?;
        let sealed = self.end;
        *self = Self::new(self.segment + 1);
        log.disk(|disk| {
            disk.segments.insert(self.segment, Vec::new());
            disk.durable = self.at();
        });
        log.progress.rotated(sealed, Segment { number: self.segment, salt: 0, sealed: None });
        Ok(())
    }
}

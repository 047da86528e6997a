//! Group commit of the binlog: one caller, the leader, writes and syncs for all who append at the same time.
//!
//! Callers copy their groups into the batch that is being filled. The one that gets the writer takes the batch, and
//! does the I/O for all of its callers. Later callers fill the next batch. A caller that needs the writer for itself
//! (a rotation, a purge) waits to become leader in the same way.
//!
//! Invariants:
//! 1. Only a leader takes the batch that is being filled: whoever leads without a result finds its groups there.
//! 2. A batch is completed once, after its I/O and before its leader is gone; its groups stand in the log in the
//!    order in which they were submitted.
//! 3. Data is copied under this lock, but no I/O is done.
//!
//! A leader that panics ends the log: all current and later callers get [`Error::Abandoned`].

use std::mem;
use std::sync::OnceLock;

use pagekeeper_kernel::mutex::ignore_poison;

use super::frame;
use super::sync::{Arc, GroupCommit, Leader, Mutex, MutexGuard, Turn, yield_now};
use crate::Error;

/// The maximum memory kept for the next batch, in bytes. Larger batches free theirs.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// The parts of a batch in the log.
pub(super) type PlacedParts = Arc<[PlacedPart]>;

/// Groups that are written together.
#[derive(Debug, Default)]
pub(super) struct CommitBatch {
    /// The groups, staged.
    pub(super) bytes: Vec<u8>,
    /// The end of each group in `bytes`.
    pub(super) ends: Vec<usize>,
    /// A caller wants the whole log synced.
    pub(super) sync: bool,
    /// Set once it is written.
    placed: Arc<OnceLock<PlacedParts>>,
}

/// A part of a batch, with its position in the log or the error of its write.
#[derive(Debug, Clone)]
pub(super) struct PlacedPart {
    /// The first byte of the part in the batch.
    pub(super) from: usize,
    /// The end of the part in the batch.
    pub(super) upto: usize,
    /// The segment, and the offset at which the part begins.
    pub(super) at: Result<(u64, u64), Error>,
}

#[derive(Debug, Default)]
struct QueueState {
    filling: CommitBatch,
    /// Batches before the one that is being filled.
    taken: u64,
    spare: Vec<u8>,
    /// Groups in the last batch.
    together: usize,
    failed: Option<Error>,
}

/// The queue.
#[derive(Debug)]
pub(super) struct CommitQueue<W> {
    group_commit: GroupCommit<W>,
    state: Mutex<QueueState>,
}

/// The right to write, with the batch to write.
pub(super) struct BatchLeader<'a, W> {
    queue: &'a CommitQueue<W>,
    pub(super) writer: Leader<'a, W>,
    /// Empty if the caller wants the writer for itself.
    pub(super) batch: CommitBatch,
    has_written: bool,
}

/// The outcome of submitting a group.
pub(super) enum SubmitOutcome<'a, W> {
    /// The caller leads: it writes the batch.
    Leads(BatchLeader<'a, W>),
    /// Another caller wrote it.
    Written(PlacedParts),
}

impl<W> CommitQueue<W> {
    pub(super) fn new(writer: W) -> Self {
        Self { group_commit: GroupCommit::new(writer), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        ignore_poison(self.state.lock())
    }

    /// Submits a group, or only a request for a sync if there are no records. Also returns the group's end in the
    /// batch.
    pub(super) fn submit(
        &self,
        records: &[&[u8]],
        sync: bool,
    ) -> Result<(SubmitOutcome<'_, W>, usize), Error> {
        let sums: Vec<_> = records.iter().map(|record| crc32c::crc32c(record)).collect();
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let number = state.taken + 1;
        let batch = &mut state.filling;
        if !records.is_empty() {
            frame::stage(&mut batch.bytes, records, &sums);
            debug_assert!(batch.ends.last().is_none_or(|last| *last < batch.bytes.len()));
            batch.ends.push(batch.bytes.len());
        }
        batch.sync |= sync;
        let (end, placed) = (batch.bytes.len(), Arc::clone(&batch.placed));
        drop(state);
        let outcome = match self.group_commit.wait(number, || placed.get().cloned()) {
            Turn::Done(placed) => SubmitOutcome::Written(placed),
            Turn::Leads(writer) => {
                let batch = self.take_batch();
                writer.begin(number);
                SubmitOutcome::Leads(BatchLeader { queue: self, writer, batch, has_written: false })
            }
        };
        Ok((outcome, end))
    }

    /// Takes the batch that was being filled, and begins the next one. Only for a leader.
    fn take_batch(&self) -> CommitBatch {
        let mut state = self.lock();
        if state.filling.ends.len() < state.together {
            // Callers of the last batch submit their next group as soon as they run. Without this yield, every
            // other batch has half of them.
            drop(state);
            yield_now();
            state = self.lock();
        }
        let bytes = mem::take(&mut state.spare);
        let batch = mem::replace(&mut state.filling, CommitBatch { bytes, ..CommitBatch::default() });
        state.taken += 1;
        state.together = batch.ends.len();
        batch
    }

    /// Waits to become leader, without a batch.
    pub(super) fn exclusive(&self) -> Result<BatchLeader<'_, W>, Error> {
        match self.group_commit.wait(u64::MAX, || self.failed()) {
            Turn::Done(error) => Err(error),
            Turn::Leads(writer) => {
                Ok(BatchLeader { queue: self, writer, batch: CommitBatch::default(), has_written: false })
            }
        }
    }

    /// Ends the log: nothing more is accepted. Keeps and returns the first error.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.lock().failed.get_or_insert(error).clone()
    }

    /// Returns the error that ended the log, if any.
    pub(super) fn failed(&self) -> Option<Error> {
        self.lock().failed.clone()
    }
}

impl<W> BatchLeader<'_, W> {
    /// Gives the result to the waiting callers, and lets the next one lead.
    pub(super) fn hand_over(mut self, placed: &PlacedParts) {
        self.has_written = true;
        let mut spare = mem::take(&mut self.batch.bytes);
        let _ = self.batch.placed.set(Arc::clone(placed));
        if spare.capacity() <= SPARE_BYTES_MAX && spare.capacity() > 0 {
            spare.clear();
            self.queue.lock().spare = spare;
        }
    }
}

impl<W> Drop for BatchLeader<'_, W> {
    fn drop(&mut self) {
        if !self.has_written {
            self.queue.fail(Error::Abandoned);
            let at = Err(Error::Abandoned);
            let _ = self.batch.placed.set([PlacedPart { from: 0, upto: usize::MAX, at }].into());
        }
    }
}

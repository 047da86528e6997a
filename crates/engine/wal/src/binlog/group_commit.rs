//! Group commit of the binlog: one caller, the leader, writes and syncs for all who append at the
//! same time.
//!
//! Callers copy their groups into the batch that is being filled. The first one takes the batch and
//! the writer and does the I/O for all. Later callers fill the next batch, and one of them leads it
//! when the leader hands over. A caller that needs the writer for itself (a rotation, a purge)
//! waits to become leader in the same way.
//!
//! Invariants:
//! 1. The writer is either here or with the leader.
//! 2. A batch is completed once, after its I/O; its groups stand in the log in the order in which
//!    they were submitted.
//! 3. Data is copied under this lock, but no I/O is done.
//!
//! A leader that panics ends the log: all current and later callers get [`Error::Abandoned`].

use std::collections::VecDeque;
use std::mem;

use pagekeeper_kernel::mutex::ignore_poison;

use super::frame;
use super::sync::{Arc, Condvar, Mutex, MutexGuard, yield_now};
use crate::Error;

/// The maximum memory kept for the next batch, in bytes. Larger batches free theirs.
const SPARE: usize = 4 << 20;

/// Groups that are written together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The groups, staged.
    pub(super) bytes: Vec<u8>,
    /// The end of each group in `bytes`.
    pub(super) ends: Vec<usize>,
    /// A caller wants the whole log synced.
    pub(super) sync: bool,
    ticket: Arc<WaitTicket>,
    /// Callers other than the leader wait for the ticket.
    awaited: bool,
}

impl Batch {
    /// Gives the result to the waiting callers.
    pub(super) fn complete(mut self, placed: &Arc<[PlacedPart]>) {
        self.notify(placed);
    }

    fn notify(&mut self, placed: &Arc<[PlacedPart]>) {
        if mem::take(&mut self.awaited) {
            self.ticket.lock().placed = Some(Arc::clone(placed));
            self.ticket.changed.notify_all();
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let at = Err(Error::Abandoned);
        self.notify(&[PlacedPart { from: 0, upto: usize::MAX, at }].into());
    }
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

/// The ticket that the callers of one batch wait for, or one caller that wants the writer for
/// itself.
#[derive(Debug, Default)]
struct WaitTicket {
    state: Mutex<TicketState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TicketState {
    /// One of the waiting callers is to lead.
    leads: bool,
    placed: Option<Arc<[PlacedPart]>>,
}

impl WaitTicket {
    fn lock(&self) -> MutexGuard<'_, TicketState> {
        ignore_poison(self.state.lock())
    }

    /// Waits for the result; `None` if the caller is to lead instead.
    fn wait(&self) -> Option<Arc<[PlacedPart]>> {
        let mut state = self.lock();
        loop {
            if mem::take(&mut state.leads) {
                return None;
            }
            if state.placed.is_some() {
                return state.placed.clone();
            }
            state = ignore_poison(self.changed.wait(state));
        }
    }

    fn make_leader(&self) {
        self.lock().leads = true;
        self.changed.notify_one();
    }
}

#[derive(Debug)]
struct QueueState<W> {
    writer: Option<W>,
    /// There is a leader. A writer that is here was handed over and waits for that leader.
    has_leader: bool,
    filling: Batch,
    /// Callers that want the writer for themselves.
    exclusive: VecDeque<Arc<WaitTicket>>,
    spare: Vec<u8>,
    /// Groups in the last batch.
    together: usize,
    failed: Option<Error>,
}

impl<W> QueueState<W> {
    /// Returns the batch that was being filled, and begins the next one.
    fn take_batch(&mut self) -> Batch {
        let batch = mem::take(&mut self.filling);
        self.together = batch.ends.len();
        self.filling.bytes = mem::take(&mut self.spare);
        batch
    }
}

/// The queue, and the writer while there is no leader.
#[derive(Debug)]
pub(super) struct CommitQueue<W> {
    state: Mutex<QueueState<W>>,
}

/// The right to write, and the writer.
pub(super) struct Leader<'a, W> {
    queue: &'a CommitQueue<W>,
    writer: Option<W>,
}

/// The outcome of submitting a group.
pub(super) enum Submitted<'a, W> {
    /// The caller leads: it writes the batch.
    Leader(Leader<'a, W>, Batch),
    /// Another caller wrote it.
    Written(Arc<[PlacedPart]>),
}

impl<W> CommitQueue<W> {
    pub(super) fn new(writer: W) -> Self {
        let state = QueueState {
            writer: Some(writer),
            has_leader: false,
            filling: Batch::default(),
            exclusive: VecDeque::new(),
            spare: Vec::new(),
            together: 0,
            failed: None,
        };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<W>> {
        ignore_poison(self.state.lock())
    }

    /// Submits a group, or only a request for a sync if there are no records. Also returns the
    /// group's end in the batch.
    pub(super) fn submit(&self, records: &[&[u8]], sync: bool) -> Result<(Submitted<'_, W>, usize), Error> {
        let sums: Vec<_> = records.iter().map(|record| crc32c::crc32c(record)).collect();
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let batch = &mut state.filling;
        if !records.is_empty() {
            frame::stage(&mut batch.bytes, records, &sums);
            debug_assert!(batch.ends.last().is_none_or(|last| *last < batch.bytes.len()));
            batch.ends.push(batch.bytes.len());
        }
        batch.sync |= sync;
        let end = batch.bytes.len();
        if mem::replace(&mut state.has_leader, true) {
            state.filling.awaited = true;
            let ticket = Arc::clone(&state.filling.ticket);
            drop(state);
            if let Some(placed) = ticket.wait() {
                return Ok((Submitted::Written(placed), end));
            }
            state = self.lock();
            if state.filling.ends.len() < state.together {
                // Callers of the last batch submit their next group as soon as they run. Without
                // this yield, every other batch has half of them.
                drop(state);
                yield_now();
                state = self.lock();
            }
        }
        let batch = state.take_batch();
        Ok((Submitted::Leader(self.lead(state), batch), end))
    }

    /// Waits to become leader, without a batch.
    pub(super) fn exclusive(&self) -> Result<Leader<'_, W>, Error> {
        let mut state = self.lock();
        if mem::replace(&mut state.has_leader, true) {
            let ticket = Arc::<WaitTicket>::default();
            state.exclusive.push_back(Arc::clone(&ticket));
            drop(state);
            ticket.wait();
            state = self.lock();
        }
        let failed = state.failed.clone();
        let leader = self.lead(state);
        match failed {
            None => Ok(leader),
            Some(error) => {
                leader.hand_over(None);
                Err(error)
            }
        }
    }

    fn lead(&self, mut state: MutexGuard<'_, QueueState<W>>) -> Leader<'_, W> {
        Leader { queue: self, writer: state.writer.take() }
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

impl<W> Leader<'_, W> {
    /// Returns the writer.
    pub(super) fn writer(&mut self) -> &mut W {
        self.writer.as_mut().expect("the leader has the writer until it hands over")
    }

    /// Makes the next waiting caller the leader, if there is one. `spare` is memory for a later
    /// batch.
    pub(super) fn hand_over(mut self, spare: Option<Vec<u8>>) {
        self.give_back(spare);
    }

    fn give_back(&mut self, spare: Option<Vec<u8>>) {
        let Some(writer) = self.writer.take() else { return };
        let mut state = self.queue.lock();
        state.writer = Some(writer);
        if let Some(mut spare) = spare.filter(|spare| spare.capacity() <= SPARE) {
            spare.clear();
            state.spare = spare;
        }
        let next = state.exclusive.pop_front();
        let next = next.or_else(|| state.filling.awaited.then(|| Arc::clone(&state.filling.ticket)));
        state.has_leader = next.is_some();
        drop(state);
        if let Some(ticket) = next {
            ticket.make_leader();
        }
    }
}

impl<W> Drop for Leader<'_, W> {
    fn drop(&mut self) {
        if self.writer.is_some() {
            self.queue.fail(Error::Abandoned);
            self.give_back(None);
        }
    }
}

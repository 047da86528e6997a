//! Whose turn it is to write: group commit by leader and followers.
//!
//! Callers copy their groups into the batch that is being filled. The first one takes the batch and the writer and does the
//! I/O for all; those who come meanwhile fill the next batch, and one of them leads it when the turn is passed on. What
//! needs the writer for itself (a rotation, a purge) waits for its turn in the same way.
//!
//! Invariants:
//! 1. The writer is either here or with the one whose turn it is.
//! 2. A batch is answered once, after its I/O; its groups stand in the log in the order in which they came.
//! 3. Nothing waits behind this lock but copies into memory.
//!
//! A turn that ends by a panic ends the log: all who wait or come are told [`Error::Abandoned`].

use std::collections::VecDeque;
use std::mem;

use super::frame;
use super::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, yield_now};
use super::writer::Writer;
use crate::Error;

/// Memory kept for the next batch, in bytes; larger batches give theirs back.
const SPARE: usize = 4 << 20;

/// Groups that are written together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The groups, staged.
    pub(super) bytes: Vec<u8>,
    /// Where each group ends in `bytes`.
    pub(super) ends: Vec<usize>,
    /// Somebody wants all to be synced.
    pub(super) sync: bool,
    answer: Arc<Answer>,
    /// Others than the leader wait for the answer.
    awaited: bool,
}

impl Batch {
    /// Tells those who wait.
    pub(super) fn answer(mut self, placed: &Arc<[Placed]>) {
        self.tell(placed);
    }

    fn tell(&mut self, placed: &Arc<[Placed]>) {
        if mem::take(&mut self.awaited) {
            self.answer.lock().placed = Some(Arc::clone(placed));
            self.answer.changed.notify_all();
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let at = Err(Error::Abandoned);
        self.tell(&[Placed { from: 0, upto: usize::MAX, at }].into());
    }
}

/// A part of a batch, and where it came to stand, or why it did not.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    /// The part, from this byte of the batch …
    pub(super) from: usize,
    /// … up to this one.
    pub(super) upto: usize,
    /// The segment, and the offset at which the part begins.
    pub(super) at: Result<(u64, u64), Error>,
}

#[derive(Debug, Default)]
struct Answer {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    /// It is the turn of one of those who wait.
    turn: bool,
    placed: Option<Arc<[Placed]>>,
}

impl Answer {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the answer; `None` if it is the caller's turn instead.
    fn wait(&self) -> Option<Arc<[Placed]>> {
        let mut told = self.lock();
        loop {
            if mem::take(&mut told.turn) {
                return None;
            }
            if told.placed.is_some() {
                return told.placed.clone();
            }
            told = self.changed.wait(told).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_turn(&self) {
        self.lock().turn = true;
        self.changed.notify_one();
    }
}

#[derive(Debug)]
struct State {
    writer: Option<Writer>,
    /// It is someone's turn: the writer, if it is here, waits for that one.
    taken: bool,
    filling: Batch,
    /// Those who want the writer for themselves.
    alone: VecDeque<Arc<Answer>>,
    spare: Vec<u8>,
    /// Groups in the last batch.
    together: usize,
    failed: Option<Error>,
}

impl State {
    /// The batch that was being filled; the next one is begun.
    fn take_batch(&mut self) -> Batch {
        let batch = mem::take(&mut self.filling);
        self.together = batch.ends.len();
        self.filling.bytes = mem::take(&mut self.spare);
        batch
    }
}

/// The queue, and the writer while nobody has it.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
}

/// The writer, for as long as it is one's turn.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    writer: Option<Writer>,
}

/// What became of a group that was brought.
pub(super) enum Brought<'a> {
    /// It is the caller's turn to write the batch.
    Lead(Turn<'a>, Batch),
    /// Another wrote it.
    Written(Arc<[Placed]>),
}

impl Turns {
    pub(super) fn new(writer: Writer) -> Self {
        let state = State {
            writer: Some(writer),
            taken: false,
            filling: Batch::default(),
            alone: VecDeque::new(),
            spare: Vec::new(),
            together: 0,
            failed: None,
        };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a group (no records: only the wish for a sync), and tells where it ends in the batch.
    pub(super) fn bring(&self, records: &[&[u8]], sync: bool) -> Result<(Brought<'_>, usize), Error> {
        let sums: Vec<_> = records.iter().map(|record| crc32c::crc32c(record)).collect();
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let batch = &mut state.filling;
        if !records.is_empty() {
            frame::stage(&mut batch.bytes, records, &sums);
            batch.ends.push(batch.bytes.len());
        }
        batch.sync |= sync;
        let end = batch.bytes.len();
        if mem::replace(&mut state.taken, true) {
            state.filling.awaited = true;
            let answer = Arc::clone(&state.filling.answer);
            drop(state);
            if let Some(placed) = answer.wait() {
                return Ok((Brought::Written(placed), end));
            }
            state = self.lock();
            if state.filling.ends.len() < state.together {
                // Those who were just answered bring their next group as soon as they run: without this, every other batch is
                // half of them.
                drop(state);
                yield_now();
                state = self.lock();
            }
        }
        let batch = state.take_batch();
        Ok((Brought::Lead(self.turn(state), batch), end))
    }

    /// Waits for a turn of one's own.
    pub(super) fn alone(&self) -> Result<Turn<'_>, Error> {
        let mut state = self.lock();
        if mem::replace(&mut state.taken, true) {
            let answer = Arc::<Answer>::default();
            state.alone.push_back(Arc::clone(&answer));
            drop(state);
            answer.wait();
            state = self.lock();
        }
        let failed = state.failed.clone();
        let turn = self.turn(state);
        match failed {
            None => Ok(turn),
            Some(error) => {
                turn.pass_on(None);
                Err(error)
            }
        }
    }

    fn turn(&self, mut state: MutexGuard<'_, State>) -> Turn<'_> {
        Turn { turns: self, writer: state.writer.take() }
    }

    /// Ends the log: from now on nothing is taken. The first reason stays, and is returned.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.lock().failed.get_or_insert(error).clone()
    }

    /// Why nothing more is taken, if so.
    pub(super) fn failed(&self) -> Option<Error> {
        self.lock().failed.clone()
    }
}

impl Turn<'_> {
    /// The writer.
    pub(super) fn writer(&mut self) -> &mut Writer {
        self.writer.as_mut().expect("a turn has the writer until it is passed on")
    }

    /// Ends the turn, and begins the next one if somebody waits for it. `spare` is memory for a later batch.
    pub(super) fn pass_on(mut self, spare: Option<Vec<u8>>) {
        self.give_back(spare);
    }

    fn give_back(&mut self, spare: Option<Vec<u8>>) {
        let Some(writer) = self.writer.take() else { return };
        let mut state = self.turns.lock();
        state.writer = Some(writer);
        if let Some(mut spare) = spare.filter(|spare| spare.capacity() <= SPARE) {
            spare.clear();
            state.spare = spare;
        }
        let next = state.alone.pop_front();
        let next = next.or_else(|| state.filling.awaited.then(|| Arc::clone(&state.filling.answer)));
        state.taken = next.is_some();
        drop(state);
        if let Some(answer) = next {
            answer.give_turn();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.writer.is_some() {
            self.turns.fail(Error::Abandoned);
            self.give_back(None);
        }
    }
}

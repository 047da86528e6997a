//! Group commit: of the threads that wait for the same I/O one, the leader, does it for all.
//!
//! A leader holds the lock of the writer. What it does is a round, which covers everything that was submitted before
//! the round began. Threads that it covers wait on its event count. Later threads wait on that of the next round,
//! which has the other parity. One of them is woken when the lock is free.
//!
//! What was submitted is counted in one direction: bytes of the redo log, batches of the binlog.
//!
//! Invariant: a thread sleeps only if it failed to get the lock after it took its ticket. There was a leader at
//! that time, which notifies both event counts once the lock is free: nobody is forgotten.

use std::ops::{Deref, DerefMut};

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{EventCount, Mutex, MutexGuard, TryLockError};

/// The writer, and the rounds of those who led with it.
#[derive(Debug)]
pub(crate) struct GroupCommit<W> {
    writer: Mutex<W>,
    rounds: Mutex<CommitRounds>,
    events: [EventCount; 2],
}

#[derive(Debug, Default)]
struct CommitRounds {
    /// The number of the last round that began.
    round: u64,
    /// Everything up to this is covered.
    upto: u64,
}

/// A ticket to wait with: an event count, and its count before the thread tried to lead.
struct WaitTicket<'a> {
    event: &'a EventCount,
    count: u32,
}

/// The right to write. When it is dropped, it wakes the threads that its round covered, and one to lead the next.
pub(crate) struct Leader<'a, W> {
    group: &'a GroupCommit<W>,
    /// There until the drop.
    writer: Option<MutexGuard<'a, W>>,
}

/// The end of a wait.
pub(crate) enum Turn<'a, W, R> {
    /// The result is there.
    Done(R),
    /// There is none, and the caller leads.
    Leads(Leader<'a, W>),
}

impl<W> GroupCommit<W> {
    /// Creates a group without rounds.
    pub(crate) fn new(writer: W) -> Self {
        Self { writer: Mutex::new(writer), rounds: Mutex::default(), events: <[EventCount; 2]>::default() }
    }

    /// Waits for the result of what was submitted up to here, or until the caller leads. A leader makes its result
    /// visible before it is dropped.
    pub(crate) fn wait<R>(&self, upto: u64, result: impl Fn() -> Option<R>) -> Turn<'_, W, R> {
        loop {
            let ticket = self.ticket(upto);
            if let Some(result) = result() {
                return Turn::Done(result);
            }
            let Some(leader) = self.try_lead() else {
                ticket.event.wait(ticket.count, None);
                continue;
            };
            // The last leader may have covered it.
            return result().map_or(Turn::Leads(leader), Turn::Done);
        }
    }

    /// Wakes all threads, to look for their results.
    pub(crate) fn wake_all(&self) {
        self.events.iter().for_each(EventCount::notify_all);
    }

    fn ticket(&self, upto: u64) -> WaitTicket<'_> {
        let rounds = self.rounds();
        let round = if upto <= rounds.upto { rounds.round } else { rounds.round + 1 };
        let event = self.event(round);
        WaitTicket { event, count: event.count() }
    }

    fn try_lead(&self) -> Option<Leader<'_, W>> {
        let writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Leader { group: self, writer: Some(writer) })
    }

    fn event(&self, round: u64) -> &EventCount {
        &self.events[usize::from(round % 2 == 1)]
    }

    fn rounds(&self) -> MutexGuard<'_, CommitRounds> {
        ignore_poison(self.rounds.lock())
    }
}

impl<W> Leader<'_, W> {
    /// Begins a round that covers everything submitted up to here.
    pub(crate) fn begin(&self, upto: u64) {
        let mut rounds = self.group.rounds();
        *rounds = CommitRounds { round: rounds.round + 1, upto };
    }
}

impl<W> Deref for Leader<'_, W> {
    type Target = W;

    fn deref(&self) -> &W {
        self.writer.as_ref().expect("the leader has the writer until its drop")
    }
}

impl<W> DerefMut for Leader<'_, W> {
    fn deref_mut(&mut self) -> &mut W {
        self.writer.as_mut().expect("the leader has the writer until its drop")
    }
}

impl<W> Drop for Leader<'_, W> {
    fn drop(&mut self) {
        let round = self.group.rounds().round;
        drop(self.writer.take());
        self.group.event(round).notify_all();
        self.group.event(round + 1).notify_one();
    }
}

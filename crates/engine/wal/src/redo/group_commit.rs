//! Group commit: of the threads that wait for the same I/O one, the leader, does it for all.
//!
//! A leader holds the syncer's lock. Its work is a round, which covers everything that was
//! submitted before the round began. Threads that it covers wait on its event count. Later threads
//! wait on the event count of the next round, which has the other parity. One of them is woken when
//! the lock is free.
//!
//! Invariant: a thread sleeps only if it failed to get the lock after it took its ticket. There was
//! a leader at that time, which notifies both event counts once the lock is free: nobody is
//! forgotten.

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{EventCount, Mutex, MutexGuard, TryLockError};

/// The syncer's lock, and the rounds of the threads that led with it.
#[derive(Debug, Default)]
pub(crate) struct GroupCommit {
    syncer: Mutex<()>,
    rounds: Mutex<CommitRounds>,
    events: [EventCount; 2],
}

#[derive(Debug, Default)]
struct CommitRounds {
    /// The number of the last round that began.
    round: u64,
    /// The LSN up to which everything is covered.
    upto: u64,
}

/// A ticket to wait with: an event count, and its count before the thread tried to lead.
struct SyncTicket<'a> {
    event: &'a EventCount,
    count: u32,
}

/// The right to sync. When it is dropped, it wakes the threads that its round covered, and one to
/// lead the next.
pub(crate) struct SyncLeader<'a> {
    group: &'a GroupCommit,
    /// `None` only during the drop.
    syncer: Option<MutexGuard<'a, ()>>,
}

/// The end of a wait.
pub(crate) enum Turn<'a, R> {
    /// The result is there.
    Done(R),
    /// There is none, and the caller leads.
    Leads(SyncLeader<'a>),
}

impl GroupCommit {
    /// Waits for the result of what was submitted up to here, or until the caller leads. A leader
    /// makes its result visible before it is dropped.
    pub(crate) fn wait<R>(&self, upto: u64, result: impl Fn() -> Option<R>) -> Turn<'_, R> {
        loop {
            let ticket = self.ticket(upto);
            if let Some(result) = result() {
                return Turn::Done(result);
            }
            let Some(leader) = self.try_lead() else {
                ticket.event.wait(ticket.count, None);
                continue;
            };
            // The last leader may have covered this LSN.
            return result().map_or(Turn::Leads(leader), Turn::Done);
        }
    }

    /// Wakes all threads, to look for their results.
    pub(crate) fn wake_all(&self) {
        self.events.iter().for_each(EventCount::notify_all);
    }

    fn ticket(&self, upto: u64) -> SyncTicket<'_> {
        let rounds = self.rounds();
        let round = if upto <= rounds.upto { rounds.round } else { rounds.round + 1 };
        let event = self.event(round);
        SyncTicket { event, count: event.count() }
    }

    fn try_lead(&self) -> Option<SyncLeader<'_>> {
        let syncer = match self.syncer.try_lock() {
            Ok(syncer) => syncer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(SyncLeader { group: self, syncer: Some(syncer) })
    }

    fn event(&self, round: u64) -> &EventCount {
        &self.events[usize::from(round % 2 == 1)]
    }

    fn rounds(&self) -> MutexGuard<'_, CommitRounds> {
        ignore_poison(self.rounds.lock())
    }
}

impl SyncLeader<'_> {
    /// Begins a round that covers everything submitted up to here.
    pub(crate) fn begin(&self, upto: u64) {
        let mut rounds = self.group.rounds();
        *rounds = CommitRounds { round: rounds.round + 1, upto };
    }
}

impl Drop for SyncLeader<'_> {
    fn drop(&mut self) {
        let round = self.group.rounds().round;
        drop(self.syncer.take());
        self.group.event(round).notify_all();
        self.group.event(round + 1).notify_one();
    }
}

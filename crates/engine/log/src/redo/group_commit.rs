//! Group commit of the redo log: the waiting threads of each sync, and the election of the next leader.
//!
//! Syncs are numbered rounds, one after the other, each done by the leader: the thread that holds the syncer's
//! lock. A round covers everything that was appended before it began. Threads that it covers wait on its event
//! count. Later threads wait on that of the next round, which has the other parity. One of them is woken when the
//! lock is free.
//!
//! Invariant: a thread sleeps only if it failed to get the lock after it took its ticket. There was a leader at
//! that time, which notifies both event counts once the lock is free: nobody is forgotten.
//!
//! # Why it is not shared with the binlog and the store
//!
//! | | redo log | binlog (`binlog/group_commit.rs`) | store (`Durability::Group`) |
//! |---|---|---|---|
//! | records until the write | in the lock-free log buffer | copied into a batch, under a lock | in this redo log |
//! | a caller waits for | an LSN | its batch's result: its position, or its own error | an LSN, of this redo log |
//! | leader | the thread that gets the syncer's lock | the first, then the one that is handed the writer | none |
//! | after a failure | the log is poisoned, for everyone | on a full disk only the batch fails | as the redo log |
//! | woken by | a futex, no lock taken to continue | a condition variable and its lock | the sync of another |
//!
//! A redo leader owns nothing that it could hand over, and its waiters need only know that `durable` has passed
//! their LSN. A binlog leader owns the segment and the others' groups, and owes each an answer. The only code to
//! share would be a mutex. The store elects nobody: it delays its own
//! [`RedoLog::sync_upto`](crate::RedoLog::sync_upto) in case another's comes first.

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{EventCount, Mutex, MutexGuard};

/// The rounds of the group commit.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    rounds: Mutex<Rounds>,
    events: [EventCount; 2],
}

#[derive(Debug, Default)]
struct Rounds {
    /// The number of the last round that began.
    round: u64,
    /// The end of the bytes it covers.
    upto: u64,
}

/// A ticket to wait with: an event count, and its count before the thread tried to lead.
#[derive(Debug)]
pub(super) struct WaitTicket<'a> {
    event: &'a EventCount,
    count: u32,
}

impl GroupCommit {
    /// Returns a ticket to wait for `lsn`. It must be taken before trying to lead.
    pub(super) fn ticket(&self, lsn: u64) -> WaitTicket<'_> {
        let rounds = self.lock();
        let round = if lsn <= rounds.upto { rounds.round } else { rounds.round + 1 };
        let event = self.event(round);
        WaitTicket { event, count: event.count() }
    }

    /// Begins a round that covers everything before `upto`. Only for the leader.
    pub(super) fn begin(&self, upto: u64) {
        let mut rounds = self.lock();
        *rounds = Rounds { round: rounds.round + 1, upto };
    }

    /// Returns the number of the last round that began.
    pub(super) fn round(&self) -> u64 {
        self.lock().round
    }

    /// Wakes the threads that a round covered, and one to lead the next. Must be called once the syncer's lock is
    /// free.
    pub(super) fn end(&self, round: u64) {
        self.event(round).notify_all();
        self.event(round + 1).notify_one();
    }

    /// Wakes all threads.
    pub(super) fn wake_all(&self) {
        self.events.iter().for_each(EventCount::notify_all);
    }

    fn event(&self, round: u64) -> &EventCount {
        &self.events[usize::from(round % 2 == 1)]
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        ignore_poison(self.rounds.lock())
    }
}

impl WaitTicket<'_> {
    /// Sleeps until the round has ended, or the syncer's lock may be free.
    pub(super) fn wait(self) {
        self.event.wait(self.count, None);
    }
}

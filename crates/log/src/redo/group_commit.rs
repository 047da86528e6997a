//! Group commit: who waits for which sync, and who does the next.
//!
//! Syncs are numbered rounds, one after the other, each done by whoever has the turn. A round covers all that was appended
//! before it began. Those that it covers sleep at its bell; those that came later sleep at the bell of the
//! next round, which has the other parity, and one of them is woken when the turn is free.
//!
//! Invariant: who sleeps failed to get the turn after it took its seat, so somebody had the turn then, and rings both bells
//! once the turn is free: nobody is forgotten.

use super::sync::{Bell, Mutex, MutexGuard, PoisonError};

/// The rounds.
#[derive(Debug, Default)]
pub(super) struct Groups {
    rounds: Mutex<Rounds>,
    bells: [Bell; 2],
}

#[derive(Debug, Default)]
struct Rounds {
    /// The last that began.
    round: u64,
    /// What it covers.
    upto: u64,
}

/// A place to wait at.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    bell: &'a Bell,
    count: u32,
}

impl Groups {
    /// Where to wait for `lsn`. To be taken before the turn is tried for.
    pub(super) fn seat(&self, lsn: u64) -> Seat<'_> {
        let rounds = self.lock();
        let round = if lsn <= rounds.upto { rounds.round } else { rounds.round + 1 };
        let bell = self.bell(round);
        Seat { bell, count: bell.count() }
    }

    /// Begins a round that covers all before `upto`. Only with the turn.
    pub(super) fn begin(&self, upto: u64) {
        let mut rounds = self.lock();
        *rounds = Rounds { round: rounds.round + 1, upto };
    }

    /// The last round that began.
    pub(super) fn round(&self) -> u64 {
        self.lock().round
    }

    /// Wakes those that a round covered, and one to do the next. To be called once the turn is free again.
    pub(super) fn end(&self, round: u64) {
        self.bell(round).ring();
        self.bell(round + 1).ring_for_one();
    }

    /// Wakes all.
    pub(super) fn wake_all(&self) {
        self.bells.iter().for_each(Bell::ring);
    }

    fn bell(&self, round: u64) -> &Bell {
        &self.bells[usize::from(round % 2 == 1)]
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat<'_> {
    /// Sleeps until the round ended, or the turn may be free.
    pub(super) fn wait(self) {
        self.bell.wait(self.count, None);
    }
}

//! When the descriptors of a process are listed: at intervals that keep the cost under [`SHARE`] of the time, at least every
//! [`MOST`], and sooner where that is asked for.

use std::time::{Duration, Instant};

/// A listing that takes a millisecond is repeated after this many.
const SHARE: u32 = 1000;
/// One that is asked for, after this many.
const URGENT_SHARE: u32 = 50;
/// The least time between two listings that nothing asked for.
const LEAST: Duration = Duration::from_secs(1);
/// The most time between two listings.
const MOST: Duration = Duration::from_secs(15);
/// Processor time for listings in one tick, where something is to be seen at once, and else.
const SLICE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(3));

/// When descriptors are listed.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: Instant,
    pub(super) asked: bool,
    /// However urgently it is asked for, not before.
    earliest: Instant,
    /// Whether the listing that is under way was asked for; none if there is none.
    pub(super) running: Option<bool>,
    /// When the last one began.
    pub(super) began: Instant,
    /// When the last one began that has ended.
    pub(crate) listed: Option<Instant>,
    /// How many have ended.
    #[cfg(test)]
    pub(crate) ended: usize,
}

impl Schedule {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            due: now,
            asked: true,
            earliest: now,
            running: None,
            began: now,
            listed: None,
            #[cfg(test)]
            ended: 0,
        }
    }

    /// Asks for a listing at the next tick.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// Begins a listing, if one is due.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let due = self.running.is_none() && now >= self.earliest && (self.asked || now >= self.due);
        if due {
            self.running = Some(std::mem::take(&mut self.asked));
            self.began = now;
        }
        due
    }

    /// How long what is under way may take in one tick.
    pub(crate) fn slice(&self) -> Duration {
        if self.running == Some(true) { SLICE.0 } else { SLICE.1 }
    }

    /// Ends a listing that took so much processor time.
    pub(crate) fn end(&mut self, cost: Duration) {
        #[cfg(test)]
        {
            self.ended += 1;
        }
        let now = Instant::now();
        self.running = None;
        self.listed = Some(self.began);
        self.due = now + (cost * SHARE).clamp(LEAST, MOST);
        self.earliest = now + (cost * URGENT_SHARE).min(MOST);
    }
}

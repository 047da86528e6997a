//! When the descriptors of a process are listed: at intervals that keep the cost under [`SHARE`] of the time, at least every
//! [`MOST`], and sooner where that is asked for.
//!
//! Invariants:
//! 1. What is listed in part ([`Extent::Changes`]) puts off no listing of all: that comes when it would have come without, and
//!    [`Schedule::listed`] knows of listings of all alone.
//! 2. Whoever asks for all gets all, whatever else is asked for.

use std::time::{Duration, Instant};

/// A listing that takes a millisecond is repeated after this many.
const SHARE: u32 = 2000;
/// One that is asked for, after this many.
const URGENT_SHARE: u32 = 50;
/// The least time between two listings that nothing asked for.
const LEAST: Duration = Duration::from_secs(1);
/// The most time between two listings.
const MOST: Duration = Duration::from_secs(15);
/// Processor time for listings in one tick, where something is to be seen at once, and else.
const SLICE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(3));

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// What may have changed, as far as that can be known.
    Changes,
    /// All descriptors.
    All,
}

/// When descriptors are listed.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: Instant,
    asked: Option<Extent>,
    /// However urgently it is asked for, not before.
    earliest: Instant,
    /// The listing that is under way, and whether it was asked for; none if there is none.
    running: Option<(Extent, bool)>,
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
            asked: Some(Extent::All),
            earliest: now,
            running: None,
            began: now,
            listed: None,
            #[cfg(test)]
            ended: 0,
        }
    }

    /// Asks for a listing at the next tick.
    pub(crate) fn ask(&mut self, extent: Extent) {
        self.asked = self.asked.max(Some(extent));
    }

    /// Begins a listing, if one is due, and of what.
    pub(crate) fn begin(&mut self, now: Instant) -> Option<Extent> {
        if self.running.is_some() || now < self.earliest {
            return None;
        }
        let wanted = if now >= self.due { Some(Extent::All) } else { self.asked };
        wanted.inspect(|extent| {
            self.running = Some((*extent, self.asked.take().is_some()));
            self.began = now;
        })
    }

    /// Whether a listing is under way.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// When the listing of all that is under way began, if it is one.
    pub(super) fn began_all(&self) -> Option<Instant> {
        self.running.filter(|(extent, _)| *extent == Extent::All).map(|_| self.began)
    }

    /// Goes on with a listing of all where one in part shows too little.
    pub(crate) fn go_on_with_all(&mut self) {
        self.running = self.running.map(|(_, asked)| (Extent::All, asked));
    }

    /// How long what is under way may take in one tick.
    pub(crate) fn slice(&self) -> Duration {
        if self.running.is_some_and(|(_, asked)| asked) { SLICE.0 } else { SLICE.1 }
    }

    /// Ends the listing that is under way, which took so much processor time.
    pub(crate) fn end(&mut self, cost: Duration) {
        self.end_at(cost, Instant::now());
    }

    /// No listing comes by itself any more.
    #[cfg(test)]
    pub(crate) fn on_demand_alone(&mut self) {
        self.due += Duration::from_secs(86_400);
    }

    fn end_at(&mut self, cost: Duration, now: Instant) {
        self.earliest = now + (cost * URGENT_SHARE).min(MOST);
        let Some((Extent::All, _)) = self.running.take() else { return };
        self.listed = Some(self.began);
        self.due = now + (cost * SHARE).clamp(LEAST, MOST);
        #[cfg(test)]
        {
            self.ended += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(500);

    /// A schedule by which all was listed once.
    fn listed(now: Instant) -> Schedule {
        let mut schedule = Schedule::new(now);
        assert_eq!(schedule.begin(now), Some(Extent::All), "nothing is known yet");
        schedule.end_at(Duration::ZERO, now);
        assert_eq!((schedule.begin(now), schedule.listed), (None, Some(now)));
        schedule
    }

    #[test]
    fn what_is_listed_in_part_puts_off_no_listing_of_all() {
        let began = Instant::now();
        let mut schedule = listed(began);
        let mut parts = 0;
        let mut now = began;
        loop {
            now += TICK;
            schedule.ask(Extent::Changes);
            if schedule.begin(now).expect("it was asked for") == Extent::All {
                break;
            }
            assert_eq!(schedule.began_all(), None);
            schedule.end_at(Duration::ZERO, now);
            assert_eq!(schedule.listed, Some(began), "it was but a part");
            parts += 1;
        }
        assert_eq!((parts, now - began, schedule.began_all()), (1, LEAST, Some(now)));
    }

    #[test]
    fn who_asks_for_all_gets_all() {
        let began = Instant::now();
        let mut schedule = listed(began);
        schedule.ask(Extent::All);
        schedule.ask(Extent::Changes);
        assert_eq!(schedule.begin(began), Some(Extent::All));
        schedule.end_at(Duration::ZERO, began);
        schedule.ask(Extent::Changes);
        let now = began + TICK;
        assert_eq!((schedule.begin(now), schedule.began_all()), (Some(Extent::Changes), None));
        schedule.go_on_with_all();
        assert_eq!(schedule.began_all(), Some(now));
        schedule.end_at(Duration::ZERO, now);
        assert_eq!(schedule.listed, Some(now));
    }
}

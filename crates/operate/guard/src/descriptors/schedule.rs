//! Schedules the listings of a process's descriptors: at intervals that keep the cost under
//! 1/[`LISTING_COST_FACTOR`] of the time, at least every [`LISTING_INTERVAL_MAX`], and sooner on
//! request.
//!
//! Invariants:
//! 1. A partial listing ([`Extent::Changes`]) never postpones a full one, and does not count for
//!    [`Schedule::listed`].
//! 2. Whoever asks for a full listing gets one, whatever else is asked for.

use std::time::{Duration, Instant};

/// A listing that takes a millisecond is repeated after this many milliseconds.
const LISTING_COST_FACTOR: u32 = 2000;
/// The same for a listing on request.
const URGENT_COST_FACTOR: u32 = 50;
/// Shortest time between two listings that nothing asked for.
const LISTING_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Longest time between two listings.
const LISTING_INTERVAL_MAX: Duration = Duration::from_secs(15);
/// Processor time for listings in one tick: for one on request, and for any other.
const LISTING_SLICE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(3));

/// The extent of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// The descriptors that may have changed, as far as that can be known.
    Changes,
    /// All descriptors.
    All,
}

/// The schedule of one process's listings.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: Instant,
    asked: Option<Extent>,
    /// No listing begins before, however urgent.
    earliest: Instant,
    /// The listing in progress, and whether it was requested.
    running: Option<(Extent, bool)>,
    /// The time when the last listing began.
    pub(super) began: Instant,
    /// The time when the last full listing that has ended began.
    pub(crate) listed: Option<Instant>,
    /// The number of full listings that have ended.
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

    /// Requests a listing at the next tick.
    pub(crate) fn ask(&mut self, extent: Extent) {
        self.asked = self.asked.max(Some(extent));
    }

    /// Begins a listing if one is due. Returns its extent.
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

    /// Returns whether a listing is in progress.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns when the full listing in progress began, if there is one.
    pub(super) fn began_all(&self) -> Option<Instant> {
        self.running.filter(|(extent, _)| *extent == Extent::All).map(|_| self.began)
    }

    /// Turns the listing in progress into a full one, where a partial one shows too little.
    pub(crate) fn go_on_with_all(&mut self) {
        self.running = self.running.map(|(_, asked)| (Extent::All, asked));
    }

    /// Returns how much processor time the listing may take in one tick.
    pub(crate) fn slice(&self) -> Duration {
        if self.running.is_some_and(|(_, asked)| asked) { LISTING_SLICE.0 } else { LISTING_SLICE.1 }
    }

    /// Ends the listing in progress, which took this much processor time.
    pub(crate) fn end(&mut self, cost: Duration) {
        self.end_at(cost, Instant::now());
    }

    /// Stops listings that nothing asks for.
    #[cfg(test)]
    pub(crate) fn on_demand_alone(&mut self) {
        self.due += Duration::from_secs(86_400);
    }

    fn end_at(&mut self, cost: Duration, now: Instant) {
        self.earliest = now + (cost * URGENT_COST_FACTOR).min(LISTING_INTERVAL_MAX);
        let Some((Extent::All, _)) = self.running.take() else { return };
        self.listed = Some(self.began);
        self.due = now + (cost * LISTING_COST_FACTOR).clamp(LISTING_INTERVAL_MIN, LISTING_INTERVAL_MAX);
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

    /// Returns a schedule on which everything was listed once.
    fn listed(now: Instant) -> Schedule {
        let mut schedule = Schedule::new(now);
        assert_eq!(schedule.begin(now), Some(Extent::All), "nothing is known yet");
        schedule.end_at(Duration::ZERO, now);
        assert_eq!((schedule.begin(now), schedule.listed), (None, Some(now)));
        schedule
    }

    #[test]
    fn partial_listings_do_not_delay_full_ones() {
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
        assert_eq!((parts, now - began, schedule.began_all()), (1, LISTING_INTERVAL_MIN, Some(now)));
    }

    #[test]
    fn a_full_listing_that_was_requested_is_not_reduced() {
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

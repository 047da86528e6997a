//! Virtual time: when a request that arrives now will complete.
//!
//! Invariants: at most `width` requests are served at any time; they begin in the order of their arrival; time never runs backwards.
//! What the requests are is not known here.

/// Nanoseconds since the disk was made.
pub(super) type Time = u64;

#[derive(Debug)]
pub(super) struct Schedule {
    now: Time,
    /// When each of the places at the device is free again.
    free_at: Vec<Time>,
    peak: usize,
}

impl Schedule {
    pub(super) fn new(width: usize) -> Self {
        Self { now: 0, free_at: vec![0; width.max(1)], peak: 0 }
    }

    pub(super) fn now(&self) -> Time {
        self.now
    }

    /// The most requests that were being served at once.
    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    /// A request comes, and will take so long once there is a place for it: when will it have been served?
    pub(super) fn admit(&mut self, latency: Time) -> Time {
        let first = self.free_at.iter_mut().min().expect("a disk is at least one wide");
        let begin = self.now.max(*first);
        let end = begin.saturating_add(latency);
        *first = end;
        self.peak = self.peak.max(self.free_at.iter().filter(|free_at| **free_at > begin).count());
        end
    }

    /// A request has been served.
    pub(super) fn served(&mut self, end: Time) {
        self.now = self.now.max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_a_place() {
        let mut schedule = Schedule::new(4);
        let ends: Vec<_> = (0..10).map(|_| schedule.admit(100)).collect();
        assert_eq!(ends, [100, 100, 100, 100, 200, 200, 200, 200, 300, 300]);
        assert_eq!(schedule.peak(), 4);
        schedule.served(300);
        assert_eq!(schedule.now(), 300);
        assert_eq!(schedule.admit(50), 350);
        schedule.served(200);
        assert_eq!(schedule.now(), 300, "time never runs backwards");
    }

    #[test]
    fn one_after_the_other_is_one_wide() {
        let mut schedule = Schedule::new(4);
        for turn in 1..=5 {
            let end = schedule.admit(10);
            assert_eq!(end, 10 * turn);
            schedule.served(end);
        }
        assert_eq!(schedule.peak(), 1);
    }
}

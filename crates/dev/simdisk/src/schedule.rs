//! Virtual time: the completion time of a request that arrives now.
//!
//! Invariants: at most `width` requests are served at any time. They begin in the order of their
//! arrival. Time never runs backwards. The schedule does not depend on the content of the requests.

/// Nanoseconds since the disk was created.
pub(crate) type VirtualTime = u64;

#[derive(Debug)]
pub(crate) struct RequestSchedule {
    now: VirtualTime,
    /// The time when each slot of the device becomes free.
    free_at: Vec<VirtualTime>,
    peak: usize,
}

impl RequestSchedule {
    pub(crate) fn new(width: usize) -> Self {
        Self { now: 0, free_at: vec![0; width.max(1)], peak: 0 }
    }

    pub(crate) fn now(&self) -> VirtualTime {
        self.now
    }

    /// Returns the maximum number of requests served at once.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    /// Admits a request with this service time. Returns its completion time.
    pub(crate) fn admit(&mut self, latency: VirtualTime) -> VirtualTime {
        let first = self.free_at.iter_mut().min().expect("a disk is at least one wide");
        let begin = self.now.max(*first);
        let end = begin.saturating_add(latency);
        *first = end;
        self.peak = self.peak.max(self.free_at.iter().filter(|free_at| **free_at > begin).count());
        end
    }

    /// Records that a request has been served.
    pub(crate) fn served(&mut self, end: VirtualTime) {
        self.now = self.now.max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_a_place() {
        let mut schedule = RequestSchedule::new(4);
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
        let mut schedule = RequestSchedule::new(4);
        for turn in 1..=5 {
            let end = schedule.admit(10);
            assert_eq!(end, 10 * turn);
            schedule.served(end);
        }
        assert_eq!(schedule.peak(), 1);
    }
}

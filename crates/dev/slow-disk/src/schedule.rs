//! The pure model of the times at which requests to the disk are done. The present time is an
//! argument.
//!
//! Requests are served in the order in which they are added, at most `width` at once, each for the
//! latency plus its transfer at the bandwidth. They leave through a common exit that lets out at
//! most `iops` requests and `bandwidth` bytes per second; a request that waits there still occupies
//! its place.
//!
//! Invariants:
//! - No request is done before its arrival plus the latency, and at most `width` are in service at
//!   any time.
//! - Done times never decrease.
//! - Every span that ends with a done request has, after the first, at most `iops` requests and
//!   `bandwidth` bytes per second.
//!
//! Nothing here can fail.

use std::collections::VecDeque;
use std::time::Duration;

/// The abilities of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskModel {
    /// Time in service of a request.
    pub(super) latency: Duration,
    /// Requests in service at once; at least 1.
    pub(super) width: usize,
    /// Requests per second, at most; not 0.
    pub(super) iops: Option<u64>,
    /// Bytes of requests per second, at most; not 0.
    pub(super) bandwidth: Option<u64>,
}

impl DiskModel {
    /// A disk that delays nothing.
    pub(super) const NO_DELAY: Self = Self { latency: Duration::ZERO, width: 1, iops: None, bandwidth: None };
}

/// The requests of a disk so far. Times are in ns since a moment that the caller chooses.
#[derive(Debug)]
pub(super) struct DelaySchedule {
    latency: u64,
    width: usize,
    /// Shortest time between two done requests.
    gap: u64,
    bandwidth: Option<u64>,
    /// Done times of the latest `width` requests, in order.
    done: VecDeque<u64>,
    /// Done time of the latest request.
    last: Option<u64>,
}

impl DelaySchedule {
    pub(super) fn new(model: DiskModel) -> Self {
        Self {
            latency: nanos(model.latency),
            width: model.width,
            gap: model.iops.map_or(0, |iops| SECOND_NS.div_ceil(iops)),
            bandwidth: model.bandwidth,
            done: VecDeque::with_capacity(model.width.min(1 << 16)),
            last: None,
        }
    }

    /// Adds a request of `bytes` that arrives at `arrival`, and returns when it is done.
    pub(super) fn add(&mut self, arrival: u64, bytes: u64) -> u64 {
        let begin = if self.done.len() < self.width {
            arrival
        } else {
            self.done.pop_front().map_or(arrival, |freed| freed.max(arrival))
        };
        let transfer = self.transfer(bytes);
        let served = begin.saturating_add(self.latency).saturating_add(transfer);
        let door = self.last.map_or(0, |last| last.saturating_add(self.gap.max(transfer)));
        let done = served.max(door);
        self.last = Some(done);
        self.done.push_back(done);
        done
    }

    fn transfer(&self, bytes: u64) -> u64 {
        self.bandwidth.map_or(0, |bandwidth| {
            let nanos = (u128::from(bytes) * u128::from(SECOND_NS)).div_ceil(u128::from(bandwidth));
            u64::try_from(nanos).unwrap_or(u64::MAX)
        })
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// Converts a duration to ns, at most 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::Seed;

    const MS: u64 = 1_000_000;

    fn model(latency_ms: u64, width: usize) -> DiskModel {
        DiskModel { latency: Duration::from_millis(latency_ms), width, ..DiskModel::NO_DELAY }
    }

    /// A request that was served.
    #[derive(Debug, Clone, Copy)]
    struct Served {
        arrival: u64,
        bytes: u64,
        done: u64,
    }

    fn serve(model: DiskModel, requests: impl IntoIterator<Item = (u64, u64)>) -> Vec<Served> {
        let mut schedule = DelaySchedule::new(model);
        requests
            .into_iter()
            .map(|(arrival, bytes)| Served { arrival, bytes, done: schedule.add(arrival, bytes) })
            .collect()
    }

    /// Runs `total` requests of 4 KiB, `depth` of them in flight at any time, and returns the last
    /// done time.
    fn closed_loop(model: DiskModel, depth: usize, total: usize) -> u64 {
        let mut schedule = DelaySchedule::new(model);
        let mut under_way: VecDeque<u64> = (0..depth).map(|_| schedule.add(0, 4096)).collect();
        for _ in depth..total {
            let now = under_way.pop_front().unwrap();
            under_way.push_back(schedule.add(now, 4096));
        }
        *under_way.back().unwrap()
    }

    #[test]
    fn one_by_one_each_takes_the_latency_and_wide_they_share_it() {
        assert_eq!(closed_loop(model(2, 64), 1, 1000), 1000 * 2 * MS);
        assert_eq!(closed_loop(model(2, 64), 64, 6400), 100 * 2 * MS);
        assert_eq!(closed_loop(model(2, 64), 128, 6400), 100 * 2 * MS, "no wider than it is");
        assert_eq!(closed_loop(model(2, 64), 32, 6400), 200 * 2 * MS);
    }

    #[test]
    fn the_caps_rule_where_they_are_lower() {
        let iops = DiskModel { iops: Some(1000), ..model(2, 64) };
        assert_eq!(closed_loop(iops, 128, 1000), (2 + 999) * MS);
        let bandwidth = DiskModel { bandwidth: Some(4096 * 1000), ..model(2, 64) };
        assert_eq!(closed_loop(bandwidth, 128, 1000), (2 + 1 + 999) * MS);
        let neither = DiskModel { iops: Some(1_000_000), bandwidth: Some(1 << 40), ..model(2, 64) };
        assert!(closed_loop(neither, 64, 6400) < 201 * MS);
    }

    #[test]
    fn an_idle_disk_owes_nothing() {
        let served =
            serve(DiskModel { iops: Some(100), ..model(2, 1) }, [(0, 1), (1000 * MS, 1), (1000 * MS, 1)]);
        let done: Vec<u64> = served.iter().map(|served| served.done).collect();
        assert_eq!(done, [2 * MS, 1002 * MS, 1012 * MS]);
    }

    #[test]
    fn figures_that_are_absurd_do_not_overflow() {
        let model = DiskModel { latency: Duration::MAX, width: 1, iops: Some(1), bandwidth: Some(1) };
        for served in serve(model, [(u64::MAX, u64::MAX), (0, u64::MAX)]) {
            assert_eq!(served.done, u64::MAX);
        }
    }

    fn check(model: DiskModel, served: &[Served]) {
        let (latency, width) = (nanos(model.latency), model.width);
        for (index, request) in served.iter().enumerate() {
            assert!(request.done >= request.arrival + latency, "{index} is too early: {request:?}");
            if let Some(before) = index.checked_sub(1) {
                assert!(request.done >= served[before].done, "{index} overtakes");
            }
            // If more than `width` were in service at once, some request would be done less than a
            // latency after the one `width` before it, whose place it takes.
            if let Some(before) = index.checked_sub(width) {
                assert!(request.done - served[before].done >= latency, "{index} makes it too wide");
            }
        }
        for from in 0..served.len() {
            let (mut requests, mut bytes) = (0_u128, 0_u128);
            for request in &served[from + 1..] {
                requests += 1;
                bytes += u128::from(request.bytes);
                let span = u128::from(request.done - served[from].done);
                let most = |cap: Option<u64>| cap.map(|cap| u128::from(cap) * span / u128::from(SECOND_NS));
                assert!(
                    most(model.iops).is_none_or(|most| requests <= most),
                    "more than --iops after {from}"
                );
                assert!(
                    most(model.bandwidth).is_none_or(|most| bytes <= most),
                    "more than --bandwidth after {from}"
                );
            }
        }
    }

    #[test]
    fn the_limits_hold_for_any_load() {
        let seed = Seed::new();
        let mut random = seed.rng(0);
        let mut below = |bound: u64| random.of(0..bound);
        for _ in 0..300 {
            let model = DiskModel {
                latency: Duration::from_nanos(below(5 * MS)),
                width: 1 << below(6),
                iops: (below(2) == 0).then(|| 1 << below(18)),
                bandwidth: (below(2) == 0).then(|| 1 << (10 + below(24))),
            };
            let pause = 1 << below(26);
            let mut now = 0;
            let requests: Vec<(u64, u64)> = (0..200)
                .map(|_| {
                    // In bursts, and not always in the order of their arrival, as threads take
                    // them.
                    now += if below(4) == 0 { below(10 * pause) } else { 0 };
                    (now.saturating_sub(below(1000)), 1 << below(21))
                })
                .collect();
            check(model, &serve(model, requests));
        }
    }
}

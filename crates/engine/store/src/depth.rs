//! Finds out how many writes are worth having in flight, while they are made.
//!
//! A disk that serves W requests at once reaches its full rate with about 2 W in flight. More gain
//! nothing, and others wait behind them. So the depth doubles while that raises the rate, and stays
//! at the first doubling that did not.
//!
//! Invariants: the depth is within its bounds, and never falls. Nothing fails.

use std::time::{Duration, Instant};

use pagekeeper_policy::DiskProfile;

/// Minimum depth.
const DEPTH_MIN: usize = 128;
/// Maximum depth.
pub(crate) const DEPTH_MAX: usize = 1024;
/// Depth beside commits on an unknown disk: their syncs should not wait behind too many writes.
const DURING_COMMITS: usize = 64;
/// The range of the depth beside commits on a measured disk.
const DURING_COMMITS_RANGE: std::ops::RangeInclusive<usize> = 16..=256;
/// Doubling must raise the rate by at least one part in this many.
const RATE_GAIN_MIN: u64 = 10;

/// The depth as known so far.
#[derive(Debug, Clone)]
pub(crate) struct WriteDepth {
    now: usize,
    /// The time when this depth began, and how many writes have ended since.
    since: Instant,
    done: usize,
    /// Writes per second at half the depth.
    rate_before: Option<f64>,
    is_settled: bool,
}

impl WriteDepth {
    /// Creates a depth that is still to be found out.
    pub(crate) fn unknown() -> Self {
        Self { now: DEPTH_MIN, since: Instant::now(), done: 0, rate_before: None, is_settled: false }
    }

    /// Creates a depth for a recovery, or beside commits, from the disk's profile if there is one.
    /// A disk that reached the widest measured depth may be wider.
    pub(crate) fn of(disk: Option<&DiskProfile>, recovering: bool) -> Self {
        let deepest = disk.and_then(|disk| disk.reads.last()).map(|read| read.depth);
        let width = disk.and_then(DiskProfile::width);
        let known = width.and_then(|width| usize::try_from(width).ok());
        match (known, recovering) {
            (Some(_), true) if width == deepest => Self::unknown(),
            (Some(width), true) => Self::fixed((2 * width).clamp(*DURING_COMMITS_RANGE.start(), DEPTH_MAX)),
            // Half of it stays for the commits.
            (Some(width), false) => {
                Self::fixed((width / 2).clamp(*DURING_COMMITS_RANGE.start(), *DURING_COMMITS_RANGE.end()))
            }
            (None, true) => Self::unknown(),
            (None, false) => Self::fixed(DURING_COMMITS),
        }
    }

    /// Creates a fixed depth.
    pub(crate) fn fixed(depth: usize) -> Self {
        Self { now: depth, is_settled: true, ..Self::unknown() }
    }

    pub(crate) fn now(&self) -> usize {
        self.now
    }

    /// Records that `count` more writes have ended.
    pub(crate) fn done(&mut self, count: usize) {
        if !self.is_settled {
            self.measure(count, self.since.elapsed());
        }
    }

    fn measure(&mut self, count: usize, elapsed: Duration) {
        self.done += count;
        // The first of them were started at the previous depth.
        if self.done < 3 * self.now {
            return;
        }
        let rate = self.done as f64 / elapsed.as_secs_f64().max(1e-9);
        let is_better =
            self.rate_before.is_none_or(|before| rate > before * (1.0 + 1.0 / RATE_GAIN_MIN as f64));
        if !is_better || self.now == DEPTH_MAX {
            self.is_settled = true;
            return;
        }
        self.rate_before = Some(rate);
        self.now *= 2;
        (self.since, self.done) = (Instant::now(), 0);
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_policy::DepthProfile;

    use super::*;

    /// Returns the depth found on a disk that serves this many writes at once, 2 ms each.
    fn on_a_disk(width: usize) -> usize {
        let mut depth = WriteDepth::unknown();
        while !depth.is_settled {
            let count = 3 * depth.now;
            let batches = count as f64 / width.min(depth.now) as f64;
            depth.measure(count, Duration::from_millis(2).mul_f64(batches));
        }
        depth.now()
    }

    #[test]
    fn the_depth_is_twice_the_width_or_more_and_not_much_more() {
        assert_eq!([1, 8, 64].map(on_a_disk), [256; 3]);
        assert_eq!([100, 128, 200, 256].map(on_a_disk), [256, 256, 512, 512]);
        assert_eq!([512, 5000].map(on_a_disk), [1024; 2]);
        assert_eq!(WriteDepth::fixed(7).now(), 7);
    }

    #[test]
    fn a_profiled_disk_is_not_measured_again() {
        let disk = |width: u32| {
            let read = |depth: u32| DepthProfile {
                depth,
                per_second: f64::from(depth.min(width)),
                p50_us: 1.0,
                p99_us: 1.0,
            };
            DiskProfile { reads: [1, 4, 16, 64, 256].map(read).into(), ..DiskProfile::default() }
        };
        let of = |disk: Option<&DiskProfile>, recovering| {
            let depth = WriteDepth::of(disk, recovering);
            (depth.now(), depth.is_settled)
        };
        assert_eq!((of(None, true), of(None, false)), ((128, false), (64, true)));
        let unmeasured = DiskProfile::default();
        assert_eq!((of(Some(&unmeasured), true), of(Some(&unmeasured), false)), ((128, false), (64, true)));
        assert_eq!((of(Some(&disk(1)), true), of(Some(&disk(1)), false)), ((16, true), (16, true)));
        assert_eq!((of(Some(&disk(64)), true), of(Some(&disk(64)), false)), ((128, true), (32, true)));
        // The disk is at least as wide as the widest measured depth.
        assert_eq!((of(Some(&disk(256)), true), of(Some(&disk(256)), false)), ((128, false), (128, true)));
    }
}

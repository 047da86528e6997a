//! Syncs of others on the disks of a budget, from the kernel's counts of flush requests. Anybody
//! may read these.
//!
//! Output leaves a share of the disk to whoever syncs ([`DiskContention`]). Without the counts, or
//! on a disk without a write cache, which gets no flush requests, only the duration of the pieces
//! shows whether somebody waits.
//!
//! Invariants: a look in which a bulk writer of this budget synced does not count, nor the first
//! one after a long time. Nothing here fails.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{FlushCounter, FlushCounts, mutex};
use pagekeeper_policy::disk_contention::{DiskContention, OthersRequests, YieldShare};
use pagekeeper_policy::pacer::nanoseconds;

/// Minimum time between two looks at the counts.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// A look that comes later than this after the last one says nothing about now.
const LOOK_AGE_MAX: Duration = Duration::from_secs(1);

/// Follows the syncs of others on some disks.
pub(crate) struct OthersSyncs {
    counters: Vec<FlushCounter>,
    state: Mutex<SyncsSeen>,
}

struct SyncsSeen {
    counts: FlushCounts,
    at: Instant,
    contention: DiskContention,
    /// Own syncs in progress, and whether one has ended since the last look.
    own: usize,
    own_ended: bool,
}

impl OthersSyncs {
    /// Begins to follow the syncs on the disks with these numbers, as in `st_dev`.
    pub(crate) fn on(disks: &[u64]) -> Self {
        let counters = disks.iter().filter_map(|&disk| FlushCounter::open(Path::new("/sys"), disk));
        let counters = counters.collect::<Vec<_>>();
        let state = SyncsSeen {
            counts: sum(&counters),
            at: Instant::now(),
            contention: DiskContention::default(),
            own: 0,
            own_ended: false,
        };
        Self { counters, state: Mutex::new(state) }
    }

    /// Returns the share that output leaves to others.
    pub(crate) fn share(&self) -> YieldShare {
        let mut state = mutex::lock(&self.state);
        let passed = state.at.elapsed();
        if passed >= LOOK_INTERVAL && !self.counters.is_empty() {
            state.look(sum(&self.counters), passed);
        }
        state.contention.output_share()
    }

    /// Makes an own sync.
    pub(crate) fn during_own<T>(&self, sync: impl FnOnce() -> T) -> T {
        mutex::lock(&self.state).own += 1;
        let done = sync();
        let mut state = mutex::lock(&self.state);
        state.own -= 1;
        state.own_ended = true;
        done
    }
}

impl SyncsSeen {
    fn look(&mut self, counts: FlushCounts, passed: Duration) {
        let before = std::mem::replace(&mut self.counts, counts);
        self.at += passed;
        if std::mem::take(&mut self.own_ended) || self.own > 0 || passed > LOOK_AGE_MAX {
            return;
        }
        let done = counts.done.saturating_sub(before.done);
        let waited_ms = counts.waited_ms.saturating_sub(before.waited_ms);
        self.contention.others(OthersRequests {
            ns: nanoseconds(passed),
            begun: done,
            done,
            waited_ns: waited_ms.saturating_mul(1_000_000),
        });
    }
}

fn sum(counters: &[FlushCounter]) -> FlushCounts {
    let counts = counters.iter().filter_map(FlushCounter::counts);
    counts.fold(FlushCounts::default(), |sum, counts| FlushCounts {
        done: sum.done.saturating_add(counts.done),
        waited_ms: sum.waited_ms.saturating_add(counts.waited_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a look in which this many flushes of 2 ms each have ended.
    fn look_at(syncs: &OthersSyncs, flushes: u64) {
        let mut state = mutex::lock(&syncs.state);
        let FlushCounts { done, waited_ms } = state.counts;
        let counts = FlushCounts { done: done + flushes, waited_ms: waited_ms + 2 * flushes };
        state.look(counts, LOOK_INTERVAL);
    }

    #[test]
    fn others_that_sync_get_a_share_until_they_stop() {
        let syncs = OthersSyncs::on(&[]);
        assert!(syncs.share().is_none());
        look_at(&syncs, 5);
        assert!(!syncs.share().is_none());
        for _ in 0..100 {
            look_at(&syncs, 0);
        }
        assert!(syncs.share().is_none());
    }

    #[test]
    fn a_look_after_a_long_time_says_nothing() {
        let syncs = OthersSyncs::on(&[]);
        let counts = FlushCounts { done: 1000, waited_ms: 2000 };
        mutex::lock(&syncs.state).look(counts, LOOK_AGE_MAX * 2);
        assert!(syncs.share().is_none());
        look_at(&syncs, 5);
        assert!(!syncs.share().is_none());
    }

    #[test]
    fn own_syncs_are_nobody_elses() {
        let syncs = OthersSyncs::on(&[]);
        syncs.during_own(|| look_at(&syncs, 5));
        look_at(&syncs, 5);
        assert!(syncs.share().is_none(), "the second look is of its end");
        look_at(&syncs, 5);
        assert!(!syncs.share().is_none());
    }
}

//! Decides when a reading stream yields.
//!
//! An observer outside ([`ReadDuty`]) lets the stream read for [`READ_RUN_NS`], then holds it for
//! the time left to others ([`YieldShare`]), in turns. Read-ahead can't be switched off from
//! outside, so the runs are short: others wait at most for one run and the read-ahead at its end.
//!
//! Inside the process, without permission to count the requests of others ([`ReadPace`]), the
//! stream pauses after a read that waited far longer than its bytes take. A stream under the rules
//! reads faster than a plain one, since it finds free memory at once. On a device that grants its
//! rate in portions, as a throttle does, it would use up each portion sooner, and others would wait
//! longer for the next one. So the stream pauses for half of the time it waited.
//!
//! Invariants: no hold is longer than [`READ_HOLD_MAX_NS`]. No pause is longer than
//! [`READ_PAUSE_MAX_NS`], or than half of the read before it.

use crate::disks::disk_contention::YieldShare;

/// Nanoseconds for which a stream reads between two holds.
pub const READ_RUN_NS: u64 = 10_000_000;
/// Nanoseconds for which the disk stays busy with read-ahead after a run: 1 MiB at 100 MB/s.
const READ_AHEAD_NS: u64 = 10_000_000;
/// Nanoseconds of the longest hold.
pub const READ_HOLD_MAX_NS: u64 = YieldShare::MAX.after(READ_RUN_NS + READ_AHEAD_NS);
/// Nanoseconds of the longest pause.
pub const READ_PAUSE_MAX_NS: u64 = 50_000_000;
/// A read is late if it takes more than this many times its expected duration plus this many
/// nanoseconds: a rotating disk may seek meanwhile, and a thread may wait for its processor.
const LATE_TIMES: u64 = 8;
const LATE_NS: u64 = 10_000_000;
/// Nanoseconds between two measurements of the rate.
const READ_WINDOW_NS: u64 = 100_000_000;

/// The state of one reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPace {
    /// Nanoseconds per MiB, including pauses and the program's own time; 0 if unknown.
    ns_per_mib: u64,
    /// The start of the current window, and the bytes read since.
    since: u64,
    bytes: u64,
}

impl Default for ReadPace {
    fn default() -> Self {
        Self::new()
    }
}

impl ReadPace {
    /// Returns the initial state, with nothing known.
    pub const fn new() -> Self {
        Self { ns_per_mib: 0, since: 0, bytes: 0 }
    }

    /// Records that a read of `bytes` ended at `now` after `took` nanoseconds. Returns the
    /// nanoseconds for which to read nothing.
    ///
    /// ```
    /// use pagekeeper_policy::read_pace::ReadPace;
    ///
    /// let (mut pace, ms) = (ReadPace::new(), 1_000_000);
    /// // 100 MiB/s, then a read that waits.
    /// for nth in 1..20 {
    ///     assert_eq!(pace.read(1 << 20, 10 * ms, nth * 10 * ms), 0);
    /// }
    /// assert_eq!(pace.read(128 << 10, 80 * ms, 280 * ms), 40 * ms);
    /// ```
    pub fn read(&mut self, bytes: u64, took: u64, now: u64) -> u64 {
        let expected = u128::from(self.ns_per_mib) * u128::from(bytes) / (1 << 20);
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        let is_late =
            self.ns_per_mib > 0 && took > expected.saturating_mul(LATE_TIMES).saturating_add(LATE_NS);
        if self.since == 0 {
            self.since = now.saturating_sub(took);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        let ns = now.saturating_sub(self.since);
        if ns >= READ_WINDOW_NS && self.bytes > 0 {
            let taken = u128::from(ns) * (1 << 20) / u128::from(self.bytes);
            self.ns_per_mib = u64::try_from(taken).unwrap_or(u64::MAX).max(1);
            (self.since, self.bytes) = (now, 0);
        }
        if is_late { (took / 2).min(READ_PAUSE_MAX_NS) } else { 0 }
    }
}

/// The turns of the streams that read from one disk: all of them read, then all are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadDuty {
    /// The end of the current turn; 0 if there are no turns.
    ends: u64,
    is_held: bool,
}

impl ReadDuty {
    /// Returns until when the streams are to be held, or `None` if they may read. Call it every 10
    /// ms.
    ///
    /// ```
    /// use pagekeeper_policy::disk_contention::YieldShare;
    /// use pagekeeper_policy::read_pace::ReadDuty;
    ///
    /// let (mut duty, ms) = (ReadDuty::default(), 1_000_000);
    /// assert_eq!(duty.step(YieldShare::NONE, 5 * ms), None);
    /// assert_eq!(duty.step(YieldShare::MAX, 10 * ms), Some(50 * ms));
    /// assert_eq!(duty.step(YieldShare::MAX, 20 * ms), Some(50 * ms));
    /// assert_eq!(duty.step(YieldShare::MAX, 50 * ms), None);
    /// ```
    pub fn step(&mut self, share: YieldShare, now: u64) -> Option<u64> {
        if share.is_none() {
            *self = Self::default();
            return None;
        }
        if now >= self.ends {
            // Others do not have to wait: the first turn is theirs.
            self.is_held = !self.is_held;
            let hold = share.after(READ_RUN_NS + READ_AHEAD_NS);
            self.ends = now.saturating_add(if self.is_held { hold } else { READ_RUN_NS });
        }
        self.is_held.then_some(self.ends)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns how many reads of 128 KiB, with these durations in nanoseconds, were followed by a
    /// pause.
    fn pauses(took: impl Fn(u64) -> u64) -> usize {
        let (mut pace, mut now) = (ReadPace::new(), 5);
        let paused = |nth| {
            now += took(nth);
            let pause = pace.read(128 << 10, took(nth), now);
            now += pause;
            pause > 0
        };
        (0..1000).map(paused).filter(|&paused| paused).count()
    }

    #[test]
    fn a_slow_disk_alone_is_no_reason_to_stand_back() {
        assert_eq!(pauses(|_| MS), 0);
        assert_eq!(pauses(|_| 13 * MS), 0);
        assert_eq!(pauses(|_| 400 * MS), 0);
        // A disk that others read, too, is no reason either.
        assert_eq!(pauses(|nth| if nth % 3 == 0 { 9 * MS } else { MS }), 0);
    }

    #[test]
    fn a_used_up_portion_is_a_reason_to_stand_back() {
        let seen = pauses(|nth| if nth % 80 == 79 { 85 * MS } else { 150_000 });
        assert!((8..=12).contains(&seen), "{seen}");
    }

    proptest! {
        #[test]
        fn pauses_are_bounded(reads in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..50)) {
            let mut pace = ReadPace::new();
            for (bytes, took, now) in reads {
                let pause = pace.read(bytes, took, now);
                prop_assert!(pause <= READ_PAUSE_MAX_NS.min(took / 2));
            }
        }
    }
}

//! Decides how much of a disk's time a stream leaves to others, from their requests to the disk.
//!
//! Others are present if their requests took a noticeable part of a window. A stream first yields
//! as much time as it may. It takes a little back in each window in which their requests are nearly
//! as fast as possible. When they become slow, it doubles the time it yields (additive increase,
//! multiplicative decrease, seen from the stream). The fastest possible latency is estimated as a
//! low quantile of the latencies seen. After [`QUIET_NS`] without requests, the stream takes all
//! its time back within a few windows.
//!
//! A stream's output yields less ([`DiskContention::output_share`]): it goes to the disk in single
//! pieces, and a short pause after each lets a sync through. It yields more only while requests
//! take longer than a meeting with a piece explains.
//!
//! Invariants: a share never exceeds [`YieldShare::MAX`], and it is zero if there has been no
//! request since the start. Nothing here allocates.

use crate::output::pacer::PIECE_NS;

/// Length in nanoseconds of the window after which the requests of others are judged.
pub const WINDOW_NS: u64 = 50_000_000;
/// Nanoseconds without requests of others before a stream takes its time back. A database that
/// commits only now and then still counts as present.
pub const QUIET_NS: u64 = 300_000_000;
/// After a window with requests of others the disk counts as used for this many nanoseconds more,
/// up to a maximum. Without the maximum, a program that syncs each second would count forever; one
/// that syncs every few seconds never counts for long.
const USED_NS: u64 = 1_000_000_000;
const USED_NS_MAX: u64 = 2 * USED_NS;
/// Others are present if their requests together took at least one part in this many of the window.
const PRESENT_PARTS: u64 = 32;
/// Requests are slow if they take more than this many times the best latency.
const SLOW_TIMES: u64 = 3;
/// Nanoseconds that the requests of others may take in addition beside output: a third of a piece,
/// which on the average a request waits that meets one now and then.
const OUTPUT_SLOW_NS: u64 = PIECE_NS / 3;
/// Sixteenths that output yields in addition after a window of slow requests.
const OUTPUT_STEP: u64 = 4;

/// The time that a stream leaves to others, as a fraction of the time for which it uses the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct YieldShare {
    sixteenths: u8,
}

impl YieldShare {
    /// Nothing: nobody else is there.
    pub const NONE: Self = Self { sixteenths: 0 };
    /// Half as long as the stream uses the disk: the share beside others that are not slowed down.
    pub const MIN_BESIDE: Self = Self { sixteenths: 8 };
    /// An eighth as long as the stream uses the disk: the share of its output. A single writer that
    /// waits for each of its syncs then runs at three quarters of its speed in the simulation,
    /// beside output at 84 % of the disk.
    pub const OUTPUT_MIN: Self = Self { sixteenths: 2 };
    /// As long as the stream uses the disk: the share of its output at first.
    const OUTPUT_FIRST: Self = Self { sixteenths: 16 };
    /// Twice as long as the stream uses the disk. A single writer that waits for each of its syncs
    /// then runs at about three quarters of its speed.
    pub const MAX: Self = Self { sixteenths: 32 };

    /// Creates a share of this many sixteenths, at most [`Self::MAX`].
    pub const fn of_sixteenths(sixteenths: u64) -> Self {
        if sixteenths >= Self::MAX.sixteenths as u64 {
            return Self::MAX;
        }
        #[allow(clippy::cast_possible_truncation, reason = "no more than MAX")]
        Self { sixteenths: sixteenths as u8 }
    }

    /// Returns the share in sixteenths.
    pub const fn sixteenths(self) -> u64 {
        self.sixteenths as u64
    }

    /// Returns the share after a window in which others were present: `first` if they were not
    /// before, `more` sixteenths if their requests were slow, else a little less. It is at least
    /// `least`.
    fn next(self, first: Self, more: Option<u64>, least: Self) -> Self {
        let next = if self.is_none() {
            first
        } else {
            Self::of_sixteenths(more.unwrap_or(self.sixteenths().saturating_sub(1)))
        };
        next.max(least)
    }

    /// Whether nothing is left to others.
    pub const fn is_none(self) -> bool {
        self.sixteenths == 0
    }

    /// Returns the nanoseconds to leave to others after using the disk for `used_ns`.
    pub const fn after(self, used_ns: u64) -> u64 {
        (used_ns / 16).saturating_mul(self.sixteenths())
    }
}

/// Requests of others to a disk during some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OthersRequests {
    /// Nanoseconds since the last call.
    pub ns: u64,
    /// Requests issued that somebody waits for: reads and syncs.
    pub begun: u64,
    /// Requests completed.
    pub done: u64,
    /// Total latency of the completed requests, in nanoseconds.
    pub waited_ns: u64,
}

/// The state of contention with others on one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskContention {
    /// Estimated best latency of a request of others in nanoseconds; 0 if unknown.
    price: u64,
    share: YieldShare,
    /// The share that the stream's output leaves.
    output: YieldShare,
    /// Nanoseconds since others were last present.
    quiet_ns: u64,
    /// Nanoseconds until the disk counts as unused, if there are no requests of others.
    used_ns: u64,
    window: OthersRequests,
}

impl DiskContention {
    /// Records the requests since the last call, and returns the share to leave to others from now
    /// on.
    ///
    /// ```
    /// use pagekeeper_policy::disk_contention::{DiskContention, OthersRequests, YieldShare};
    ///
    /// let mut disk = DiskContention::default();
    /// let nothing = OthersRequests { ns: 10_000_000, ..OthersRequests::default() };
    /// assert!(disk.others(nothing).is_none());
    /// let commits = OthersRequests { begun: 15, done: 14, waited_ns: 9_000_000, ..nothing };
    /// assert_eq!(disk.others(commits), YieldShare::MAX);
    /// ```
    pub fn others(&mut self, seen: OthersRequests) -> YieldShare {
        if let Some(took) = seen.waited_ns.checked_div(seen.done) {
            self.learn(took);
        }
        let window = &mut self.window;
        window.ns = window.ns.saturating_add(seen.ns);
        window.begun = window.begun.saturating_add(seen.begun);
        window.done = window.done.saturating_add(seen.done);
        window.waited_ns = window.waited_ns.saturating_add(seen.waited_ns);
        self.used_ns = self.used_ns.saturating_sub(seen.ns);
        // A newcomer does not have to wait for the end of a window.
        if window.ns >= WINDOW_NS || (self.share.is_none() && self.is_anybody_there()) {
            self.end_window();
        }
        self.share
    }

    /// Returns the current share of others.
    pub fn share(&self) -> YieldShare {
        self.share
    }

    /// Returns the share that the stream's output leaves to others.
    pub fn output_share(&self) -> YieldShare {
        self.output
    }

    /// Whether others have not used the disk for some seconds, if ever. Few requests count, too.
    pub fn is_unused(&self) -> bool {
        let OthersRequests { begun, done, .. } = self.window;
        self.share.is_none() && self.used_ns == 0 && begun == 0 && done == 0
    }

    fn is_anybody_there(&self) -> bool {
        let OthersRequests { ns, begun, done, waited_ns } = self.window;
        let is_queued = begun > done.saturating_add(1);
        begun.saturating_add(done) > 0
            && (is_queued || waited_ns >= ns.min(WINDOW_NS) / PRESENT_PARTS + u64::from(done == 0))
    }

    fn end_window(&mut self) {
        let is_there = self.is_anybody_there();
        let window = core::mem::take(&mut self.window);
        if window.begun > 0 || window.done > 0 {
            self.used_ns = self.used_ns.saturating_add(USED_NS).min(USED_NS_MAX);
        }
        if !is_there {
            self.quiet_ns = self.quiet_ns.saturating_add(window.ns);
            if self.quiet_ns >= QUIET_NS {
                self.share = YieldShare::of_sixteenths(self.share.sixteenths() / 2);
                self.output = YieldShare::of_sixteenths(self.output.sixteenths() / 2);
            }
            return;
        }
        self.quiet_ns = 0;
        let took = window.waited_ns.checked_div(window.done);
        let slow = self.price.saturating_mul(SLOW_TIMES);
        let takes_longer = |limit: u64| took.is_some_and(|took| took > limit);
        let (share, output) = (self.share.sixteenths(), self.output.sixteenths());
        let more = takes_longer(slow).then_some(share * 2);
        self.share = self.share.next(YieldShare::MAX, more, YieldShare::MIN_BESIDE);
        let more = takes_longer(slow.saturating_add(OUTPUT_SLOW_NS)).then_some(output + OUTPUT_STEP);
        self.output = self.output.next(YieldShare::OUTPUT_FIRST, more, YieldShare::OUTPUT_MIN);
    }

    /// Follows a low quantile of the latencies between two calls. Some of them are measured while
    /// the stream yields.
    fn learn(&mut self, took: u64) {
        let took = took.max(1);
        if self.price == 0 {
            self.price = took;
        } else if took < self.price {
            self.price -= (self.price - took).div_ceil(4);
        } else {
            self.price += (took - self.price).min(self.price) / 256;
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests;

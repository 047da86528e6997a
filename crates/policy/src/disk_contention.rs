//! How much of a disk's time a stream leaves to others, by what these ask of the disk.
//!
//! Others are there if their requests took more than a little of a window. A stream then leaves them at first as much time as it may, and
//! takes back a little in each window in which their requests are nearly as quick as they can be; as soon as they are slow it leaves twice
//! as much (additive increase, multiplicative decrease, of the stream). How quick they can be is a low quantile of what they took. Once
//! nothing was asked for [`QUIET_NS`], the stream takes all again in a few windows.
//!
//! Invariants: a share is never above [`YieldShare::MAX`]; it is none if nobody asked anything since the start. It allocates nothing.

/// Nanoseconds after which what others ask is judged.
pub const WINDOW_NS: u64 = 50_000_000;
/// Nanoseconds without requests of others after which a stream begins to take all: a database that commits once in a while is still there.
pub const QUIET_NS: u64 = 300_000_000;
/// Others are there if their requests took at least this part of the window together.
const PRESENT_PARTS: u64 = 32;
/// Their requests are slow if they take so many times what they take at best.
const SLOW_TIMES: u64 = 3;

/// The time that a stream leaves to others, as a part of the time for which it uses the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct YieldShare {
    sixteenths: u8,
}

impl YieldShare {
    /// Nobody else is there.
    pub const NONE: Self = Self { sixteenths: 0 };
    /// Half as long as the stream uses the disk: beside whoever is not slowed down by it.
    pub const MIN_BESIDE: Self = Self { sixteenths: 8 };
    /// Twice as long: a single writer that waits for each of its syncs gets about three quarters of its speed then.
    pub const MAX: Self = Self { sixteenths: 32 };

    /// So many sixteenths, at most [`Self::MAX`].
    pub const fn of_sixteenths(sixteenths: u64) -> Self {
        if sixteenths >= Self::MAX.sixteenths as u64 {
            return Self::MAX;
        }
        #[allow(clippy::cast_possible_truncation, reason = "no more than MAX")]
        Self { sixteenths: sixteenths as u8 }
    }

    /// In sixteenths.
    pub const fn sixteenths(self) -> u64 {
        self.sixteenths as u64
    }

    /// Whether nothing is left to others.
    pub const fn is_none(self) -> bool {
        self.sixteenths == 0
    }

    /// Nanoseconds to leave to others after the disk was used for so many.
    pub const fn after(self, used_ns: u64) -> u64 {
        (used_ns / 16).saturating_mul(self.sixteenths())
    }
}

/// What others asked of a disk in some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OthersRequests {
    /// Nanoseconds since the last look.
    pub ns: u64,
    /// Requests that were made, of those that somebody waits for: reads and syncs.
    pub begun: u64,
    /// Requests that ended.
    pub done: u64,
    /// Nanoseconds that these took together.
    pub waited_ns: u64,
}

/// What is known of others at one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskContention {
    /// Nanoseconds that a request of others takes at best; 0: unknown.
    price: u64,
    share: YieldShare,
    /// Nanoseconds since others were there.
    quiet_ns: u64,
    window: OthersRequests,
}

impl DiskContention {
    /// Takes what others asked since the last call, and says how much is to be left to them from now on.
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
        // Whoever comes is not kept waiting for the end of a window.
        if window.ns >= WINDOW_NS || (self.share.is_none() && self.is_anybody_there()) {
            self.end_window();
        }
        self.share
    }

    /// How much is left to others.
    pub fn share(&self) -> YieldShare {
        self.share
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
        if !is_there {
            self.quiet_ns = self.quiet_ns.saturating_add(window.ns);
            if self.quiet_ns >= QUIET_NS {
                self.share = YieldShare::of_sixteenths(self.share.sixteenths() / 2);
            }
            return;
        }
        self.quiet_ns = 0;
        let took = window.waited_ns.checked_div(window.done);
        let is_slow = took.is_some_and(|took| took > self.price.saturating_mul(SLOW_TIMES));
        let sixteenths = self.share.sixteenths();
        let next = match () {
            () if self.share.is_none() => YieldShare::MAX.sixteenths(),
            () if is_slow => sixteenths * 2,
            () => sixteenths.saturating_sub(1),
        };
        self.share = YieldShare::of_sixteenths(next).max(YieldShare::MIN_BESIDE);
    }

    /// Follows a low quantile of what requests took between two looks: some of these are while the stream stands back.
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

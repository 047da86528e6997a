//! Paces the output of streams to one disk. Output goes in pieces, one in flight at a time, with a
//! pause after a piece that took longer than it costs when nobody else waits.
//!
//! A database's commit waits behind everything in the device's queue, and on ext4 and XFS behind
//! the data that the file system's journal orders before it. A short piece shortens that wait, and
//! the pause leaves the device to those who wait.
//!
//! The price of a piece is a low quantile of the times of recent pieces. A piece that took longer
//! than its price is evidence that somebody else waits, and is followed by a pause of twice its
//! time, unless the kernel's counts show nobody ([`OtherUsers`]). If others are known to be there by
//! their requests ([`Pacer::others`]), each piece is followed by a pause of their share instead, and
//! by one that keeps to a rate at which the disk does not stall (additive increase, multiplicative
//! decrease). A piece is as long as the disk writes in [`PIECE_NS`], or in four times that while
//! nobody else uses the disk. A disk that is slow per request but serves many in parallel ("wide")
//! gets longer pieces, as far as these make it faster.
//!
//! Invariants: a piece is never shorter than [`PIECE_MIN`] or longer than [`WIDE_PIECE_MAX`]. No
//! pause is longer than [`PAUSE_MAX_NS`]. Any mixture of the words of two pacers is a valid pacer.
//! Nothing here fails.

use core::time::Duration;

use crate::disks::disk_contention::YieldShare;
use crate::output::write_behind::WritePace;

/// Nanoseconds of disk work in flight at once.
pub const PIECE_NS: u64 = 3_000_000;
/// Nanoseconds of disk work in flight while nobody else uses the disk: a quarter of the longest wait
/// of a newcomer's first sync.
const UNUSED_PIECE_NS: u64 = UNUSED_BACKLOG_NS / 4;
/// Bytes of a piece while nobody else uses the disk and its rate is unknown.
const UNUSED_PIECE_FIRST: u64 = 1 << 20;
/// Bytes of the shortest piece, and the unit of piece lengths: smaller requests make most disks
/// slower.
pub const PIECE_MIN: u64 = 256 << 10;
/// Bytes of the longest piece on a disk that gains nothing from longer ones.
pub const PIECE_MAX: u64 = 4 << 20;
/// Bytes of the longest piece on a wide disk: everything that a writer may have unwritten.
pub const WIDE_PIECE_MAX: u64 = BACKLOG_MAX;
/// Nanoseconds of the longest pause.
pub const PAUSE_MAX_NS: u64 = 100_000_000;
/// Bytes that writers may have unwritten. This is less than what makes the kernel's own flusher
/// start.
pub const BACKLOG_MAX: u64 = 16 << 20;
/// Bytes that writers may have unwritten on the slowest disk.
pub const BACKLOG_MIN: u64 = 1 << 20;
/// Nanoseconds of disk work that writers may have unwritten: a process that ends waits until that
/// is written, with its pauses.
const BACKLOG_NS: u64 = 500_000_000;
/// Nanoseconds of disk work that writers may have unwritten while nobody else uses the disk: the
/// longest wait of a newcomer's first sync.
const UNUSED_BACKLOG_NS: u64 = 50_000_000;
/// Bytes that writers may have unwritten while nobody else uses the disk: these pages are in memory
/// together.
pub const UNUSED_BACKLOG_MAX: u64 = 64 << 20;
/// Bytes of the largest folio that a single write makes. Steps do not grow with larger writes.
const STEP_BY_CALL_MAX: u64 = 1 << 20;
/// Bytes of the smallest step that a share of the backlog is cut to.
const STEP_MIN: u64 = 64 << 10;
/// Nanoseconds of delay, beyond half a piece's price, that are not evidence of others: a thread may
/// be scheduled that late.
const SLACK_NS: u64 = 2_000_000;
/// Minimum length of the window after which the rate is judged: nanoseconds, and parts of pieces.
const PIECE_WINDOW_NS: u64 = 100_000_000;
const WINDOW_PARTS: u64 = 4;
/// The rate of a quick disk is judged once this much is written, before the end of a window, so
/// that its pieces grow sooner.
const QUICK_WINDOW_BYTES: u64 = 16 << 20;
const QUICK_WINDOW_PARTS: u64 = 16;
/// Numbers of windows between two trials of another length: after the first rate, after a trial
/// without gain, and the maximum.
const REST_FIRST: u64 = 1;
const REST_WINDOWS: u64 = 16;
const REST_MAX: u64 = 1024;
const SECOND: u64 = 1_000_000_000;

/// Converts a time to nanoseconds, the unit of pacers: at most 584 years.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(pagekeeper_policy::pacer::nanoseconds(Duration::from_millis(3)), 3_000_000);
/// assert_eq!(pagekeeper_policy::pacer::nanoseconds(Duration::MAX), u64::MAX);
/// ```
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl WritePace {
    /// Computes the pace of a writer that may have `backlog` bytes unwritten and writes `length`
    /// bytes per call, on a disk with parts of `part` bytes ([`Pacer::part`]).
    pub fn of(part: u64, backlog: u64, length: u64, release: bool) -> Self {
        // A folio is written as a whole.
        let folio = length.clamp(1, STEP_BY_CALL_MAX).next_power_of_two();
        let step = part.max(folio).min((backlog / 4).max(STEP_MIN));
        let step = (step - step % STEP_MIN).max(STEP_MIN);
        Self { step, budget: backlog.saturating_sub(step).max(step), release }
    }
}

/// A written part of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenPart {
    /// Bytes of this part.
    pub bytes: u64,
    /// Bytes in flight when it was begun, including its own.
    pub in_flight: u64,
    /// Lower bound of its duration in nanoseconds: it was last seen in flight then.
    pub took_min: u64,
    /// Upper bound of its duration in nanoseconds: it was seen to be written then.
    pub took_max: u64,
    /// Nanoseconds since the previous part was written, or since the end of a pause after it, if
    /// the writer waited for the disk all that time; else `None`.
    pub busy: Option<u64>,
}

impl WrittenPart {
    /// Whether the two bounds are close enough to learn from.
    fn is_exact(&self) -> bool {
        self.took_max.saturating_sub(self.took_min) <= self.took_max / 4 + SLACK_NS / 10
    }
}

/// Knowledge of others whose requests take no noticeable time of the disk, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum OtherUsers {
    /// Nothing: their requests are not counted. A part that takes longer than its price shows them.
    #[default]
    Unknown,
    /// They make few requests or none. A part that takes long does so by the disk, or by the
    /// stream's own reads.
    Few,
    /// There have been none for some time
    /// ([`DiskContention::is_unused`](crate::disk_contention::DiskContention::is_unused)).
    None,
}

/// The current trial of another piece length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// No trial, for some windows.
    Rest,
    /// Tries whether the disk is faster with pieces of twice the length. The first window has both
    /// lengths; the next one counts.
    LongerBegun,
    Longer,
    /// Tries whether a wide disk is as fast with pieces of half the length.
    ShorterBegun,
    Shorter,
}

impl Trial {
    const fn of(number: u64) -> Self {
        match number & 7 {
            1 => Self::LongerBegun,
            2 => Self::Longer,
            3 => Self::ShorterBegun,
            4 => Self::Shorter,
            _ => Self::Rest,
        }
    }
}

/// A part stalled if it took more than this many times its price, and these nanoseconds: a throttle
/// let nothing through, or the disk was busy with itself.
const STALL_TIMES: u64 = 4;
const STALL_NS: u64 = 10_000_000;
/// Beside others the rate grows by this many 64ths in a second without a stall, and falls by an
/// eighth after one.
const LIMIT_GROWTH: u64 = 12;
const LIMIT_CUT: u64 = 8;
/// The limit never falls below one part in this many of the rate, nor grows beyond this many times
/// the rate.
const LIMIT_PARTS: u64 = 3;
const LIMIT_TIMES: u64 = 2;

/// The number of words of a pacer.
pub const WORDS: usize = 7;

/// The state of the pacer of one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pacer {
    /// Nanoseconds that a part of a whole piece takes when nobody else waits; 0 if unknown.
    price: u64,
    /// Bytes per second of all output while the writer waits for the disk; 0 if unknown.
    rate: u64,
    /// Bytes of a piece on a wide disk; 0 if the disk is not wide.
    wide: u64,
    /// The current window: bytes, nanoseconds, parts, and whether one of the parts was late.
    bytes: u64,
    ns: u64,
    parts: u64,
    is_late: bool,
    trial: Trial,
    /// Windows until the next trial, and the previous number of them.
    rest: u64,
    last_rest: u64,
    /// Whether the last trial of a wide disk was one of shorter pieces.
    tried_shorter: bool,
    /// The share to leave to others that are known to be present.
    share: YieldShare,
    users: OtherUsers,
    /// Bytes per second that may be begun beside others; 0 if unknown. A throttled disk writes each
    /// part at once, until it has written all that it may for now, and then everybody waits.
    limit: u64,
}

impl Default for Pacer {
    fn default() -> Self {
        Self::new()
    }
}

impl Pacer {
    /// Returns the initial state, with nothing known: all words are zero.
    pub const fn new() -> Self {
        Self {
            price: 0,
            rate: 0,
            wide: 0,
            bytes: 0,
            ns: 0,
            parts: 0,
            is_late: false,
            trial: Trial::Rest,
            rest: 0,
            last_rest: 0,
            tried_shorter: false,
            share: YieldShare::NONE,
            users: OtherUsers::Unknown,
            limit: 0,
        }
    }

    /// Returns the bytes that may be in flight at once.
    pub fn piece(&self) -> u64 {
        let length = self.length();
        match self.trial {
            Trial::Rest => length.max(self.unused_piece()),
            Trial::LongerBegun | Trial::Longer => length.saturating_mul(2).min(WIDE_PIECE_MAX),
            Trial::ShorterBegun | Trial::Shorter => (length / 2).max(PIECE_MIN),
        }
    }

    /// Returns the length of a piece outside of trials, beside others.
    fn length(&self) -> u64 {
        let by_rate = self.rate_for(PIECE_NS);
        let whole = by_rate - by_rate % PIECE_MIN;
        whole.clamp(PIECE_MIN, PIECE_MAX).max(self.wide.min(WIDE_PIECE_MAX))
    }

    /// Returns the length of a piece while nobody else uses the disk; 0 beside others.
    fn unused_piece(&self) -> u64 {
        match (self.users, self.rate) {
            (OtherUsers::Unknown | OtherUsers::Few, _) => 0,
            (OtherUsers::None, 0) => UNUSED_PIECE_FIRST,
            (OtherUsers::None, _) => {
                let by_rate = self.rate_for(UNUSED_PIECE_NS);
                (by_rate - by_rate % PIECE_MIN).min(WIDE_PIECE_MAX)
            }
        }
    }

    /// Returns the bytes that the disk writes in this time.
    fn rate_for(&self, ns: u64) -> u64 {
        (self.rate / 1000).saturating_mul(ns / 1000) / 1000
    }

    /// Returns the bytes that are to be started at once. Two parts make a piece while nobody else
    /// is there, so that the disk has the second one when it is done with the first. Beside others
    /// a piece is one part, so that the pause after it leaves the disk without output.
    pub fn part(&self) -> u64 {
        if self.share.is_none() && !self.is_late { self.piece() / 2 } else { self.piece() }
    }

    /// Returns the bytes that all writers to the disk may have unwritten.
    pub fn backlog(&self) -> u64 {
        if self.rate == 0 {
            return BACKLOG_MAX / 2;
        }
        let beside = self.rate_for(BACKLOG_NS).max(2 * self.length()).clamp(BACKLOG_MIN, BACKLOG_MAX);
        let is_unused = self.users == OtherUsers::None;
        let unused = if is_unused { self.rate_for(UNUSED_BACKLOG_NS).min(UNUSED_BACKLOG_MAX) } else { 0 };
        beside.max(unused)
    }

    /// Returns the nanoseconds that a part of a whole piece is expected to take; 0 if unknown.
    pub fn price(&self) -> u64 {
        self.price
    }

    /// Returns the expected price with `in_flight` bytes, which may exceed a piece during or after
    /// a trial.
    fn price_of(&self, in_flight: u64) -> u64 {
        let price =
            u128::from(self.price) * u128::from(in_flight.max(self.length())) / u128::from(self.length());
        u64::try_from(price).unwrap_or(u64::MAX)
    }

    /// Sets the share to leave to others, as computed from their requests
    /// ([`DiskContention`](crate::disk_contention::DiskContention)). Without it, the durations of
    /// the pieces alone show whether somebody waits.
    pub fn others(&mut self, share: YieldShare) {
        self.share = share;
    }

    /// Sets what is known of others that have no share.
    pub fn users(&mut self, users: OtherUsers) {
        self.users = users;
    }

    /// Records that a part was written. Returns the nanoseconds for which to begin nothing.
    ///
    /// ```
    /// use pagekeeper_policy::pacer::{Pacer, WrittenPart};
    ///
    /// let mut pacer = Pacer::new();
    /// let quick = WrittenPart {
    ///     bytes: 128 << 10,
    ///     in_flight: 256 << 10,
    ///     took_min: 2_500_000,
    ///     took_max: 2_600_000,
    ///     busy: Some(1_300_000),
    /// };
    /// assert_eq!(pacer.written(quick), 0);
    /// let late = WrittenPart { took_min: 20_000_000, took_max: 20_100_000, ..quick };
    /// assert_eq!(pacer.written(late), 40_000_000);
    /// ```
    pub fn written(&mut self, part: WrittenPart) -> u64 {
        let takes_longer = self.is_late(&part);
        let is_late = self.users == OtherUsers::Unknown && takes_longer;
        let is_whole = part.in_flight >= self.length() / 8 * 5;
        // An upper bound below the price is exact enough to lower it.
        let is_exact = part.is_exact() || part.took_max < self.price;
        if is_whole && is_exact && self.trial == Trial::Rest {
            // The price is that of a piece beside others.
            let longer = u128::from(part.in_flight.max(self.length()));
            let took = u128::from(part.took_max) * u128::from(self.length()) / longer;
            self.learn_price(u64::try_from(took).unwrap_or(u64::MAX), takes_longer);
        }
        if let Some(ns) = part.busy {
            self.ns = self.ns.saturating_add(ns);
            self.bytes = self.bytes.saturating_add(part.bytes);
            self.parts = self.parts.saturating_add(1);
        }
        self.is_late |= is_late || !self.share.is_none();
        let is_quick = self.bytes >= QUICK_WINDOW_BYTES && self.parts >= QUICK_WINDOW_PARTS;
        if is_quick || (self.ns >= PIECE_WINDOW_NS && self.parts >= WINDOW_PARTS) {
            self.end_window();
        }
        let pause = if self.share.is_none() {
            if is_late { part.took_min.saturating_mul(2) } else { 0 }
        } else {
            // Beside others a part takes longer than its price in any case.
            self.share.after(part.took_max).max(self.pause_for_limit(part))
        };
        pause.min(PAUSE_MAX_NS)
    }

    /// Adapts the limit to a part written beside others. Returns the nanoseconds until the part's
    /// bytes are within it.
    fn pause_for_limit(&mut self, part: WrittenPart) -> u64 {
        if self.limit == 0 {
            self.limit = self.rate;
        }
        if self.limit == 0 {
            return 0;
        }
        let stall = STALL_NS.saturating_add(self.price.saturating_mul(STALL_TIMES));
        if self.price > 0 && part.took_min > stall {
            self.limit = (self.limit - self.limit / LIMIT_CUT).max(self.rate / LIMIT_PARTS).max(1);
        } else {
            let most = self.rate.saturating_mul(LIMIT_TIMES).max(self.limit);
            self.limit = self.limit.saturating_add(part.bytes / 64 * LIMIT_GROWTH).min(most);
        }
        let due = u128::from(part.bytes) * u128::from(SECOND) / u128::from(self.limit);
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(part.took_max)
    }

    /// Whether a part took longer than it does when nobody else waits.
    pub(crate) fn is_late(&self, part: &WrittenPart) -> bool {
        let price = self.price_of(part.in_flight);
        price > 0 && part.took_min > price.saturating_add(price / 2).saturating_add(SLACK_NS)
    }

    /// Follows a low quantile of the durations of parts. Late parts count very slowly: a disk may
    /// have become slower for good.
    fn learn_price(&mut self, took: u64, is_late: bool) {
        let took = took.max(1);
        if self.price == 0 {
            self.price = took;
        } else if took < self.price {
            self.price -= (self.price - took).div_ceil(16);
        } else {
            let more = (took - self.price).min(self.price);
            self.price += more / if is_late { 256 } else { 32 };
        }
    }

    /// Judges the rate of the window and the current trial.
    fn end_window(&mut self) {
        let rate = u128::from(self.bytes) * u128::from(SECOND) / u128::from(self.ns.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        let was_late = core::mem::replace(&mut self.is_late, false);
        (self.bytes, self.ns, self.parts) = (0, 0, 0);
        // While others are present, a rate says nothing about the length of pieces.
        match self.trial {
            Trial::LongerBegun if !was_late => self.trial = Trial::Longer,
            Trial::ShorterBegun if !was_late => self.trial = Trial::Shorter,
            Trial::Longer if !was_late && rate >= self.rate.saturating_add(self.rate / 3) => {
                self.wide = self.piece();
                (self.rate, self.rest, self.last_rest) = (rate, REST_FIRST, 0);
                // The next trial is of still longer pieces.
                self.tried_shorter = true;
                self.change_length(|price| price.saturating_mul(2));
            }
            Trial::Shorter if !was_late && rate >= self.rate - self.rate / 8 => {
                let shorter = self.piece();
                self.wide = if shorter <= PIECE_MIN { 0 } else { shorter };
                (self.rate, self.rest) = (rate, REST_WINDOWS);
                self.change_length(|price| price);
            }
            Trial::LongerBegun | Trial::Longer | Trial::ShorterBegun | Trial::Shorter => {
                self.last_rest = self.last_rest.saturating_mul(2).clamp(REST_WINDOWS, REST_MAX);
                self.rest = self.last_rest;
                self.change_length(|price| price);
            }
            Trial::Rest => self.rested(rate, was_late),
        }
    }

    /// Judges a window without a trial.
    fn rested(&mut self, rate: u64, was_late: bool) {
        let length = self.length();
        let is_first = self.rate == 0;
        self.rate = if is_first { rate } else { self.rate - self.rate / 4 + rate / 4 };
        if self.length() > length {
            if self.users != OtherUsers::None {
                // Beside others lengths double once at a time.
                let by_rate = length.saturating_mul(2).div_ceil(PIECE_NS / 1_000_000) * 1000;
                self.rate = self.rate.min(by_rate.max(rate / 8));
            }
            // The new length's price differs from the current one.
            self.price = self.price.saturating_mul(self.length().div_ceil(length));
        }
        self.rest = self.rest.saturating_sub(1);
        if is_first {
            self.rest = REST_FIRST;
        } else if self.rest == 0 && !was_late && self.unused_piece() <= self.length() {
            self.tried_shorter = self.wide > 0 && !self.tried_shorter;
            self.trial = if self.tried_shorter { Trial::ShorterBegun } else { Trial::LongerBegun };
            if self.piece() == self.length() {
                (self.trial, self.rest) = (Trial::Rest, REST_WINDOWS);
            }
        }
    }

    /// Ends a trial.
    fn change_length(&mut self, price: impl FnOnce(u64) -> u64) {
        self.trial = Trial::Rest;
        self.price = price(self.price);
    }

    /// Encodes the pacer as words, for callers that keep it in atomics. [`Pacer::new`] is all
    /// zeros.
    pub fn to_words(self) -> [u64; WORDS] {
        let flags = self.trial as u64
            | u64::from(self.is_late) << 3
            | u64::from(self.tried_shorter) << 4
            | (self.users as u64) << 5;
        let counts =
            self.parts.min(0xffff) << 8 | self.rest.min(0xffff) << 24 | self.last_rest.min(0xffff) << 40;
        let share = self.share.sixteenths() << 56;
        [self.price, self.rate, self.wide, self.bytes, self.ns, flags | counts | share, self.limit]
    }

    /// Decodes a pacer from words.
    pub fn from_words([price, rate, wide, bytes, ns, small, limit]: [u64; WORDS]) -> Self {
        let count = |at: u64| small >> at & 0xffff;
        Self {
            price,
            rate,
            wide,
            bytes,
            ns,
            parts: count(8),
            is_late: small & 8 != 0,
            trial: Trial::of(small),
            rest: count(24),
            last_rest: count(40),
            tried_shorter: small & 16 != 0,
            share: YieldShare::of_sixteenths(small >> 56),
            users: match small >> 5 & 3 {
                1 => OtherUsers::Few,
                2 => OtherUsers::None,
                _ => OtherUsers::Unknown,
            },
            limit,
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests;

//! Decides which writing processes are held, and for how long at a time, so that at most a bound of
//! bytes is unwritten in front of their disk.
//!
//! A program writes into memory faster than its disk accepts it. The data waits there until the
//! kernel's own flusher starts, and then each commit of a database waits behind all of it.
//! [`DeviceHolds`] decides which writers of one device to hold: holds start when more than the
//! bound is unwritten, and end when at most half of it is. If the next decision is late, writers
//! run only until they may have filled the bound. [`HoldCycle`] splits holds into ones of at most
//! [`HOLD_MAX`], with gaps in which the process runs and receives its signals.
//!
//! # Invariants
//!
//! - A process that has not dirtied pages of the device recently is never held. It has more time
//!   for that while it is held, since it may wait for a processor in each of its moments.
//! - Nobody is held once at most half of the bound is unwritten, or if nothing on the device was
//!   written for
//!   [`STALLED_AFTER`]: a hung disk or a hung worker holds nobody.
//! - A writer with less than half its fair share of the unwritten bytes is held only if more than
//!   twice the bound is unwritten and processes that have ended or stopped writing left most of
//!   that.
//! - A writer is held for a late decision only if writers were so fast lately that they may fill
//!   the bound within [`WRITER_IDLE_MAX`].
//! - The rules above apply to the bound. A rate limit holds everyone who wrote within the last
//!   second until its tokens are back.
//! - No hold is longer than [`HOLD_MAX`], and at least [`HOLD_GAP_MIN`] lies between two holds of a
//!   process by one holder. Two holders (a guard and a `run`) take turns, each with its own gap.

use std::collections::BTreeMap;
use std::time::Duration;

/// Longest hold at a time: half of the documented limit, since a thread may be late to end it.
pub const HOLD_MAX: Duration = Duration::from_millis(50);
/// Shortest time between two holds of a process: a writer of 2 GB/s writes 0.4 MiB in it.
pub const HOLD_GAP_MIN: Duration = Duration::from_micros(200);
/// A process that dirtied no page of a device for this long is not one of its writers.
pub const WRITER_IDLE_MAX: Duration = Duration::from_secs(1);
/// The same for a process that is held.
pub const HELD_WRITER_IDLE_MAX: Duration = Duration::from_secs(5);
/// If nothing was written for this long, the disk hangs, and holds are useless. A disk on which
/// another program syncs gigabytes may write nothing of a stream for some seconds: that is when the
/// bound matters most.
pub const STALLED_AFTER: Duration = Duration::from_secs(20);
/// Maximum number of processes of a device that are held at a time, those with the most unwritten:
/// a hold takes about 0.1 ms.
pub const HELD_MAX: usize = 64;
/// Maximum and minimum time between two decisions while writers write.
const DECIDE_MAX: Duration = Duration::from_millis(10);
const DECIDE_MIN: Duration = Duration::from_millis(1);
/// Capacity of a token bucket: one part in this many of a second's tokens, but at least one call of
/// a copying program.
const BURST_PARTS: u64 = 10;
const BURST_MIN: u64 = 256 << 10;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Limits for the writers of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterLimits {
    /// Maximum of unwritten bytes; `None` without a limit.
    pub unwritten: Option<u64>,
    /// Maximum of bytes that they may dirty per second; `None` without a limit.
    pub rate: Option<u64>,
}

/// A process that writes to the device.
#[derive(Debug, Clone, Copy)]
struct Writer {
    /// Its part of the unwritten bytes.
    share: u64,
    dirtied_at: Duration,
    /// Whether the last decision held it.
    is_held: bool,
}

impl Writer {
    /// Whether it has dirtied pages lately.
    fn is_active(&self, now: Duration) -> bool {
        let active_for = if self.is_held { HELD_WRITER_IDLE_MAX } else { WRITER_IDLE_MAX };
        now.saturating_sub(self.dirtied_at) < active_for
    }
}

/// Token bucket of a writer's rate: one token per byte that may be dirtied. Negative after an
/// excess.
#[derive(Debug, Clone, Copy)]
struct TokenBucket {
    tokens: i64,
    filled_at: Duration,
}

/// The processes to hold, and when to decide again if nothing happens before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldDecision {
    /// Process IDs to hold now, ascending.
    pub held: Vec<u32>,
    /// `None` if nobody writes.
    pub again_at: Option<Duration>,
    /// Process IDs to hold if there is no other decision by `late_at`, ascending. Whoever decides
    /// may wait for a processor while they write gigabytes a second.
    pub held_if_late: Vec<u32>,
    /// The time at which the writers may have filled the bound, not before `again_at`.
    pub late_at: Duration,
}

/// The writers of one device.
///
/// ```
/// use pagekeeper_policy::stream_hold::{DeviceHolds, WriterLimits};
/// use std::time::Duration;
///
/// const MIB: u64 = 1 << 20;
/// let at = Duration::from_millis;
/// let limits = WriterLimits { unwritten: Some(16 * MIB), rate: None };
/// let mut device = DeviceHolds::default();
/// device.dirtied(4711, 20 * MIB, at(1));
/// assert_eq!(device.decide(limits, at(1)).held, [4711]);
///
/// // It is held until half of the bound is written.
/// device.written(8 * MIB, at(80));
/// assert_eq!(device.decide(limits, at(80)).held, [4711]);
/// device.written(4 * MIB, at(120));
/// assert!(device.decide(limits, at(120)).held.is_empty());
/// ```
#[derive(Debug, Clone, Default)]
pub struct DeviceHolds {
    writers: BTreeMap<u32, Writer>,
    unwritten: u64,
    /// Whether more than the bound was unwritten, and has not yet fallen to half of it.
    is_full: bool,
    /// The last time something was written, or there was nothing to write.
    progress_at: Duration,
    bucket: Option<TokenBucket>,
    /// Recent maximum of bytes per second that were dirtied while nobody was held.
    speed: u64,
    /// Recent maximum of bytes per second that were written.
    drain_speed: u64,
    /// Bytes dirtied and written since the last decision, its time, and whether it held anyone.
    dirtied: u64,
    drained: u64,
    decided_at: Duration,
    has_held: bool,
    /// The time from which on it holds writers if no other decision comes.
    holds_late_at: Option<Duration>,
}

impl DeviceHolds {
    /// Records that a process dirtied clean pages.
    pub fn dirtied(&mut self, process: u32, bytes: u64, now: Duration) {
        if self.unwritten == 0 {
            self.progress_at = now;
        }
        self.unwritten = self.unwritten.saturating_add(bytes);
        self.dirtied = self.dirtied.saturating_add(bytes);
        let writer =
            self.writers.entry(process).or_insert(Writer { share: 0, dirtied_at: now, is_held: false });
        writer.share = writer.share.saturating_add(bytes);
        writer.dirtied_at = now;
        if let Some(bucket) = &mut self.bucket {
            bucket.tokens = bucket.tokens.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Records that bytes are no longer unwritten, whoever dirtied them.
    pub fn written(&mut self, bytes: u64, now: Duration) {
        if bytes == 0 {
            return;
        }
        self.drained = self.drained.saturating_add(bytes);
        let before = self.unwritten;
        self.unwritten = before.saturating_sub(bytes);
        self.progress_at = now;
        let (rest, all) = (u128::from(self.unwritten), u128::from(before.max(1)));
        for writer in self.writers.values_mut() {
            writer.share = u64::try_from(u128::from(writer.share) * rest / all).unwrap_or(u64::MAX);
        }
    }

    /// Records that a process has ended.
    pub fn ended(&mut self, process: u32) {
        self.writers.remove(&process);
    }

    /// Returns the unwritten bytes.
    pub fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Whether nothing is unwritten and nobody writes.
    pub fn is_idle(&self) -> bool {
        self.unwritten == 0 && self.writers.is_empty()
    }

    /// Decides which processes to hold.
    pub fn decide(&mut self, limits: WriterLimits, now: Duration) -> HoldDecision {
        self.writers.retain(|_, writer| writer.is_active(now) || writer.share > 0);
        self.fill_bucket(limits.rate, now);
        self.measure_speed(now);
        let bound = limits.unwritten.unwrap_or(u64::MAX);
        self.is_full = self.unwritten > if self.is_full { bound / 2 } else { bound };
        let is_stalled = now.saturating_sub(self.progress_at) >= STALLED_AFTER;
        let is_over_rate = self.bucket.is_some_and(|bucket| bucket.tokens < 0);
        let is_over = (self.is_full && !is_stalled) || is_over_rate;
        let (count, chosen) = self.candidates(bound, is_over_rate, now);
        let time_to_fill = self.time_to_fill(bound);
        let next = if self.is_full { self.time_to_drain(bound / 2) } else { time_to_fill };
        let again_at = (count > 0).then(|| now + next.clamp(DECIDE_MIN, DECIDE_MAX));
        let late_at = now + time_to_fill.max(DECIDE_MIN);
        let is_fast = self.speed > 0 && time_to_fill < WRITER_IDLE_MAX && !self.is_full;
        let (held, held_if_late) = match (is_over, is_fast) {
            (true, _) => (chosen, Vec::new()),
            (false, true) => (Vec::new(), chosen),
            (false, false) => (Vec::new(), Vec::new()),
        };
        self.holds_late_at = (!held_if_late.is_empty()).then_some(late_at);
        for (process, writer) in &mut self.writers {
            writer.is_held = self.is_full && held.contains(process);
        }
        (self.dirtied, self.drained) = (0, 0);
        (self.decided_at, self.has_held) = (now, !held.is_empty());
        HoldDecision { held, again_at, held_if_late, late_at }
    }

    /// Returns the number of writers, and the ones to hold if the decision holds anyone.
    fn candidates(&self, bound: u64, is_over_rate: bool, now: Duration) -> (u64, Vec<u32>) {
        let writers = || self.writers.iter().filter(|(_, writer)| writer.is_active(now));
        let count = writers().count() as u64;
        // Processes that have ended or stopped writing left the rest; it belongs to no share.
        let shares = writers().map(|(_, writer)| writer.share).fold(0, u64::saturating_add);
        let is_left_behind = shares < self.unwritten / 2;
        let is_urgent = is_over_rate || (is_left_behind && self.unwritten > bound.saturating_mul(2));
        let has_share =
            |writer: &Writer| is_urgent || writer.share.saturating_mul(2 * count) >= self.unwritten;
        let chosen = writers().filter(|(_, writer)| has_share(writer));
        (count, first_held(chosen.map(|(process, writer)| (writer.share, *process)).collect()))
    }

    /// Updates the speeds by the bytes since the last decision. They fade by two thirds in a
    /// second; that of writers does not fade while somebody is held.
    fn measure_speed(&mut self, now: Duration) {
        let since = self.decided_at;
        self.drain_speed = next_speed(self.drain_speed, self.drained, now.saturating_sub(since), true);
        // Writers that were held for lateness dirtied nothing after that.
        let until = self.holds_late_at.map_or(now, |late_at| now.min(late_at));
        self.speed = next_speed(self.speed, self.dirtied, until.saturating_sub(since), !self.has_held);
    }

    /// Returns the time until the bound may be reached.
    fn time_to_fill(&self, bound: u64) -> Duration {
        time_for(bound.saturating_sub(self.unwritten), self.speed)
    }

    /// Returns the time until at most `rest` bytes may be unwritten.
    fn time_to_drain(&self, rest: u64) -> Duration {
        time_for(self.unwritten.saturating_sub(rest), self.drain_speed)
    }

    fn fill_bucket(&mut self, rate: Option<u64>, now: Duration) {
        let Some(rate) = rate else {
            self.bucket = None;
            return;
        };
        let most = i64::try_from((rate / BURST_PARTS).max(BURST_MIN)).unwrap_or(i64::MAX);
        let taken = i64::try_from(self.dirtied).unwrap_or(i64::MAX);
        let tokens = most.saturating_sub(taken);
        let bucket = self.bucket.get_or_insert(TokenBucket { tokens, filled_at: now });
        let elapsed = now.saturating_sub(bucket.filled_at).as_nanos();
        let more = u128::from(rate).saturating_mul(elapsed) / NANOS_PER_SECOND;
        // Fractions of a token stay with the elapsed time.
        if more > 0 {
            bucket.filled_at = now;
            bucket.tokens = bucket.tokens.saturating_add(i64::try_from(more).unwrap_or(i64::MAX)).min(most);
        }
    }
}

/// Returns the time that some bytes take at a speed; [`DECIDE_MAX`] if that is unknown.
fn time_for(bytes: u64, per_second: u64) -> Duration {
    if per_second == 0 {
        return DECIDE_MAX;
    }
    let nanoseconds = u128::from(bytes).saturating_mul(NANOS_PER_SECOND) / u128::from(per_second);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// Returns the larger one of a speed, which may fade, and that of these bytes.
fn next_speed(speed: u64, bytes: u64, elapsed: Duration, fades: bool) -> u64 {
    let nanoseconds = elapsed.as_nanos();
    if nanoseconds == 0 {
        return speed;
    }
    let loss = if fades { (u128::from(speed) * nanoseconds).div_ceil(NANOS_PER_SECOND) } else { 0 };
    let rest = u128::from(speed).saturating_sub(loss);
    let per_second = u128::from(bytes) * NANOS_PER_SECOND / nanoseconds;
    u64::try_from(rest.max(per_second)).unwrap_or(u64::MAX)
}

/// Returns the processes with the largest shares, at most [`HELD_MAX`], ascending.
fn first_held(mut chosen: Vec<(u64, u32)>) -> Vec<u32> {
    if chosen.len() > HELD_MAX {
        chosen.sort_unstable_by(|a, b| b.cmp(a));
        chosen.truncate(HELD_MAX);
        chosen.sort_unstable_by_key(|(_, process)| *process);
    }
    chosen.into_iter().map(|(_, process)| process).collect()
}

/// The next action on a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldStep {
    /// Stop it.
    Stop,
    /// Let it continue.
    LetGo,
    /// Leave it as it is for this long, unless the wish changes.
    Wait(Duration),
    /// Leave it running.
    Rest,
}

/// The holds of one process, one after another.
///
/// ```
/// use pagekeeper_policy::stream_hold::{HOLD_GAP_MIN, HOLD_MAX, HoldCycle, HoldStep};
/// use std::time::Duration;
///
/// let start = Duration::from_secs(1);
/// let mut cycle = HoldCycle::default();
/// assert_eq!(cycle.next(true, start), HoldStep::Stop);
/// assert_eq!(cycle.next(true, start), HoldStep::Wait(HOLD_MAX));
/// assert_eq!(cycle.next(true, start + HOLD_MAX), HoldStep::LetGo);
/// assert_eq!(cycle.next(true, start + HOLD_MAX), HoldStep::Wait(HOLD_GAP_MIN));
/// assert_eq!(cycle.next(true, start + HOLD_MAX + HOLD_GAP_MIN), HoldStep::Stop);
/// assert_eq!(cycle.next(false, start + HOLD_MAX + HOLD_GAP_MIN), HoldStep::LetGo);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct HoldCycle {
    held_since: Option<Duration>,
    free_since: Option<Duration>,
}

impl HoldCycle {
    /// Decides the next action, and assumes that it is carried out.
    pub fn next(&mut self, is_wanted: bool, now: Duration) -> HoldStep {
        let rest = |since: Duration, length: Duration| (since + length).saturating_sub(now);
        if let Some(since) = self.held_since {
            let left = rest(since, HOLD_MAX);
            if is_wanted && !left.is_zero() {
                return HoldStep::Wait(left);
            }
            (self.held_since, self.free_since) = (None, Some(now));
            return HoldStep::LetGo;
        }
        if !is_wanted {
            return HoldStep::Rest;
        }
        let left = self.free_since.map_or(Duration::ZERO, |since| rest(since, HOLD_GAP_MIN));
        if !left.is_zero() {
            return HoldStep::Wait(left);
        }
        self.held_since = Some(now);
        HoldStep::Stop
    }

    /// Records that the process could not be held: it is tried again after the shortest gap.
    pub fn not_held(&mut self, now: Duration) {
        (self.held_since, self.free_since) = (None, Some(now));
    }

    /// Returns the time since which the process is held.
    pub fn held_since(&self) -> Option<Duration> {
        self.held_since
    }
}

#[cfg(test)]
mod tests;

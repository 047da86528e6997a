//! How far writers may be ahead of their disk: as much as keeps it busy, found by how long it takes to write.
//!
//! Some writeback is timed: how many bytes were in flight as it was begun, and how long it took, which together say how fast the disk
//! is with so much in flight. [`LEAD_NS`] of its work is given at any rate. Beyond that a longer lead is tried, and kept if the disk
//! is faster with it: one that answers slowly but serves many requests at once is. One that is merely slow is not: there a shorter lead
//! is tried, and kept if the disk is as fast with it, as one that wants large requests is not.
//!
//! Invariants: what was begun under another lead than today's says nothing of today's; a lead never shrinks below [`LEAD_MIN`], nor
//! grows beyond what the caller allows, or what the disk, at the rate that is known of it, writes in [`QUEUED_MAX_NS`]; a writer that never had to wait changes nothing but the end of a trial. Any mixture of the
//! words of two leads is a lead. Nothing here fails.

use core::ops::Range;

use crate::write_behind::Pace;

/// Nanoseconds of a disk's work that a writer may have unwritten, where the disk gains nothing by more. What others want of the disk
/// stands behind it: a commit of the file system's journal, and whoever writes to a file of that commit (ext4: the longest put of
/// RocksDB beside compaction was 16 ms with a lead of 1 MiB, 22 ms with 2 MiB and 100 to 366 ms with 8 MiB, at 60 MB/s).
pub const LEAD_NS: u64 = 15_000_000;
/// Bytes that writers may have unwritten at least.
pub const LEAD_MIN: u64 = 512 << 10;
/// The same, before anything is known of their disk.
const LEAD_FIRST: u64 = 2 << 20;
/// Bytes beyond which [`LEAD_NS`] alone is no reason: memory is worth more than the queue of a fast disk.
const QUEUE_MAX: u64 = 8 << 20;
/// Nanoseconds of a disk's work beyond which no longer lead is tried. Up to [`QUEUED_MAX_NS`] its rate may vary.
pub const QUEUED_NS: u64 = 1_700_000_000;
/// Nanoseconds of a disk's work that no lead exceeds: a process that ends waits so long for what it wrote, and what is not written then
/// stays.
pub const QUEUED_MAX_NS: u64 = 2_000_000_000;
/// Writeback is begun in steps of half of the lead, within bounds: fewer requests at the ends of steps are small.
const STEP_MAX: u64 = 4 << 20;
const STEP_MIN: u64 = 64 << 10;
/// Bytes of the largest request of most disks.
const REQUEST: u64 = 1 << 20;
/// Times the good lead that are tried at most of a disk that takes long for each request: so many that steps are as long as they get,
/// with many requests each, of which the last is short.
const MANY: u64 = 16;
/// Timed writings after which another lead is tried: first, and at most.
const REST: u64 = 64;
const REST_MAX: u64 = 1024;
/// Timed writings that judge a trial, but for the first ones of a disk.
const TRIAL: u64 = 3;
const SECOND: u64 = 1_000_000_000;

impl Pace {
    /// The pace of a writer that may have `lead` bytes unwritten, and writes `length` bytes, or so many of them at most, at once: while it
    /// makes the next call, the disk has what this one wrote.
    pub fn of(lead: u64, length: u64, release: bool) -> Self {
        let all = lead.max(length);
        let step = (all / 2).clamp(STEP_MIN, STEP_MAX);
        // Whole requests, or whole pages, whatever their size.
        let step = step - step % if step < REQUEST { STEP_MIN } else { REQUEST };
        Self { step, budget: lead.saturating_sub(step).max(length).max(step), release }
    }
}

/// Writeback that was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// The lead as it was begun.
    pub lead: u64,
    /// Bytes in flight then, its own among them.
    pub in_flight: u64,
    /// Nanoseconds until it was written.
    pub took: u64,
    /// Whether a writer had to wait meanwhile.
    pub waited: bool,
    /// Whether it had just waited as this was begun: else some of what was in flight may have been written already.
    pub is_exact: bool,
}

impl Timed {
    /// Bytes a second.
    fn rate(&self) -> u64 {
        self.in_flight.saturating_mul(SECOND) / self.took.max(1)
    }
}

/// What is being found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// How fast the disk is at all.
    Start,
    /// Whether it is faster with as much as seems to keep it busy.
    Leap,
    /// The same, with several times as much.
    More,
    /// Whether it is as fast with less.
    Less,
    /// Nothing, for a while.
    Rest,
}

impl Stage {
    const fn of(number: u64) -> Self {
        match number & 7 {
            0 => Self::Start,
            1 => Self::Leap,
            2 => Self::More,
            3 => Self::Less,
            _ => Self::Rest,
        }
    }
}

/// How far the writers to one disk may be ahead of it, together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lead {
    /// Bytes; 0 before anything is known.
    bytes: u64,
    /// The lead that is known to be good, and how fast the disk was with it, in bytes a second.
    good: u64,
    rate: u64,
    /// Of a trial the sum of the rates seen; of a rest the highest.
    seen: u64,
    /// What was timed first: bytes in flight, and nanoseconds.
    first: (u64, u64),
    stage: Stage,
    /// Of a trial how many rates were seen; of a rest how many are to come.
    count: u64,
    /// How long the last rest was.
    rest: u64,
    /// Whether the disk was as fast with less since then.
    is_enough: bool,
}

/// The number of words of a lead.
pub const WORDS: usize = 7;

impl Lead {
    /// Nothing known.
    pub const NEW: Self = Self {
        bytes: 0,
        good: 0,
        rate: 0,
        seen: 0,
        first: (0, 0),
        stage: Stage::Start,
        count: 0,
        rest: 0,
        is_enough: false,
    };

    /// Bytes, at most `max`.
    ///
    /// ```
    /// use pagekeeper_policy::lead::{Lead, Timed};
    ///
    /// // A disk that takes 40 ms for whatever it is given: first one MiB, then as much as it may have.
    /// let (mut lead, max) = (Lead::NEW, 64 << 20);
    /// let timed = Timed { lead: 0, in_flight: 1 << 20, took: 40_000_000, waited: true, is_exact: true };
    /// lead.timed(Timed { lead: lead.bytes(max), ..timed }, max);
    /// for _ in 0..3 {
    ///     let bytes = lead.bytes(max);
    ///     lead.timed(Timed { lead: bytes, in_flight: bytes, ..timed }, max);
    /// }
    /// assert_eq!(lead.bytes(max), max);
    /// ```
    pub fn bytes(&self, max: u64) -> u64 {
        let bytes = if self.bytes == 0 { LEAD_FIRST } else { self.bytes };
        bytes.min(self.most(QUEUED_MAX_NS)).max(LEAD_MIN).min(max)
    }

    /// Bytes that the disk writes in so many nanoseconds, as far as its rate is known.
    fn most(&self, ns: u64) -> u64 {
        if self.rate == 0 { u64::MAX } else { written_in(ns, self.rate).max(LEAD_MIN) }
    }

    /// As words, for who keeps them in atomics: all zero of [`Lead::NEW`].
    pub fn to_words(self) -> [u64; WORDS] {
        let small = self.stage as u64
            | u64::from(self.is_enough) << 3
            | self.count.min(REST_MAX) << 4
            | self.rest << 24;
        [self.bytes, self.good, self.rate, self.seen, self.first.0, self.first.1, small]
    }

    /// From these words.
    pub fn from_words([bytes, good, rate, seen, in_flight, took, small]: [u64; WORDS]) -> Self {
        let stage = Stage::of(small);
        let (count, rest) = (small >> 4 & 0xf_ffff, small >> 24);
        let is_enough = small & 8 != 0;
        Self { bytes, good, rate, seen, first: (in_flight, took), stage, count, rest, is_enough }
    }

    /// Writeback was timed; the lead may be `max` bytes.
    pub fn timed(&mut self, timed: Timed, max: u64) {
        let bytes = self.bytes(max);
        // Less says as much only of a disk of which nothing is known.
        let is_all = timed.in_flight >= most_of(bytes) || self.stage == Stage::Start;
        let is_exact = timed.is_exact || matches!(self.stage, Stage::Start | Stage::Leap);
        if timed.lead != bytes || !is_all || !is_exact {
            return;
        }
        self.bytes = bytes;
        if !timed.waited {
            // It is enough.
            if matches!(self.stage, Stage::More | Stage::Leap | Stage::Less) {
                self.good = bytes;
                self.settle(false);
            }
            return;
        }
        let rate = timed.rate();
        match self.stage {
            Stage::Start => {
                self.first = (timed.in_flight, timed.took);
                (self.good, self.rate, self.stage) = (bytes, rate, Stage::Leap);
            }
            Stage::Leap => self.leapt(timed, rate, max),
            Stage::More | Stage::Less => self.tried(rate, max),
            Stage::Rest => self.rested(rate, max),
        }
    }

    /// A rate under the lead that seemed to be needed.
    fn leapt(&mut self, timed: Timed, rate: u64, max: u64) {
        if !self.is_faster(rate) {
            let is_first = self.bytes == self.good;
            self.bytes = self.good;
            if !is_first {
                return self.settle(true);
            }
            self.rate = self.rate.max(rate);
            return self.try_less(max);
        }
        (self.good, self.rate) = (self.bytes, rate);
        let (in_flight, took) = self.first;
        if timed.took >= took.saturating_add(took / 2) {
            // What is in flight waits for other such. Of a disk that takes long for each, the first may only have taken longer.
            return if queue(rate, max) <= LEAD_MIN { self.try_less(max) } else { self.settle(false) };
        }
        // What was in flight more took so much longer: so much is written in the time that the first took, and half as much again is
        // given.
        let (more, longer) = (timed.in_flight.saturating_sub(in_flight), timed.took.saturating_sub(took));
        let needed = (more / 2).saturating_mul(3).saturating_mul(took / 1000) / (longer / 1000).max(1);
        let bytes = self.bytes;
        let needed = needed.clamp(bytes.saturating_mul(2), bytes.saturating_mul(16));
        self.bytes = needed.min(self.most(QUEUED_NS)).max(bytes).min(max);
        if self.bytes <= bytes {
            self.settle(false);
        }
    }

    /// Whether it is worth more in flight: by a sixteenth.
    fn is_faster(&self, rate: u64) -> bool {
        rate > self.rate.saturating_add(self.rate / 16)
    }

    /// A rate under the lead that is tried.
    fn tried(&mut self, rate: u64, max: u64) {
        self.seen = self.seen.saturating_add(rate);
        self.count += 1;
        if self.count < TRIAL {
            return;
        }
        let rate = self.seen / self.count;
        (self.seen, self.count) = (0, 0);
        if self.stage == Stage::Less {
            if rate >= self.rate - self.rate / 64 {
                (self.good, self.is_enough) = (self.bytes, true);
                self.try_less(max);
            } else {
                self.bytes = self.good;
                // With shorter requests it is slower: so it takes its time for each, however long, and a few of a step are short.
                let is_by_request = rate < self.rate - self.rate / 8 && queue(self.rate, max) <= LEAD_MIN;
                if is_by_request {
                    self.try_times((2 * STEP_MAX / self.good.max(1)).clamp(2, MANY), max);
                } else {
                    self.try_more(max);
                }
            }
        } else if self.is_faster(rate) {
            (self.good, self.rate) = (self.bytes, rate);
            self.try_more(max);
        } else {
            self.bytes = self.good;
            self.settle(true);
        }
    }

    /// A rate under the lead that is known to be good.
    fn rested(&mut self, rate: u64, max: u64) {
        self.rate = self.rate - self.rate / 8 + rate / 8;
        self.seen = self.seen.max(self.rate);
        let queue = queue(self.rate, max);
        if queue > self.bytes {
            // It is written in a shorter time.
            (self.bytes, self.good) = (queue, queue);
        }
        if self.bytes > self.most(QUEUED_MAX_NS) {
            // ... or in a longer one: it isn't the disk that it was.
            let most = self.most(QUEUED_NS);
            (self.bytes, self.good) = (most, most);
        }
        self.count = self.count.saturating_sub(1);
        // It may not be the disk that it was.
        let is_slower = self.rate < self.seen / 8 * 5;
        if is_slower {
            self.rate = rate;
        }
        if is_slower || self.count == 0 {
            self.is_enough = false;
            if is_slower && self.good / 4 < queue {
                self.try_more(max);
            } else {
                self.try_less(max);
            }
        }
    }

    /// Tries a lead of half of the good one, unless that is no more than is due to time alone.
    fn try_less(&mut self, max: u64) {
        let queue = queue(self.rate, max);
        let less = (self.good / 2).max(queue);
        if less < self.good - self.good / 8 {
            (self.bytes, self.stage, self.seen, self.count) = (less, Stage::Less, 0, 0);
        } else if queue < QUEUE_MAX {
            self.settle(true);
        } else {
            self.try_more(max);
        }
    }

    /// Tries a lead of several times the good one, unless the disk was as fast with less.
    fn try_more(&mut self, max: u64) {
        if self.is_enough {
            return self.settle(true);
        }
        self.try_times(if self.good < QUEUE_MAX { 4 } else { 2 }, max);
    }

    /// Tries a lead of so many times the good one.
    fn try_times(&mut self, times: u64, max: u64) {
        let more = self.good.saturating_mul(times).min(self.most(QUEUED_NS)).min(max);
        if more <= self.good {
            return self.settle(true);
        }
        (self.bytes, self.stage, self.seen, self.count) = (more, Stage::More, 0, 0);
    }

    /// Rests with the lead as it is: longer each time, if nothing was gained by trying.
    fn settle(&mut self, in_vain: bool) {
        self.rest = if in_vain { (self.rest * 2).clamp(REST, REST_MAX) } else { REST };
        (self.stage, self.seen, self.count) = (Stage::Rest, 0, self.rest);
    }
}

/// Bytes that a disk of that rate writes in [`LEAD_NS`], within bounds.
fn queue(rate: u64, max: u64) -> u64 {
    written_in(LEAD_NS, rate).clamp(LEAD_MIN, QUEUE_MAX).min(max)
}

/// Bytes in flight that say something of a lead: of steps that are half of it, as many as there is room for may be no more.
const fn most_of(lead: u64) -> u64 {
    lead / 8 * 5
}

/// Bytes that a disk of that rate writes in so many nanoseconds.
fn written_in(ns: u64, rate: u64) -> u64 {
    (rate / 1000).saturating_mul(ns / 1_000_000)
}

/// Writeback of one file that is being timed.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    timed: [Mark; 2],
    /// Where the next writeback begins, if the file is written on; and how often the writer had waited as the last one was begun.
    next: u64,
    waits: u64,
}

/// One of them; an end of 0: none.
#[derive(Debug, Clone, Copy)]
struct Mark {
    end: u64,
    lead: u64,
    in_flight: u64,
    begun_at: u64,
    waits: u64,
    is_exact: bool,
}

impl Marks {
    /// None: all zero.
    pub const NONE: Self = Self {
        timed: [Mark { end: 0, lead: 0, in_flight: 0, begun_at: 0, waits: 0, is_exact: false }; 2],
        next: 0,
        waits: 0,
    };

    /// Writeback of a range was begun, under that lead, as `in_flight` bytes were, its own among them, and the file's writer had waited
    /// so many times: times it, if that is worth it now. What was begun elsewhere in the file before is given up.
    pub fn begun(&mut self, range: &Range<u64>, lead: u64, in_flight: u64, now: u64, waits: u64) {
        if range.start != self.next {
            *self = Self::NONE;
        }
        self.next = range.end;
        let is_exact = core::mem::replace(&mut self.waits, waits) != waits;
        let is_first = lead == LEAD_FIRST && self.timed.iter().all(|mark| mark.end == 0);
        let is_worth = in_flight >= most_of(lead) || is_first;
        if let (true, Some(free)) = (is_worth, self.timed.iter_mut().find(|mark| mark.end == 0)) {
            *free = Mark { end: range.end, lead, in_flight, begun_at: now, waits, is_exact };
        }
    }

    /// How far to wait in one go of what is to be waited for: what is timed is waited for by itself.
    pub fn first_end(&self, range: &Range<u64>) -> u64 {
        let ends = self.timed.iter().map(|mark| mark.end);
        ends.filter(|&end| range.start < end && end < range.end).min().unwrap_or(range.end)
    }

    /// All up to `end` is written at `now`; its writer has waited so many times.
    pub fn written(&mut self, end: u64, now: u64, waits: u64) -> impl Iterator<Item = Timed> {
        let mut timed = [None; 2];
        let done = self.timed.iter_mut().filter(|mark| 0 < mark.end && mark.end <= end);
        for (timed, mark) in timed.iter_mut().zip(done) {
            let took = now.saturating_sub(mark.begun_at);
            let waited = waits > mark.waits;
            let (lead, in_flight, is_exact) = (mark.lead, mark.in_flight, mark.is_exact);
            *timed = Some(Timed { lead, in_flight, took, waited, is_exact });
            mark.end = 0;
        }
        timed.into_iter().flatten()
    }
}

#[cfg(all(test, feature = "std"))]
mod tests;

//! Parts of a file's output that are in flight to its disk, judged by the counts of their unwritten
//! pages.
//!
//! Invariants: a part is restarted at most `RESTARTS_MAX` times, since its pages may be written
//! again all the time. One that does not end within [`WAIT_MAX_NS`] is given up, which is no
//! progress.

use core::ops::Range;

use crate::output::pacer::WrittenPart;

/// Nanoseconds after which writeback that does not end is left to the kernel.
pub const WAIT_MAX_NS: u64 = 30_000_000_000;
/// Maximum number of parts in flight at a time.
pub const PARTS_MAX: usize = 4;
/// Maximum number of restarts of writeback that is waited for.
const RESTARTS_MAX: u32 = 3;
/// Minimum and maximum nanoseconds between two polls of writeback.
pub const POLL_MIN_NS: u64 = 50_000;
/// See [`POLL_MIN_NS`].
pub const POLL_MAX_NS: u64 = 1_000_000;
/// Nanoseconds between two polls of a disk that another writer of this process writes to.
const TURN_POLL_NS: u64 = 200_000;
/// The longest time between two polls, in a pause and before a part can be written, in nanoseconds.
const PAUSE_POLL_NS: u64 = 5_000_000;
/// Nanoseconds without a call after which a writer counts as away.
const AWAY_MAX_NS: u64 = 2_000_000;

/// A part in flight.
#[derive(Debug, Clone, Copy)]
pub struct WritePart {
    start: u64,
    end: u64,
    /// Bytes that were dirty, and bytes in flight when it was started, including its own.
    bytes: u64,
    in_flight: u64,
    begun_at: u64,
    /// The time when it was last seen unfinished.
    seen_at: u64,
    /// The number of restarts.
    again: u32,
}

/// The state of a part, as the counts of its pages show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartState {
    /// It is in flight.
    InFlight,
    /// It is to be started again. Writeback skips pages that were busy when it started, and pages
    /// may be rewritten all the time.
    Again,
    /// It is written.
    Written(WrittenPart),
    /// It is left to the kernel.
    GivenUp(WrittenPart),
}

impl WritePart {
    /// Begins a part with `bytes` unwritten bytes. `in_flight` is the sum in flight, including
    /// them.
    pub const fn begin(range: &Range<u64>, bytes: u64, in_flight: u64, now: u64) -> Self {
        Self { start: range.start, end: range.end, bytes, in_flight, begun_at: now, seen_at: now, again: 0 }
    }

    /// Records how many of its pages are dirty and under writeback.
    pub fn seen(&mut self, dirty: u64, writeback: u64, now: u64) -> PartState {
        let took = |at: u64| at.saturating_sub(self.begun_at);
        let (took_min, took_max) = (took(self.seen_at), took(now));
        let part =
            WrittenPart { bytes: self.bytes, in_flight: self.in_flight, took_min, took_max, busy: None };
        if writeback == 0 && (dirty == 0 || self.again >= RESTARTS_MAX) {
            return PartState::Written(part);
        }
        if took_max > WAIT_MAX_NS {
            return PartState::GivenUp(part);
        }
        self.seen_at = now;
        if writeback > 0 {
            return PartState::InFlight;
        }
        self.again += 1;
        PartState::Again
    }
}

/// The parts of one file.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteParts {
    parts: [Option<WritePart>; PARTS_MAX],
    /// The time when the last part was seen to be written, if its writer has had more to write ever
    /// since.
    done_at: Option<u64>,
    /// The time of the writer's last call.
    called_at: u64,
}

impl WriteParts {
    /// Returns the state without parts.
    pub const fn new() -> Self {
        Self { parts: [None; PARTS_MAX], done_at: None, called_at: 0 }
    }

    /// Begins a call of the writer, which may have been away.
    pub fn call_begins(&mut self, now: u64) {
        if now.saturating_sub(self.called_at) > AWAY_MAX_NS {
            self.done_at = None;
        }
    }

    /// Ends a call, or a wait for the disk, which does not count as time away.
    pub fn call_ends(&mut self, now: u64) {
        self.called_at = now;
    }

    /// Returns the range of the part in that place.
    pub fn range(&self, place: usize) -> Option<Range<u64>> {
        let part = self.parts.get(place)?.as_ref()?;
        Some(part.start..part.end)
    }

    /// Records the counts of the part in that place, which is free once the part has ended.
    pub fn seen(&mut self, place: usize, dirty: u64, writeback: u64, now: u64) -> PartState {
        let Some(place) = self.parts.get_mut(place) else { return PartState::InFlight };
        let Some(part) = place else { return PartState::InFlight };
        let mut state = part.seen(dirty, writeback, now);
        if let PartState::Written(written) | PartState::GivenUp(written) = &mut state {
            written.busy = self.done_at.map(|done_at| now.saturating_sub(done_at));
            self.done_at = Some(now);
            *place = None;
        }
        state
    }

    /// Whether one more part may be begun.
    pub fn has_room(&self) -> bool {
        self.parts.iter().any(Option::is_none)
    }

    /// Begins a part, if there is room.
    pub fn begin(&mut self, range: &Range<u64>, bytes: u64, now: u64) {
        let in_flight = self.in_flight().saturating_add(bytes);
        if let Some(place) = self.parts.iter_mut().find(|part| part.is_none()) {
            *place = Some(WritePart::begin(range, bytes, in_flight, now));
        }
    }

    /// Whether a part of the range is in flight.
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.parts.iter().flatten().any(|part| part.start < range.end && range.start < part.end)
    }

    /// Whether no part is in flight.
    pub fn is_idle(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    /// Returns the bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.parts.iter().flatten().map(|part| part.bytes).sum()
    }

    /// Returns the nanoseconds until something may have changed, where a part is expected to take
    /// `price` and none may be begun for `pause`.
    pub fn next_poll(&self, price: u64, pause: u64, now: u64) -> u64 {
        let Some(begun_at) = self.parts.iter().flatten().map(|part| part.begun_at).min() else {
            return pause.clamp(TURN_POLL_NS, PAUSE_POLL_NS);
        };
        let often = (price / 16).clamp(POLL_MIN_NS, POLL_MAX_NS);
        begun_at.saturating_add(price / 8 * 7).saturating_sub(now).clamp(often, PAUSE_POLL_NS)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_written_or_given_up_after_a_few_restarts() {
        let mut parts = WriteParts::new();
        parts.begin(&(0..100), 100, 1000);
        parts.begin(&(100..150), 50, 1000);
        assert_eq!((parts.in_flight(), parts.range(1), parts.has_room()), (150, Some(100..150), true));
        assert!(parts.has(&(149..200)) && !parts.has(&(150..200)));
        assert_eq!(parts.seen(0, 0, 3, 1010), PartState::InFlight);
        for _ in 0..RESTARTS_MAX {
            assert_eq!(parts.seen(0, 3, 0, 1010), PartState::Again);
        }
        let written = WrittenPart { bytes: 100, in_flight: 100, took_min: 10, took_max: 20, busy: None };
        assert_eq!(
            parts.seen(0, 3, 0, 1020),
            PartState::Written(written),
            "it is written again all the time"
        );
        let late = 1000 + WAIT_MAX_NS + 1;
        let PartState::GivenUp(part) = parts.seen(1, 0, 1, late) else { panic!("it hangs") };
        assert_eq!((part.in_flight, part.busy), (150, Some(late - 1020)));
        assert!(parts.is_idle());
    }

    #[test]
    fn a_writer_that_was_away_was_not_busy() {
        let mut parts = WriteParts::new();
        let mut busy_after = |away: u64, now: u64| {
            parts.call_ends(now);
            parts.begin(&(0..1), 1, now);
            parts.call_begins(now + away);
            match parts.seen(0, 0, 0, now + away) {
                PartState::Written(part) => part.busy,
                state => panic!("{state:?}"),
            }
        };
        assert_eq!(busy_after(1, 1_000_000_000), None, "it is the first");
        assert_eq!(busy_after(1, 1_000_000_001), Some(1));
        assert_eq!(busy_after(AWAY_MAX_NS + 1, 1_000_000_002), None);
    }

    #[test]
    fn polls_are_frequent_where_a_part_is_about_to_end() {
        let mut parts = WriteParts::new();
        assert_eq!(parts.next_poll(0, 0, 0), TURN_POLL_NS);
        parts.begin(&(0..1), 1, 0);
        assert_eq!(parts.next_poll(8_000_000, 0, 6_000_000), 1_000_000);
        assert_eq!(parts.next_poll(8_000_000, 0, 7_500_000), 500_000);
        assert_eq!(parts.next_poll(u64::MAX, 0, 0), PAUSE_POLL_NS);
    }
}

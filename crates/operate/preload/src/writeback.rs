//! Writeback of output: started piece by piece, and polled, which takes no write error from the program.
//!
//! An [`Outflow`] has the ranges of one file that are to be written, and the parts of them in flight. It makes progress whenever its writer
//! calls, or while the writer waits. Its [`Pacer`](pagekeeper_policy::pacer::Pacer) decides how much may be in flight to the disk, and
//! when.
//!
//! Invariants: no wait is longer than [`WAIT_MAX`] without a part that was written; one that was given up is none. At most the pacer's piece is in flight, or one larger folio.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use pagekeeper_policy::pacer::WrittenPart;

use crate::counters::Count;
use crate::disks::Share;
use crate::process::count;
use crate::sys;

/// Nanoseconds after which writeback that does not end is left to the kernel.
pub(crate) const WAIT_MAX: u64 = 30_000_000_000;
/// The most restarts of writeback that is waited for.
const AGAIN_MAX: u32 = 3;
/// Nanoseconds between two polls of writeback: at least and at most.
const POLL: u64 = 50_000;
const POLL_MAX: u64 = 1_000_000;
/// Nanoseconds between two polls of a disk that another writer of this process writes to.
const TURN_POLL: u64 = 200_000;
/// The longest time between two polls, in a pause and before a part can be written, in nanoseconds.
const PAUSE_POLL: u64 = 5_000_000;
/// Nanoseconds without a call after which a writer counts as away.
const AWAY_MAX: u64 = 2_000_000;
/// Ranges to be started, and parts in flight, at a time.
const PENDING: usize = 4;
const PARTS: usize = 4;
/// Steps without dirty pages that are skipped in one go.
const CLEAN_STEPS: usize = 64;

/// Whether the unwritten pages of a file can be counted, on a file system with counts: kernels before 6.5 and some sandboxes have no
/// cachestat(2).
pub(crate) fn can_count(fd: c_int) -> bool {
    static IS_THERE: AtomicBool = AtomicBool::new(false);
    IS_THERE.load(Ordering::Relaxed) || {
        let is_there = sys::cachestat(fd, 0..1).is_ok();
        if is_there {
            IS_THERE.store(true, Ordering::Relaxed);
        }
        is_there
    }
}

/// Waits, counted from `start`, until the range is written, or `is_lost` says that nobody needs it. Returns whether it is written; `None`
/// without cachestat(2).
pub(crate) fn wait_by_polling(
    fd: c_int,
    range: &Range<u64>,
    start: u64,
    is_lost: &dyn Fn() -> bool,
) -> Option<bool> {
    let (mut pause, mut begun) = (POLL, 0);
    loop {
        let seen = sys::cachestat(fd, range.clone()).ok()?;
        if seen.dirty == 0 && seen.writeback == 0 {
            return Some(true);
        }
        if is_lost() {
            return Some(false);
        }
        if sys::now().saturating_sub(start) > WAIT_MAX {
            count(Count::Failures, 1);
            return Some(false);
        }
        if seen.writeback == 0 {
            // Writeback skips pages that are busy when it starts; or the pages are written anew all the time.
            begun += 1;
            let again = || sys::begin_writeback(fd, range);
            if begun > AGAIN_MAX || again().is_err() {
                return Some(false);
            }
        }
        sys::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// Writes the range in pieces at the pace of `share`'s disk, and waits for that. Returns whether it is written; `None` without
/// cachestat(2).
pub(crate) fn write_in_pieces(
    fd: c_int,
    range: &Range<u64>,
    share: &Share,
    is_lost: &dyn Fn() -> bool,
) -> Option<bool> {
    sys::cachestat(fd, range.start..range.start.saturating_add(1)).ok()?;
    let mut rest = range.clone();
    if rest.end == u64::MAX {
        rest.end = sys::size(fd);
    }
    let mut outflow = Outflow::NONE;
    outflow.set_step(share.pace(u64::MAX, 0, true).step);
    outflow.add(fd, &rest);
    Some(outflow.wait(fd, &rest, share, is_lost))
}

/// A part of a piece that is in flight.
#[derive(Clone, Copy)]
struct Part {
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

/// Output of one file on its way to its disk.
pub(crate) struct Outflow {
    /// Ranges to be started, in order. An empty range is a free place.
    pending: [(u64, u64); PENDING],
    parts: [Option<Part>; PARTS],
    step: u64,
    /// The time when the last part was seen to be written, if its writer has had more to write ever since.
    done_at: Option<u64>,
    /// The time of the last progress call.
    called_at: u64,
}

impl Outflow {
    /// Nothing to write.
    pub(crate) const NONE: Self =
        Self { pending: [(0, 0); PENDING], parts: [None; PARTS], step: 0, done_at: None, called_at: 0 };

    /// Sets the bytes of a step in which parts are started.
    pub(crate) fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Adds a range to be written.
    pub(crate) fn add(&mut self, fd: c_int, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let is_left = |pending: &(u64, u64)| pending.0 < pending.1;
        if let Some(last) =
            self.pending.iter_mut().find(|pending| is_left(pending) && pending.1 == range.start)
        {
            last.1 = range.end;
            return;
        }
        if self.pending.iter().all(is_left) {
            // A writer that jumps around: its oldest range is started at once.
            let (start, end) = self.pending[0];
            if sys::begin_writeback(fd, &(start..end)).is_err() {
                count(Count::Failures, 1);
            }
            self.pending[0] = (0, 0);
        }
        // The remaining ranges, in order.
        let mut kept = [(0, 0); PENDING];
        let left = self.pending.into_iter().filter(is_left).chain([(range.start, range.end)]);
        for (place, pending) in kept.iter_mut().zip(left) {
            *place = pending;
        }
        self.pending = kept;
    }

    /// Forgets all ranges: this does not write them any more.
    pub(crate) fn clear(&mut self) {
        *self = Self { step: self.step, ..Self::NONE };
    }

    /// Cuts the ranges at the file's new end.
    pub(crate) fn truncated(&mut self, size: u64) {
        for (start, end) in &mut self.pending {
            *end = (*end).min(size.max(*start));
        }
    }

    /// Whether a part of the range is still to be written, or in flight.
    fn has(&self, range: &Range<u64>) -> bool {
        let overlaps = |start: u64, end: u64| start < end && start < range.end && range.start < end;
        self.pending.iter().any(|&(start, end)| overlaps(start, end))
            || self.parts.iter().flatten().any(|part| overlaps(part.start, part.end))
    }

    fn is_idle(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    fn in_flight(&self) -> u64 {
        self.parts.iter().flatten().map(|part| part.bytes).sum()
    }

    /// Checks which parts are written, and starts those that may be. Never waits. Returns whether a part was written.
    pub(crate) fn go_on(&mut self, fd: c_int, share: &Share) -> bool {
        let now = sys::now();
        if now.saturating_sub(self.called_at) > AWAY_MAX {
            self.done_at = None;
        }
        let mut parts = core::mem::replace(&mut self.parts, [None; PARTS]);
        let mut done = [None; PARTS];
        for (part, done) in parts.iter_mut().zip(&mut done) {
            *done = part.as_mut().and_then(|part| part.poll(fd, now));
            if done.is_some() {
                *part = None;
            }
        }
        self.parts = parts;
        let mut has_moved = false;
        for (mut written, is_given_up) in done.into_iter().flatten() {
            has_moved |= !is_given_up;
            written.busy = self.done_at.map(|done_at| now.saturating_sub(done_at));
            share.written(written, self.is_idle(), now);
            self.done_at = Some(now);
        }
        for _ in 0..CLEAN_STEPS {
            if !self.begin(fd, share) {
                break;
            }
        }
        self.called_at = sys::now();
        has_moved
    }

    /// Starts the next part. `false`: there is none, or it may not be started now.
    fn begin(&mut self, fd: c_int, share: &Share) -> bool {
        let in_flight = self.in_flight();
        let Some(place) = self.parts.iter_mut().find(|part| part.is_none()) else { return false };
        let Some((from, end)) =
            self.pending.iter_mut().find(|pending| pending.0 < pending.1).map(|(from, end)| (from, *end))
        else {
            return false;
        };
        let (start, step) = (*from, self.step.max(1));
        let range = start..(start - start % step).saturating_add(step).min(end);
        let Ok(seen) = sys::cachestat(fd, range.clone()) else {
            *from = end;
            return false;
        };
        let bytes = (seen.dirty + seen.writeback).saturating_mul(sys::page_size());
        if bytes > 0 {
            let now = sys::now();
            let in_flight = in_flight.saturating_add(bytes);
            if !share.may_begin(in_flight, bytes, now) {
                return false;
            }
            if sys::begin_writeback(fd, &range).is_err() {
                count(Count::Failures, 1);
                *from = end;
                return false;
            }
            let (start, end) = (range.start, range.end);
            *place = Some(Part { start, end, bytes, in_flight, begun_at: now, seen_at: now, again: 0 });
        }
        *from = range.end;
        true
    }

    /// Makes progress until no part of the range is to be written or in flight, or `is_late` ends the wait. Returns whether the range is
    /// written.
    pub(crate) fn wait(
        &mut self,
        fd: c_int,
        range: &Range<u64>,
        share: &Share,
        is_late: &dyn Fn() -> bool,
    ) -> bool {
        let mut moved_at = sys::now();
        loop {
            let has_moved = self.go_on(fd, share);
            if !self.has(range) {
                return true;
            }
            let now = sys::now();
            if has_moved {
                moved_at = now;
            }
            if is_late() || now.saturating_sub(moved_at) > WAIT_MAX {
                return false;
            }
            sys::sleep(self.next_poll(share, now));
            // A wait for the disk does not count as time away.
            self.called_at = sys::now();
        }
    }

    /// Returns the nanoseconds until something may have changed.
    fn next_poll(&self, share: &Share, now: u64) -> u64 {
        let Some(begun_at) = self.parts.iter().flatten().map(|part| part.begun_at).min() else {
            return share.pause(now).clamp(TURN_POLL, PAUSE_POLL);
        };
        let price = share.price();
        let often = (price / 16).clamp(POLL, POLL_MAX);
        begun_at.saturating_add(price / 8 * 7).saturating_sub(now).clamp(often, PAUSE_POLL)
    }
}

impl Part {
    /// Returns the result of the part if it is written or given up, and whether it is given up.
    fn poll(&mut self, fd: c_int, now: u64) -> Option<(WrittenPart, bool)> {
        let range = self.start..self.end;
        let seen = sys::cachestat(fd, range.clone()).unwrap_or_default();
        let is_unwritten = seen.writeback > 0 || (seen.dirty > 0 && self.again < AGAIN_MAX);
        let is_given_up = is_unwritten && now.saturating_sub(self.begun_at) > WAIT_MAX;
        if is_given_up {
            count(Count::Failures, 1);
        } else if is_unwritten {
            if seen.writeback == 0 {
                // Writeback skips pages that were busy when it started; or the pages are written anew all the time.
                self.again += 1;
                let _ = sys::begin_writeback(fd, &range);
            }
            self.seen_at = now;
            return None;
        }
        let took = |at: u64| at.saturating_sub(self.begun_at);
        let (took_min, took_max) = (took(self.seen_at), took(now));
        let part =
            WrittenPart { bytes: self.bytes, in_flight: self.in_flight, took_min, took_max, busy: None };
        Some((part, is_given_up))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// An outflow with one part in flight, of a file of 64 KiB, that began this long ago.
    fn outflow(ago: u64) -> Outflow {
        let begun_at = sys::now().saturating_sub(ago);
        let (bytes, in_flight) = (64 << 10, 64 << 10);
        let part = Part { start: 0, end: 64 << 10, bytes, in_flight, begun_at, seen_at: begun_at, again: 0 };
        let mut outflow = Outflow::NONE;
        outflow.parts[0] = Some(part);
        outflow
    }

    #[test]
    fn a_part_that_is_given_up_is_no_progress() {
        let mut file = tempfile::tempfile_in(pagekeeper_testing::disk_dir().path()).unwrap();
        let fd = file.as_raw_fd();
        if !can_count(fd) {
            return pagekeeper_testing::skip("this kernel has no cachestat(2).");
        }
        file.write_all(&vec![1; 64 << 10]).unwrap();
        if sys::cachestat(fd, 0..64 << 10).unwrap().dirty == 0 {
            return pagekeeper_testing::skip("this file system counts no dirty pages.");
        }
        let mut hung = outflow(WAIT_MAX + 1_000_000_000);
        assert!(!hung.go_on(fd, &Share::NONE));
        assert!(hung.is_idle(), "it is given up");
        file.sync_all().unwrap();
        // However late it is, it is written.
        let mut late = outflow(WAIT_MAX + 1_000_000_000);
        assert!(late.go_on(fd, &Share::NONE));
        assert!(late.is_idle());
    }
}

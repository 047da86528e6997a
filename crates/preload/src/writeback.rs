//! Writeback of output: begun piece by piece, and waited for by polling, which takes no write error from the program.
//!
//! An [`Outflow`] has what is to be written of one file, and what of it is on its way. It goes on whenever its writer calls, or while the
//! writer waits; how much may be on its way to the disk, and when, is its [`Pacer`](pagekeeper_policy::pacer::Pacer)'s to say.
//!
//! Invariants: no wait is longer than [`WAIT_MAX`]; what is on its way is bounded by the pacer's piece, but for a folio that is larger.

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
/// Times that writeback of what is waited for is begun again.
const AGAIN_MAX: u32 = 3;
/// Nanoseconds between two polls of writeback: at least, and at most.
const POLL: u64 = 50_000;
const POLL_MAX: u64 = 1_000_000;
/// Nanoseconds between two polls of a disk that another writer of this process writes to.
const TURN_POLL: u64 = 200_000;
/// The same at most, in a pause and before a part can be written.
const PAUSE_POLL: u64 = 5_000_000;
/// Nanoseconds without a call after which a writer had something else to do.
const AWAY_MAX: u64 = 2_000_000;
/// Ranges that are to be begun, and parts on their way, at a time.
const PENDING: usize = 4;
const PARTS: usize = 4;
/// Steps that are passed over in one go since nothing of them is dirty.
const CLEAN_STEPS: usize = 64;

/// Whether what is unwritten of a file can be counted, on a file system that counts: kernels before 6.5 and some sandboxes have no
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

/// Waits, from `start` on, until the range is written, or `is_lost` says that nobody needs it: whether it is. `None`: cachestat(2) can't
/// be had.
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
            // Pages that were busy when writeback was begun are left out by it; or they are written anew all the time.
            begun += 1;
            let again = || sys::sync_file_range(fd, range.clone(), libc::SYNC_FILE_RANGE_WRITE);
            if begun > AGAIN_MAX || again().is_err() {
                return Some(false);
            }
        }
        sys::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// Has the range be written in pieces, as the disk of `share` takes them, and waits for it: whether it is written. `None`: cachestat(2)
/// can't be had.
pub(crate) fn write_in_pieces(
    fd: c_int,
    range: &Range<u64>,
    share: &Share,
    is_lost: &dyn Fn() -> bool,
) -> Option<bool> {
    sys::cachestat(fd, range.start..range.start.saturating_add(1)).ok()?;
    let mut rest = range.clone();
    if rest.end == u64::MAX {
        rest.end = sys::fstat(fd).map_or(0, |stat| stat.st_size.max(0) as u64);
    }
    let mut outflow = Outflow::NONE;
    outflow.set_step(share.pace(u64::MAX, 0, true).step);
    outflow.add(fd, &rest);
    Some(outflow.wait(fd, &rest, share, is_lost))
}

/// A part of a piece that is on its way.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    /// Bytes that were dirty, and bytes on their way as it was begun, its own among them.
    bytes: u64,
    in_flight: u64,
    begun_at: u64,
    /// When it was last seen to be unfinished.
    seen_at: u64,
    /// Times that it was begun again.
    again: u32,
}

/// Output of one file on its way to its disk.
pub(crate) struct Outflow {
    /// To be begun, in order. An empty range: none.
    pending: [(u64, u64); PENDING],
    parts: [Option<Part>; PARTS],
    step: u64,
    /// When the last part was seen to be written, if its writer has had more to write ever since.
    done_at: Option<u64>,
    /// When it went on last.
    called_at: u64,
}

impl Outflow {
    /// Nothing.
    pub(crate) const NONE: Self =
        Self { pending: [(0, 0); PENDING], parts: [None; PARTS], step: 0, done_at: None, called_at: 0 };

    /// Parts are begun in steps of so many bytes.
    pub(crate) fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// The range is to be written, too.
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
            // A writer that goes here and there: its oldest range is begun at once.
            let (start, end) = self.pending[0];
            if sys::sync_file_range(fd, start..end, libc::SYNC_FILE_RANGE_WRITE).is_err() {
                count(Count::Failures, 1);
            }
            self.pending[0] = (0, 0);
        }
        // Those that are left, in order.
        let mut kept = [(0, 0); PENDING];
        let left = self.pending.into_iter().filter(is_left).chain([(range.start, range.end)]);
        for (place, pending) in kept.iter_mut().zip(left) {
            *place = pending;
        }
        self.pending = kept;
    }

    /// Nothing of it is to be written any more by this.
    pub(crate) fn clear(&mut self) {
        *self = Self { step: self.step, ..Self::NONE };
    }

    /// The file ends there.
    pub(crate) fn truncated(&mut self, size: u64) {
        for (start, end) in &mut self.pending {
            *end = (*end).min(size.max(*start));
        }
    }

    /// Whether something of the range is to be written, or on its way.
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

    /// Sees what is written, and begins what may be. Never waits.
    pub(crate) fn go_on(&mut self, fd: c_int, share: &Share) {
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
        for mut written in done.into_iter().flatten() {
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
    }

    /// Begins the next part. `false`: there is none, or it may not be begun now.
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
            if sys::sync_file_range(fd, range.clone(), libc::SYNC_FILE_RANGE_WRITE).is_err() {
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

    /// Goes on until nothing of the range is to be written or on its way, or `is_late` says that it is too late: whether it is written.
    pub(crate) fn wait(
        &mut self,
        fd: c_int,
        range: &Range<u64>,
        share: &Share,
        is_late: &dyn Fn() -> bool,
    ) -> bool {
        let mut moved_at = sys::now();
        loop {
            let before = self.done_at;
            self.go_on(fd, share);
            if !self.has(range) {
                return true;
            }
            let now = sys::now();
            if self.done_at != before {
                moved_at = now;
            }
            if is_late() || now.saturating_sub(moved_at) > WAIT_MAX {
                return false;
            }
            sys::sleep(self.next_poll(share, now));
            // A wait for the disk is no time away from it.
            self.called_at = sys::now();
        }
    }

    /// Nanoseconds until something may have changed.
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
    /// What is known of it if it is written, or given up.
    fn poll(&mut self, fd: c_int, now: u64) -> Option<WrittenPart> {
        let range = self.start..self.end;
        let seen = sys::cachestat(fd, range.clone()).unwrap_or_default();
        let is_late = now.saturating_sub(self.begun_at) > WAIT_MAX;
        if is_late {
            count(Count::Failures, 1);
        } else if seen.writeback > 0 || (seen.dirty > 0 && self.again < AGAIN_MAX) {
            if seen.writeback == 0 {
                // Pages that were busy as it was begun are left out; or they are written anew all the time.
                self.again += 1;
                let _ = sys::sync_file_range(fd, range, libc::SYNC_FILE_RANGE_WRITE);
            }
            self.seen_at = now;
            return None;
        }
        let took = |at: u64| at.saturating_sub(self.begun_at);
        let (took_min, took_max) = (took(self.seen_at), took(now));
        Some(WrittenPart { bytes: self.bytes, in_flight: self.in_flight, took_min, took_max, busy: None })
    }
}

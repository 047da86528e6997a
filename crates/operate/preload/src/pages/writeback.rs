//! Writeback of output: started piece by piece, and polled, which takes no write error from the
//! program.
//!
//! An [`Outflow`] has the ranges of one file that are to be written, and the parts of them in
//! flight. It makes progress whenever its writer calls, or while the writer waits. Its
//! [`Pacer`](pagekeeper_policy::pacer::Pacer) decides how much may be in flight to the disk, and
//! when.
//!
//! Invariants: no wait is longer than [`WAIT_MAX_NS`] without a part that was written; one that was
//! given up is none. At most the pacer's piece is in flight, or one larger folio.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use pagekeeper_policy::write_parts::{
    PARTS_MAX, POLL_MAX_NS, POLL_MIN_NS, PartState, WAIT_MAX_NS, WritePart, WriteParts,
};
use pagekeeper_policy::write_queue::WriteQueue;

use crate::counters::Count;
use crate::pages::disks::DiskShare;
use crate::process::count;
use crate::sys;

/// Steps without dirty pages that are skipped in one go.
const CLEAN_STEPS: usize = 64;

/// Whether the unwritten pages of a file can be counted, on a file system with counts: kernels
/// before 6.5 and some sandboxes have no cachestat(2).
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

/// Waits until the range, whose writeback was started, is written or given up, or its counts cannot
/// be seen.
pub(crate) fn wait_by_polling(fd: c_int, range: &Range<u64>) {
    let mut part = WritePart::begin(range, 0, 0, sys::now());
    let mut pause = POLL_MIN_NS;
    while let Ok(seen) = sys::cachestat(fd, range.clone()) {
        match part.seen(seen.dirty, seen.writeback, sys::now()) {
            PartState::InFlight => {}
            PartState::Again if sys::begin_writeback(fd, range).is_ok() => {}
            PartState::Again | PartState::Written(_) => return,
            PartState::GivenUp(_) => return count(Count::Failures, 1),
        }
        sys::sleep(pause);
        pause = (pause * 2).min(POLL_MAX_NS);
    }
}

/// Writes the range in pieces at the pace of `share`'s disk, and waits for that. Returns whether it
/// is written; `None` without cachestat(2).
pub(crate) fn write_in_pieces(
    fd: c_int,
    range: &Range<u64>,
    share: &DiskShare,
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

/// Output of one file on its way to its disk.
pub(crate) struct Outflow {
    queue: WriteQueue,
    parts: WriteParts,
    step: u64,
}

impl Outflow {
    /// Nothing to write.
    pub(crate) const NONE: Self = Self { queue: WriteQueue::new(), parts: WriteParts::new(), step: 0 };

    /// Sets the bytes of a step in which parts are started.
    pub(crate) fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Adds a range to be written.
    pub(crate) fn add(&mut self, fd: c_int, range: &Range<u64>) {
        // A writer that jumps around: its oldest range is started at once.
        if let Some(displaced) = self.queue.add(range)
            && sys::begin_writeback(fd, &displaced).is_err()
        {
            count(Count::Failures, 1);
        }
    }

    /// Forgets all ranges: this does not write them any more.
    pub(crate) fn clear(&mut self) {
        *self = Self { step: self.step, ..Self::NONE };
    }

    /// Cuts the ranges at the file's new end.
    pub(crate) fn truncated(&mut self, size: u64) {
        self.queue.truncated(size);
    }

    /// Checks which parts are written, and starts those that may be. Never waits. Returns whether a
    /// part was written.
    pub(crate) fn go_on(&mut self, fd: c_int, share: &DiskShare) -> bool {
        let now = sys::now();
        self.parts.call_begins(now);
        let mut has_moved = false;
        for place in 0..PARTS_MAX {
            let Some(range) = self.parts.range(place) else { continue };
            let seen = sys::cachestat(fd, range.clone()).unwrap_or_default();
            let written = match self.parts.seen(place, seen.dirty, seen.writeback, now) {
                PartState::InFlight => continue,
                PartState::Again => {
                    let _ = sys::begin_writeback(fd, &range);
                    continue;
                }
                PartState::Written(part) => {
                    has_moved = true;
                    part
                }
                PartState::GivenUp(part) => {
                    count(Count::Failures, 1);
                    part
                }
            };
            share.written(written, self.parts.is_idle(), now);
        }
        for _ in 0..CLEAN_STEPS {
            if !self.begin(fd, share) {
                break;
            }
        }
        self.parts.call_ends(sys::now());
        has_moved
    }

    /// Starts the next part. `false`: there is none, or it may not be started now.
    fn begin(&mut self, fd: c_int, share: &DiskShare) -> bool {
        if !self.parts.has_room() {
            return false;
        }
        let Some(range) = self.queue.next_step(self.step) else { return false };
        let Ok(seen) = sys::cachestat(fd, range.clone()) else {
            self.queue.started(None);
            return false;
        };
        let bytes = (seen.dirty + seen.writeback).saturating_mul(sys::page_size());
        if bytes > 0 {
            let now = sys::now();
            if !share.may_begin(self.parts.in_flight().saturating_add(bytes), bytes, now) {
                return false;
            }
            if sys::begin_writeback(fd, &range).is_err() {
                count(Count::Failures, 1);
                self.queue.started(None);
                return false;
            }
            self.parts.begin(&range, bytes, now);
        }
        self.queue.started(Some(range.end));
        true
    }

    /// Makes progress until no part of the range is to be written or in flight, or `is_late` ends
    /// the wait. Returns whether the range is written.
    pub(crate) fn wait(
        &mut self,
        fd: c_int,
        range: &Range<u64>,
        share: &DiskShare,
        is_late: &dyn Fn() -> bool,
    ) -> bool {
        let mut moved_at = sys::now();
        loop {
            let has_moved = self.go_on(fd, share);
            if !self.queue.has(range) && !self.parts.has(range) {
                return true;
            }
            let now = sys::now();
            if has_moved {
                moved_at = now;
            }
            if is_late() || now.saturating_sub(moved_at) > WAIT_MAX_NS {
                return false;
            }
            sys::sleep(self.parts.next_poll(share.price(), share.pause(now), now));
            self.parts.call_ends(sys::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// Returns an outflow with one part in flight, of a file of 64 KiB, that began this long ago.
    fn outflow(ago: u64) -> Outflow {
        let mut outflow = Outflow::NONE;
        outflow.parts.begin(&(0..64 << 10), 64 << 10, sys::now().saturating_sub(ago));
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
        let mut hung = outflow(WAIT_MAX_NS + 1_000_000_000);
        assert!(!hung.go_on(fd, &DiskShare::NONE));
        assert!(hung.parts.is_idle(), "it is given up");
        file.sync_all().unwrap();
        // However late it is, it is written.
        let mut late = outflow(WAIT_MAX_NS + 1_000_000_000);
        assert!(late.go_on(fd, &DiskShare::NONE));
        assert!(late.parts.is_idle());
    }
}

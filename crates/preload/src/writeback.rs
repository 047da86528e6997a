//! Waits for writeback by polling, which takes no write error from the program.

use core::ops::Range;

use libc::c_int;

use crate::counters::Count;
use crate::process::count;
use crate::sys;

/// Nanoseconds after which writeback that does not end is left to the kernel.
pub(crate) const WAIT_MAX: u64 = 30_000_000_000;
/// Times that writeback of what is waited for is begun again.
const BEGUN_MAX: u32 = 3;
/// Nanoseconds between two polls of writeback: first, and at most.
const POLL: u64 = 50_000;
const POLL_MAX: u64 = 1_000_000;

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
            if begun > BEGUN_MAX || again().is_err() {
                return Some(false);
            }
        }
        sys::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

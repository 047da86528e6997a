//! How pages are written and dropped: by counts where cachestat(2) has them, or by dropping until they are gone.
//!
//! Invariant: nothing here takes a write error. A waiting `sync_file_range(2)` would, and whoever opens and syncs the file next would not
//! get it; waiting as `FIEMAP` does would clear what FUSE and NFS report at close(2). So writeback is only begun, and then polled.

use core::ops::Range;

use libc::c_int;
use pagekeeper_policy::WINDOW;

use crate::counters::Count;
use crate::disks::Share;
use crate::process;
use crate::residency::{PAGES, resident, resident_pages, sees_pages};
use crate::sys::{self, Errno};
use crate::writeback::{wait_by_polling, write_in_pieces};

/// Nanoseconds after which pages that stayed are dropped again, once.
const AGAIN: u64 = 5_000_000;
/// Nanoseconds without a page more gone after which those that are left are given up: somebody has them in hand, or the disk hangs.
const GIVE_UP: u64 = 1_000_000_000;
/// The same for what is not a whole window: a large folio that reaches beyond it stays.
const GIVE_UP_PART: u64 = 20_000_000;
/// Nanoseconds between two polls: first, and at most.
const POLL: u64 = 50_000;
const POLL_MAX: u64 = 1_000_000;

/// Begins to write the range, whose pages go then (`release`), or stay. Where counts are of another file (overlayfs), so is what
/// `sync_file_range(2)` writes: there it is begun by the advice to drop, which reaches the file below, and drops nothing that is not
/// written. What is to stay is left to the kernel.
pub(crate) fn begin(file: c_int, range: &Range<u64>, has_counts: bool, release: bool) -> Result<(), Errno> {
    if has_counts {
        sys::sync_file_range(file, range.clone(), libc::SYNC_FILE_RANGE_WRITE)
    } else if release {
        sys::drop_pages(file, range.clone())
    } else {
        Ok(())
    }
}

/// Has the range be written in pieces, as its disk takes them, and drops its pages: how many bytes of it went. As soon as `is_lost` says
/// that nobody needs that, it ends.
pub(crate) fn write_and_drop(file: c_int, range: Range<u64>, is_lost: &dyn Fn() -> bool) -> u64 {
    if is_lost() {
        return 0;
    }
    let stat = sys::fstat(file).ok().filter(|_| sys::has_counts(file));
    let written = stat.and_then(|stat| write_in_pieces(file, &range, &Share::of(stat.st_dev), is_lost));
    if written.is_none() {
        if begin(file, &range, false, true).is_err() {
            process::count(Count::Failures, 1);
            return 0;
        }
        return drop_as_written(file, &range, is_lost).bytes;
    }
    drop_twice(file, range, is_lost)
}

/// The same at once, for a program that waits for it before it goes on with its own file, whose pages are counted.
pub(crate) fn write_now_and_drop(file: c_int, range: Range<u64>) -> u64 {
    if begin(file, &range, true, true).is_err() {
        process::count(Count::Failures, 1);
        return 0;
    }
    wait_by_polling(file, &range, sys::now(), &|| false);
    drop_twice(file, range, &|| false)
}

/// Drops the pages of a range that is written, twice if some stay.
fn drop_twice(file: c_int, range: Range<u64>, is_lost: &dyn Fn() -> bool) -> u64 {
    if is_lost() {
        return 0;
    }
    let dropped = drop_written(file, range.clone());
    if sys::cachestat(file, range.clone()).map_or(0, |seen| seen.cached) == 0 {
        return dropped;
    }
    // Pages that somebody just had in hand; those that are mapped stay.
    sys::sleep(AGAIN);
    dropped.saturating_add(drop_written(file, range))
}

/// Drops the pages of a range that is written, and says how many bytes of it went; none where that can't be seen.
pub(crate) fn drop_written(file: c_int, range: Range<u64>) -> u64 {
    let before = resident(file, &range);
    if sys::drop_pages(file, range.clone()).is_err() {
        process::count(Count::Failures, 1);
        return 0;
    }
    match (before, resident(file, &range)) {
        (Ok(before), Ok(after)) => before.saturating_sub(after),
        _ => 0,
    }
}

/// The first window of a range that has a resident page, as counts show it; its end if there is none.
pub(super) fn first_resident(file: c_int, range: Range<u64>) -> u64 {
    let mut at = range.start;
    while at < range.end && sys::cachestat(file, at..at + WINDOW).is_ok_and(|seen| seen.cached == 0) {
        at += WINDOW;
    }
    at
}

/// What went.
pub(super) struct Went {
    /// Bytes, as far as they were seen.
    pub(super) bytes: u64,
    /// Whether all pages of the range's whole windows were seen to go.
    pub(super) all: bool,
}

/// Drops the pages of a range until all of them are gone, window by window: one that is not written yet stays, is begun to be written
/// by that advice, and goes the next time. So it is seen, without counts, that the range is written. As long as pages go.
pub(super) fn drop_as_written(file: c_int, range: &Range<u64>, is_lost: &dyn Fn() -> bool) -> Went {
    let size = sys::fstat(file).map_or(0, |stat| stat.st_size.max(0) as u64);
    let page = sys::page_size();
    if is_in_memory(file) || !sees_pages(file, size) {
        let _ = sys::drop_pages(file, range.clone());
        return Went { bytes: 0, all: false };
    }
    let mut went = Went { bytes: 0, all: true };
    // Whole pages, as many in one go as the largest folio has: of one in part, the rest is somebody else's. The last of the file is whole.
    let end = if range.end >= size { up(size, page) } else { down(range.end, page) };
    let length = PAGES as u64 * page;
    let mut start = up(range.start, page);
    while start < end && went.all {
        let next = down(start, length).saturating_add(length);
        let is_whole = down(start, length) == start && (next <= end || end >= size);
        let all = drop_window(file, start..end.min(next), is_whole, &mut went.bytes, is_lost);
        went.all = (all || !is_whole) && !is_lost();
        start = next;
    }
    went
}

/// The multiple of `unit`, a power of two, at or before `at`.
fn down(at: u64, unit: u64) -> u64 {
    at & !unit.wrapping_sub(1)
}

/// The same, at or behind it.
fn up(at: u64, unit: u64) -> u64 {
    down(at.saturating_add(unit.wrapping_sub(1)), unit)
}

/// Whether all of a window went.
fn drop_window(
    file: c_int,
    window: Range<u64>,
    is_whole: bool,
    went: &mut u64,
    is_lost: &dyn Fn() -> bool,
) -> bool {
    let resident = || resident_pages(file, &window, &mut [0; PAGES]);
    let Some(mut least) = resident() else { return false };
    let give_up = if is_whole { GIVE_UP } else { GIVE_UP_PART };
    let (mut stay, mut since, mut pause) = (least, sys::now(), POLL);
    while stay > 0 {
        if sys::drop_pages(file, window.clone()).is_err() {
            process::count(Count::Failures, 1);
            return false;
        }
        let now = sys::now();
        // Truncated meanwhile: nothing is left there.
        stay = resident().unwrap_or(0);
        if stay < least {
            *went = went.saturating_add(least - stay);
            // What somebody else brings in again is no reason to go on.
            (least, since) = (stay, now);
        } else if now.saturating_sub(since) > give_up || is_lost() {
            return false;
        }
        if stay > 0 {
            sys::sleep(pause);
            pause = (pause * 2).min(POLL_MAX);
        }
    }
    true
}

/// Whether the file has no place but memory (tmpfs, ramfs): its pages never go.
fn is_in_memory(file: c_int) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    matches!(sys::file_system(file), Some(TMPFS | RAMFS))
}

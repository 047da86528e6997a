//! Writes and drops pages. Uses cachestat(2) counts where they exist; elsewhere it drops pages
//! until they are gone.
//!
//! Invariant: nothing here takes a write error. A waiting `sync_file_range(2)` would, and the next
//! process that opens and syncs the file would not get it. Waiting as `FIEMAP` does would clear the
//! errors that FUSE and NFS report at close(2). So writeback is only started, and then polled.

use core::ops::Range;

use libc::c_int;
use pagekeeper_policy::WINDOW;

use crate::counters::Count;
use crate::pages::disks::DiskShare;
use crate::pages::residency::{WINDOW_PAGES_MAX, resident, resident_pages, sees_pages};
use crate::pages::writeback::{wait_by_polling, write_in_pieces};
use crate::process;
use crate::sys::{self, Errno};

/// Nanoseconds after which pages that stayed are dropped once more.
const DROP_AGAIN_NS: u64 = 5_000_000;
/// Give up after this many nanoseconds without another page gone: somebody uses the rest, or the
/// disk hangs.
const DROP_GIVE_UP_NS: u64 = 1_000_000_000;
/// The same for a range that is not a whole window, where a large folio that reaches beyond the
/// range stays.
const GIVE_UP_PART_NS: u64 = 20_000_000;
/// Nanoseconds between two polls: at first and at most.
const POLL_MIN_NS: u64 = 50_000;
const POLL_MAX_NS: u64 = 1_000_000;

/// Starts to write the range, whose pages then go (`release`) or stay. On overlayfs, counts and
/// `sync_file_range(2)` are of another file. There, the advice to drop pages starts the writeback,
/// because it reaches the lower file and drops only pages that are written. Pages that are to stay
/// are left to the kernel.
pub(crate) fn begin(file: c_int, range: &Range<u64>, has_counts: bool, release: bool) -> Result<(), Errno> {
    if has_counts {
        sys::begin_writeback(file, range)
    } else if release {
        sys::drop_pages(file, range.clone())
    } else {
        Ok(())
    }
}

/// Writes the range in pieces at its disk's pace, drops its pages, and returns how many bytes went.
/// Ends early once `is_lost` says that nobody needs it.
pub(crate) fn write_and_drop(file: c_int, range: Range<u64>, is_lost: &dyn Fn() -> bool) -> u64 {
    if is_lost() {
        return 0;
    }
    let stat = sys::fstat(file).ok().filter(|_| sys::has_counts(file));
    let written = stat.and_then(|stat| write_in_pieces(file, &range, &DiskShare::of(stat.st_dev), is_lost));
    if written.is_none() {
        if begin(file, &range, false, true).is_err() {
            process::count(Count::Failures, 1);
            return 0;
        }
        return drop_as_written(file, &range, is_lost).bytes;
    }
    drop_twice(file, range, is_lost)
}

/// Writes the range at once, drops its pages, and returns how many bytes went. For a program that
/// waits for this before it continues with its own file, whose pages are counted.
pub(crate) fn write_now_and_drop(file: c_int, range: Range<u64>) -> u64 {
    if begin(file, &range, true, true).is_err() {
        process::count(Count::Failures, 1);
        return 0;
    }
    wait_by_polling(file, &range);
    drop_twice(file, range, &|| false)
}

/// Drops the pages of a range that is written, and once more if some stay.
fn drop_twice(file: c_int, range: Range<u64>, is_lost: &dyn Fn() -> bool) -> u64 {
    if is_lost() {
        return 0;
    }
    let dropped = drop_written(file, range.clone());
    if sys::cachestat(file, range.clone()).map_or(0, |seen| seen.cached) == 0 {
        return dropped;
    }
    // Somebody had the pages in use just now. Mapped pages stay.
    sys::sleep(DROP_AGAIN_NS);
    dropped.saturating_add(drop_written(file, range))
}

/// Drops the pages of a range that is written, and returns how many bytes went; 0 where that cannot
/// be seen.
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

/// Returns the start of the first window of a range that has a resident page by the counts; the
/// range's end if there is none.
pub(super) fn first_resident(file: c_int, range: Range<u64>) -> u64 {
    let mut at = range.start;
    while at < range.end && sys::cachestat(file, at..at + WINDOW).is_ok_and(|seen| seen.cached == 0) {
        at += WINDOW;
    }
    at
}

/// The result of dropping a range.
pub(super) struct DropResult {
    /// Bytes seen to go.
    pub(super) bytes: u64,
    /// Whether all pages of the range's whole windows were seen to go.
    pub(super) all: bool,
}

/// Drops the pages of a range, window by window, until all are gone or no more go. The advice
/// leaves a dirty page, starts to write it, and drops it the next time: so a window without pages
/// is written, and no counts are needed to see that.
pub(super) fn drop_as_written(file: c_int, range: &Range<u64>, is_lost: &dyn Fn() -> bool) -> DropResult {
    let size = sys::size(file);
    let page = sys::page_size();
    if is_in_memory(file) || !sees_pages(file, size) {
        let _ = sys::drop_pages(file, range.clone());
        return DropResult { bytes: 0, all: false };
    }
    let mut went = DropResult { bytes: 0, all: true };
    // Whole pages, as many at a time as the largest folio has: the rest of a partial page belongs
    // to somebody else. The file's last page counts as whole.
    let end = if range.end >= size { up(size, page) } else { down(range.end, page) };
    let length = WINDOW_PAGES_MAX as u64 * page;
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

/// Rounds `at` down to a multiple of `unit`, a power of two.
fn down(at: u64, unit: u64) -> u64 {
    at & !unit.wrapping_sub(1)
}

/// Rounds `at` up to a multiple of `unit`, a power of two.
fn up(at: u64, unit: u64) -> u64 {
    down(at.saturating_add(unit.wrapping_sub(1)), unit)
}

/// Drops a window; returns whether all of it went.
fn drop_window(
    file: c_int,
    window: Range<u64>,
    is_whole: bool,
    went: &mut u64,
    is_lost: &dyn Fn() -> bool,
) -> bool {
    let resident = || resident_pages(file, &window, &mut [0; WINDOW_PAGES_MAX]);
    let Some(mut least) = resident() else { return false };
    let give_up = if is_whole { DROP_GIVE_UP_NS } else { GIVE_UP_PART_NS };
    let (mut stay, mut since, mut pause) = (least, sys::now(), POLL_MIN_NS);
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
            // Pages that somebody else brings in again are no reason to continue.
            (least, since) = (stay, now);
        } else if now.saturating_sub(since) > give_up || is_lost() {
            return false;
        }
        if stay > 0 {
            sys::sleep(pause);
            pause = (pause * 2).min(POLL_MAX_NS);
        }
    }
    true
}

/// Whether the file is only in memory (tmpfs, ramfs): its pages never go.
fn is_in_memory(file: c_int) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    matches!(sys::file_system(file), Some(TMPFS_MAGIC | RAMFS_MAGIC))
}

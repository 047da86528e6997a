//! Small output: what a process writes before a helper is worth its thread. The thread that closes
//! a file writes it, waits a moment, and drops it.
//!
//! Creating a thread, and waiting for the disk at the end of a process, takes longer than many
//! programs run (`cp` of a small file). So this applies to the first [`SMALL_OUTPUT_BYTES_MAX`]
//! bytes that a process writes to files whose pages go, and its waits take at most
//! `SMALL_WAIT_MAX_NS` in all. On a slower disk, output above [`SMALL_OUTPUT_LEFT_MAX`] bytes goes
//! to the helper; smaller output stays resident, as without the rules.
//!
//! Invariants: no thread is created, no descriptor is opened; no process waits for longer than
//! `SMALL_WAIT_MAX_NS` in all.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::counters::Count;
use crate::process::count;
use crate::{helper, sys};

/// Bytes of a process's output up to which this applies.
pub const SMALL_OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a process's output that may stay.
pub const SMALL_OUTPUT_LEFT_MAX: u64 = 64 << 10;
/// Nanoseconds that a process waits in all, at most.
const SMALL_WAIT_MAX_NS: u64 = 250_000;
/// Nanoseconds between two checks.
const SMALL_POLL_NS: u64 = 20_000;

/// Bytes that this process wrote, and nanoseconds that it waited.
static WRITTEN_BYTES: AtomicU64 = AtomicU64::new(0);
static WAITED_NS: AtomicU64 = AtomicU64::new(0);

/// Records bytes written to a file whose pages go.
pub fn wrote(bytes: u64) {
    if is_tried() {
        WRITTEN_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Whether this applies to the output of this process so far.
pub fn is_tried() -> bool {
    WRITTEN_BYTES.load(Ordering::Relaxed) <= SMALL_OUTPUT_BYTES_MAX
}

/// Whether the output of this process may stay.
pub fn may_stay() -> bool {
    WRITTEN_BYTES.load(Ordering::Relaxed) <= SMALL_OUTPUT_LEFT_MAX
}

/// Resets the counts in a child of fork, which has written nothing.
pub fn after_fork() {
    WRITTEN_BYTES.store(0, Ordering::Relaxed);
    WAITED_NS.store(0, Ordering::Relaxed);
}

/// Writes the range, and drops it if that is quick. Returns whether it is gone, or will go with its
/// file, as far as can be seen.
pub fn finish(fd: c_int, range: &Range<u64>, has_counts: bool, released: Count) -> bool {
    if sys::fstat(fd).is_ok_and(|stat| stat.st_nlink == 0) {
        return true;
    }
    if helper::begin(fd, range, has_counts, true).is_err() {
        count(Count::Failures, 1);
        return false;
    }
    let start = sys::now();
    let until = start.saturating_add(SMALL_WAIT_MAX_NS.saturating_sub(WAITED_NS.load(Ordering::Relaxed)));
    let mut now = start;
    // Drops it even if its residency cannot be seen.
    let is_written =
        || sys::cachestat(fd, range.clone()).map_or(true, |seen| seen.dirty == 0 && seen.writeback == 0);
    // It sleeps, since the end of the write may need this processor.
    while now < until && !(has_counts && is_written()) {
        sys::sleep(SMALL_POLL_NS);
        now = sys::now();
    }
    WAITED_NS.fetch_add(now.saturating_sub(start), Ordering::Relaxed);
    count(released, helper::drop_written(fd, range.clone()));
    has_counts && sys::cachestat(fd, range.clone()).is_ok_and(|seen| seen.cached == 0)
}

//! Processes that no name decides. Their reads and writes are counted, and one that goes through many bytes once
//! ([`pagekeeper_policy::once_through`]) is a stream from then on.
//!
//! Not covered: pages that such a process brought in before it was known as a stream. They stay, and the report counts them as unobserved.
//! A file that it reads or writes by the C library's streams counts when it is closed. Reads through mappings do not count.
//!
//! Invariant: a process is decided once. If it is not a stream, its rules are off for good.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::once_through::{FilePassage, PassedBytes};

use super::{FILES, FileState, Slot};
use crate::counters::{self, Count};
use crate::process::{count, plan};
use crate::table::FileRole;
use crate::{introspection, open_readers, process, sys, tracked_files};

/// Bytes transferred at the file offset before the offset is queried.
const OFFSET_CHECK_BYTES: u64 = 1 << 20;

static IN_ORDER: AtomicU64 = AtomicU64::new(0);
static AGAIN: AtomicU64 = AtomicU64::new(0);
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

/// The use of a file so far.
pub struct Usage {
    passage: FilePassage,
    /// Bytes transferred at the file offset since the last query.
    unasked: u64,
    /// The file offset at the last query.
    position: u64,
}

impl Usage {
    /// The use of a file that was just opened.
    pub const NEW: Self = Self { passage: FilePassage::NEW, unasked: 0, position: 0 };

    /// Adds the bytes transferred at the file offset.
    fn ask(&mut self, fd: c_int) -> PassedBytes {
        let Ok(end) = sys::position(fd) else { return PassedBytes::default() };
        let done = core::mem::take(&mut self.unasked);
        let from = core::mem::replace(&mut self.position, end);
        // If the offset was moved meanwhile, the last bytes end there.
        let at = if from.saturating_add(done) == end { from } else { end.saturating_sub(done) };
        self.passage.passed(at, done)
    }
}

/// Runs after a call that read or wrote `done` bytes at `at`, or at the file offset.
pub(super) fn after_transfer(slot: &Slot, fd: c_int, at: Option<u64>, done: u64) {
    let passed = slot.with(|state| {
        let usage = &mut state.usage;
        if let Some(at) = at {
            return usage.passage.passed(at, done);
        }
        usage.unasked = usage.unasked.saturating_add(done);
        if usage.unasked < OFFSET_CHECK_BYTES { PassedBytes::default() } else { usage.ask(fd) }
    });
    take_in(passed);
}

/// Runs before the last descriptor of a file is closed.
pub(super) fn before_close(slot: &Slot, fd: c_int) {
    let passed = slot.with(|state| {
        if state.is_watched {
            // Only the offset shows what unhooked calls did.
            state.usage.unasked = sys::position(fd).unwrap_or(0).saturating_sub(state.usage.position);
        }
        if state.usage.unasked > 0 { state.usage.ask(fd) } else { PassedBytes::default() }
    });
    take_in(passed);
}

/// Adds to the sums of the process, and decides if they suffice.
fn take_in(passed: Option<PassedBytes>) {
    let Some(PassedBytes { in_order, again }) = passed else { return };
    let sum = PassedBytes {
        in_order: IN_ORDER.fetch_add(in_order, Ordering::Relaxed).saturating_add(in_order),
        again: AGAIN.fetch_add(again, Ordering::Relaxed).saturating_add(again),
    };
    let Some(is_stream) = sum.is_stream() else { return };
    if IS_DECIDED.swap(true, Ordering::AcqRel) {
        return;
    }
    if is_stream {
        become_stream(sum);
    } else {
        process::turn_off();
    }
}

/// Makes the process a stream from now on, and its open files those of a stream.
fn become_stream(before: PassedBytes) {
    begin_counting();
    plan().readers.into_iter().for_each(open_readers::share);
    process::become_stream();
    count(Count::StreamUnobserved, before.in_order.saturating_add(before.again));
    for (fd, slot) in FILES.entered(0, FILES.highest()) {
        convert(slot, fd);
    }
}

/// Makes a file a stream's, unless a thread has its state just now, or it is used by unhooked calls.
pub(super) fn convert(slot: &Slot, fd: c_int) {
    if slot.role() != Some(FileRole::Undecided) || process::part() != crate::settings::Part::Stream {
        return;
    }
    let Ok(stat) = sys::fstat(fd) else { return };
    let is_converted = slot.with(|state| {
        if state.is_watched || !slot.change_role(FileRole::Undecided, FileRole::Stream) {
            return false;
        }
        let FileState { reader, writer, is_used, .. } = state;
        reader.open(&stat, false);
        writer.open(sys::size_in(&stat), None);
        *is_used = true;
        true
    });
    if is_converted == Some(true) {
        tracked_files::opened(fd, &stat, None, slot.has_counts());
    }
}

/// Counts in the report from now on, if there is one.
fn begin_counting() {
    let Some(report) = plan().report.and_then(counters::open_report) else { return };
    tracked_files::track_in(report);
    if let Some(record) = introspection::with_process_name(|name| report.claim(sys::getpid(), name)) {
        process::count_in(record);
    }
}

/// Resets the sums in a child of fork, which has read and written nothing.
pub(super) fn after_fork() {
    if process::part() != crate::settings::Part::Stream {
        IN_ORDER.store(0, Ordering::Relaxed);
        AGAIN.store(0, Ordering::Relaxed);
        IS_DECIDED.store(false, Ordering::Relaxed);
    }
}

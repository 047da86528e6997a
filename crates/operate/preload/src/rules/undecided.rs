//! Processes that no name decides. Their reads and writes are counted, and one that goes through
//! many bytes once ([`pagekeeper_policy::once_through`]) is a stream from then on.
//!
//! Not covered: pages that such a process brought in before it was known as a stream. They stay,
//! and the report counts them as unobserved. A file that it reads or writes by the C library's
//! streams counts when it is closed. Reads through mappings do not count.
//!
//! Invariant: a process is decided once. If it is not a stream, its rules are off for good.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::once_through::{FilePassage, PassedBytes};
use pagekeeper_policy::output_offset::OutputOffset;

use super::{FILES, FileState, Slot, place_now, placed};
use crate::counters::{self, Count};
use crate::files::table::FileRole;
use crate::files::{open_readers, tracked_files};
use crate::process::{count, plan};
use crate::{introspection, process, sys};

static BYTES_IN_ORDER: AtomicU64 = AtomicU64::new(0);
static BYTES_AGAIN: AtomicU64 = AtomicU64::new(0);
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

/// The use of a file so far.
pub struct FileUsage {
    passage: FilePassage,
    offset: OutputOffset,
}

impl FileUsage {
    /// The use of a file that was just opened.
    pub const NEW: Self = Self { passage: FilePassage::new(), offset: OutputOffset::new() };

    fn pass(&mut self, range: Option<Range<u64>>) -> PassedBytes {
        range.map_or_else(PassedBytes::default, |range| {
            self.passage.passed(range.start, range.end - range.start)
        })
    }
}

/// Runs after a call that read or wrote `done` bytes at `at`, or at the file offset.
pub(super) fn after_transfer(slot: &Slot, fd: c_int, at: Option<u64>, done: u64) {
    let passed = slot.with(|state| {
        let range = placed(&mut state.usage.offset, fd, at, done);
        state.usage.pass(range)
    });
    take_in(passed);
}

/// Runs before the last descriptor of a file is closed.
pub(super) fn before_close(slot: &Slot, fd: c_int) {
    let passed = slot.with(|state| {
        let offset = &mut state.usage.offset;
        // Only the offset shows what unhooked calls did.
        let range = if state.is_watched {
            sys::position(fd).ok().map(|end| offset.passed(end))
        } else {
            place_now(offset, fd, 0)
        };
        state.usage.pass(range)
    });
    take_in(passed);
}

/// Adds to the sums of the process, and decides if they suffice.
fn take_in(passed: Option<PassedBytes>) {
    let Some(PassedBytes { in_order, again }) = passed else { return };
    let sum = PassedBytes {
        in_order: BYTES_IN_ORDER.fetch_add(in_order, Ordering::Relaxed).saturating_add(in_order),
        again: BYTES_AGAIN.fetch_add(again, Ordering::Relaxed).saturating_add(again),
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

/// Makes a file a stream's, unless a thread has its state just now, or it is used by unhooked
/// calls.
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
    if let Some(record) = report.claim(sys::getpid(), introspection::process_name(&mut [0; 16])) {
        process::count_in(record);
    }
}

/// Resets the sums in a child of fork, which has read and written nothing.
pub(super) fn after_fork() {
    if process::part() != crate::settings::Part::Stream {
        BYTES_IN_ORDER.store(0, Ordering::Relaxed);
        BYTES_AGAIN.store(0, Ordering::Relaxed);
        IS_DECIDED.store(false, Ordering::Relaxed);
    }
}

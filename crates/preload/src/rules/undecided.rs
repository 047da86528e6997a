//! Processes for which no name decides: what they read and write is counted, and one that goes through much of it once
//! ([`pagekeeper_policy::once_through`]) is a stream from then on.
//!
//! Not covered: pages that such a process brought in before it was known for a stream. They stay, and the report counts them as not seen.
//! A file that it reads or writes by the C library's streams counts as it is closed. Reads through mappings do not count.
//!
//! Invariant: the verdict falls once in a process. One that is no stream has the rules off for good.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::once_through::{FilePassage, PassedBytes};

use super::{FILES, FileState, Slot};
use crate::counters::{self, Count};
use crate::process::{count, plan};
use crate::table::FileRole;
use crate::{introspection, noted, open_readers, process, sys};

/// The file's position is asked for after so many bytes.
const OFFSET_CHECK_BYTES: u64 = 1 << 20;

static IN_ORDER: AtomicU64 = AtomicU64::new(0);
static AGAIN: AtomicU64 = AtomicU64::new(0);
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

/// How a file was used so far.
pub struct Usage {
    passage: FilePassage,
    /// Bytes that were transferred at the file's position since that was asked for.
    unasked: u64,
    /// Where the position was then.
    position: u64,
}

impl Usage {
    /// Of a file that was just opened.
    pub const NEW: Self = Self { passage: FilePassage::NEW, unasked: 0, position: 0 };

    /// Takes in what was transferred at the file's position.
    fn ask(&mut self, fd: c_int) -> PassedBytes {
        let Ok(end) = sys::position(fd) else { return PassedBytes::default() };
        let done = core::mem::take(&mut self.unasked);
        let from = core::mem::replace(&mut self.position, end);
        // Where the position was moved meanwhile, the last bytes end there.
        let at = if from.saturating_add(done) == end { from } else { end.saturating_sub(done) };
        self.passage.passed(at, done)
    }
}

/// After a call that read or wrote `done` bytes at `at`, or at the file's position.
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

/// Before the last descriptor of a file is closed.
pub(super) fn before_close(slot: &Slot, fd: c_int) {
    let passed = slot.with(|state| {
        if state.is_watched {
            // The position alone shows what such calls did.
            state.usage.unasked = sys::position(fd).unwrap_or(0).saturating_sub(state.usage.position);
        }
        if state.usage.unasked > 0 { state.usage.ask(fd) } else { PassedBytes::default() }
    });
    take_in(passed);
}

/// Adds to what the process did, and decides if that is enough.
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

/// From now on the process is a stream, and so are the files that it has open.
fn become_stream(before: PassedBytes) {
    begin_counting();
    plan().readers.into_iter().for_each(open_readers::share);
    process::become_stream();
    count(Count::StreamUnobserved, before.in_order.saturating_add(before.again));
    for (fd, slot) in FILES.entered(0, FILES.highest()) {
        convert(slot, fd);
    }
}

/// Makes a file a stream's, unless somebody is at work on it just now, or it is used by calls that are not seen.
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
        writer.open(stat.st_size as u64, None);
        *is_used = true;
        true
    });
    if is_converted == Some(true) {
        noted::opened(fd, &stat, None, slot.has_counts());
    }
}

/// Counts in the report from now on, if there is one.
fn begin_counting() {
    let Some(report) = plan().report.and_then(counters::open_report) else { return };
    noted::note_in(report);
    if let Some(record) = introspection::with_process_name(|name| report.claim(sys::getpid(), name)) {
        process::count_in(record);
    }
}

/// In a child of fork, which has read and written nothing.
pub(super) fn after_fork() {
    if process::part() != crate::settings::Part::Stream {
        IN_ORDER.store(0, Ordering::Relaxed);
        AGAIN.store(0, Ordering::Relaxed);
        IS_DECIDED.store(false, Ordering::Relaxed);
    }
}

//! Output of streams and bulk writers: written back behind the writer, which waits for it; then released, or kept.
//!
//! Each writer may have as much unwritten as its disk writes in a short time; all writers with more than a step share the process's
//! budget.
//!
//! Invariants:
//! 1. A write error stays the program's: a waiting `sync_file_range(2)` would take it from the open file, and from those who open it later.
//!    So writeback is only begun, and waited for by polling: counts (cachestat(2)), or, where there are none, the pages to release, which
//!    the helper drops until they are gone. Output that is kept is not waited for there: nothing shows when it is written.
//! 2. A wait is bounded: a disk that hangs holds the writer up in the kernel, not here.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::exact::Due;
use pagekeeper_policy::write_behind::{Lead, Pace, WriteBehind};

use super::FILES;
use super::reader::inside;
use crate::counters::Count;
use crate::helper::{self, Job};
use crate::process::{count, plan};
use crate::sys;
use crate::writeback::{WAIT_MAX, wait_by_polling};

/// Writeback is begun in steps of so much, or of a quarter of what may be unwritten if that is less.
const STEP: u64 = 1 << 20;
const STEP_MIN: u64 = 64 << 10;
/// The file's position is asked for after so many bytes in small writes.
const ASK: u64 = 64 << 10;
/// A wait that was shorter than this was none, in nanoseconds.
const PAUSE: u64 = 50_000;
/// How far the writer that waited last may be ahead, which the next begins with.
static LEAD: AtomicU64 = AtomicU64::new(0);
/// Writers that have more than a step.
static ACTIVE: AtomicU64 = AtomicU64::new(0);

/// How a file's output is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Counts the bytes written.
    pub written: Count,
    /// Counts the bytes released; `None` where they are kept.
    pub released: Option<Count>,
}

/// What is known of a file that is written.
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct Writer {
    behind: WriteBehind,
    lead: Lead,
    is_active: bool,
    begun: bool,
    /// Where the file's position was, and what was written from there since without asking.
    position: u64,
    unasked: u64,
    /// Whether all that was written was synced.
    is_synced: bool,
    /// Whether the write that was just made may not wait.
    is_hurried: bool,
    /// Whether nothing shows when this file is written.
    is_blind: bool,
    /// Bytes whose writing was to be waited for since the pace was last set by a wait.
    unpaced: u64,
}

impl Writer {
    /// Nothing known.
    pub const NEW: Self = Self {
        behind: WriteBehind::NEW,
        lead: Lead::NEW,
        is_active: false,
        begun: false,
        position: 0,
        unasked: 0,
        is_synced: false,
        is_hurried: false,
        is_blind: false,
        unpaced: 0,
    };

    /// The file was opened, with its size.
    pub fn open(&mut self, size: u64) {
        self.behind = WriteBehind::of(size);
    }

    /// Says that the write that was just made may not wait (`RWF_NOWAIT`): what is due is waited for, and goes, with a later one.
    pub fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// After a write that returned `done`.
    pub fn after(&mut self, fd: c_int, at: Option<u64>, done: isize, output: Output) {
        self.made(fd, at, done, output);
        self.is_hurried = false;
    }

    fn made(&mut self, fd: c_int, at: Option<u64>, done: isize, output: Output) {
        let done = match u64::try_from(done) {
            Ok(done) if done > 0 => done,
            _ => return,
        };
        if output.released.is_none() && !FILES.has_counts(fd) {
            // Nothing begins to write it, but what drops it.
            count(Count::StreamUnobserved, done);
        }
        self.is_synced = false;
        if let Some(at) = at {
            return self.wrote(fd, at..at.saturating_add(done), output);
        }
        self.unasked += done;
        if !self.begun || self.unasked >= ASK {
            self.ask(fd, done, output);
        }
    }

    /// After the file was synced, with success.
    pub fn synced(&mut self, fd: c_int, output: Output) {
        self.ask(fd, 0, output);
        self.is_synced = true;
        if let (Some(range), Some(released)) =
            (self.behind.synced(output.released.is_some()), output.released)
        {
            inside(|| release(fd, &range, released));
        }
    }

    /// The file was truncated or lengthened.
    pub fn truncated(&mut self, size: u64) {
        self.behind.truncated(size);
    }

    /// Forgets what was written.
    pub fn forget(&mut self) {
        self.behind = self.behind.forgotten();
        (self.is_active, self.begun, self.unasked, self.unpaced) = (false, false, 0, 0);
    }

    /// Before the descriptor is closed, with a wait for what is left where nobody else does that; or without any.
    pub fn close(&mut self, fd: c_int, output: Output, may_wait: bool) {
        self.ask(fd, 0, output);
        inside(|| {
            for range in self.behind.rest(output.released.is_some()) {
                self.finish(fd, &range, output, may_wait);
            }
        });
        self.set_active(false);
        self.behind = WriteBehind::NEW;
    }

    /// Asks for the position, for what was written since; the last write was of `last` bytes.
    fn ask(&mut self, fd: c_int, last: u64, output: Output) {
        if self.unasked == 0 {
            return;
        }
        let Ok(end) = sys::position(fd) else { return };
        let is_in_order = self.begun && self.position + self.unasked == end;
        let length = if is_in_order || last == 0 { self.unasked } else { last };
        (self.begun, self.position, self.unasked) = (true, end, 0);
        self.wrote(fd, end.saturating_sub(length)..end, output);
    }

    fn wrote(&mut self, fd: c_int, range: Range<u64>, output: Output) {
        let writers = ACTIVE.load(Ordering::Relaxed) + u64::from(!self.is_active);
        let max = plan().budget / writers.max(1);
        if self.lead == Lead::NEW {
            self.lead = Lead::of(LEAD.load(Ordering::Relaxed));
        }
        let mut pace = pace(self.lead.bytes(max), output.released.is_some());
        if self.is_hurried {
            pace.budget = u64::MAX;
        }
        let due = self.behind.wrote(range, pace);
        if due.is_none() {
            return;
        }
        self.set_active(true);
        inside(|| self.act(fd, &due, max, output));
    }

    fn act(&mut self, fd: c_int, due: &Due, max: u64, output: Output) {
        if let Some(range) = &due.start
            && !begin(fd, range, output)
        {
            return;
        }
        if let Some(range) = &due.wait {
            let start = sys::now();
            self.unpaced = self.unpaced.saturating_add(range.end.saturating_sub(range.start));
            let mut was_seen = wait(fd, range, start);
            // Window by window: a page of several parts goes only as a whole.
            if let (false, Some(range), Some(released)) =
                (was_seen || self.is_blind, &due.release, output.released)
            {
                was_seen = throttled(start, || helper::wait_dropped(fd, range, released, WAIT_MAX));
                self.is_blind = !was_seen;
            }
            if was_seen {
                let now = sys::now();
                let had_to = now.saturating_sub(start) > PAUSE;
                self.lead.waited(core::mem::take(&mut self.unpaced), now, had_to, max);
                LEAD.store(self.lead.bytes(max), Ordering::Relaxed);
            }
        }
        // What is dirty all the same stays: it isn't dropped.
        if let (Some(range), Some(released)) = (&due.release, output.released) {
            release(fd, range, released);
        }
    }

    /// What is left when the file is closed.
    fn finish(&self, fd: c_int, range: &Range<u64>, output: Output, may_wait: bool) {
        let Some(released) = output.released else {
            if !self.is_synced {
                begin(fd, range, output);
            }
            return;
        };
        if self.is_synced {
            return release(fd, range, released);
        }
        let job = Job::AfterClose { range: range.clone(), release: true, count: released };
        if !helper::send(fd, &job) {
            begin(fd, range, output);
            // What isn't written stays when it is dropped.
            if may_wait {
                wait(fd, range, sys::now());
            }
            release(fd, range, released);
        }
    }

    fn set_active(&mut self, is: bool) {
        match (self.is_active, is) {
            (false, true) => drop(ACTIVE.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(ACTIVE.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        self.is_active = is;
    }
}

impl Drop for Writer {
    // What is known of a descriptor that was closed behind our back is replaced.
    fn drop(&mut self) {
        self.set_active(false);
    }
}

/// In a child of fork, whose writers have forgotten all.
pub fn after_fork() {
    ACTIVE.store(0, Ordering::Relaxed);
}

/// The pace of a writer that may have so much unwritten.
fn pace(lead: u64, release: bool) -> Pace {
    let step = (lead / 4).clamp(STEP_MIN, STEP);
    // Whole pages, whatever their size.
    let step = step - step % STEP_MIN;
    Pace { step, budget: lead.max(step), release }
}

/// Begins to write the range.
fn begin(fd: c_int, range: &Range<u64>, output: Output) -> bool {
    let has_counts = FILES.has_counts(fd);
    let begun = helper::begin(fd, range, has_counts, output.released.is_some());
    if begun.is_err() {
        count(Count::Failures, 1);
    }
    begun.is_ok()
}

/// Waits from `start` on until the range is written, as long as there is hope. `false`: where that can't be seen.
fn wait(fd: c_int, range: &Range<u64>, start: u64) -> bool {
    FILES.has_counts(fd) && throttled(start, || wait_by_polling(fd, range, start, &|| false).is_some())
}

/// Counts the pause that a writer makes from `start` on.
fn throttled(start: u64, wait: impl FnOnce() -> bool) -> bool {
    let was_seen = wait();
    let waited = sys::now().saturating_sub(start);
    if waited > PAUSE {
        count(Count::Pauses, 1);
        count(Count::ThrottledNs, waited);
    }
    was_seen
}

/// Drops what is written, and counts it.
fn release(fd: c_int, range: &Range<u64>, released: Count) {
    count(released, helper::drop_written(fd, range.clone()));
}

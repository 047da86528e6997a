//! The output of streams and bulk writers: written back behind the writer, which waits for it, then
//! released or kept.
//!
//! Output goes to its disk in pieces, one at a time, with pauses if others wait
//! (`crate::pages::writeback`). The writers of a process share what may be unwritten on each disk,
//! and the process's budget. A writer with more than its share waits in the call that writes.
//!
//! Invariants:
//! 1. A write error remains the program's: a waiting `sync_file_range(2)` would take it from the
//!    open file, and from those who open it later. So writeback is only started, and then polled by
//!    counts (cachestat(2)). Without counts, the helper drops the pages to release until they are
//!    gone; output that is kept is not waited for, since nothing shows when it is written.
//! 2. A wait is bounded: a disk that hangs blocks the writer in the kernel, not here.

use core::ops::Range;

use libc::c_int;
use pagekeeper_policy::WINDOW;
use pagekeeper_policy::exact::DueWork;
use pagekeeper_policy::output_offset::OutputOffset;
use pagekeeper_policy::pacer::PIECE_MIN;
use pagekeeper_policy::write_behind::{WriteBehind, WritePace};
use pagekeeper_policy::write_parts::WAIT_MAX_NS;
use pagekeeper_policy::writer_state::{FileKeeper, NextKeeper, WriterEvent, WriterState};

use super::reader::inside;
use super::{FILES, place_now, placed, small};
use crate::counters::Count;
use crate::files::temporary::{self, KeepChoice, Temporary};
use crate::helper::{self, HelperRequest};
use crate::pages::disks::{self, DiskShare};
use crate::pages::writeback::{Outflow, can_count, write_in_pieces};
use crate::process::{count, plan};
use crate::sys;

/// Shorter waits are not counted as pauses, in nanoseconds.
const PAUSE_MIN_NS: u64 = 50_000;

/// The treatment of a file's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Counts the bytes written.
    pub written: Count,
    /// Counts the bytes released; `None` if they are kept.
    pub released: Option<Count>,
}

/// The state of a file that is written.
pub struct Writer {
    behind: WriteBehind,
    share: DiskShare,
    outflow: Outflow,
    /// The bytes written at the file offset.
    offset: OutputOffset,
    /// Whether the current write must not wait.
    is_hurried: bool,
    state: WriterState<Temporary>,
}

impl Writer {
    /// The initial state.
    pub const NEW: Self = Self {
        behind: WriteBehind::new(),
        share: DiskShare::NONE,
        outflow: Outflow::NONE,
        offset: OutputOffset::new(),
        is_hurried: false,
        state: WriterState::new(),
    };

    /// Begins with a newly opened file of that size; with `kept` it is a temporary one.
    pub fn open(&mut self, size: u64, kept: Option<Temporary>) {
        self.behind = WriteBehind::of(size);
        self.state.keeper = kept.map_or(FileKeeper::Nobody, FileKeeper::Writer);
    }

    /// Gives a temporary file's entry to the helper, which watches the file.
    pub fn take_kept(&mut self) -> Option<Temporary> {
        self.state.take_kept(NextKeeper::Helper)
    }

    /// Whether the helper keeps the file that is being closed.
    pub fn is_kept(&self) -> bool {
        self.state.keeper == FileKeeper::Helper
    }

    /// Marks the current write as one that must not wait (`RWF_NOWAIT`): a later one waits for and
    /// releases what is due.
    pub fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// Runs after a write that returned `done`.
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
            // Writeback can only be started by dropping pages, and these are kept.
            count(Count::StreamUnobserved, done);
        }
        self.state.apply(WriterEvent::Wrote);
        if output.released.is_some() {
            small::wrote(done);
        }
        if let Some(written) = placed(&mut self.offset, fd, at, done) {
            self.wrote(fd, written, output);
        }
    }

    /// Runs after the file was synced with success.
    pub fn synced(&mut self, fd: c_int, output: Output) {
        self.ask(fd, output);
        self.state.apply(WriterEvent::Synced);
        let is_released = output.released.is_some() && !self.state.is_kept();
        if let (Some(range), Some(released)) = (self.behind.synced(is_released), output.released) {
            inside(|| release(fd, &range, released));
        }
        self.outflow.clear();
        self.share.end_turn(sys::now());
    }

    /// Records that the file was truncated or lengthened.
    pub fn truncated(&mut self, size: u64) {
        self.behind.truncated(size);
        self.outflow.truncated(size);
    }

    /// Forgets all output, in a child of fork.
    pub fn forget(&mut self) {
        self.behind = self.behind.for_next_writer();
        self.share.forget();
        // The output belongs to the parent.
        let _ = self.state.take_kept(NextKeeper::Nobody).map(Temporary::into_number);
        self.state.keeper = FileKeeper::Nobody;
        self.outflow.clear();
        self.offset = OutputOffset::new();
    }

    /// Starts to write the rest before the process ends, without a wait.
    pub fn begin_rest(&mut self, fd: c_int, output: Output) {
        self.ask(fd, output);
        if !self.state.is_synced() && !small::may_stay() && !helper::is_there() {
            for range in self.behind.rest(output.released.is_some()) {
                begin(fd, &range, output);
            }
        }
    }

    /// Ends the output before the descriptor is closed, or before the process ends; the latter sets
    /// `until`, the end of the wait. Returns whether all pages are gone, or soon will be.
    pub fn close(&mut self, fd: c_int, output: Output, until: Option<u64>) -> bool {
        self.ask(fd, output);
        if let Some(kept) = self.state.take_kept(NextKeeper::Nobody)
            && until.is_none()
            && self.keep(fd, kept)
        {
            self.forget_output();
            return true;
        }
        let mut goes = true;
        inside(|| {
            for range in self.behind.rest(output.released.is_some()) {
                goes &= self.finish(fd, &range, output, until);
            }
        });
        self.forget_output();
        goes
    }

    fn forget_output(&mut self) {
        self.share.clear();
        self.outflow.clear();
        self.behind = WriteBehind::new();
    }

    /// Keeps a temporary file that is closed. Returns whether it is gone, or the helper keeps it. A
    /// small one is released like any small output.
    fn keep(&mut self, fd: c_int, kept: Temporary) -> bool {
        let Ok(stat) = sys::fstat(fd) else { return false };
        if kept.grows(sys::size_in(&stat), plan().budget) == KeepChoice::No || stat.st_nlink > 1 {
            return false;
        }
        if stat.st_nlink == 0 {
            kept.went();
            return true;
        }
        if small::is_tried() || !helper::prepare() {
            return false;
        }
        let entry = kept.into_number();
        let is_sent = helper::send(fd, &HelperRequest::Keep { entry });
        if is_sent {
            self.state.keeper = FileKeeper::Helper;
        } else {
            drop(Temporary::from_number(entry));
        }
        is_sent
    }

    /// Queries the file offset for the bytes written since.
    fn ask(&mut self, fd: c_int, output: Output) {
        if let Some(written) = place_now(&mut self.offset, fd, 0) {
            self.wrote(fd, written, output);
        }
    }

    fn wrote(&mut self, fd: c_int, range: Range<u64>, output: Output) {
        let budget = plan().budget;
        if let (false, Some(slot)) = (self.share.has_disk(), FILES.slot_of(fd)) {
            self.share = DiskShare::of(slot.file().device);
        }
        let keep = if let FileKeeper::Writer(kept) = &self.state.keeper {
            kept.grows(range.end, budget)
        } else {
            KeepChoice::No
        };
        if keep == KeepChoice::Unwritten {
            let pace = WritePace { step: u64::MAX, budget: u64::MAX, release: false };
            self.behind.wrote(range, pace);
            return;
        }
        if keep == KeepChoice::No {
            drop(self.state.take_kept(NextKeeper::Nobody));
        }
        let length = range.end.saturating_sub(range.start);
        let is_released = output.released.is_some() && !self.state.is_kept();
        let mut pace = self.share.pace(budget, length, is_released);
        if !is_counted(fd) {
            // The progress of its writeback shows only in whole windows of pages that can be
            // dropped.
            pace.budget = pace.budget.min(WINDOW);
        }
        if self.is_hurried {
            pace.budget = u64::MAX;
        }
        let due = self.behind.wrote(range, pace);
        self.outflow.set_step(pace.step);
        if let Some(start) = due.start.clone().filter(|_| is_counted(fd)) {
            self.share.count();
            self.outflow.add(fd, &start);
        }
        inside(|| self.act(fd, &due, pace.step, output));
    }

    fn act(&mut self, fd: c_int, due: &DueWork, step: u64, output: Output) {
        let is_seen = is_counted(fd);
        let mut is_written = is_seen;
        if is_seen {
            self.outflow.go_on(fd, &self.share);
            if let Some(wait) = &due.wait {
                let start = sys::now();
                is_written = throttled(start, || self.outflow.wait(fd, wait, &self.share, &|| false));
            }
        } else if let Some(start) = &due.start {
            begin_unseen(fd, start, step, output);
        }
        // Window by window: a page of several parts goes only as a whole.
        if let (false, Some(range), Some(released)) =
            (is_written || self.state.is_blind(), &due.release, output.released)
            && !throttled(sys::now(), || helper::wait_dropped(fd, range, released, WAIT_MAX_NS))
        {
            self.state.apply(WriterEvent::CannotSee);
        }
        // Pages that are still dirty are not dropped.
        if let (Some(range), Some(released)) = (&due.release, output.released) {
            release(fd, range, released);
        }
    }

    /// Ends a remaining range when the file is closed or the process ends. Returns whether it is
    /// gone, or soon will be.
    fn finish(&self, fd: c_int, range: &Range<u64>, output: Output, until: Option<u64>) -> bool {
        let Some(released) = output.released else {
            let request = HelperRequest::AfterClose {
                range: range.clone(),
                release: false,
                count: Count::BulkReleased,
            };
            let is_long = self.behind.length() > PIECE_MIN && until.is_none();
            let is_sent = || is_long && helper::prepare() && helper::send(fd, &request);
            if !self.state.is_synced() && !is_sent() {
                begin(fd, range, output);
            }
            return true;
        };
        if self.state.is_synced() {
            release(fd, range, released);
            return true;
        }
        if small::is_tried() {
            let is_gone = small::finish(fd, range, FILES.has_counts(fd), released);
            if is_gone || small::may_stay() {
                return is_gone;
            }
        }
        // A process that ends creates no thread; a device is not reopened.
        if until.is_none() && !sys::fstat(fd).is_ok_and(|stat| sys::is_block_device(&stat)) {
            helper::prepare();
        }
        let request = HelperRequest::AfterClose { range: range.clone(), release: true, count: released };
        if helper::send(fd, &request) {
            return true;
        }
        let is_late = || until.is_some_and(|until| sys::now() > until);
        let is_written = FILES.has_counts(fd)
            && throttled(sys::now(), || write_in_pieces(fd, range, &self.share, &is_late) == Some(true));
        if !is_written {
            begin(fd, range, output);
        }
        // Pages that are not written stay.
        release(fd, range, released);
        true
    }
}

/// Resets the state in a child of fork, whose writers have forgotten all.
pub fn after_fork() {
    disks::after_fork();
    small::after_fork();
    temporary::after_fork();
}

/// Whether the unwritten pages of a file can be counted.
fn is_counted(fd: c_int) -> bool {
    FILES.has_counts(fd) && can_count(fd)
}

/// Starts to write the range.
fn begin(fd: c_int, range: &Range<u64>, output: Output) -> bool {
    let has_counts = FILES.has_counts(fd);
    let begun = helper::begin(fd, range, has_counts, output.released.is_some());
    if begun.is_err() {
        count(Count::Failures, 1);
    }
    begun.is_ok()
}

/// Starts writes whose progress cannot be seen.
fn begin_unseen(fd: c_int, range: &Range<u64>, step: u64, output: Output) {
    if output.released.is_some() {
        // Only the helper can see when these pages are written.
        helper::prepare();
    }
    let mut begun = range.start;
    while begun < range.end {
        let end = begun.saturating_add(step).min(range.end);
        if !begin(fd, &(begun..end), output) {
            return;
        }
        begun = end;
    }
}

/// Counts the pause of a writer, which began at `start`.
fn throttled(start: u64, wait: impl FnOnce() -> bool) -> bool {
    let was_seen = wait();
    let waited = sys::now().saturating_sub(start);
    if waited > PAUSE_MIN_NS {
        count(Count::Pauses, 1);
        count(Count::ThrottledNs, waited);
    }
    was_seen
}

/// Drops written pages, and counts them.
fn release(fd: c_int, range: &Range<u64>, released: Count) {
    count(released, helper::drop_written(fd, range.clone()));
}

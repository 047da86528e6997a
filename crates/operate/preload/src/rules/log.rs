//! Logs: the helper releases them behind the flush, or behind the writer if it never flushes.
//!
//! `pagekeeper_policy::log` decides how far. Pages that a near reader of the process has yet to
//! read are kept.
//!
//! Invariants: the window at the writer's position stays. A log whose writer overwrites parts of
//! pages stays, and so does its whole series. A failed sync releases nothing.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::allowance::{ReleaseAllowance, WriterPosition, needed_from};
use pagekeeper_policy::log::LogRun;
use pagekeeper_policy::log_rule::{LogRule, series_number};
use pagekeeper_policy::output_offset::OutputOffset;
use pagekeeper_policy::{RewriteKind, RewriteSource, Rule, WINDOW};

use super::{FILES, Slot, place_now, placed};
use crate::counters::Count;
use crate::files::paths::path_of;
use crate::files::table::FileRole;
use crate::followers::{self, ReaderEntry, remember};
use crate::helper::{self, HelperRequest};
use crate::{process, sys};

/// Bytes that a log may have unsynced before its writeback is started: dirty pages trail the writer
/// by this distance.
const TRAIL_BYTES: u64 = 8 << 20;

/// Series of logs whose writers overwrite parts of pages.
static KEPT_SERIES: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// The use of an open log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogUse {
    /// A reader of the process has it.
    Read,
    /// Its writer has it.
    Write,
    /// Its writer has it and overwrites parts of pages, or maps it: it stays.
    Kept,
}

/// The state of an open log.
#[derive(Debug)]
pub struct Log {
    rule: LogRule,
    run: LogRun,
    used: LogUse,
    /// Its reader, as published to other processes.
    follower: Option<ReaderEntry<'static>>,
    /// Whether each write is synced.
    syncs: bool,
    synced: bool,
    /// The bytes written at the file offset.
    offset: OutputOffset,
    /// The end of the log from which on unsynced bytes are considered again.
    check_from: u64,
    /// The series of the file, and its number in the series.
    series: u64,
    sequence: u64,
}

impl Log {
    /// The initial state.
    pub const NEW: Self = Self {
        rule: LogRule::ANY,
        run: LogRun::new(0, false, false),
        used: LogUse::Kept,
        follower: None,
        syncs: false,
        synced: false,
        offset: OutputOffset::new(),
        check_from: 0,
        series: 0,
        sequence: 0,
    };

    /// Forgets what another process wrote, and the reader of that process.
    pub fn forget(&mut self) {
        self.follower = None;
        (self.run, self.synced, self.check_from) = (self.run.for_next_writer(), false, 0);
        self.offset = OutputOffset::new();
    }

    /// Whether it is written, released, and waits for no reader.
    pub fn is_released_for_writer_only(&self) -> bool {
        self.used == LogUse::Write && self.rule.near_files == 0
    }

    fn wrote(&mut self, fd: c_int, written: Range<u64>) {
        if let Some(left) = self.run.wrote(written) {
            give(fd, left, |range| HelperRequest::Release { range, count: Count::LogReleased });
        }
        if self.run.overwrites_parts() && self.used == LogUse::Write {
            self.used = LogUse::Kept;
            process::count(Count::LogsKept, 1);
            remember(&KEPT_SERIES, self.series);
        }
    }

    /// Releases what may go: `slack` bytes behind the writer, as far as near readers have read.
    fn release(&mut self, fd: c_int, slack: u64, is_written: bool) {
        let rule = Rule::ReleaseBehindWriter { slack };
        let allowance = ReleaseAllowance::new(rule, WriterPosition::At(self.run.end()), u64::MAX);
        let Some(due) = self.run.due(allowance.limit()) else { return };
        // Queries readers only if there is something to release.
        let limit = allowance.with_needed_from(self.needed()).limit();
        let Some(range) = (if limit < due.end { self.run.due(limit) } else { Some(due) }) else { return };
        let end = range.end;
        if helper::send(fd, &HelperRequest::Release { range: range.clone(), count: Count::LogReleased }) {
            self.run.release(end);
        } else {
            process::count(Count::LogReleased, helper::drop_written(fd, range));
            // Pages that are not written yet are dropped once more later.
            self.run.release(if is_written { end } else { end.saturating_sub(TRAIL_BYTES) });
        }
    }

    /// Returns the offset from which on near readers have yet to read this file.
    fn needed(&self) -> u64 {
        let near_files = self.rule.near_files;
        if near_files == 0 {
            return u64::MAX;
        }
        needed_from(self.sequence, followers::all().near(self.series, self.sequence, near_files))
    }
}

/// Whether another open file of the process is a log with that inode.
fn is_open_elsewhere(slot: &Slot, inode: u64) -> bool {
    FILES.entered(0, u32::MAX).any(|(_, other)| {
        !core::ptr::eq(other, slot) && other.role() == Some(FileRole::Log) && other.file().inode == inode
    })
}

/// Begins to follow a log of `size` bytes, which `slot` was entered for. `pattern` is the one that
/// names it.
pub fn opened(slot: &Slot, fd: c_int, flags: c_int, size: u64, rule: LogRule, pattern: Option<&[u8]>) {
    let (series, sequence) = number_at(fd, pattern, size);
    let writes = sys::may_write(flags);
    let (detects, in_parts) = (rule.detects(), rule.rewrite == RewriteSource::Known(RewriteKind::SubPages));
    let kept = writes
        && (in_parts || (detects && KEPT_SERIES.iter().any(|kept| kept.load(Ordering::Acquire) == series)));
    if kept {
        process::count(Count::LogsKept, 1);
    }
    let used = match (writes, kept) {
        (false, _) => LogUse::Read,
        (true, false) => LogUse::Write,
        (true, true) => LogUse::Kept,
    };
    let log = Log {
        rule,
        run: LogRun::new(size, detects, rule.is_named).on_pages_of(sys::page_size()),
        used,
        syncs: flags & libc::O_DSYNC != 0,
        series,
        sequence,
        ..Log::NEW
    };
    slot.with(|state| {
        state.log = log;
        if !writes {
            state.log.follower = followers::all().begin(slot.file().inode, series, sequence);
        }
    });
    if writes {
        // The file is written again, so nobody is waiting to release it.
        followers::all().pays(slot.file().inode);
        if !kept {
            helper::prepare();
        }
    }
}

/// Returns the series of an open file, and the file's number in it.
pub fn number_at(fd: c_int, pattern: Option<&[u8]>, size: u64) -> (u64, u64) {
    let mut buffer = [0; 1024];
    series_number(path_of(fd, &mut buffer).unwrap_or_default(), pattern, size)
}

/// Runs after a write of `done` bytes, at `at` or at the file offset.
pub fn after_write(slot: &Slot, fd: c_int, at: Option<u64>, done: u64) {
    process::count(Count::LogWritten, done);
    slot.with(|state| {
        let log = &mut state.log;
        if log.used != LogUse::Write {
            return;
        }
        let Some(written) = placed(&mut log.offset, fd, at, done) else { return };
        log.wrote(fd, written);
        let end = log.run.end();
        if log.syncs {
            log.synced = true;
            log.release(fd, log.rule.slack, true);
        } else if end >= log.check_from && log.rule.is_named {
            log.check_from = end.saturating_add(WINDOW);
            log.release(fd, log.rule.slack.max(TRAIL_BYTES), false);
        }
    });
}

/// Runs after a read of `done` bytes, at `at` or at the file offset.
pub fn after_read(slot: &Slot, fd: c_int, at: Option<u64>, done: u64) {
    slot.with(|state| {
        let log = &mut state.log;
        if log.used != LogUse::Read {
            return;
        }
        let place = match at {
            Some(at) => Some(at.saturating_add(done)),
            None => sys::position(fd).ok(),
        };
        if let (Some(follower), Some(place)) = (&log.follower, place) {
            follower.comes_to(place);
        }
    });
}

/// Runs after the file was synced with success.
pub fn after_sync(slot: &Slot, fd: c_int) {
    slot.with(|state| {
        let log = &mut state.log;
        if log.used != LogUse::Write {
            return;
        }
        if let Some(written) = place_now(&mut log.offset, fd, 0) {
            log.wrote(fd, written);
        }
        log.synced = true;
        let end = log.run.end();
        log.check_from = end.saturating_add(TRAIL_BYTES);
        log.release(fd, log.rule.slack, true);
    });
}

/// Runs after the file was truncated or lengthened to `size` bytes.
pub fn after_truncate(slot: &Slot, size: u64) {
    slot.with(|state| state.log.run.truncated(size));
}

/// Runs after the file was mapped: mapped pages cannot be dropped, and writes to them are not seen.
pub fn after_map(slot: &Slot) {
    slot.with(|state| {
        if state.log.used == LogUse::Write {
            state.log.used = LogUse::Kept;
        }
    });
}

/// Runs before the last descriptor is closed.
pub fn before_close(slot: &Slot, fd: c_int) {
    let inode = slot.file().inode;
    let count = Count::LogReleased;
    let range = slot.with(|state| {
        let log = &mut state.log;
        if log.used == LogUse::Read {
            log.follower = None;
            let is_last = !is_open_elsewhere(slot, inode) && !followers::all().reads(inode);
            return (is_last && followers::all().pays(inode)).then_some(0..u64::MAX);
        }
        if log.used == LogUse::Kept {
            return None;
        }
        if let Some(written) = place_now(&mut log.offset, fd, 0) {
            log.wrote(fd, written);
        }
        // Only once: the end of the process visits an open file through each of its descriptors.
        log.used = LogUse::Kept;
        let left = log.run.left()?;
        if log.run.end().saturating_sub(left.start) < WINDOW || !(log.synced || log.rule.is_named) {
            return None;
        }
        if log.needed() == u64::MAX {
            return Some(left);
        }
        followers::all().owes(inode);
        None
    });
    if let Some(range) = range.flatten() {
        give(fd, range, |range| HelperRequest::AfterClose { range, release: true, count });
    }
}

/// Has the helper release a range; without a helper, drops the part of it that is written.
fn give(fd: c_int, range: Range<u64>, request: impl FnOnce(Range<u64>) -> HelperRequest) {
    if !helper::send(fd, &request(range.clone())) {
        process::count(Count::LogReleased, helper::drop_written(fd, range));
    }
}

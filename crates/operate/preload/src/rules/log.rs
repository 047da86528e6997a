//! Logs: the helper releases them behind the flush, or behind the writer if it never flushes.
//!
//! `pagekeeper_policy::log` decides how far. Pages that a near reader of the process has yet to read are kept.
//!
//! Invariants: the window at the writer's position stays. A log whose writer overwrites parts of pages stays, and so does its whole series.
//! A failed sync releases nothing.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::allowance::{Allowance, Writer, needed_from};
use pagekeeper_policy::log::Run;
use pagekeeper_policy::names::{self, SegmentSize};
use pagekeeper_policy::{DEFAULT_SLACK, Rewrite, RewriteSource, Rule, WINDOW};

use super::{FILES, Slot};
use crate::counters::Count;
use crate::followers::{self, remember};
use crate::helper::{self, HelperRequest};
use crate::paths::path_of;
use crate::table::FileRole;
use crate::{process, sys};

/// Bytes that a log may have unsynced before its writeback is started: dirty pages trail the writer by so much.
const TRAIL: u64 = 8 << 20;
/// Bytes written at the file offset before the offset is queried.
const OFFSET_RECHECK_BYTES: u64 = 64 << 10;

/// Series of logs whose writers overwrite parts of pages.
static KEPT: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// The release rule of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRule {
    /// Bytes behind the writer that stay.
    pub slack: u64,
    /// A reader at most so many files behind is waited for; 0: none.
    pub near_files: u64,
    /// The way in which its writer overwrites pages.
    pub rewrite: RewriteSource,
    /// Whether a profile names the file. Then it is a log from the start, and gaps were written by other processes.
    pub is_named: bool,
}

impl LogRule {
    /// The rule of any file that is written in order and synced.
    pub const ANY: Self = Self { slack: 0, near_files: 0, rewrite: RewriteSource::Detect, is_named: false };

    /// Converts a profile's rule for use inside the writer. `None`: the file stays.
    pub const fn named(rule: Rule, rewrite: RewriteSource) -> Option<Self> {
        let (slack, near_files) = match rule {
            Rule::ReleaseBehindWriter { slack } => (slack, 0),
            Rule::ReleaseBehindFollowers { near_files, slack } => (slack, near_files),
            Rule::Budget { bytes, .. } => (bytes, 0),
            // Waiting for the rotation has no benefit: the helper releases while the writer goes on.
            Rule::ReleaseOnRotation => (DEFAULT_SLACK, 0),
            // The checkpoint's position cannot be seen from inside a write.
            Rule::Keep | Rule::ReleaseBeforeCheckpoint { .. } | Rule::Direct => return None,
        };
        Some(Self { slack, near_files, rewrite, is_named: true })
    }
}

/// The use of an open log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A reader of the process has it.
    Read,
    /// Its writer has it.
    Write,
    /// Its writer has it and overwrites parts of pages, or maps it: it stays.
    Kept,
}

/// A reader, known to others for as long as it reads.
#[derive(Debug)]
struct Follower(Option<usize>);

impl Follower {
    fn begin(&mut self, inode: u64, series: u64, sequence: u64) {
        self.end();
        self.0 = followers::all().begin(inode, series, sequence);
    }

    fn comes_to(&self, place: u64) {
        if let Some(reader) = self.0 {
            followers::all().comes_to(reader, place);
        }
    }

    fn end(&mut self) {
        if let Some(reader) = self.0.take() {
            followers::all().end(reader);
        }
    }
}

impl Drop for Follower {
    // The state of a descriptor that the program closed by a call we do not see is replaced, and so dropped.
    fn drop(&mut self) {
        self.end();
    }
}

/// The state of an open log.
#[derive(Debug)]
pub struct Log {
    rule: LogRule,
    run: Run,
    used: Use,
    follower: Follower,
    /// Whether each write is synced.
    syncs: bool,
    synced: bool,
    /// Bytes written at the file offset since the offset was last queried.
    unplaced: u64,
    /// The end of the log from which on unsynced bytes are considered again.
    check_from: u64,
    /// The series of the file, and its number in the series.
    series: u64,
    sequence: u64,
}

impl Log {
    /// The initial state.
    pub const NEW: Self = Self {
        rule: LogRule {
            slack: 0,
            near_files: 0,
            rewrite: RewriteSource::Known(Rewrite::Never),
            is_named: false,
        },
        run: Run::new(0, false, false),
        used: Use::Kept,
        follower: Follower(None),
        syncs: false,
        synced: false,
        unplaced: 0,
        check_from: 0,
        series: 0,
        sequence: 0,
    };

    /// Forgets what another process wrote, and the reader of that process.
    pub fn forget(&mut self) {
        self.follower.0 = None;
        (self.run, self.synced, self.unplaced, self.check_from) = (self.run.forgotten(), false, 0, 0);
    }

    /// Whether it is written, released, and waits for no reader.
    pub fn goes_for_its_writer_alone(&self) -> bool {
        self.used == Use::Write && self.rule.near_files == 0
    }

    /// Records that `done` bytes were written, and returns where; `None` while that is not known.
    fn placed(&mut self, fd: c_int, at: Option<u64>, done: u64) -> Option<Range<u64>> {
        if let Some(at) = at {
            return Some(at..at.saturating_add(done));
        }
        self.unplaced = self.unplaced.saturating_add(done);
        if self.unplaced < OFFSET_RECHECK_BYTES { None } else { self.place_now(fd) }
    }

    /// Queries where the bytes are that were written at the file offset.
    fn place_now(&mut self, fd: c_int) -> Option<Range<u64>> {
        if self.unplaced == 0 {
            return None;
        }
        let end = sys::position(fd).ok()?;
        let start = end.saturating_sub(self.unplaced);
        self.unplaced = 0;
        Some(start..end)
    }

    fn wrote(&mut self, fd: c_int, written: Range<u64>) {
        if let Some(left) = self.run.wrote(written) {
            give(fd, left, |range| HelperRequest::Release { range, count: Count::LogReleased });
        }
        if self.run.overwrites_parts() && self.used == Use::Write {
            self.used = Use::Kept;
            process::count(Count::LogsKept, 1);
            remember(&KEPT, self.series);
        }
    }

    /// Releases what may go: `slack` bytes behind the writer, as far as near readers have read.
    fn release(&mut self, fd: c_int, slack: u64, is_written: bool) {
        let rule = Rule::ReleaseBehindWriter { slack };
        let allowance = Allowance::new(rule, Writer::At(self.run.end()), u64::MAX);
        let Some(due) = self.run.due(allowance.limit()) else {
            return;
        };
        // Queries readers only if there is something to release.
        let limit = allowance.needed_by_followers(self.needed()).limit();
        let Some(range) = (if limit < due.end { self.run.due(limit) } else { Some(due) }) else {
            return;
        };
        let end = range.end;
        if helper::send(fd, &HelperRequest::Release { range: range.clone(), count: Count::LogReleased }) {
            self.run.release(end);
        } else {
            process::count(Count::LogReleased, helper::drop_written(fd, range));
            // Pages that are not written yet are dropped once more later.
            self.run.release(if is_written { end } else { end.saturating_sub(TRAIL) });
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

/// Begins to follow a log of `size` bytes, which `slot` was entered for. `pattern` is the one that names it.
pub fn opened(slot: &Slot, fd: c_int, flags: c_int, size: u64, rule: LogRule, pattern: Option<&[u8]>) {
    let (series, sequence) = number_at(fd, pattern, size);
    let writes = sys::may_write(flags);
    let (detects, in_parts) = match rule.rewrite {
        // The writes show how large the blocks are.
        RewriteSource::Detect | RewriteSource::DeviceBlocks => (true, false),
        RewriteSource::Known(Rewrite::Never | Rewrite::WholePages) => (false, false),
        RewriteSource::Known(Rewrite::SubPages) => (false, true),
    };
    let kept =
        writes && (in_parts || (detects && KEPT.iter().any(|kept| kept.load(Ordering::Acquire) == series)));
    if kept {
        process::count(Count::LogsKept, 1);
    }
    let used = match (writes, kept) {
        (false, _) => Use::Read,
        (true, false) => Use::Write,
        (true, true) => Use::Kept,
    };
    let log = Log {
        rule,
        run: Run::new(size, detects, rule.is_named).on_pages_of(sys::page_size()),
        used,
        syncs: flags & libc::O_DSYNC != 0,
        series,
        sequence,
        ..Log::NEW
    };
    slot.with(|state| {
        state.log = log;
        if !writes {
            state.log.follower.begin(slot.file().inode, series, sequence);
        }
    });
    if writes {
        // It is written again, so nobody is waiting to release it.
        followers::all().pays(slot.file().inode);
        if !kept {
            helper::prepare();
        }
    }
}

/// Returns the series of an open file, and the file's number in it.
pub fn number_at(fd: c_int, pattern: Option<&[u8]>, size: u64) -> (u64, u64) {
    let mut buffer = [0; 1024];
    number_of(path_of(fd, &mut buffer).unwrap_or_default(), pattern, size)
}

/// Returns the series of a file by its path, and the file's number in it: by the pattern that names it, or else by its last number. `size`
/// is the file's, in bytes.
fn number_of(path: &[u8], pattern: Option<&[u8]>, size: u64) -> (u64, u64) {
    let name = names::last_name(path);
    let by_pattern = pattern.and_then(|pattern| names::matches_name(names::last_name(pattern), name));
    let matched = by_pattern.unwrap_or_else(|| names::by_last_number(name));
    // FNV-1a over all but the digits.
    let directory = path.get(..path.len().saturating_sub(name.len())).unwrap_or_default();
    let [first, second, third] = matched.stem();
    let kept = [directory, first, second, third].into_iter().flatten();
    let series = kept.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (series.max(1), matched.number.sequence(SegmentSize::of_file(size)))
}

/// Runs after a write of `done` bytes, at `at` or at the file offset.
pub fn after_write(slot: &Slot, fd: c_int, at: Option<u64>, done: u64) {
    process::count(Count::LogWritten, done);
    slot.with(|state| {
        let log = &mut state.log;
        if log.used != Use::Write {
            return;
        }
        let Some(written) = log.placed(fd, at, done) else {
            return;
        };
        log.wrote(fd, written);
        let end = log.run.end();
        if log.syncs {
            log.synced = true;
            log.release(fd, log.rule.slack, true);
        } else if end >= log.check_from && log.rule.is_named {
            log.check_from = end.saturating_add(WINDOW);
            log.release(fd, log.rule.slack.max(TRAIL), false);
        }
    });
}

/// Runs after a read of `done` bytes, at `at` or at the file offset.
pub fn after_read(slot: &Slot, fd: c_int, at: Option<u64>, done: u64) {
    slot.with(|state| {
        let log = &mut state.log;
        if log.used != Use::Read {
            return;
        }
        let place = match at {
            Some(at) => Some(at.saturating_add(done)),
            None => sys::position(fd).ok(),
        };
        if let Some(place) = place {
            log.follower.comes_to(place);
        }
    });
}

/// Runs after the file was synced with success.
pub fn after_sync(slot: &Slot, fd: c_int) {
    slot.with(|state| {
        let log = &mut state.log;
        if log.used != Use::Write {
            return;
        }
        if let Some(written) = log.place_now(fd) {
            log.wrote(fd, written);
        }
        log.synced = true;
        let end = log.run.end();
        log.check_from = end.saturating_add(TRAIL);
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
        if state.log.used == Use::Write {
            state.log.used = Use::Kept;
        }
    });
}

/// Runs before the last descriptor is closed.
pub fn before_close(slot: &Slot, fd: c_int) {
    let inode = slot.file().inode;
    let count = Count::LogReleased;
    let range = slot.with(|state| {
        let log = &mut state.log;
        if log.used == Use::Read {
            log.follower.end();
            let is_last = !is_open_elsewhere(slot, inode) && !followers::all().reads(inode);
            return (is_last && followers::all().pays(inode)).then_some(0..u64::MAX);
        }
        if log.used == Use::Kept {
            return None;
        }
        if let Some(written) = log.place_now(fd) {
            log.wrote(fd, written);
        }
        // Only once: the end of the process visits an open file through each of its descriptors.
        log.used = Use::Kept;
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

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;
    use pagekeeper_policy::allowance::is_near;

    #[test]
    fn a_named_rule_is_what_it_comes_to_inside_the_writer() {
        let figures = |rule| {
            LogRule::named(rule, RewriteSource::Known(Rewrite::Never))
                .map(|rule| (rule.slack, rule.near_files))
        };
        assert_eq!(figures(Rule::ReleaseBehindWriter { slack: 7 }), Some((7, 0)));
        assert_eq!(figures(Rule::ReleaseBehindFollowers { near_files: 3, slack: 7 }), Some((7, 3)));
        assert_eq!(figures(Rule::Budget { bytes: 9, total: 9 }), Some((9, 0)));
        assert_eq!(figures(Rule::ReleaseOnRotation), Some((DEFAULT_SLACK, 0)));
        assert_eq!((figures(Rule::Keep), figures(Rule::Direct)), (None, None));
        let before_checkpoint = Rule::ReleaseBeforeCheckpoint { near_files: 3, slack: 7 };
        assert_eq!(figures(before_checkpoint), None, "nobody knows the checkpoint");
    }

    #[test]
    fn files_of_a_series_are_numbered() {
        let number_of = |path: &[u8]| number_of(path, None, 16 << 20);
        let (binlog, seven) = number_of(b"/d/binlog.000007");
        assert_eq!((number_of(b"/d/binlog.000123"), seven), ((binlog, 123), 7));
        assert_ne!(number_of(b"/e/binlog.000123").0, binlog);
        assert_ne!(number_of(b"/d/relay.000123").0, binlog);
        assert_eq!(number_of(b"/d/000012.log").1, 12);
        assert_eq!(number_of(b"/d/#ib_redo31").1, 31);
        let (wal, number) = number_of(b"/d/pg_wal/0000000100000002000000FE");
        assert_eq!(number, 2 * 256 + 254);
        assert_eq!(number_of(b"/d/pg_wal/000000020000000300000000"), (wal, 3 * 256));
        assert_eq!(number_of(b"").1, 0);
        assert_eq!(number_of(b"/d2/log").1, 0);
    }

    #[test]
    fn the_pattern_says_which_number_orders() {
        let number_of = |path: &[u8]| number_of(path, Some(b"wal/{h}-{_}.wal"), 64_000_000);
        let (wal, one) = number_of(b"/d/wal/0000000000000001-0000000000002f4a.wal");
        assert_eq!(one, 1);
        assert_eq!(number_of(b"/d/wal/000000000000000a-0000000000010000.wal"), (wal, 10));
        assert_eq!(number_of(b"/d/wal/x7").1, 7, "a name that the pattern is not for, behind a link");
    }

    #[test]
    fn a_reader_one_segment_behind_is_near_across_4_gib_and_timelines() {
        for (size, read, written) in [
            (1 << 20, b"/d/pg_wal/000000010000000000000FFF", b"/d/pg_wal/000000010000000100000000"),
            (16 << 20, b"/d/pg_wal/0000000100000000000000FF", b"/d/pg_wal/000000020000000100000000"),
            (64 << 20, b"/d/pg_wal/00000001000000000000003F", b"/d/pg_wal/000000010000000100000000"),
            (1 << 30, b"/d/pg_wal/000000010000000000000003", b"/d/pg_wal/000000020000000100000000"),
        ] {
            for pattern in [None, Some(&b"pg_wal/{x}"[..])] {
                let (reader, writer) = (number_of(read, pattern, size), number_of(written, pattern, size));
                assert_eq!(reader.0, writer.0, "one series");
                assert!(is_near(writer.1, reader.1, 1) && !is_near(writer.1, reader.1, 0), "{size}");
                // Pages that it has yet to read stay.
                assert_eq!(needed_from(reader.1, [(reader.1, 3 * WINDOW)].into_iter()), 3 * WINDOW);
                assert_eq!(needed_from(writer.1, [(reader.1, 3 * WINDOW)].into_iter()), 0);
            }
        }
    }
}

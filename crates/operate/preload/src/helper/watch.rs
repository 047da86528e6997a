//! Watches files that are read or written by calls that are not hooked: the helper checks them from time to time.
//!
//! /proc shows the program's offset in a file for as long as its descriptor names the file; the program itself notes it when it closes the
//! file. The pages of a reader are handled as those of any stream ([`pagekeeper_policy::stream`]). The pages of a writer are those behind
//! the file's end at the start of the watch. If the file had no page then, pages before that end that were seen dirty are also the
//! writer's.
//!
//! Invariants:
//! 1. Without watched files there is no timer. A file that does not move is checked ever more rarely.
//! 2. Pages stay that were resident before a reader came near them, that a reader did not reach, or that a writer did not write.

use core::ops::Range;

use libc::c_int;
use pagekeeper_policy::WINDOW;
use pagekeeper_policy::allowance::align_down;
use pagekeeper_policy::stream::{AGAIN, IN_ORDER, Ranges, WatchedStream};

use super::closings::{self, CLOSED, Closed, WATCHES};
use super::kept::Kept;
use super::position::position_of;
use super::{FileHash, drop_written, first_resident, write_and_drop};
use crate::counters::Count;
use crate::residency::{ResidencyProbe, STALE};
use crate::temporary::{Keep, Temporary};
use crate::{process, sys};

/// Nanoseconds between checks: of a moving file, of a file that is read fast, and of one that has not moved for long. Otherwise the
/// interval is the time since the last move divided by `PART`.
const SOON: u64 = 25_000_000;
const SOONEST: u64 = 5_000_000;
const LATE: u64 = 6_400_000_000;
const PART: u64 = 16;
/// Bytes between two checks from which on a file counts as read fast.
const FAST: u64 = 8 << 20;
/// Bytes sampled ahead of a waiting reader, which may go on at full speed. For a moving reader, it is `SPARE` times the bytes read since
/// the last check.
const WAITING: u64 = 192 << 20;
const SPARE: u64 = 4;

/// A request to watch a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// The helper's own descriptor of the file.
    pub file: c_int,
    /// The program's descriptor.
    pub fd: c_int,
    /// The flags of the program's descriptor.
    pub flags: c_int,
    /// The file's size in bytes when the watch was requested; 0 if it had no resident page then.
    pub size: u64,
    /// The file offset at that time.
    pub position: u64,
    /// Whether pages are dropped.
    pub release: bool,
    /// Counts the bytes dropped.
    pub count: Count,
    /// Counts the bytes read or written.
    pub used: Count,
    /// The hash by which the file is counted.
    pub place: FileHash,
}

/// A watched file.
struct WatchedFile {
    /// The helper's own descriptor; -1 in a free place.
    file: c_int,
    /// The program's descriptor.
    fd: c_int,
    device: u64,
    inode: u64,
    place: FileHash,
    writes: bool,
    release: bool,
    count: Count,
    used: Count,
    /// The program's offset, and the file's size.
    position: u64,
    size: u64,
    /// The offset up to which bytes read or written are counted.
    counted: u64,
    due: u64,
    interval: u64,
    /// The time of the last move.
    moved_at: u64,
    /// The offset up to which pages behind a writer are released.
    released: u64,
    /// The offset from which on all pages are the writer's own.
    from: u64,
    /// Whether the file had no page before that offset, and the range in which pages were dirty since.
    was_empty: bool,
    written: Range<u64>,
    /// The pages that a reader brought in, and the time of the last sample.
    stream: WatchedStream,
    probe: ResidencyProbe,
    sampled_at: u64,
    /// The entry of a temporary file that is kept.
    kept: Option<Temporary>,
}

/// All watched files.
pub struct Watches {
    files: [WatchedFile; WATCHES],
    count: usize,
}

impl Watches {
    /// Creates an empty set: 140 KiB, made in place, since a constant would be part of the library's file.
    pub fn none() -> Self {
        Self { files: core::array::from_fn(|_| WatchedFile::NONE), count: 0 }
    }

    /// Returns the nanoseconds until the next check; `None` if nothing is watched.
    pub fn due(&self, now: u64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let open = self.files.iter().filter(|watch| watch.file >= 0);
        open.map(|watch| watch.due.saturating_sub(now)).min()
    }

    /// Checks the files that are due.
    pub(super) fn check(&mut self, now: u64, kept: &mut Kept) {
        for (watch, closed) in self.files.iter_mut().zip(&CLOSED) {
            if watch.file < 0 || watch.due > now {
                continue;
            }
            if watch.check(closed) {
                watch.due = sys::now().saturating_add(watch.interval);
            } else {
                watch.end(kept);
                closed.end();
                self.count -= 1;
            }
        }
    }

    /// Watches a file; a temporary one if there is an `entry`. Closes the helper's descriptor once the program's does not name the file any
    /// more.
    pub(super) fn add(&mut self, subject: Subject, entry: Option<Temporary>, now: u64, kept: &mut Kept) {
        if self.count == WATCHES {
            // Some may be closed by now.
            self.check(u64::MAX, kept);
        }
        let free = self.files.iter_mut().zip(&CLOSED).find(|(watch, _)| watch.file < 0);
        let has_counts = sys::has_counts(subject.file);
        let is_written = subject.flags & libc::O_ACCMODE != libc::O_RDONLY;
        // Behind a writer, only counts show which pages are written.
        let stat = sys::fstat(subject.file);
        let inode = stat.as_ref().map_or(0, |stat| stat.st_ino);
        let (Some((watch, closed)), Ok(stat), true) = (free, stat, has_counts || !is_written) else {
            closings::expect_no_more(subject.fd, inode);
            sys::close(subject.file);
            subject.place.give_back();
            process::count(Count::NotFollowed, 1);
            return;
        };
        closed.begin(subject.fd, inode);
        watch.kept = entry;
        watch.begin(&subject, &stat, has_counts, closed.at());
        watch.due = now.saturating_add(SOON);
        self.count += 1;
    }

    /// Ends the watch of files that the helper must let go of. Their resident pages stay.
    pub fn let_go(&mut self) {
        for (watch, closed) in self.files.iter_mut().zip(&CLOSED) {
            if watch.file >= 0 && watch.place.is_unwanted() {
                if let Some(kept) = &watch.kept {
                    kept.went();
                }
                watch.close();
                closed.end();
                self.count -= 1;
            }
        }
    }

    /// Checks all files for the last time: the process is about to end.
    pub(super) fn end(&mut self, kept: &mut Kept) {
        for (watch, closed) in self.files.iter_mut().zip(&CLOSED).filter(|(watch, _)| watch.file >= 0) {
            watch.check(closed);
            watch.end(kept);
        }
        self.count = 0;
    }
}

impl WatchedFile {
    const NONE: Self = Self {
        file: -1,
        fd: -1,
        device: 0,
        inode: 0,
        place: FileHash::NONE,
        writes: false,
        release: false,
        count: Count::StreamReleased,
        used: Count::StreamRead,
        position: 0,
        size: 0,
        counted: 0,
        due: 0,
        interval: SOON,
        moved_at: 0,
        released: 0,
        from: 0,
        was_empty: false,
        written: 0..0,
        stream: WatchedStream::NEW,
        probe: ResidencyProbe::NEW,
        sampled_at: 0,
        kept: None,
    };

    fn begin(&mut self, subject: &Subject, stat: &libc::stat, has_counts: bool, closed_at: Option<u64>) {
        let &Subject { file, fd, flags, size, position, release, count, used, place } = subject;
        self.place = place;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        (self.file, self.fd, self.device, self.inode) = (file, fd, stat.st_dev, stat.st_ino);
        (self.writes, self.interval, self.moved_at) = (writes, SOON, sys::now());
        (self.release, self.count, self.used, self.counted) = (release, count, used, position);
        self.size = stat.st_size.max(0) as u64;
        let is_open = closed_at.is_none() && self.is_open();
        let reached = if is_open { position_of(fd) } else { closed_at };
        self.position = reached.unwrap_or(0);
        self.probe = ResidencyProbe::with(has_counts);
        // The writer's own pages begin at the file's end.
        self.was_empty = size == 0 && has_counts;
        let end = if size > 0 { size } else { self.size };
        self.from = align_down(end.saturating_add(WINDOW - 1));
        (self.released, self.written) = (0, 0..0);
        self.stream = WatchedStream::NEW;
        if writes {
            if self.kept.is_none() {
                self.note_written();
            }
        } else {
            let reached = self.was_empty.then(|| {
                // All resident pages up to the program's offset were brought in by the program since the request.
                self.position = position.min(self.position);
                reached.unwrap_or(position)
            });
            self.sample_ahead(WAITING, reached);
        }
    }

    /// Whether the program's descriptor names the file.
    fn is_open(&self) -> bool {
        let path = sys::DescriptorPath::new(b"/proc/self/fd/", self.fd);
        sys::stat(path.as_c_str()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }

    /// Checks the file. `false`: the program's descriptor no longer names it.
    fn check(&mut self, closed: &Closed) -> bool {
        let Ok(stat) = sys::fstat(self.file) else {
            return false;
        };
        let size = stat.st_size.max(0) as u64;
        let closed_at = closed.at();
        let is_open = closed_at.is_none() && self.is_open();
        // It may have been closed in between.
        let closed_at = closed_at.or_else(|| closed.at());
        let position = if is_open { position_of(self.fd) } else { closed_at }.unwrap_or(self.position);
        let (passed, was) = (position.saturating_sub(self.position), self.position);
        let moves = (size, position) != (self.size, self.position);
        // Only the size shows calls with an offset of their own.
        let grown = if self.writes { size.saturating_sub(self.size) } else { 0 };
        process::count(self.used, position.checked_sub(self.counted).filter(|&by| by > 0).unwrap_or(grown));
        self.counted = position;
        (self.size, self.position) = (size, position);
        if self.writes {
            self.behind_writer();
        } else {
            self.behind_reader(was);
        }
        let now = sys::now();
        if moves {
            self.moved_at = now;
        }
        let is_fast = !self.writes && passed >= FAST;
        let waited = now.saturating_sub(self.moved_at);
        self.interval = if is_fast { SOONEST } else { (waited / PART).clamp(SOON, LATE) };
        is_open
    }

    /// Starts to write dirty pages, and drops pages behind the writer.
    fn behind_writer(&mut self) {
        let keep = self.kept.as_ref().map_or(Keep::No, |kept| kept.grows(self.size, process::plan().budget));
        if keep == Keep::Unwritten {
            return;
        }
        self.note_written();
        if keep == Keep::Written {
            return;
        }
        self.kept = None;
        // Where the offset does not show the progress (calls with their own offset), the file's end does.
        let start = if self.written.is_empty() { self.from } else { self.written.start };
        let end = if self.position > start { self.position } else { self.size };
        let limit = align_down(end).saturating_sub(WINDOW);
        if !self.release || limit <= self.released {
            return;
        }
        // Tries again what was not written yet at the last attempt.
        let from = self.released.saturating_sub(4 * WINDOW);
        self.released = limit;
        for own in self.own() {
            let range = own.start.max(from)..own.end.min(limit);
            if range.is_empty() {
                continue;
            }
            process::count(self.count, drop_written(self.file, range.clone()));
            if sys::cachestat(self.file, range.clone()).is_ok_and(|seen| seen.cached > 0) {
                self.released = self.released.min(first_resident(self.file, range));
            }
        }
    }

    /// Returns the ranges whose pages are the writer's.
    fn own(&self) -> [Range<u64>; 2] {
        [self.written.clone(), self.from.max(self.written.end)..u64::MAX]
    }

    /// Starts to write the writer's dirty pages, and records where they are.
    fn note_written(&mut self) {
        let dirty = |range: Range<u64>| {
            !range.is_empty()
                && sys::cachestat(self.file, range).is_ok_and(|seen| seen.dirty + seen.writeback > 0)
        };
        if self.was_empty && dirty(0..self.from) {
            // Finds the first and the last window that has dirty pages, each by bisection.
            let (mut first, mut last) = (0..self.from / WINDOW, 0..self.from / WINDOW);
            while first.end - first.start > 1 {
                let middle = first.start.midpoint(first.end);
                let is_before = dirty(first.start * WINDOW..middle * WINDOW);
                first = if is_before { first.start..middle } else { middle..first.end };
            }
            while last.end - last.start > 1 {
                let middle = last.start.midpoint(last.end);
                let is_behind = dirty(middle * WINDOW..last.end * WINDOW);
                last = if is_behind { middle..last.end } else { last.start..middle };
            }
            let (start, end) = (first.start * WINDOW, last.end * WINDOW);
            let is_first = self.written.is_empty();
            self.written.start = if is_first { start } else { self.written.start.min(start) };
            self.written.end = self.written.end.max(end);
        }
        for own in self.own() {
            if dirty(own.clone()) {
                let _ = sys::sync_file_range(self.file, own, libc::SYNC_FILE_RANGE_WRITE);
            }
        }
    }

    /// Samples at least `length` bytes that the reader comes to next. With `reached`, the file had no pages a moment ago; since then the
    /// reader has come up to `reached`, and its read-ahead somewhat farther.
    fn sample_ahead(&mut self, length: u64, reached: Option<u64>) {
        let Some(range) = self.stream.sample_for_read(self.position, length.max(IN_ORDER), self.size) else {
            return;
        };
        let near = reached
            .map_or(range.start, |reached| reached.max(range.start).saturating_add(AGAIN).min(range.end));
        let is_known = self.stream.saw(&(range.start..near), 0);
        let rest = if is_known { near..range.end } else { range };
        if !rest.is_empty() {
            self.probe.sample(&mut self.stream, self.file, &rest, self.size);
        }
        self.sampled_at = sys::now();
    }

    /// Drops the pages that the reader brought in on its way from `was`.
    fn behind_reader(&mut self, was: u64) {
        let now = sys::now();
        if now.saturating_sub(self.sampled_at) > STALE {
            self.stream.sample_again(was);
            self.sampled_at = now;
        }
        if self.stream.jumps(self.position) {
            self.drop_left();
            self.stream.forget();
            return self.sample_ahead(0, None);
        }
        let (from, passed) = (self.position.min(was), self.position.saturating_sub(was));
        process::count(Count::StreamWasResident, self.stream.foreign(&(from..from.saturating_add(passed))));
        let ranges = self.stream.passed(from, passed);
        release(self.file, ranges, self.count, self.release);
        let ahead = if passed > 0 { passed.saturating_mul(SPARE).min(WAITING) } else { WAITING };
        self.sample_ahead(ahead, None);
    }

    /// Drops the pages that the reader leaves behind.
    fn drop_left(&mut self) {
        if sys::now().saturating_sub(self.sampled_at) > STALE {
            // Pages ahead of the reader may be anybody's by now.
            self.stream.sample_again(u64::MAX);
        }
        for range in self.stream.doubtful() {
            process::count(Count::StreamUnobserved, self.probe.resident(self.file, &range).unwrap_or(0));
        }
        release(self.file, self.stream.left(), self.count, self.release);
    }

    /// Ends the watch: writes and drops all pages that are to go.
    fn end(&mut self, kept: &mut Kept) {
        let (file, place) = (self.file, self.place);
        let is_lost = || place.is_unwanted() || super::has_no_name(file);
        if is_lost() {
            if let Some(kept) = &self.kept {
                kept.went();
            }
            return self.close();
        }
        if let Some(entry) = self.kept.take() {
            kept.add(core::mem::replace(&mut self.file, -1), entry);
            return place.give_back();
        }
        if self.writes {
            self.note_written();
            for own in self.own() {
                if self.release && !own.is_empty() {
                    process::count(self.count, write_and_drop(file, own, &is_lost));
                }
            }
        } else {
            self.drop_left();
        }
        self.close();
    }

    fn close(&mut self) {
        sys::close(self.file);
        self.place.give_back();
        (self.file, self.kept) = (-1, None);
    }
}

/// Drops these ranges if `is_wanted`.
fn release<const PARTLY: usize>(file: c_int, ranges: Ranges<'_, PARTLY>, count: Count, is_wanted: bool) {
    for range in ranges.filter(|_| is_wanted) {
        process::count(count, drop_written(file, range));
    }
}

//! Watches files that are read or written by calls that are not hooked: the helper checks them from
//! time to time.
//!
//! /proc shows the program's offset in a file for as long as its descriptor names the file; the
//! program itself notes it when it closes the file. The pages of a reader are handled as those of
//! any stream ([`pagekeeper_policy::stream`]). The pages of a writer are those behind the file's
//! end at the start of the watch. If the file had no page then, pages before that end that were
//! seen dirty are also the writer's.
//!
//! Invariants:
//! 1. Without watched files there is no timer. A file that does not move is checked ever more
//!    rarely.
//! 2. Pages stay that were resident before a reader came near them, that a reader did not reach, or
//!    that a writer did not write.

use core::ops::Range;

use libc::c_int;
use pagekeeper_policy::WINDOW;
use pagekeeper_policy::allowance::align_down;
use pagekeeper_policy::stream::{IN_ORDER_BYTES, READ_AHEAD_REACH_BYTES, StreamRanges, WatchedStream};

use super::HelperRequest;
use super::channel::FileRequest;
use super::closings::{self, CLOSED_OFFSETS, ClosedOffset, WATCHES_MAX};
use super::drop::{drop_written, first_resident, write_and_drop};
use super::helper_files::HeldFile;
use super::kept::KeptFiles;
use crate::counters::Count;
use crate::files::identity::FileIdentity;
use crate::files::paths::DescriptorPath;
use crate::files::temporary::{KeepChoice, Temporary};
use crate::introspection::position_of;
use crate::pages::residency::{ResidencyProbe, STALE_NS};
use crate::{process, sys};

/// Nanoseconds between checks: of a moving file, of a file that is read fast, and of one that has
/// not moved for long. Otherwise the interval is the time since the last move divided by
/// `INTERVAL_PART`.
const WATCH_CHECK_MIN_NS: u64 = 25_000_000;
const CHECK_FAST_NS: u64 = 5_000_000;
const WATCH_CHECK_MAX_NS: u64 = 6_400_000_000;
const INTERVAL_PART: u64 = 16;
/// Bytes between two checks from which on a file counts as read fast.
const FAST_BYTES: u64 = 8 << 20;
/// Bytes sampled ahead of a waiting reader, which may continue at full speed. For a moving reader,
/// it is `AHEAD_FACTOR` times the bytes read since the last check.
const AHEAD_WAITING_BYTES: u64 = 192 << 20;
const AHEAD_FACTOR: u64 = 4;

/// A watched file.
struct WatchedFile {
    /// The helper's own file, and the program's descriptor.
    file: HeldFile,
    fd: c_int,
    identity: FileIdentity,
    used: Count,
    /// The program's offset, and the file's size.
    at: FileExtent,
    /// The offset up to which bytes read or written are counted.
    counted: u64,
    due: u64,
    interval: u64,
    /// The time of the last move.
    moved_at: u64,
    user: FileUser,
    release: ReleaseTarget,
}

/// The program's offset in a file, and the file's size.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileExtent {
    position: u64,
    size: u64,
}

/// The file whose pages are dropped, and the count of the bytes that go.
#[derive(Clone, Copy)]
struct ReleaseTarget {
    file: c_int,
    count: Count,
}

impl ReleaseTarget {
    fn ranges<const PARTIAL_MAX: usize>(self, ranges: StreamRanges<'_, PARTIAL_MAX>) {
        ranges.for_each(|range| process::count(self.count, drop_written(self.file, range)));
    }
}

/// The use of a watched file by the program.
#[allow(clippy::large_enum_variant, reason = "a table has room for either, and nothing is allocated")]
enum FileUser {
    Reader(WatchedReader),
    Writer(WatchedWriter),
}

/// The pages that a reader brought in, and the time of the last sample.
struct WatchedReader {
    stream: WatchedStream,
    probe: ResidencyProbe,
    sampled_at: u64,
}

/// The pages that a writer brought in.
struct WatchedWriter {
    /// The entry of a temporary file that is kept.
    kept: Option<Temporary>,
    /// The offset up to which pages behind the writer are released.
    released: u64,
    /// The offset from which on all pages are the writer's own.
    from: u64,
    /// Whether the file had no page before that offset, and the range in which pages were dirty
    /// since.
    was_empty: bool,
    written: Range<u64>,
}

/// All watched files.
pub(super) struct FileWatches([Option<WatchedFile>; WATCHES_MAX]);

impl FileWatches {
    /// Creates an empty set: 140 KiB, made in place.
    pub(super) fn none() -> Self {
        Self(core::array::from_fn(|_| None))
    }

    /// Returns the nanoseconds until the next check; `None` if nothing is watched.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        self.0.iter().flatten().map(|watch| watch.due.saturating_sub(now)).min()
    }

    /// Checks the files that are due.
    pub(super) fn check(&mut self, now: u64, kept: &mut KeptFiles) {
        for (place, closed) in self.0.iter_mut().zip(&CLOSED_OFFSETS) {
            let Some(watch) = place.as_mut().filter(|watch| watch.due <= now) else { continue };
            if watch.check(closed) {
                watch.due = sys::now().saturating_add(watch.interval);
            } else {
                place.take().into_iter().for_each(|watch| watch.end(kept));
                closed.end();
            }
        }
    }

    /// Watches a file. Closes the helper's descriptor once the program's does not name the file any
    /// more.
    pub(super) fn add(&mut self, received: FileRequest, own: Option<Temporary>, kept: &mut KeptFiles) {
        let (file, fd) = (received.file.fd(), received.fd);
        if self.0.iter().all(Option::is_some) {
            // Some may be closed by now.
            self.check(u64::MAX, kept);
        }
        let free = self.0.iter_mut().zip(&CLOSED_OFFSETS).find(|(place, _)| place.is_none());
        let has_counts = sys::has_counts(file);
        let HelperRequest::Watch { flags, .. } = received.request else { return };
        // Behind a writer, only counts show which pages are written.
        let can_see = has_counts || !sys::may_write(flags);
        let stat = sys::fstat(file);
        let inode = stat.as_ref().map_or(0, |stat| stat.st_ino);
        let (Some((place, closed)), Ok(stat), true) = (free, stat, can_see) else {
            closings::expect_no_more(fd, inode);
            return process::count(Count::NotFollowed, 1);
        };
        closed.begin(fd, inode);
        *place = WatchedFile::begin(received, own, &stat, has_counts, closed.at());
    }

    /// Ends the watch of files that the helper must let go of. Their resident pages stay.
    pub(super) fn let_go(&mut self) {
        for (place, closed) in self.0.iter_mut().zip(&CLOSED_OFFSETS) {
            if let Some(watch) = place.take_if(|watch| watch.file.is_unwanted()) {
                watch.close();
                closed.end();
            }
        }
    }

    /// Checks all files for the last time: the process is about to end.
    pub(super) fn end(&mut self, kept: &mut KeptFiles) {
        for (place, closed) in self.0.iter_mut().zip(&CLOSED_OFFSETS) {
            if let Some(mut watch) = place.take() {
                watch.check(closed);
                watch.end(kept);
            }
        }
    }
}

impl WatchedFile {
    fn begin(
        received: FileRequest,
        kept: Option<Temporary>,
        stat: &libc::stat,
        has_counts: bool,
        closed_at: Option<u64>,
    ) -> Option<Self> {
        let FileRequest { request, file, fd, size, position } = received;
        let HelperRequest::Watch { flags, count, used, .. } = request else { return None };
        let identity = FileIdentity::of(stat);
        let reached = if closed_at.is_none() && is_open(fd, identity) { position_of(fd) } else { closed_at };
        let mut at = FileExtent { position: reached.unwrap_or(0), size: sys::size_in(stat) };
        let was_empty = size == 0 && has_counts;
        let release = ReleaseTarget { file: file.fd(), count };
        let user = if sys::may_write(flags) {
            // The writer's own pages begin at the file's end.
            let end = if size > 0 { size } else { at.size };
            let from = align_down(end.saturating_add(WINDOW - 1));
            let mut writer = WatchedWriter { kept, released: 0, from, was_empty, written: 0..0 };
            if writer.kept.is_none() {
                writer.note_written(file.fd());
            }
            FileUser::Writer(writer)
        } else {
            let (stream, probe) = (WatchedStream::new(), ResidencyProbe::with(has_counts));
            let mut reader = WatchedReader { stream, probe, sampled_at: 0 };
            if was_empty {
                // All resident pages up to the program's offset were brought in by the program
                // since the request.
                at.position = position.min(at.position);
            }
            reader.sample_ahead(
                file.fd(),
                at,
                AHEAD_WAITING_BYTES,
                was_empty.then(|| reached.unwrap_or(position)),
            );
            FileUser::Reader(reader)
        };
        let (moved_at, interval) = (sys::now(), WATCH_CHECK_MIN_NS);
        let due = moved_at.saturating_add(interval);
        Some(Self { file, fd, identity, used, at, counted: position, due, interval, moved_at, user, release })
    }

    /// Checks the file. `false`: the program's descriptor no longer names it.
    fn check(&mut self, closed: &ClosedOffset) -> bool {
        let Ok(stat) = sys::fstat(self.file.fd()) else { return false };
        let closed_at = closed.at();
        let is_open = closed_at.is_none() && is_open(self.fd, self.identity);
        // The file may have been closed in between.
        let closed_at = closed_at.or_else(|| closed.at());
        let position = if is_open { position_of(self.fd) } else { closed_at }.unwrap_or(self.at.position);
        let at = FileExtent { position, size: sys::size_in(&stat) };
        let was = core::mem::replace(&mut self.at, at);
        let is_writer = matches!(self.user, FileUser::Writer(_));
        // Only the size shows calls with an offset of their own.
        let grown = if is_writer { at.size.saturating_sub(was.size) } else { 0 };
        process::count(self.used, position.checked_sub(self.counted).filter(|&by| by > 0).unwrap_or(grown));
        self.counted = position;
        match &mut self.user {
            FileUser::Writer(writer) => writer.check(at, self.release),
            FileUser::Reader(reader) => reader.check(was.position, at, self.release),
        }
        let now = sys::now();
        if at != was {
            self.moved_at = now;
        }
        let is_fast = !is_writer && position.saturating_sub(was.position) >= FAST_BYTES;
        let waited = now.saturating_sub(self.moved_at);
        self.interval = if is_fast {
            CHECK_FAST_NS
        } else {
            (waited / INTERVAL_PART).clamp(WATCH_CHECK_MIN_NS, WATCH_CHECK_MAX_NS)
        };
        is_open
    }

    /// Ends the watch: writes and drops all pages that are to go.
    fn end(mut self, kept: &mut KeptFiles) {
        if self.file.is_lost() {
            return self.close();
        }
        match &mut self.user {
            FileUser::Reader(reader) => reader.drop_left(self.release),
            FileUser::Writer(writer) => match writer.kept.take() {
                Some(entry) => kept.add(self.file, entry),
                None => writer.end(&self.file, self.release),
            },
        }
    }

    /// Closes the file, whose pages go with it if it was kept.
    fn close(self) {
        if let FileUser::Writer(WatchedWriter { kept: Some(kept), .. }) = &self.user {
            kept.went();
        }
    }
}

/// Whether the program's descriptor names the file.
fn is_open(fd: c_int, identity: FileIdentity) -> bool {
    let path = DescriptorPath::new(b"/proc/self/fd/", fd);
    sys::stat(path.as_c_str()).is_ok_and(|stat| FileIdentity::of(&stat) == identity)
}

impl WatchedWriter {
    /// Starts to write dirty pages, and drops pages behind the writer.
    fn check(&mut self, at: FileExtent, release: ReleaseTarget) {
        let keep =
            self.kept.as_ref().map_or(KeepChoice::No, |kept| kept.grows(at.size, process::plan().budget));
        if keep == KeepChoice::Unwritten {
            return;
        }
        self.note_written(release.file);
        if keep == KeepChoice::Written {
            return;
        }
        self.kept = None;
        // If the offset does not show the progress (calls with their own offset), the file's end
        // does.
        let start = if self.written.is_empty() { self.from } else { self.written.start };
        let end = if at.position > start { at.position } else { at.size };
        let limit = align_down(end).saturating_sub(WINDOW);
        if limit <= self.released {
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
            process::count(release.count, drop_written(release.file, range.clone()));
            if sys::cachestat(release.file, range.clone()).is_ok_and(|seen| seen.cached > 0) {
                self.released = self.released.min(first_resident(release.file, range));
            }
        }
    }

    /// Returns the ranges whose pages are the writer's.
    fn own(&self) -> [Range<u64>; 2] {
        [self.written.clone(), self.from.max(self.written.end)..u64::MAX]
    }

    /// Starts to write the writer's dirty pages, and records where they are.
    fn note_written(&mut self, file: c_int) {
        let dirty = |range: Range<u64>| {
            !range.is_empty() && sys::cachestat(file, range).is_ok_and(|seen| seen.dirty + seen.writeback > 0)
        };
        if self.was_empty && dirty(0..self.from) {
            // Finds the first and the last window that has dirty pages, each by bisection.
            let find = |is_behind: &dyn Fn(u64, u64, u64) -> bool| {
                let (mut start, mut end) = (0, self.from);
                while end - start > WINDOW {
                    let middle = align_down(start.midpoint(end));
                    *(if is_behind(start, middle, end) { &mut start } else { &mut end }) = middle;
                }
                start..end
            };
            let start = find(&|start, middle, _| !dirty(start..middle)).start;
            let end = find(&|_, middle, end| dirty(middle..end)).end;
            let is_first = self.written.is_empty();
            self.written.start = if is_first { start } else { self.written.start.min(start) };
            self.written.end = self.written.end.max(end);
        }
        for own in self.own() {
            if dirty(own.clone()) {
                let _ = sys::begin_writeback(file, &own);
            }
        }
    }

    /// Writes and drops the pages that are left.
    fn end(&mut self, file: &HeldFile, release: ReleaseTarget) {
        self.note_written(file.fd());
        for own in self.own().into_iter().filter(|own| !own.is_empty()) {
            process::count(release.count, write_and_drop(file.fd(), own, &|| file.is_lost()));
        }
    }
}

impl WatchedReader {
    /// Samples at least `length` bytes that the reader comes to next. With `reached`, the file had
    /// no pages a moment ago; since then the reader has come up to `reached`, and its read-ahead
    /// somewhat farther.
    fn sample_ahead(&mut self, file: c_int, at: FileExtent, length: u64, reached: Option<u64>) {
        let Some(range) = self.stream.sample_for_read(at.position, length.max(IN_ORDER_BYTES), at.size)
        else {
            return;
        };
        let near = reached.map_or(range.start, |reached| {
            reached.max(range.start).saturating_add(READ_AHEAD_REACH_BYTES).min(range.end)
        });
        let is_known = self.stream.record_residency(&(range.start..near), 0);
        let rest = if is_known { near..range.end } else { range };
        if !rest.is_empty() {
            self.probe.sample(&mut self.stream, file, &rest, at.size);
        }
        self.sampled_at = sys::now();
    }

    /// Drops the pages that the reader brought in on its way from `was`.
    fn check(&mut self, was: u64, at: FileExtent, release: ReleaseTarget) {
        let now = sys::now();
        if now.saturating_sub(self.sampled_at) > STALE_NS {
            self.stream.sample_again(was);
            self.sampled_at = now;
        }
        if self.stream.jumps(at.position) {
            self.drop_left(release);
            self.stream.forget();
            return self.sample_ahead(release.file, at, 0, None);
        }
        let (from, passed) = (at.position.min(was), at.position.saturating_sub(was));
        process::count(
            Count::StreamWasResident,
            self.stream.foreign_bytes(&(from..from.saturating_add(passed))),
        );
        release.ranges(self.stream.passed(from, passed));
        let ahead = if passed > 0 {
            passed.saturating_mul(AHEAD_FACTOR).min(AHEAD_WAITING_BYTES)
        } else {
            AHEAD_WAITING_BYTES
        };
        self.sample_ahead(release.file, at, ahead, None);
    }

    /// Drops the pages that the reader leaves behind.
    fn drop_left(&mut self, release: ReleaseTarget) {
        if sys::now().saturating_sub(self.sampled_at) > STALE_NS {
            // Pages ahead of the reader may be anybody's by now.
            self.stream.sample_again(u64::MAX);
        }
        for range in self.stream.doubtful_ranges() {
            process::count(Count::StreamUnobserved, self.probe.resident(release.file, &range).unwrap_or(0));
        }
        release.ranges(self.stream.remaining_ranges());
    }
}

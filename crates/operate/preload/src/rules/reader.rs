//! The reads of a stream: pages are sampled before read-ahead reaches them, and released behind the
//! reader.
//!
//! Windows are sampled by cachestat(2). The reader falls back to mincore(2) on a temporary mapping
//! where cachestat(2) is missing or counts nothing (overlayfs), and for a window that is partly
//! resident. Both calls are right only for a user who owns the file or may write to it. For others,
//! reads are uncached (`RWF_DONTCACHE`) if the file system supports that. If reads are not of whole
//! pages, or cannot be uncached, resident pages are probed. The helper does both ahead of a reader
//! that reads in order (`ReadAhead`). Without a helper, pages of plain reads stay, and are counted
//! as unobserved.
//!
//! If a read is larger than the stream's windows, the rest is sampled as a whole first. It is
//! released after the call if nothing of it was resident. For scattered reads, read-ahead is turned
//! off ([`pagekeeper_policy::scattered`]), and the pages that each read brings in are sampled
//! before it.
//!
//! Not covered: reads through a mapping, and reads by unhooked calls that do not move the file
//! offset.
//!
//! Invariants:
//! 1. Pages that were resident before the stream came near them are never dropped
//!    ([`pagekeeper_policy::stream`]). Two kinds of resident pages are the stream's all the same:
//!    those that other streams with the file open brought in ([`crate::open_readers`]), and those
//!    of a file that this process created.
//! 2. Pages that others may have brought in since then are left, and counted as unobserved. When a
//!    reader leaves a file, these are pages ahead of it that were sampled more than [`STALE_NS`]
//!    ago, or that its reads cannot have read ahead.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use pagekeeper_policy::pending_ranges::{DroppedRange, PendingRanges};
use pagekeeper_policy::reader_state::{ReaderEvent, ReaderState};
use pagekeeper_policy::scattered::ScatteredReads;
use pagekeeper_policy::stream::{IN_ORDER_BYTES, READ_AHEAD_REACH_BYTES, ReadStream, SAMPLE_AHEAD_BYTES};

use super::scattered::ScatteredReader;
use super::uncached::UncachedReader;
use super::{FILES, ReadMode};
use crate::counters::Count;
use crate::files::identity::FileIdentity;
use crate::files::open_readers::{self, ALL_WINDOWS, ReaderPlace};
use crate::helper::{self, HelperRequest};
use crate::pages::residency::{ResidencyProbe, STALE_NS, windows};
use crate::process::count;
use crate::sys::{self, Errno};

/// Nanoseconds after which pages read by unhooked calls are no longer released when the file is
/// closed.
const UNSEEN_MAX: u64 = 30_000_000_000;
/// Retry delays, in nanoseconds, for dropping pages that are still under read-ahead.
const DROP_RETRY_NS: [u64; 7] = [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 1];
/// Leaving a file begins no wait for read-ahead any more after this many timeouts in the process.
/// Each is the sum of [`DROP_RETRY_NS`], 16 ms, and the time that the drops between take.
const READ_AHEAD_TIMEOUTS_MAX: u32 = 8;
/// Timeouts while waiting for read-ahead.
static READ_AHEAD_TIMEOUTS: AtomicU32 = AtomicU32::new(0);

/// A file that a stream reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamedFile {
    pub(super) identity: FileIdentity,
    /// Its size in bytes when last queried.
    pub(super) size: u64,
    /// Whether its process created it.
    pub(super) is_new: bool,
}

/// The state of a file that a stream reads.
pub struct Reader {
    state: ReaderState,
    file: StreamedFile,
    stream: ReadStream,
    probe: ResidencyProbe,
    /// The time of the last sample.
    sampled_at: u64,
    /// The range that the current read brings in beyond the stream's windows.
    beyond: Range<u64>,
    /// Pages that stayed resident after their release.
    pending: PendingRanges,
    scattered: ScatteredReads,
    uncached: UncachedReader,
    /// The place in which other readers see what this one knows.
    place: Option<ReaderPlace>,
    /// The last known file offset; `None`: nothing was read there.
    offset: Option<u64>,
    /// The offset and time at which unhooked calls began to read; `None`: all calls are hooked.
    unseen: Option<(u64, u64)>,
    /// Data was sent by sendfile or splice; the socket or pipe may hold its pages.
    is_sent: bool,
    is_mapped: bool,
    /// Whether pages were read without any knowledge of them.
    has_missed: bool,
    /// Bytes read whose residency cannot be known.
    pub(super) unobserved: u64,
}

impl Reader {
    /// The initial state.
    pub const NEW: Self = Self {
        state: ReaderState::InOrder,
        file: StreamedFile { identity: FileIdentity { device: 0, inode: 0 }, size: 0, is_new: false },
        stream: ReadStream::new(),
        probe: ResidencyProbe::NEW,
        sampled_at: 0,
        beyond: 0..0,
        pending: PendingRanges::new(),
        scattered: ScatteredReads::new(),
        uncached: UncachedReader::NEW,
        place: None,
        offset: None,
        unseen: None,
        is_sent: false,
        is_mapped: false,
        has_missed: false,
        unobserved: 0,
    };

    /// Begins with a newly opened file. It is new if it is empty and open for writing.
    pub fn open(&mut self, stat: &libc::stat, is_written: bool) {
        let size = sys::size_in(stat);
        let is_new = is_written && size == 0 && sys::is_regular(stat);
        self.file = StreamedFile { identity: FileIdentity::of(stat), size, is_new };
        if is_new {
            open_readers::say(&mut self.place, self.file.identity, ALL_WINDOWS);
        }
    }

    /// Returns a reader for another place of the file.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let Self { state, file, is_sent, is_mapped, .. } = *self;
        Self { state, file, is_sent, is_mapped, ..Self::NEW }
    }

    /// Whether a read at `at` continues where this reader is.
    pub fn is_near(&self, at: u64) -> bool {
        !self.is_free() && !self.stream.jumps(at)
    }

    /// Whether nothing was read here yet.
    pub fn is_free(&self) -> bool {
        self.stream.is_new()
    }

    /// Whether other places of the file belong to other readers.
    pub fn finds_other_places(&self) -> bool {
        self.state == ReaderState::Shared && !self.is_free()
    }

    /// Returns the range of the file that is sampled.
    pub fn known(&self) -> Range<u64> {
        self.stream.known()
    }

    /// Records that several threads read the file.
    pub fn shares(&mut self, fd: c_int) {
        if !self.state.is_shared() {
            self.end_scattered(fd);
            self.state = self.state.after(ReaderEvent::Shared);
            self.uncached.end();
        }
    }

    /// Runs before a read of `length` bytes.
    pub fn before(&mut self, fd: c_int, at: Option<u64>, length: u64) -> ReadMode {
        let Some(at) = at.or_else(|| self.begins(fd)) else { return ReadMode::Plain };
        self.beyond = 0..0;
        if self.state.is_sampled() {
            self.before_sampled(fd, at, length);
        }
        match self.state {
            ReaderState::Uncached => self.uncached.before(fd, at, length, self.file.size),
            ReaderState::SharedUncached => ReadMode::Uncached,
            ReaderState::InOrder | ReaderState::Scattered | ReaderState::Shared | ReaderState::Unknown => {
                ReadMode::Plain
            }
        }
    }

    /// Samples the pages that a read brings in.
    fn before_sampled(&mut self, fd: c_int, at: u64, length: u64) {
        if at >= self.file.size {
            self.ask_size(fd);
        }
        if self.state != ReaderState::Shared && self.scattered.begin_read(at, length) {
            return self.before_scattered(fd, at, length);
        }
        self.end_scattered(fd);
        if self.stream.jumps(at) {
            self.go_elsewhere(fd);
        }
        if let Some(range) = self.stream.sample_for_read(at, length, self.file.size) {
            self.sample(fd, &range);
            self.sample_beyond(fd, at, length);
        }
    }

    /// Runs before the kernel copies a part of a file whose residency cannot be seen. Returns
    /// whether the pages that it brings in will go.
    pub fn before_copy(&mut self, fd: c_int, at: u64, length: u64) -> bool {
        self.uncached.before_copy(fd, at, length, self.file.size)
    }

    /// Runs before the program prefetches `length` bytes at `at`, which moves no reader.
    pub fn before_prefetch(&mut self, fd: c_int, at: u64, length: u64) {
        if self.state.is_sampled()
            && let Some(range) =
                self.stream.sample_for_prefetch(at, length.min(SAMPLE_AHEAD_BYTES), self.file.size)
        {
            self.sample(fd, &range);
        }
    }

    /// Handles reads by unhooked calls, from the file offset on. Returns whether the pages will be
    /// handled when the file is closed; if not, the file must be watched.
    pub fn is_unseen(&mut self, fd: c_int) -> bool {
        if self.unseen.is_some() {
            return true;
        }
        let Ok(position) = sys::position(fd) else { return false };
        let size = self.file.size;
        let can_see =
            size == 0 || self.state.is_sampled() && self.probe.can_see(fd, size, FILES.has_counts(fd));
        if can_see && size <= READ_AHEAD_REACH_BYTES {
            if let Some(range) = self.stream.sample_for_read(position, IN_ORDER_BYTES, size) {
                self.sample(fd, &range);
            }
            self.unseen = Some((position, self.sampled_at));
        } else if !can_see {
            self.end_scattered(fd);
            self.state = self.state.after(ReaderEvent::CannotSee);
            if self.uncached.begin_unhooked(fd, position) {
                self.unseen = Some((position, sys::now()));
            }
        }
        self.unseen.is_some()
    }

    /// Runs after a read that returned `done`.
    pub fn after(&mut self, fd: c_int, at: Option<u64>, done: isize) {
        let Ok(done) = u64::try_from(done) else { return };
        match self.state {
            ReaderState::InOrder | ReaderState::Scattered | ReaderState::Shared => {}
            ReaderState::Uncached | ReaderState::SharedUncached => return self.uncached.after(done),
            ReaderState::Unknown => {
                self.unobserved = self.unobserved.saturating_add(done);
                return count(Count::StreamUnobserved, done);
            }
        }
        if self.state == ReaderState::Shared && at.is_none() {
            // The next read sees how far all have come.
            return;
        }
        let end = at.or(self.offset).unwrap_or(0).saturating_add(done);
        if at.is_none() {
            self.offset = Some(end);
        }
        self.scattered.end_read(end);
        if self.state == ReaderState::Scattered {
            return;
        }
        if done > 0 && self.stream.is_idle() {
            self.has_missed = true;
            // The kernel generates a file without a size as it is read.
            count(Count::StreamUnobserved, if self.file.size > 0 { done } else { 0 });
        }
        if end > self.file.size {
            self.ask_size(fd);
        }
        if done == 0 && end >= self.file.size && self.state != ReaderState::Shared {
            // The reader has come to the end of the file.
            return self.leave(fd);
        }
        self.passed(fd, end - done, done);
        self.drop_beyond(fd, end);
    }

    /// Drops the pages beyond the stream's windows that a call up to `end` brought in.
    fn drop_beyond(&mut self, fd: c_int, end: u64) {
        let beyond = core::mem::replace(&mut self.beyond, 0..0);
        if beyond.start >= end.min(beyond.end) {
            return;
        }
        for pause in DROP_RETRY_NS {
            release(fd, beyond.clone());
            let left = self.probe.resident(fd, &beyond).unwrap_or(0);
            if left == 0 {
                return;
            }
            if self.is_sent {
                break;
            }
            // The range is still under read-ahead.
            sys::sleep(pause);
        }
        // A queue may hold it.
        let left = self.probe.resident(fd, &beyond).unwrap_or(0);
        self.pending.stays(&beyond, left);
    }

    fn ask_size(&mut self, fd: c_int) {
        if let Ok(stat) = sys::fstat(fd) {
            self.file.size = sys::size_in(&stat);
        }
    }

    /// Samples the rest of a call that brings in more than the stream has windows for.
    fn sample_beyond(&mut self, fd: c_int, at: u64, length: u64) {
        // Includes pages that may be read ahead behind it.
        let end = at.saturating_add(length);
        let rest = self.stream.known().end..end.saturating_add(READ_AHEAD_REACH_BYTES).min(self.file.size);
        if self.state.is_sampled()
            && !rest.is_empty()
            && (self.file.is_new || self.probe.resident(fd, &rest) == Some(0))
        {
            self.beyond = rest;
        }
    }

    /// Runs before a scattered read.
    fn before_scattered(&mut self, fd: c_int, at: u64, length: u64) {
        if self.state != ReaderState::Scattered {
            self.go_elsewhere(fd);
            sys::advise_order(fd, libc::POSIX_FADV_RANDOM);
            self.state = self.state.after(ReaderEvent::Scattered);
        }
        self.probe.has_counts = FILES.has_counts(fd);
        self.scattered_reader(fd).before(at, length);
    }

    /// Releases the kept pages when reads are in order again, or the file is left.
    fn end_scattered(&mut self, fd: c_int) {
        if self.state == ReaderState::Scattered {
            self.state = self.state.after(ReaderEvent::InOrder);
            sys::advise_order(fd, libc::POSIX_FADV_NORMAL);
            self.scattered_reader(fd).end();
        }
    }

    fn scattered_reader(&mut self, fd: c_int) -> ScatteredReader<'_> {
        ScatteredReader { fd, file: self.file, reads: &mut self.scattered, probe: &mut self.probe }
    }

    /// Releases pages behind the reader after `done` bytes were read at `at`.
    fn passed(&mut self, fd: c_int, at: u64, done: u64) {
        count(Count::StreamWasResident, self.stream.foreign_bytes(&(at..at.saturating_add(done))));
        let fresh = self.stream.released();
        let ranges = self.stream.passed(at, done);
        if ranges.clone().next().is_none() {
            return;
        }
        let start = sys::now();
        let mut released = 0;
        for range in ranges {
            // A queue still holds it: an attempt would make all processors flush their page lists,
            // and wait for that.
            let is_held = self.is_sent && {
                let there = self.probe.resident(fd, &range).unwrap_or(0);
                self.pending.stays(&(range.start.max(fresh).min(range.end)..range.end), there)
            };
            if is_held {
                continue;
            }
            let Ok((went, left)) = self.probe.drop_range(fd, &range) else {
                return count(Count::Failures, 1);
            };
            released += went;
            if left > 0 {
                self.pending.stays(&range, left);
            }
        }
        match self.drop_pending(fd) {
            Ok(went) => released += went,
            Err(_) => count(Count::Failures, 1),
        }
        count(Count::StreamReleased, released);
        if start.saturating_sub(self.sampled_at) > STALE_NS {
            self.stream.sample_again(at.saturating_add(done));
            self.sampled_at = start;
        }
        count(Count::InsideNs, sys::now().saturating_sub(start));
    }

    /// Releases the rest before the descriptor is closed, or at the file's end.
    pub fn leave(&mut self, fd: c_int) {
        if let Some((from, since)) = self.unseen
            && let Ok(position) = sys::position(fd)
            && position > from
        {
            let done = position - from;
            count(Count::StreamRead, done);
            if !self.uncached.record_unhooked(position) {
                if self.state.is_sampled() && sys::now().saturating_sub(since) <= UNSEEN_MAX {
                    self.passed(fd, from, done);
                } else {
                    count(Count::StreamUnobserved, done);
                    self.stream.forget();
                }
            }
            self.unseen = Some((position, since));
        }
        if self.state == ReaderState::Shared && self.offset.is_some() {
            let _ = self.caught_up(fd);
        }
        self.go_elsewhere(fd);
    }

    /// Leaves the file as the descriptor is closed, and withdraws what others can see.
    pub fn close(&mut self, fd: c_int) {
        self.leave(fd);
        self.place = None;
    }

    /// Releases the rest at the reader's old place when it leaves that.
    fn go_elsewhere(&mut self, fd: c_int) {
        self.end_scattered(fd);
        // Pages that were only read ahead so far are yet to be read.
        let has_read = (self.stream.has_read() || self.unseen.is_some()) && !self.stream.is_idle();
        let is_late = has_read && inside(|| self.drop_left(fd));
        let is_held = self.give_pending(fd, is_late);
        self.stream.forget();
        self.uncached.end();
        match self.place.take() {
            // Others still read it, and see that all of it is the process's own.
            place if self.file.is_new => self.place = place,
            Some(place) if is_held => place.linger(),
            Some(_) | None => {}
        }
    }

    /// Drops the pages that stayed once more if that is due; returns how many bytes went.
    fn drop_pending(&mut self, fd: c_int) -> Result<u64, Errno> {
        let (now, probe) = (sys::now(), &mut self.probe);
        if !self.pending.is_due(now) {
            return Ok(0);
        }
        let went = self.pending.retry(|range| {
            let (went, left) = probe.drop_range(fd, range)?;
            // The gone windows at its start are not touched again.
            let gone = |window: &Range<u64>| left > 0 && probe.resident(fd, window) == Some(0);
            let start = windows(range).take_while(gone).last().map_or(range.start, |window| window.end);
            Ok(DroppedRange { went, left, start })
        })?;
        self.pending.tried(now, sys::now());
        Ok(went)
    }

    /// Gives pages that stay to the helper, to release later, if a queue holds them or their
    /// read-ahead `is_late`. Returns whether there are such pages.
    fn give_pending(&mut self, fd: c_int, is_late: bool) -> bool {
        if self.pending.bytes() == 0 {
            return false;
        }
        self.pending.make_due();
        count(Count::StreamReleased, self.drop_pending(fd).unwrap_or(0));
        let goes_later = (self.is_sent || is_late) && !self.is_mapped;
        let is_held = goes_later && self.pending.bytes() > 0;
        for range in self.pending.take() {
            if goes_later && helper::prepare() {
                helper::send(fd, &HelperRequest::DropLater { range, count: Count::StreamReleased });
            }
        }
        is_held
    }

    /// Records that the kernel copied from the file to something that may hold its pages for long:
    /// a socket or a pipe.
    pub fn sent(&mut self) {
        self.is_sent = true;
    }

    /// Whether the rule handles all pages that the program brought in so far.
    pub fn is_covered(&self) -> bool {
        self.state != ReaderState::Unknown && !self.is_mapped && !self.has_missed && self.unseen.is_none()
    }

    /// Forgets all reads.
    pub fn forget(&mut self) {
        *self = Self { file: self.file, ..Self::NEW };
    }

    /// Drops all remaining pages. Pages still under read-ahead are locked, and go once they have
    /// come. Returns whether some are under it for longer than a program may wait.
    fn drop_left(&mut self, fd: c_int) -> bool {
        if sys::now().saturating_sub(self.sampled_at) > STALE_NS {
            // Pages ahead of the reader may be anybody's by now.
            self.stream.sample_again(u64::MAX);
        }
        let probe = &mut self.probe;
        let doubtful =
            self.stream.doubtful_ranges().map(|range| probe.resident(fd, &range).unwrap_or(0)).sum();
        count(Count::StreamUnobserved, doubtful);
        for pause in DROP_RETRY_NS {
            let mut stays = 0;
            for range in self.stream.remaining_ranges() {
                let Ok((went, left)) = probe.drop_range(fd, &range) else {
                    count(Count::Failures, 1);
                    return false;
                };
                count(Count::StreamReleased, went);
                stays += left;
                if left > 0 {
                    self.pending.stays(&range, left);
                }
            }
            if stays == 0 || self.is_sent || self.is_mapped {
                return false;
            }
            // A handler that waits may be interrupted by another one, which waits, too, until the
            // stack is full.
            if READ_AHEAD_TIMEOUTS.load(Ordering::Relaxed) >= READ_AHEAD_TIMEOUTS_MAX
                || helper::may_be_in_handler()
            {
                return true;
            }
            sys::sleep(pause);
        }
        READ_AHEAD_TIMEOUTS.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Records that the file was mapped: pages that come in so stay, and are not waited for.
    pub fn mapped(&mut self) {
        self.is_mapped = true;
    }

    /// Records that an uncached read was refused.
    pub fn uncached_refused(&mut self) {
        self.state = self.state.after(ReaderEvent::UncachedRefused);
    }

    /// Returns the start of a read at the file offset.
    fn begins(&mut self, fd: c_int) -> Option<u64> {
        if self.state.is_shared() {
            return self.caught_up(fd);
        }
        self.offset = Some(sys::position(fd).ok()?);
        self.offset
    }

    /// Returns the file offset, and passes over what several threads have read up to it.
    fn caught_up(&mut self, fd: c_int) -> Option<u64> {
        let position = sys::position(fd).ok()?;
        let before = self.offset.replace(position);
        if let Some(before) =
            before.filter(|before| self.stream.known().contains(before) && position > *before)
        {
            self.passed(fd, before, position - before);
        }
        Some(position)
    }

    fn sample(&mut self, fd: c_int, range: &Range<u64>) {
        self.sampled_at = inside(|| {
            self.probe.has_counts = FILES.has_counts(fd);
            let StreamedFile { identity, size, is_new } = self.file;
            if is_new {
                let _ = self.stream.record_residency(range, 0);
                open_readers::say(&mut self.place, identity, ALL_WINDOWS);
                return sys::now();
            }
            // Before the sample: a reader that leaves meanwhile has dropped its pages.
            let others = open_readers::others(self.place.as_ref(), identity, range);
            if !self.probe.sample(&mut self.stream, fd, range, size) {
                if !sys::reads_uncached(fd, size) {
                    self.uncached.mark_refused();
                }
                self.state = self.state.after(ReaderEvent::CannotSee);
                return sys::now();
            }
            for (nth, window) in windows(range).enumerate().filter(|(nth, _)| others >> nth & 1 == 1) {
                debug_assert!(nth < 128, "a stream has no more windows");
                let _ = self.stream.record_residency(&window, 0);
            }
            open_readers::say(&mut self.place, identity, self.stream.whole_windows(size));
            sys::now()
        });
    }
}

/// Drops pages that reads brought in, and counts them.
pub(super) fn release(fd: c_int, range: Range<u64>) {
    count(Count::StreamReleased, helper::drop_written(fd, range));
}

/// Counts the time of a slow operation.
pub fn inside<R>(act: impl FnOnce() -> R) -> R {
    let start = sys::now();
    let result = act();
    count(Count::InsideNs, sys::now().saturating_sub(start));
    result
}

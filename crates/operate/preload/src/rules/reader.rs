//! The reads of a stream: pages are sampled before read-ahead reaches them, and released behind the reader.
//!
//! Windows are sampled by cachestat(2). The reader falls back to mincore(2) on a temporary mapping where cachestat(2) is missing or counts
//! nothing (overlayfs), and for a window that is partly resident. Both calls are right only for a user who owns the file or may write to
//! it. For others, reads are uncached (`RWF_DONTCACHE`) if the file system supports that. If reads are not of whole pages, or cannot be
//! uncached, resident pages are probed. The helper does both ahead of a reader that reads in order ([`ReadAhead`]). Without a helper, pages
//! of plain reads stay, and are counted as unobserved.
//!
//! If a read is larger than the stream's windows, the rest is sampled as a whole first. It is released after the call if nothing of it was
//! resident. For scattered reads, read-ahead is turned off ([`pagekeeper_policy::scattered`]), and the pages that each read brings in are
//! sampled before it.
//!
//! Not covered: reads through a mapping, and reads by unhooked calls that do not move the file offset.
//!
//! Invariants:
//! 1. Pages that were resident before the stream came near them are never dropped ([`pagekeeper_policy::stream`]). Two kinds of resident
//!    pages are the stream's all the same: those that other streams with the file open brought in ([`crate::open_readers`]), and those of a
//!    file that this process created.
//! 2. Pages that others may have brought in since then are left, and counted as unobserved. When a reader leaves a file, these are pages
//!    ahead of it that were sampled more than [`STALE`] ago, or that its reads cannot have read ahead.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use pagekeeper_policy::scattered::ScatteredReads;
use pagekeeper_policy::stream::{AGAIN, HORIZON, IN_ORDER, Stream};

use super::pending::Pending;
use super::{FILES, ReadMode};
use crate::counters::Count;
use crate::helper::{self, CallKind, HelperRequest, ReadAhead, WaitOutcome};
use crate::open_readers::{self, ALL_WINDOWS, FileIdentity, ReaderPlace};
use crate::process::count;
use crate::residency::{PAGES, ResidencyProbe, STALE, resident_pages, windows};
use crate::sys;

/// Nanoseconds after which pages read by unhooked calls are no longer released when the file is closed.
const UNSEEN_MAX: u64 = 30_000_000_000;
/// Retry delays, in nanoseconds, for dropping pages that are still under read-ahead.
const DROP_RETRY_NS: [u64; 7] = [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 1];
/// Leaving a file begins no wait for read-ahead any more after this many timeouts in the process. Each is the sum of [`DROP_RETRY_NS`], 16 ms,
/// and the time that the drops between take.
const READ_AHEAD_TIMEOUTS_MAX: u32 = 8;
/// Bytes that are read without the helper after a wait for it timed out.
const HELPER_BACKOFF_BYTES: u64 = 64 << 20;
/// Timeouts while waiting for read-ahead.
static READ_AHEAD_TIMEOUTS: AtomicU32 = AtomicU32::new(0);

/// The source of knowledge about residency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResidencySource {
    /// cachestat(2), and mincore(2) for windows resident in part.
    Kernel,
    /// Not seen here: reads are uncached, or the helper handles the pages that they bring in ([`ReadAhead`]).
    Uncached,
    /// Not seen at all.
    Nothing,
}

/// The state of a file that a stream reads.
#[allow(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct Reader {
    stream: Stream,
    /// Whether it was read at the file offset at all.
    begun: bool,
    source: ResidencySource,
    probe: ResidencyProbe,
    /// The file's size in bytes when last queried.
    size: u64,
    /// The file's identity, and whether its process created it.
    file: FileIdentity,
    is_new: bool,
    /// The place in which other readers see what this one knows.
    place: Option<ReaderPlace>,
    /// Scattered reads, and whether read-ahead is turned off for them.
    scattered: ScatteredReads,
    is_scattered: bool,
    /// The last known file offset.
    position: u64,
    /// Pages that stayed resident after their release.
    pending: Pending,
    /// Data was sent by sendfile or splice; the socket or pipe may hold its pages.
    is_sent: bool,
    is_mapped: bool,
    /// Whether pages were read without any knowledge of them.
    has_missed: bool,
    /// Whether several threads read the file: then the last known offset says nothing about this one's.
    is_shared: bool,
    /// The time of the last sample.
    sampled_at: u64,
    /// The offset and time at which unhooked calls began to read; `None`: all calls are hooked.
    unseen: Option<(u64, u64)>,
    /// The range that the current read brings in beyond the stream's windows.
    beyond: Range<u64>,
    /// Read-ahead for uncached reads, and bytes read in order without it.
    ahead: Option<ReadAhead>,
    is_plain: bool,
    /// Whether the kernel copies.
    is_copy: bool,
    run: u64,
    next: u64,
    /// The offset up to which the helper is not asked again to read ahead.
    alone_until: u64,
    /// Bytes read whose residency cannot be known.
    unobserved: u64,
}

impl Reader {
    /// The initial state.
    pub const NEW: Self = Self {
        stream: Stream::NEW,
        begun: false,
        source: ResidencySource::Kernel,
        probe: ResidencyProbe::NEW,
        size: 0,
        file: FileIdentity { device: 0, inode: 0 },
        is_new: false,
        place: None,
        scattered: ScatteredReads::NEW,
        is_scattered: false,
        position: 0,
        pending: Pending::NEW,
        is_sent: false,
        is_mapped: false,
        has_missed: false,
        is_shared: false,
        sampled_at: 0,
        unseen: None,
        beyond: 0..0,
        ahead: None,
        is_plain: false,
        is_copy: false,
        run: 0,
        next: 0,
        alone_until: 0,
        unobserved: 0,
    };

    /// Begins with a newly opened file. It is new if it is empty and open for writing.
    pub fn open(&mut self, stat: &libc::stat, is_written: bool) {
        self.size = stat.st_size.max(0) as u64;
        self.file = FileIdentity { device: stat.st_dev, inode: stat.st_ino };
        self.is_new = is_written && self.size == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        if self.is_new {
            open_readers::say(&mut self.place, self.file, ALL_WINDOWS);
        }
    }

    /// Returns a reader for another place of the file.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let Self { size, file, is_new, is_sent, is_mapped, is_shared, .. } = *self;
        Self { size, file, is_new, is_sent, is_mapped, is_shared, ..Self::NEW }
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
        self.is_shared && self.source == ResidencySource::Kernel && !self.is_free()
    }

    /// Returns the range of the file that is sampled.
    pub fn known(&self) -> Range<u64> {
        self.stream.known()
    }

    /// Records that several threads read the file.
    pub fn shares(&mut self, fd: c_int) {
        if !self.is_shared {
            self.is_shared = true;
            self.end_scattered(fd);
            self.ahead = None;
        }
    }

    /// Runs before a read of `length` bytes.
    pub fn before(&mut self, fd: c_int, at: Option<u64>, length: u64) -> ReadMode {
        let Some(at) = at.or_else(|| self.begins(fd)) else {
            return ReadMode::Plain;
        };
        self.beyond = 0..0;
        if self.source == ResidencySource::Kernel {
            if at >= self.size {
                self.ask_size(fd);
            }
            if !self.is_shared && self.scattered.comes(at, length) {
                self.before_scattered(fd, at, length);
                return ReadMode::Plain;
            }
            self.end_scattered(fd);
            if self.stream.jumps(at) {
                self.go_elsewhere(fd);
            }
            if let Some(range) = self.stream.sample_for_read(at, length, self.size) {
                self.sample(fd, &range);
                self.sample_beyond(fd, at, length);
            }
        }
        if self.source == ResidencySource::Uncached {
            self.is_copy = false;
            if self.is_shared {
                return ReadMode::Uncached;
            }
            self.before_uncached(fd, at, length);
            let is_plain = self.ahead.as_ref().is_some_and(ReadAhead::is_plain);
            return if is_plain { ReadMode::Plain } else { ReadMode::Uncached };
        }
        ReadMode::Plain
    }

    /// Runs before an uncached read at `at`. Starts read-ahead for a reader in order; its reads stay uncached only if they are of whole
    /// pages.
    fn before_uncached(&mut self, fd: c_int, at: u64, length: u64) {
        if at != self.next {
            (self.ahead, self.run) = (None, 0);
        }
        self.next = at;
        // A file that is read from its beginning is read in order.
        let is_in_order = self.run >= IN_ORDER || at == 0;
        let page = sys::page_size();
        // A call that ends within a page would drop it; the next call would read it again, with others behind it.
        let is_whole =
            !self.is_plain && at.is_multiple_of(page) && (length.is_multiple_of(page) || length > IN_ORDER);
        let calls = if is_whole { CallKind::Uncached } else { CallKind::Plain };
        if !is_whole && self.ahead.as_ref().is_some_and(|ahead| !ahead.is_plain()) {
            self.ahead = None;
        }
        // Once more if the helper has let go of the file since.
        for _ in 0..2 {
            if self.ahead.is_none() && is_in_order && self.size.saturating_sub(at) > IN_ORDER {
                self.begin_ahead(fd, at, calls);
            }
            // Otherwise the kernel would read ahead itself.
            let end = at.saturating_add(length).min(self.size);
            if self.waited(at, |ahead| ahead.wait_for(end)) != Some(WaitOutcome::Left) {
                return;
            }
        }
    }

    /// Has the helper read ahead from `at` on, unless a wait for it timed out shortly before.
    fn begin_ahead(&mut self, fd: c_int, at: u64, calls: CallKind) {
        if at >= self.alone_until {
            self.ahead = ReadAhead::begin(fd, at, calls);
        }
    }

    /// Waits for the helper. Ends read-ahead if the helper has left or the wait timed out. `None`: there is no read-ahead.
    fn waited(&mut self, at: u64, wait: impl FnOnce(&ReadAhead) -> WaitOutcome) -> Option<WaitOutcome> {
        let waited = wait(self.ahead.as_ref()?);
        if waited != WaitOutcome::Begun {
            self.ahead = None;
        }
        if waited == WaitOutcome::InVain {
            self.alone_until = at.saturating_add(HELPER_BACKOFF_BYTES);
        }
        Some(waited)
    }

    /// Runs before the kernel copies a part of a file whose residency cannot be seen. Returns whether the pages that it brings in will go.
    pub fn before_copy(&mut self, fd: c_int, at: u64, length: u64) -> bool {
        self.before_uncached(fd, at, length);
        if self.ahead.is_none() {
            let calls = if self.is_plain { CallKind::Plain } else { CallKind::Uncached };
            self.begin_ahead(fd, at, calls);
        }
        let end = at.saturating_add(length).min(self.size);
        self.is_copy = true;
        self.waited(at, |ahead| ahead.wait_to_copy(end)) == Some(WaitOutcome::Begun)
    }

    /// Runs before the program prefetches `length` bytes at `at`, which moves no reader.
    pub fn before_prefetch(&mut self, fd: c_int, at: u64, length: u64) {
        if self.source == ResidencySource::Kernel
            && let Some(range) = self.stream.sample_for_prefetch(at, length.min(HORIZON), self.size)
        {
            self.sample(fd, &range);
        }
    }

    /// Handles reads by unhooked calls, from the file offset on. Returns whether the pages will be handled when the file is closed; if not,
    /// the file must be watched.
    pub fn is_unseen(&mut self, fd: c_int) -> bool {
        if self.unseen.is_some() {
            return true;
        }
        let Ok(position) = sys::position(fd) else { return false };
        let can_see = self.size == 0
            || self.source == ResidencySource::Kernel
                && self.probe.can_see(fd, self.size, FILES.has_counts(fd));
        if can_see && self.size <= AGAIN {
            if let Some(range) = self.stream.sample_for_read(position, IN_ORDER, self.size) {
                self.sample(fd, &range);
            }
            self.unseen = Some((position, self.sampled_at));
        } else if !can_see {
            self.source = ResidencySource::Uncached;
            self.ahead = ReadAhead::begin(fd, position, CallKind::Unseen);
            if let Some(ahead) = &self.ahead {
                ahead.wait_for(position.saturating_add(IN_ORDER));
                self.unseen = Some((position, sys::now()));
            }
        }
        self.unseen.is_some()
    }

    /// Runs after a read that returned `done`.
    pub fn after(&mut self, fd: c_int, at: Option<u64>, done: isize) {
        let Ok(done) = u64::try_from(done) else { return };
        match self.source {
            ResidencySource::Kernel => {}
            ResidencySource::Uncached => {
                self.next = self.next.saturating_add(done);
                self.run = self.run.saturating_add(done);
                if let Some(ahead) = &self.ahead {
                    if !self.is_copy {
                        ahead.reads();
                    }
                    ahead.passed(self.next);
                }
                let is_plain = self.ahead.as_ref().is_some_and(ReadAhead::is_plain);
                count(Count::StreamUncached, if is_plain { 0 } else { done });
                return;
            }
            ResidencySource::Nothing => {
                self.unobserved = self.unobserved.saturating_add(done);
                return count(Count::StreamUnobserved, done);
            }
        }
        if self.is_shared && at.is_none() {
            // The next read sees how far all have come.
            return;
        }
        let end = at.unwrap_or(self.position).saturating_add(done);
        if at.is_none() {
            self.position = end;
        }
        self.scattered.passed(end);
        if self.is_scattered {
            return;
        }
        if done > 0 && self.stream.is_idle() {
            self.has_missed = true;
            // The kernel generates a file without a size as it is read.
            count(Count::StreamUnobserved, if self.size > 0 { done } else { 0 });
        }
        if end > self.size {
            self.ask_size(fd);
        }
        if done == 0 && end >= self.size && !self.is_shared {
            // It has come to the end of the file.
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
            // It is still being read ahead.
            sys::sleep(pause);
        }
        // A queue may hold it.
        let left = self.probe.resident(fd, &beyond).unwrap_or(0);
        self.pending.stays(&beyond, left);
    }

    fn ask_size(&mut self, fd: c_int) {
        if let Ok(stat) = sys::fstat(fd) {
            self.size = stat.st_size.max(0) as u64;
        }
    }

    /// Samples the rest of a call that brings in more than the stream has windows for.
    fn sample_beyond(&mut self, fd: c_int, at: u64, length: u64) {
        // Includes pages that may be read ahead behind it.
        let end = at.saturating_add(length);
        let rest = self.stream.known().end..end.saturating_add(AGAIN).min(self.size);
        if self.source == ResidencySource::Kernel
            && !rest.is_empty()
            && (self.is_new || self.probe.resident(fd, &rest) == Some(0))
        {
            self.beyond = rest;
        }
    }

    /// Runs before a scattered read. Samples the pages that it brings in, and reads all of the piece that it seems to begin.
    fn before_scattered(&mut self, fd: c_int, at: u64, length: u64) {
        if !self.is_scattered {
            self.go_elsewhere(fd);
            sys::read_in_no_order(fd);
            self.is_scattered = true;
        }
        let Some(range) = self.scattered.bring_in(at, length, self.size) else { return };
        if self.scattered.touch(&range) {
            return;
        }
        inside(|| {
            self.probe.has_counts = FILES.has_counts(fd);
            let end = at.saturating_add(length);
            let mut has_foreign = false;
            for window in windows(&range) {
                has_foreign |= self.sample_scattered(fd, &window, end);
            }
            if has_foreign {
                // A page that was read ahead for somebody else may make the kernel read on from there.
                let beyond = range.end..range.end.saturating_add(AGAIN).min(self.size);
                let is_empty = |window: &Range<u64>| self.probe.resident(fd, window) == Some(0);
                let empty = windows(&beyond).take_while(is_empty).last().map(|last| range.end..last.end);
                if let Some(empty) = empty {
                    self.keep(fd, empty);
                }
            }
            while let Some(oldest) = self.scattered.take_surplus() {
                release(fd, oldest);
            }
            if range.end > end {
                sys::read_soon(fd, &range);
            }
        });
    }

    /// Keeps, for a later release, the non-resident pages of a part of one window, before a read that ends at `end` brings them in. Returns
    /// whether some pages are resident.
    fn sample_scattered(&mut self, fd: c_int, part: &Range<u64>, end: u64) -> bool {
        let length = part.end - part.start;
        let seen = if self.is_new { Some(0) } else { self.probe.resident(fd, part) };
        let Some(seen) = seen else {
            count(Count::StreamUnobserved, length);
            return false;
        };
        let read = end.clamp(part.start, part.end) - part.start;
        count(Count::StreamWasResident, seen.min(read));
        let mut pages = [0; PAGES];
        if seen == 0 {
            self.keep(fd, part.clone());
        } else if seen < length && resident_pages(fd, part, &mut pages).is_some() {
            let page = sys::page_size();
            let all = pages.get(..length.div_ceil(page) as usize).unwrap_or_default();
            let mut at = part.start;
            for run in all.chunk_by(|a, b| a & 1 == b & 1) {
                let end = at.saturating_add(run.len() as u64 * page);
                if run.first().is_some_and(|first| first & 1 == 0) {
                    self.keep(fd, at..end);
                }
                at = end;
            }
        }
        seen > 0
    }

    fn keep(&mut self, fd: c_int, range: Range<u64>) {
        if let Some(oldest) = self.scattered.keep(&range) {
            release(fd, oldest);
        }
    }

    /// Releases the kept pages when reads are in order again, or the file is left.
    fn end_scattered(&mut self, fd: c_int) {
        if core::mem::take(&mut self.is_scattered) {
            sys::read_in_order(fd);
            inside(|| {
                while let Some(oldest) = self.scattered.take_oldest() {
                    release(fd, oldest);
                }
            });
        }
    }

    /// Releases pages behind the reader after `done` bytes were read at `at`.
    fn passed(&mut self, fd: c_int, at: u64, done: u64) {
        count(Count::StreamWasResident, self.stream.foreign(&(at..at.saturating_add(done))));
        let fresh = self.stream.released();
        let ranges = self.stream.passed(at, done);
        if ranges.clone().next().is_none() {
            return;
        }
        let start = sys::now();
        let mut released = 0;
        for range in ranges {
            let there = self.probe.resident(fd, &range);
            // A queue still holds it: an attempt would make all processors flush their page lists, and wait for that.
            if self.is_sent
                && self.pending.stays(&(range.start.max(fresh).min(range.end)..range.end), there.unwrap_or(0))
            {
                continue;
            }
            if sys::drop_pages(fd, range.clone()).is_err() {
                count(Count::Failures, 1);
                return;
            }
            let left = self.probe.resident(fd, &range).unwrap_or(0);
            released += there.unwrap_or(0).saturating_sub(left);
            if left > 0 {
                self.pending.stays(&range, left);
            }
        }
        match self.pending.again(fd, &mut self.probe) {
            Ok(went) => released += went,
            Err(_) => count(Count::Failures, 1),
        }
        count(Count::StreamReleased, released);
        if start.saturating_sub(self.sampled_at) > STALE {
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
            if let Some(ahead) = &self.ahead {
                ahead.passed(position);
            } else if self.source != ResidencySource::Kernel || sys::now().saturating_sub(since) > UNSEEN_MAX
            {
                count(Count::StreamUnobserved, done);
                self.stream.forget();
            } else {
                self.passed(fd, from, done);
            }
            self.unseen = Some((position, since));
        }
        if self.is_shared && self.begun && self.source == ResidencySource::Kernel {
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
        self.ahead = None;
        match self.place.take() {
            // Others still read it, and see that all of it is the process's own.
            place if self.is_new => self.place = place,
            Some(place) if is_held => place.linger(),
            Some(_) | None => {}
        }
    }

    /// Gives pages that stay to the helper, to release later, if a queue holds them or their read-ahead `is_late`. Returns whether there are
    /// such pages.
    fn give_pending(&mut self, fd: c_int, is_late: bool) -> bool {
        if self.pending.bytes() == 0 {
            return false;
        }
        self.pending.make_due();
        count(Count::StreamReleased, self.pending.again(fd, &mut self.probe).unwrap_or(0));
        let goes_later = (self.is_sent || is_late) && !self.is_mapped;
        let is_held = goes_later && self.pending.bytes() > 0;
        for range in self.pending.take() {
            if goes_later && helper::prepare() {
                helper::send(fd, &HelperRequest::DropLater { range, count: Count::StreamReleased });
            }
        }
        is_held
    }

    /// Records that the kernel copied from the file to something that may hold its pages for long: a socket or a pipe.
    pub fn sent(&mut self) {
        self.is_sent = true;
    }

    /// Returns the bytes read since the last call whose residency cannot be known.
    pub fn take_unobserved(&mut self) -> u64 {
        core::mem::take(&mut self.unobserved)
    }

    /// Whether the rule handles all pages that the program brought in so far.
    pub fn is_covered(&self) -> bool {
        self.source != ResidencySource::Nothing
            && !self.is_mapped
            && !self.has_missed
            && self.unseen.is_none()
    }

    /// Forgets all reads.
    pub fn forget(&mut self) {
        let Self { size, file, is_new, .. } = *self;
        *self = Self { size, file, is_new, ..Self::NEW };
    }

    /// Drops all remaining pages. Pages still under read-ahead are locked, and go once they have come. Returns whether some are under it for
    /// longer than a program may wait.
    fn drop_left(&mut self, fd: c_int) -> bool {
        if sys::now().saturating_sub(self.sampled_at) > STALE {
            // Pages ahead of the reader may be anybody's by now.
            self.stream.sample_again(u64::MAX);
        }
        let probe = &mut self.probe;
        let doubtful = self.stream.doubtful().map(|range| probe.resident(fd, &range).unwrap_or(0)).sum();
        count(Count::StreamUnobserved, doubtful);
        for pause in DROP_RETRY_NS {
            let mut stays = 0;
            for range in self.stream.left() {
                let there = probe.resident(fd, &range);
                if sys::drop_pages(fd, range.clone()).is_err() {
                    count(Count::Failures, 1);
                    return false;
                }
                let left = probe.resident(fd, &range).unwrap_or(0);
                count(Count::StreamReleased, there.unwrap_or(0).saturating_sub(left));
                stays += left;
                if left > 0 {
                    self.pending.stays(&range, left);
                }
            }
            if stays == 0 || self.is_sent || self.is_mapped {
                return false;
            }
            // A handler that waits may be interrupted by another one, which waits, too, until the stack is full.
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
        if self.source == ResidencySource::Uncached {
            self.source = ResidencySource::Nothing;
        }
    }

    /// Returns the start of a read at the file offset.
    fn begins(&mut self, fd: c_int) -> Option<u64> {
        if self.is_shared {
            return self.caught_up(fd);
        }
        self.position = sys::position(fd).ok()?;
        self.begun = true;
        Some(self.position)
    }

    /// Returns the file offset, and passes over what several threads have read up to it.
    fn caught_up(&mut self, fd: c_int) -> Option<u64> {
        let position = sys::position(fd).ok()?;
        let before = core::mem::replace(&mut self.position, position);
        let is_known = self.begun && self.stream.known().contains(&before);
        self.begun = true;
        if is_known && position > before {
            self.passed(fd, before, position - before);
        }
        Some(position)
    }

    fn sample(&mut self, fd: c_int, range: &Range<u64>) {
        self.sampled_at = inside(|| {
            self.probe.has_counts = FILES.has_counts(fd);
            if self.is_new {
                let _ = self.stream.saw(range, 0);
                open_readers::say(&mut self.place, self.file, ALL_WINDOWS);
                return sys::now();
            }
            // Before the sample: a reader that leaves meanwhile has dropped its pages.
            let others = open_readers::others(self.place.as_ref(), self.file, range);
            if !self.probe.sample(&mut self.stream, fd, range, self.size) {
                // If uncached reads are not supported, all are plain.
                self.is_plain = !sys::reads_uncached(fd, self.size);
                self.source = ResidencySource::Uncached;
                return sys::now();
            }
            for (nth, window) in windows(range).enumerate().filter(|(nth, _)| others >> nth & 1 == 1) {
                debug_assert!(nth < 128, "a stream has no more windows");
                let _ = self.stream.saw(&window, 0);
            }
            open_readers::say(&mut self.place, self.file, self.stream.whole_windows(self.size));
            sys::now()
        });
    }
}

/// Drops pages that reads brought in, and counts them.
fn release(fd: c_int, range: Range<u64>) {
    count(Count::StreamReleased, helper::drop_written(fd, range));
}

/// Counts the time of a slow operation.
pub fn inside<R>(act: impl FnOnce() -> R) -> R {
    let start = sys::now();
    let result = act();
    count(Count::InsideNs, sys::now().saturating_sub(start));
    result
}

//! What a stream reads: sampled before read-ahead gets there, released behind the reader.
//!
//! Windows are sampled by cachestat(2); where that isn't to be had, or counts nothing (overlayfs), or a window is resident in part, by
//! mincore(2) of a mapping that is made for it. Both are right only for who owns the file or may write to it. For others reads are uncached
//! (`RWF_DONTCACHE`) where the file system can, and what is resident is probed where reads are of no whole pages, or can't be uncached;
//! both by the helper, ahead of who reads in order ([`Ahead`]). Where there is none, what can't be uncached stays, and is counted as
//! not seen.
//!
//! Of a call that reads more than a stream's windows can tell of, the rest is sampled as a whole, and goes after the call if nothing of it was
//! resident. Who reads here and there has read-ahead turned off ([`pagekeeper_policy::scattered`]): what each read brings in is sampled
//! before it.
//!
//! Not covered: what is read through a mapping; of what is read by calls that are not seen what the file's position doesn't show.
//!
//! Invariants:
//! 1. What was resident before the stream came near it is never dropped ([`pagekeeper_policy::stream`]), but what other streams that have
//!    the file open brought in ([`crate::open_readers`]), and what is resident of a file that its process made.
//! 2. What others may have brought in since then is left, and counted as not seen: ahead of a reader that leaves the file, what was
//!    sampled more than [`STALE`] ago, or what its reads can't have had read ahead.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use pagekeeper_policy::scattered::ScatteredReads;
use pagekeeper_policy::stream::{AGAIN, HORIZON, IN_ORDER, Stream};

use super::pending::Pending;
use super::{FILES, How};
use crate::counters::Count;
use crate::helper::{self, Ahead, Calls, Job, Waited};
use crate::open_readers::{self, ALL_WINDOWS, FileIdentity, ReaderPlace};
use crate::process::count;
use crate::residency::{PAGES, ResidencyProbe, STALE, resident_pages, windows};
use crate::sys;

/// Nanoseconds after which what was read by calls that are not seen isn't released any more as the file is closed.
const UNSEEN_MAX: u64 = 30_000_000_000;
/// Nanoseconds between attempts to drop what is read ahead yet; waits that were in vain, and from how many on there
/// are no more.
const PAUSES: [u64; 7] = [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 1];
const IN_VAIN_MAX: u32 = 8;
/// Bytes after a wait for the helper in vain that are read without it.
const ALONE: u64 = 64 << 20;
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// By what residency is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// cachestat(2), and mincore(2) for windows resident in part.
    Kernel,
    /// Not at all here: reads are uncached, or the helper sees to what they bring in ([`Ahead`]).
    Uncached,
    /// Not at all.
    Nothing,
}

/// What is known of a file that a stream reads.
#[allow(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct Reader {
    stream: Stream,
    /// Whether it was read at all.
    begun: bool,
    by: By,
    probe: ResidencyProbe,
    /// Bytes of the file, when it was last asked for.
    size: u64,
    /// Which file it is, and whether its process made it.
    file: FileIdentity,
    is_new: bool,
    /// What other readers of the file are given to know.
    place: Option<ReaderPlace>,
    /// Reads here and there; and whether read-ahead is turned off for them.
    scattered: ScatteredReads,
    is_scattered: bool,
    /// Where the file's position was.
    position: u64,
    /// What stayed resident of what was released.
    pending: Pending,
    /// Whether the kernel copied of it to what may hold its pages for long.
    is_sent: bool,
    is_mapped: bool,
    /// Whether something was read that nothing was known of.
    has_missed: bool,
    /// Whether several threads read the file: where its position was says nothing of this one.
    is_shared: bool,
    /// When it was sampled last.
    sampled_at: u64,
    /// Where calls that are not seen began to read, and when; `None`: all calls are seen.
    unseen: Option<(u64, u64)>,
    /// What the read that is being made brings in beyond the stream's windows.
    beyond: Range<u64>,
    /// Reading ahead of uncached reads, and what was read in a row without.
    ahead: Option<Ahead>,
    is_plain: bool,
    /// Whether the kernel copies.
    is_copy: bool,
    run: u64,
    next: u64,
    /// Up to where the helper isn't asked again to read ahead.
    alone_until: u64,
    /// Bytes that were read of which nothing can be known.
    unobserved: u64,
}

impl Reader {
    /// Nothing known.
    pub const NEW: Self = Self {
        stream: Stream::NEW,
        begun: false,
        by: By::Kernel,
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

    /// The file was opened: one that has no bytes and is to be written is new.
    pub fn open(&mut self, stat: &libc::stat, is_written: bool) {
        self.size = stat.st_size.max(0) as u64;
        self.file = FileIdentity { device: stat.st_dev, inode: stat.st_ino };
        self.is_new = is_written && self.size == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        if self.is_new {
            open_readers::say(&mut self.place, self.file, ALL_WINDOWS);
        }
    }

    /// The same of another place of the file.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let Self { size, file, is_new, is_sent, is_mapped, is_shared, .. } = *self;
        Self { size, file, is_new, is_sent, is_mapped, is_shared, ..Self::NEW }
    }

    /// Whether a read at `at` goes on with what is known.
    pub fn is_near(&self, at: u64) -> bool {
        !self.is_free() && !self.stream.jumps(at)
    }

    /// Whether nothing was read here yet.
    pub fn is_free(&self) -> bool {
        self.stream.is_new()
    }

    /// Whether other places of the file are other readers'.
    pub fn finds_other_places(&self) -> bool {
        self.is_shared && self.by == By::Kernel && !self.is_free()
    }

    /// What is known of the file.
    pub fn known(&self) -> Range<u64> {
        self.stream.known()
    }

    /// Several threads read the file.
    pub fn shares(&mut self, fd: c_int) {
        if !self.is_shared {
            self.is_shared = true;
            self.end_scattered(fd);
            self.ahead = None;
        }
    }

    /// Before a read of `length` bytes.
    pub fn before(&mut self, fd: c_int, at: Option<u64>, length: u64) -> How {
        let Some(at) = at.or_else(|| self.begins(fd)) else {
            return How::Plain;
        };
        self.beyond = 0..0;
        if self.by == By::Kernel {
            if at >= self.size {
                self.ask_size(fd);
            }
            if !self.is_shared && self.scattered.comes(at, length) {
                self.before_scattered(fd, at, length);
                return How::Plain;
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
        if self.by == By::Uncached {
            self.is_copy = false;
            if self.is_shared {
                return How::Uncached;
            }
            self.before_uncached(fd, at, length);
            let is_plain = self.ahead.as_ref().is_some_and(Ahead::is_plain);
            return if is_plain { How::Plain } else { How::Uncached };
        }
        How::Plain
    }

    /// Before an uncached read at `at`: who reads in order, by whole pages, is read ahead of.
    fn before_uncached(&mut self, fd: c_int, at: u64, length: u64) {
        if at != self.next {
            (self.ahead, self.run) = (None, 0);
        }
        self.next = at;
        // A file that is read from its beginning is read in order.
        let is_in_order = self.run >= IN_ORDER || at == 0;
        let page = sys::page_size();
        // Of a call that ends within a page, that page would go, and be read again with others behind it.
        let is_whole =
            !self.is_plain && at.is_multiple_of(page) && (length.is_multiple_of(page) || length > IN_ORDER);
        let calls = if is_whole { Calls::Uncached } else { Calls::Plain };
        if !is_whole && self.ahead.as_ref().is_some_and(|ahead| !ahead.is_plain()) {
            self.ahead = None;
        }
        // Once more where the helper has let go of the file since.
        for _ in 0..2 {
            if self.ahead.is_none() && is_in_order && self.size.saturating_sub(at) > IN_ORDER {
                self.begin_ahead(fd, at, calls);
            }
            // Or the kernel would read ahead itself.
            let end = at.saturating_add(length).min(self.size);
            if self.waited(at, |ahead| ahead.wait_for(end)) != Some(Waited::Left) {
                return;
            }
        }
    }

    /// Has the helper read ahead from `at` on, unless it was waited for in vain not long before.
    fn begin_ahead(&mut self, fd: c_int, at: u64, calls: Calls) {
        if at >= self.alone_until {
            self.ahead = Ahead::begin(fd, at, calls);
        }
    }

    /// Waits for the helper; where it has left, or that is in vain, it reads ahead no more. `None`: it doesn't.
    fn waited(&mut self, at: u64, wait: impl FnOnce(&Ahead) -> Waited) -> Option<Waited> {
        let waited = wait(self.ahead.as_ref()?);
        if waited != Waited::Begun {
            self.ahead = None;
        }
        if waited == Waited::InVain {
            self.alone_until = at.saturating_add(ALONE);
        }
        Some(waited)
    }

    /// Before the kernel copies a part of a file whose residency isn't seen: whether what it brings in will go.
    pub fn before_copy(&mut self, fd: c_int, at: u64, length: u64) -> bool {
        self.before_uncached(fd, at, length);
        if self.ahead.is_none() {
            let calls = if self.is_plain { Calls::Plain } else { Calls::Uncached };
            self.begin_ahead(fd, at, calls);
        }
        let end = at.saturating_add(length).min(self.size);
        self.is_copy = true;
        self.waited(at, |ahead| ahead.wait_to_copy(end)) == Some(Waited::Begun)
    }

    /// Before the program has `length` bytes at `at` be read ahead: that moves no reader.
    pub fn before_prefetch(&mut self, fd: c_int, at: u64, length: u64) {
        if self.by == By::Kernel
            && let Some(range) = self.stream.sample_for_prefetch(at, length.min(HORIZON), self.size)
        {
            self.sample(fd, &range);
        }
    }

    /// The file is read by calls that are not seen, from its position on: whether that is seen to as it is closed. Else it is to be
    /// watched.
    pub fn is_unseen(&mut self, fd: c_int) -> bool {
        if self.unseen.is_some() {
            return true;
        }
        let Ok(position) = sys::position(fd) else { return false };
        let can_see = self.size == 0
            || self.by == By::Kernel && self.probe.can_see(fd, self.size, FILES.has_counts(fd));
        if can_see && self.size <= AGAIN {
            if let Some(range) = self.stream.sample_for_read(position, IN_ORDER, self.size) {
                self.sample(fd, &range);
            }
            self.unseen = Some((position, self.sampled_at));
        } else if !can_see {
            self.by = By::Uncached;
            self.ahead = Ahead::begin(fd, position, Calls::Unseen);
            if let Some(ahead) = &self.ahead {
                ahead.wait_for(position.saturating_add(IN_ORDER));
                self.unseen = Some((position, sys::now()));
            }
        }
        self.unseen.is_some()
    }

    /// After a read that returned `done`.
    pub fn after(&mut self, fd: c_int, at: Option<u64>, done: isize) {
        let Ok(done) = u64::try_from(done) else { return };
        match self.by {
            By::Kernel => {}
            By::Uncached => {
                self.next = self.next.saturating_add(done);
                self.run = self.run.saturating_add(done);
                if let Some(ahead) = &self.ahead {
                    if !self.is_copy {
                        ahead.reads();
                    }
                    ahead.passed(self.next);
                }
                let is_plain = self.ahead.as_ref().is_some_and(Ahead::is_plain);
                count(Count::StreamUncached, if is_plain { 0 } else { done });
                return;
            }
            By::Nothing => {
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
            // A file without a size is made as it is read, by the kernel.
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

    /// A call came up to `end`: drops what it brought in beyond the stream's windows.
    fn drop_beyond(&mut self, fd: c_int, end: u64) {
        let beyond = core::mem::replace(&mut self.beyond, 0..0);
        if beyond.start >= end.min(beyond.end) {
            return;
        }
        for pause in PAUSES {
            release(fd, beyond.clone());
            let left = self.probe.resident(fd, &beyond).unwrap_or(0);
            if left == 0 {
                return;
            }
            if self.is_sent {
                break;
            }
            // It is being read ahead yet.
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

    /// A call of so many bytes brings in more than the stream has windows for: samples the rest as a whole.
    fn sample_beyond(&mut self, fd: c_int, at: u64, length: u64) {
        // With what may be read ahead behind it.
        let end = at.saturating_add(length);
        let rest = self.stream.known().end..end.saturating_add(AGAIN).min(self.size);
        if self.by == By::Kernel
            && !rest.is_empty()
            && (self.is_new || self.probe.resident(fd, &rest) == Some(0))
        {
            self.beyond = rest;
        }
    }

    /// Before a read here or there: samples what it brings in, and has all of the piece be read that it seems to begin.
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
                // A page that was read ahead for somebody else may have the kernel read on from there.
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

    /// Keeps what is not resident of a part of one window, before a read that ends at `end` brings it in. Whether some of it is.
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

    /// Reads are in order again, or the file is left: what was kept goes.
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

    /// So much was read there: releases what lies behind.
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
            // A queue holds it yet: to try that has all processors empty their lists of pages, and waits for them.
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

    /// Before the descriptor is closed, or at the file's end: the rest is released.
    pub fn leave(&mut self, fd: c_int) {
        if let Some((from, since)) = self.unseen
            && let Ok(position) = sys::position(fd)
            && position > from
        {
            let done = position - from;
            count(Count::StreamRead, done);
            if let Some(ahead) = &self.ahead {
                ahead.passed(position);
            } else if self.by != By::Kernel || sys::now().saturating_sub(since) > UNSEEN_MAX {
                count(Count::StreamUnobserved, done);
                self.stream.forget();
            } else {
                self.passed(fd, from, done);
            }
            self.unseen = Some((position, since));
        }
        if self.is_shared && self.begun && self.by == By::Kernel {
            let _ = self.caught_up(fd);
        }
        self.go_elsewhere(fd);
    }

    /// The descriptor is closed: others are given to know nothing more.
    pub fn close(&mut self, fd: c_int) {
        self.leave(fd);
        self.place = None;
    }

    /// The reader leaves the place where it was: the rest of that is released.
    fn go_elsewhere(&mut self, fd: c_int) {
        self.end_scattered(fd);
        // What was only read ahead so far is yet to be read.
        if (self.stream.has_read() || self.unseen.is_some()) && !self.stream.is_idle() {
            inside(|| self.drop_left(fd));
        }
        let is_held = self.give_pending(fd);
        self.stream.forget();
        self.ahead = None;
        match self.place.take() {
            // Others read it yet, and know that it is all the process's own.
            place if self.is_new => self.place = place,
            Some(place) if is_held => place.linger(),
            Some(_) | None => {}
        }
    }

    /// What stays is the helper's to release later, where it is held by what was sent: whether there is such.
    fn give_pending(&mut self, fd: c_int) -> bool {
        if self.pending.bytes() == 0 {
            return false;
        }
        self.pending.make_due();
        count(Count::StreamReleased, self.pending.again(fd, &mut self.probe).unwrap_or(0));
        let is_sent = self.is_sent && !self.is_mapped;
        let is_held = is_sent && self.pending.bytes() > 0;
        for range in self.pending.take() {
            if is_sent && helper::prepare() {
                helper::send(fd, &Job::Later { range, count: Count::StreamReleased });
            }
        }
        is_held
    }

    /// The kernel copied of the file to what may hold its pages for long: a socket, a pipe.
    pub fn sent(&mut self) {
        self.is_sent = true;
    }

    /// Bytes that were read of which nothing can be known, since this was last asked.
    pub fn take_unobserved(&mut self) -> u64 {
        core::mem::take(&mut self.unobserved)
    }

    /// Whether the rule sees to all pages that the program brought in so far.
    pub fn is_covered(&self) -> bool {
        self.by != By::Nothing && !self.is_mapped && !self.has_missed && self.unseen.is_none()
    }

    /// Forgets what was read.
    pub fn forget(&mut self) {
        let Self { size, file, is_new, .. } = *self;
        *self = Self { size, file, is_new, ..Self::NEW };
    }

    /// Drops all that is left; what is being read ahead yet is locked, and goes as soon as it has come.
    fn drop_left(&mut self, fd: c_int) {
        if sys::now().saturating_sub(self.sampled_at) > STALE {
            // What lies ahead may be anybody's by now.
            self.stream.sample_again(u64::MAX);
        }
        let probe = &mut self.probe;
        let doubtful = self.stream.doubtful().map(|range| probe.resident(fd, &range).unwrap_or(0)).sum();
        count(Count::StreamUnobserved, doubtful);
        for pause in PAUSES {
            let mut stays = 0;
            for range in self.stream.left() {
                let there = probe.resident(fd, &range);
                if sys::drop_pages(fd, range.clone()).is_err() {
                    count(Count::Failures, 1);
                    return;
                }
                let left = probe.resident(fd, &range).unwrap_or(0);
                count(Count::StreamReleased, there.unwrap_or(0).saturating_sub(left));
                stays += left;
                if left > 0 && self.is_sent {
                    self.pending.stays(&range, left);
                }
            }
            if stays == 0 || self.is_sent || self.is_mapped || IN_VAIN.load(Ordering::Relaxed) >= IN_VAIN_MAX
            {
                return;
            }
            sys::sleep(pause);
        }
        IN_VAIN.fetch_add(1, Ordering::Relaxed);
    }

    /// The file was mapped: what comes in so stays, and is not waited for.
    pub fn mapped(&mut self) {
        self.is_mapped = true;
    }

    /// An uncached read was refused.
    pub fn uncached_refused(&mut self) {
        if self.by == By::Uncached {
            self.by = By::Nothing;
        }
    }

    /// Where a read at the file's position begins.
    fn begins(&mut self, fd: c_int) -> Option<u64> {
        if self.is_shared {
            return self.caught_up(fd);
        }
        self.position = sys::position(fd).ok()?;
        self.begun = true;
        Some(self.position)
    }

    /// Where the file's position is; what several threads have read up to there was passed.
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
            // Before it is sampled: who leaves meanwhile has dropped its pages.
            let others = open_readers::others(self.place.as_ref(), self.file, range);
            if !self.probe.sample(&mut self.stream, fd, range, self.size) {
                // Without uncached reads, all are plain.
                self.is_plain = !sys::reads_uncached(fd, self.size);
                self.by = By::Uncached;
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

/// Drops what reads brought in, and counts it.
fn release(fd: c_int, range: Range<u64>) {
    count(Count::StreamReleased, helper::drop_written(fd, range));
}

/// Counts the time that something slow takes.
pub fn inside<R>(act: impl FnOnce() -> R) -> R {
    let start = sys::now();
    let result = act();
    count(Count::InsideNs, sys::now().saturating_sub(start));
    result
}

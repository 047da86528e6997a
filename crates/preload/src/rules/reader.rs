//! What a stream reads: sampled before read-ahead gets there, released behind the reader.
//!
//! Windows are sampled by cachestat(2); where that isn't to be had, or counts nothing (overlayfs), or a window is resident in part, by
//! mincore(2) of a mapping that is made for it. Both are right only for who owns the file or may write to it. For others reads are uncached
//! (`RWF_DONTCACHE`) where the file system can, and what is resident is probed where reads are of no whole pages, or can't be uncached;
//! both by the helper, ahead of who reads in order ([`Ahead`]). Where there is none, what can't be uncached stays, and is counted as
//! not seen.
//!
//! A call that reads more than a stream's windows can tell of is sampled whole, and released behind by the helper while it is made
//! ([`crate::large`]).
//!
//! Not covered: what is read through a mapping; the first reads after a seek, of readers that seek much; of what is read by calls that
//! are not seen what the file's position doesn't show.
//!
//! Invariants:
//! 1. What was resident before the stream came near it is never dropped ([`pagekeeper_policy::stream`]).
//! 2. What others may have brought in since then is left, and counted as not seen: ahead of a reader that leaves the file, what was
//!    sampled more than [`STALE`] ago, or what its reads can't have had read ahead.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use pagekeeper_policy::WINDOW;
use pagekeeper_policy::stream::{AGAIN, HORIZON, IN_ORDER, PAGE, Stream};

use super::pending::Pending;
use super::{FILES, How};
use crate::counters::Count;
use crate::helper::{self, Ahead, Calls, Job, Waited};
use crate::large::{self, LargeCall};
use crate::process::count;
use crate::residency::{PAGES, ResidencyProbe, STALE, windows};
use crate::sys;

/// Parts that are released at a time and sampled afterwards.
const PARTS: usize = 32;
/// The file's position is asked for after so many bytes in small reads; larger ones have it asked each.
const ASK: u64 = 64 << 10;
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
    /// Where the file's position was, and what was read from there since without asking.
    position: u64,
    unasked: u64,
    /// Whether it was asked for just before the read.
    is_asked: bool,
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
    /// The large read that is being made.
    large: Option<LargeCall>,
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
        position: 0,
        unasked: 0,
        is_asked: false,
        pending: Pending::NEW,
        is_sent: false,
        is_mapped: false,
        has_missed: false,
        is_shared: false,
        sampled_at: 0,
        unseen: None,
        large: None,
        ahead: None,
        is_plain: false,
        is_copy: false,
        run: 0,
        next: 0,
        alone_until: 0,
        unobserved: 0,
    };

    /// The file was opened, with its size.
    pub fn open(&mut self, size: u64) {
        self.size = size;
    }

    /// The same of another place of the file.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let Self { size, is_sent, is_mapped, is_shared, .. } = *self;
        Self { size, is_sent, is_mapped, is_shared, ..Self::NEW }
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
            // What was read in order so far, if it was.
            if self.unasked > 0 {
                let (at, done) = (self.position, core::mem::take(&mut self.unasked));
                self.position = at.saturating_add(done);
                self.passed(fd, at, done);
            }
            self.ahead = None;
        }
    }

    /// Before a read of `length` bytes.
    pub fn before(&mut self, fd: c_int, at: Option<u64>, length: u64) -> How {
        let Some(at) = at.or_else(|| self.expected(fd, length)) else {
            return How::Plain;
        };
        if self.by == By::Kernel {
            if self.stream.jumps(at) {
                self.go_elsewhere(fd);
            }
            let is_large = !self.is_shared && length.min(self.size.saturating_sub(at)) >= large::LEAST;
            if is_large && self.begin_large(fd, at, length) {
                return How::Plain;
            }
            if let Some(range) = self.stream.sample_for_read(at, length, self.size) {
                self.sample(fd, &range);
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
                if at.is_none() {
                    let _ = self.was_read(fd, done);
                }
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
        if done > 0 && self.stream.is_idle() && self.large.is_none() {
            self.has_missed = true;
            // A file without a size is made as it is read, by the kernel.
            count(Count::StreamUnobserved, if self.size > 0 { done } else { 0 });
        }
        let large = self.large.take().inspect(LargeCall::end);
        if self.is_shared && at.is_none() {
            // The next read sees how far all have come.
            return;
        }
        let Some((at, done)) = at.map(|at| (at, done)).or_else(|| self.was_read(fd, done)) else { return };
        let end = at.saturating_add(done);
        if let Some(large) = large.filter(|large| done > 0 && large.range().contains(&at)) {
            return self.end_large(fd, &large, at..end);
        }
        if end > self.size
            && let Ok(stat) = sys::fstat(fd)
        {
            self.size = stat.st_size as u64;
        }
        if done == 0 && end >= self.size && !self.is_shared {
            // It has come to the end of the file.
            return self.leave(fd);
        }
        self.passed(fd, at, done);
    }

    /// Samples all that a call is about to read, and as far as read-ahead may come behind it. False if that can't be.
    fn begin_large(&mut self, fd: c_int, at: u64, length: u64) -> bool {
        let end = at.saturating_add(length).saturating_add(HORIZON).min(self.size);
        let range = at / WINDOW * WINDOW..end;
        let Some(mut large) = LargeCall::read(&range).filter(|_| self.large.is_none()) else { return false };
        self.pass_unasked();
        // What the stream knows may have been read ahead for it since it was sampled.
        let known = self.stream.known();
        let within = |at: u64| at.max(range.start).min(range.end);
        let known = within(known.start)..within(known.end);
        self.stream.own().for_each(|own| large.set(&own, true));
        let has_counts = FILES.has_counts(fd);
        self.probe.has_counts = has_counts;
        for rest in [range.start..known.start, known.end.max(known.start)..range.end] {
            if !rest.is_empty() && !inside(|| self.probe.sample(&mut large, fd, &rest, self.size)) {
                return false;
            }
        }
        self.sampled_at = sys::now();
        helper::follow_call(fd, &large);
        self.large = Some(large);
        true
    }

    /// The call has read that range: releases what of it is left, and goes on behind it.
    fn end_large(&mut self, fd: c_int, large: &LargeCall, read: Range<u64>) {
        let start = sys::now();
        self.stream.forget();
        // The last window is the stream's to release, with what was read ahead.
        let from = (read.end / WINDOW).saturating_sub(1).max(read.start / WINDOW) * WINDOW;
        let mut released = 0;
        for own in large.own(read.start / WINDOW * WINDOW..from) {
            released += helper::drop_written(fd, own);
        }
        count(Count::StreamReleased, released);
        if let Some(range) = self.stream.sample_for_read(from, read.end - from, self.size) {
            for window in windows(&range) {
                if window.end > large.range().end {
                    self.probe.sample(&mut self.stream, fd, &window, self.size);
                    continue;
                }
                let mut pages = [1; PAGES];
                for own in large.own(window.clone()) {
                    let page = |at: u64| ((at - window.start) / PAGE) as usize;
                    if let Some(own) = pages.get_mut(page(own.start)..page(own.end + PAGE - 1)) {
                        own.fill(0);
                    }
                }
                let foreign = pages.iter().map(|&page| u64::from(page)).sum::<u64>() * PAGE;
                // Of the last window of a file, pages beyond the end are nobody's.
                let beyond = WINDOW - (window.end - window.start) / PAGE * PAGE;
                if !self.stream.saw(&window, foreign.saturating_sub(beyond)) {
                    self.stream.saw_pages(window.start, PAGE, &pages);
                }
            }
        }
        count(Count::InsideNs, sys::now().saturating_sub(start));
        if read.end >= self.size {
            self.stream.passed(from, read.end - from).for_each(drop);
            return self.leave(fd);
        }
        self.passed(fd, from, read.end - from);
    }

    /// So much was read there: releases what lies behind.
    fn passed(&mut self, fd: c_int, at: u64, done: u64) {
        let fresh = self.stream.released();
        let ranges = self.stream.passed(at, done);
        if ranges.clone().next().is_none() {
            return;
        }
        let start = sys::now();
        let (mut released, stayed) = (0, self.pending.bytes());
        for (nth, range) in ranges.enumerate() {
            let own = range.start.max(fresh).min(range.end)..range.end;
            released += own.end - own.start;
            // A queue holds it yet: to try that has all processors empty their lists of pages, and waits for them.
            if self.is_sent && self.pending.stays(&own, own.end - own.start) {
                continue;
            }
            if sys::drop_pages(fd, range.clone()).is_err() {
                count(Count::Failures, 1);
                return;
            }
            // Where it is released in many parts, to sample each would cost more than it shows.
            let stays = if nth < PARTS { self.probe.resident(fd, &own).unwrap_or(0) } else { 0 };
            if stays > 0 {
                self.pending.stays(&own, stays);
            }
        }
        if self.pending.again(fd, &mut self.probe).is_err() {
            count(Count::Failures, 1);
        }
        count(Count::StreamReleased, (released + stayed).saturating_sub(self.pending.bytes()));
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

    /// The reader leaves the place where it was: the rest of that is released.
    fn go_elsewhere(&mut self, fd: c_int) {
        self.pass_unasked();
        // What was only read ahead so far is yet to be read.
        if (self.stream.has_read() || self.unseen.is_some()) && !self.stream.is_idle() {
            inside(|| self.drop_left(fd));
        }
        self.give_pending(fd);
        self.stream.forget();
        self.ahead = None;
    }

    /// What stays is the helper's to release later, where it is held by what was sent.
    fn give_pending(&mut self, fd: c_int) {
        if self.pending.bytes() == 0 {
            return;
        }
        let stayed = self.pending.bytes();
        self.pending.make_due();
        if self.pending.again(fd, &mut self.probe).is_ok() {
            count(Count::StreamReleased, stayed.saturating_sub(self.pending.bytes()));
        }
        let is_sent = self.is_sent && !self.is_mapped;
        for range in self.pending.take() {
            if is_sent && helper::prepare() {
                helper::send(fd, &Job::Later { range, count: Count::StreamReleased });
            }
        }
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
        *self = Self { size: self.size, ..Self::NEW };
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

    /// Where the next read will begin.
    fn expected(&mut self, fd: c_int, length: u64) -> Option<u64> {
        if self.is_shared {
            return self.caught_up(fd);
        }
        self.is_asked = !self.begun || length >= ASK;
        if self.is_asked {
            let position = sys::position(fd).ok()?;
            if position != self.position + self.unasked {
                self.pass_unasked();
                self.position = position;
            }
            self.begun = true;
        }
        Some(self.position + self.unasked)
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

    /// After `done` bytes were read at the file's position: what was read since it was noted last, from where and how much; `None` if
    /// it need not be noted yet.
    fn was_read(&mut self, fd: c_int, done: u64) -> Option<(u64, u64)> {
        let expected = self.position.saturating_add(self.unasked).saturating_add(done);
        self.unasked = expected - self.position;
        let is_due = self.unasked >= ASK
            || done == 0
            || expected / WINDOW != self.position / WINDOW
            || expected >= self.size;
        if !is_due {
            return None;
        }
        let end = if self.is_asked { expected } else { sys::position(fd).ok()? };
        // Where the position was moved meanwhile, at least the last read ended there.
        let read = if end == expected { self.unasked } else { done.min(end) };
        (self.position, self.unasked) = (end, 0);
        Some((end - read, read))
    }

    /// The stream takes in the last small reads, which are less than a window: what they passed is left to be released.
    fn pass_unasked(&mut self) {
        if self.unasked > 0 {
            self.stream.passed(self.position, self.unasked).for_each(drop);
            self.position = self.position.saturating_add(core::mem::take(&mut self.unasked));
        }
    }

    fn sample(&mut self, fd: c_int, range: &Range<u64>) {
        self.sampled_at = inside(|| {
            self.probe.has_counts = FILES.has_counts(fd);
            if !self.probe.sample(&mut self.stream, fd, range, self.size) {
                // Without uncached reads, all are plain.
                self.is_plain = !sys::reads_uncached(fd, self.size);
                self.by = By::Uncached;
            }
            sys::now()
        });
    }
}

/// Counts the time that something slow takes.
pub fn inside<R>(act: impl FnOnce() -> R) -> R {
    let start = sys::now();
    let result = act();
    count(Count::InsideNs, sys::now().saturating_sub(start));
    result
}

//! Reads ahead of streams whose files' residency this user may not see, so that the kernel itself
//! marks which pages they brought in.
//!
//! An uncached read (`RWF_DONTCACHE`) marks the pages that it brings in, and any read drops a
//! marked page that it has touched. Pages that were resident before have no mark, and stay. But the
//! kernel's own read-ahead brings in large folios, which go as soon as a part of them was read, and
//! are then read from the disk again. With `POSIX_FADV_RANDOM` pages come alone, and an uncached
//! read that must not wait (`RWF_NOWAIT`) starts to bring in its whole range and returns. The
//! helper makes such reads, on its own open file, ahead of the reader: each byte is read from the
//! disk once.
//!
//! A call that ends within a page would drop that page, which the next call reads again. For
//! readers that make such calls, reads are plain, and the helper probes which pages ahead of them
//! are resident ([`crate::page_probe`]). A probe reads one page of each 64 KiB. The same holds for
//! readers whose calls we do not see, since those might get ahead of the helper before it notices.
//!
//! Invariants: a place in [`AHEAD_PLACES`] is free once both sides have given it up, the program's
//! ([`ReadAhead`]) and the helper's ([`AheadReader`]). Pages that were read ahead and never reached
//! are dropped when the helper ends the reader. Nobody waits for a read that the helper will not
//! begin: the helper says that it has left, and the program starts again.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::stream::{IN_ORDER_BYTES, READ_AHEAD_REACH_BYTES, WatchedStream};

use super::helper_files::HeldFile;
use super::{HelperRequest, prepare, send};
use crate::counters::Count;
use crate::introspection::position_of;
use crate::pages::page_probe;
use crate::pages::residency::{WINDOW_PAGES_MAX, windows};
use crate::process;
use crate::sys::{self, Errno};

/// Readers at a time. For further ones, the program's own reads are uncached, without read-ahead.
const AHEAD_READERS_MAX: usize = 8;
/// Bytes read ahead by one call.
const STEP_BYTES: u64 = 128 << 10;
/// Bytes to stay ahead of a reader: at first and at most. In between, twice what it has read.
const AHEAD_MIN_BYTES: u64 = 512 << 10;
const AHEAD_MAX_BYTES: u64 = 32 << 20;
/// Maximum bytes ahead of the position that a reader waits for.
const WANTED_MAX: u64 = 64 << 20;
/// Nanoseconds between two checks: of a moving reader, and of one that has not moved for
/// `RESTS_AFTER_NS`.
const AHEAD_CHECK_MIN_NS: u64 = 1_000_000;
const AHEAD_CHECK_MAX_NS: u64 = 25_000_000;
const RESTS_AFTER_NS: u64 = 100_000_000;
/// The longest time that a reader waits for the helper, and the time between two polls, in
/// nanoseconds.
const AHEAD_WAIT_MAX_NS: u64 = 200_000_000;
const AHEAD_POLL_NS: u64 = 100_000;

/// The state that a reader and the helper share.
#[derive(Debug)]
struct AheadPlace {
    /// The number of sides that use it: [`BOTH_SIDES`] at first, 0 if it is free.
    sides: AtomicU32,
    /// Whether the program's side has given it up, and the helper's.
    is_over: AtomicBool,
    is_left: AtomicBool,
    /// Whether the helper drops the pages behind the reader, since the kernel's copies drop
    /// nothing.
    copies: AtomicBool,
    /// Whether the reader's calls end within pages, so that reads are plain.
    is_plain: AtomicBool,
    /// The program's descriptor, if only the file offset shows the reader's progress; else -1.
    unseen: AtomicI32,
    /// The reader's position, the end of the pages that it wants, and the end of the reads begun.
    position: AtomicU64,
    wanted: AtomicU64,
    begun: AtomicU64,
}

/// The program's side and the helper's.
const BOTH_SIDES: u32 = 2;

// SAFETY: numbers and flags.
static AHEAD_PLACES: [AheadPlace; AHEAD_READERS_MAX] = unsafe { core::mem::zeroed() };

impl AheadPlace {
    /// Gives the place up for one side.
    fn give_up(&self) {
        // In a child of fork, born in the middle of this, no side is left.
        let _ = self.sides.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |sides| sides.checked_sub(1));
    }

    /// Gives the place up for the helper's side: it begins no more reads there.
    fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        self.begun.store(u64::MAX, Ordering::Release);
        self.give_up();
    }
}

/// The outcome of a wait for the helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The reads of all or nearly all pages were begun, or never can be.
    Begun,
    /// The helper has let go of the file; it may be asked again.
    Left,
    /// The wait timed out.
    InVain,
}

/// The kind of calls that read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Uncached reads of whole pages, or copies by the kernel.
    Uncached,
    /// Plain reads of any length.
    Plain,
    /// Calls that are not hooked.
    Unseen,
}

/// The reader's side. Read-ahead ends when it is dropped.
#[derive(Debug)]
pub struct ReadAhead(&'static AheadPlace);

impl ReadAhead {
    /// Asks the helper to read ahead of a reader at `position` of the file that `fd` names. `None`
    /// if there is no helper, or no free place.
    pub fn begin(fd: c_int, position: u64, calls: CallKind) -> Option<Self> {
        let is_free = |place: &AheadPlace| {
            place.sides.compare_exchange(0, BOTH_SIDES, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let index = if prepare() { AHEAD_PLACES.iter().position(is_free) } else { None }?;
        let place = AHEAD_PLACES.get(index)?;
        place.is_over.store(false, Ordering::Relaxed);
        place.is_left.store(false, Ordering::Relaxed);
        place.copies.store(false, Ordering::Relaxed);
        place.is_plain.store(calls != CallKind::Uncached, Ordering::Relaxed);
        place.unseen.store(if calls == CallKind::Unseen { fd } else { -1 }, Ordering::Relaxed);
        for at in [&place.position, &place.wanted, &place.begun] {
            at.store(position, Ordering::Relaxed);
        }
        if !send(fd, &HelperRequest::ReadAhead { index: index as u32 }) {
            place.sides.store(0, Ordering::Release);
            return None;
        }
        Some(Self(place))
    }

    /// Whether reads must be plain.
    pub fn is_plain(&self) -> bool {
        self.0.is_plain.load(Ordering::Relaxed)
    }

    /// Records that the reader has come to `position`.
    pub fn passed(&self, position: u64) {
        self.0.position.store(position, Ordering::Release);
    }

    /// Waits until the reads of all or nearly all pages up to `end` were begun, for at most
    /// `AHEAD_WAIT_MAX_NS`.
    pub fn wait_for(&self, end: u64) -> WaitOutcome {
        let place = self.0;
        let end = end.saturating_add(if self.is_plain() { READ_AHEAD_REACH_BYTES } else { 0 });
        let end = end.min(place.position.load(Ordering::Relaxed).saturating_add(WANTED_MAX));
        place.wanted.store(end, Ordering::Release);
        let mut until = None;
        while place.begun.load(Ordering::Acquire) < end {
            let now = sys::now();
            if now > *until.get_or_insert(now.saturating_add(AHEAD_WAIT_MAX_NS)) {
                return WaitOutcome::InVain;
            }
            sys::sleep(AHEAD_POLL_NS);
        }
        if place.is_left.load(Ordering::Acquire) { WaitOutcome::Left } else { WaitOutcome::Begun }
    }

    /// Records that the reader uses read calls, which drop the pages that they touch.
    pub fn reads(&self) {
        self.0.copies.store(false, Ordering::Relaxed);
    }

    /// Waits as [`wait_for`](Self::wait_for) does, before a copy by the kernel. The helper drops
    /// the pages behind the copy.
    pub fn wait_to_copy(&self, end: u64) -> WaitOutcome {
        if !self.is_plain() {
            self.0.copies.store(true, Ordering::Relaxed);
        }
        self.wait_for(end)
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
        self.0.give_up();
    }
}

/// Ends the read-ahead of a file that could not be reopened. Another attempt would fail, too.
pub(super) fn was_refused(index: u32) {
    if let Some(place) = AHEAD_PLACES.get(index as usize) {
        place.begun.store(u64::MAX, Ordering::Release);
        place.give_up();
    }
}

/// Ends all read-ahead in a child of fork, which has no helper.
pub(super) fn after_fork() {
    for place in &AHEAD_PLACES {
        // Writing only where needed keeps the memory shared with the parent.
        if place.sides.load(Ordering::Relaxed) > 0 {
            place.is_left.store(true, Ordering::Relaxed);
            place.begun.store(u64::MAX, Ordering::Relaxed);
            place.sides.store(u32::from(!place.is_over.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

/// The helper's state of a reader.
struct AheadReader {
    place: &'static AheadPlace,
    file: HeldFile,
    from: u64,
    begun: u64,
    dropped: u64,
    position: u64,
    moved_at: u64,
    is_refused: bool,
    /// The pages that were resident before, for plain reads.
    stream: WatchedStream,
}

/// All readers.
pub(super) struct AheadReaders([Option<AheadReader>; AHEAD_READERS_MAX]);

impl AheadReaders {
    /// Creates an empty set: 64 KiB, made in place.
    pub(super) fn none() -> Self {
        Self(core::array::from_fn(|_| None))
    }

    /// Returns the nanoseconds until the next check.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let rests = |reader: &AheadReader| now.saturating_sub(reader.moved_at) > RESTS_AFTER_NS;
        self.0
            .iter()
            .flatten()
            .map(|reader| if rests(reader) { AHEAD_CHECK_MAX_NS } else { AHEAD_CHECK_MIN_NS })
            .min()
    }

    /// Starts to read ahead for the place `index`; `file` is the helper's own.
    pub(super) fn add(&mut self, index: u32, file: HeldFile) {
        let index = index as usize;
        let (Some(free), Some(place)) = (self.0.get_mut(index), AHEAD_PLACES.get(index)) else { return };
        sys::advise_order(file.fd(), libc::POSIX_FADV_RANDOM);
        let from = place.position.load(Ordering::Acquire) / sys::page_size() * sys::page_size();
        *free = Some(AheadReader {
            place,
            file,
            from,
            begun: from,
            dropped: from,
            position: from,
            moved_at: sys::now(),
            is_refused: false,
            stream: WatchedStream::new(),
        });
        self.go_on();
    }

    /// Reads ahead for all readers.
    pub(super) fn go_on(&mut self) {
        for reader in &mut self.0 {
            if reader.as_mut().is_some_and(|reader| !reader.go_on()) {
                *reader = None;
            }
        }
    }

    /// Drops the readers of files that the helper must let go of.
    pub(super) fn let_go(&mut self) {
        for reader in &mut self.0 {
            if reader.as_ref().is_some_and(|reader| reader.file.is_unwanted()) {
                *reader = None;
            }
        }
    }
}

impl AheadReader {
    /// Advances the reader; `false` if it is over.
    fn go_on(&mut self) -> bool {
        let place = self.place;
        let is_over = place.is_over.load(Ordering::Acquire);
        let unseen = place.unseen.load(Ordering::Relaxed);
        let seen = if unseen >= 0 && !is_over { position_of(unseen) } else { None };
        let position = seen.unwrap_or_else(|| place.position.load(Ordering::Acquire));
        let was = self.position;
        if position != self.position {
            (self.position, self.moved_at) = (position, sys::now());
        }
        if place.is_plain.load(Ordering::Relaxed) {
            self.probe(was);
            if is_over {
                self.stream.remaining_ranges().for_each(|range| release(self.file.fd(), range));
            }
            return !is_over;
        }
        if !place.copies.load(Ordering::Relaxed) {
            // Pages that were reached by read calls are gone; touching them would read them again.
            self.dropped = self.dropped.max(position);
        }
        let end = if is_over { self.begun } else { position.min(self.begun) };
        if end > self.dropped {
            let _ = self.drop_marked(self.dropped, end);
            self.dropped = end;
        }
        if is_over {
            return false;
        }
        let ahead =
            position.saturating_sub(self.from).saturating_mul(2).clamp(AHEAD_MIN_BYTES, AHEAD_MAX_BYTES);
        let size = sys::size(self.file.fd());
        let end = position.saturating_add(ahead).max(place.wanted.load(Ordering::Acquire)).min(size);
        self.begun = self.begun.max(position / STEP_BYTES * STEP_BYTES);
        while self.begun < end && !self.is_refused {
            match sys::read_nowhere(self.file.fd(), self.begun, STEP_BYTES, true) {
                Ok(0) => break,
                Ok(more) => self.begun = self.begun.saturating_add(more),
                Err(Errno(libc::EAGAIN)) => self.begun = (self.begun / STEP_BYTES + 1) * STEP_BYTES,
                Err(_) => self.is_refused = true,
            }
            place.begun.store(self.begun, Ordering::Release);
        }
        if self.begun >= size || self.is_refused {
            place.begun.store(u64::MAX, Ordering::Release);
        }
        true
    }

    /// Probes the pages ahead of plain reads, and drops those that the reads brought in.
    fn probe(&mut self, was: u64) {
        let place = self.place;
        let (file, at) = (self.file.fd(), self.position);
        process::count(Count::StreamWasResident, self.stream.foreign_bytes(&(was..at)));
        self.stream.passed(was, at.saturating_sub(was)).for_each(|range| release(file, range));
        let size = sys::size(file);
        if let Some(range) = self.stream.sample_for_read(at, IN_ORDER_BYTES, size) {
            for window in windows(&range) {
                let mut pages = [1; WINDOW_PAGES_MAX];
                if !self.is_refused && page_probe::probe(file, &window, &mut pages).is_err() {
                    self.is_refused = true;
                    pages = [1; WINDOW_PAGES_MAX];
                }
                let page = sys::page_size();
                let count = (window.end - window.start).div_ceil(page);
                let resident = pages.iter().take(count as usize).filter(|&&page| page == 1).count() as u64;
                if !self.stream.record_residency(&window, resident * page) {
                    self.stream.record_pages(window.start, page, &pages);
                }
                if self.is_refused {
                    process::count(Count::StreamUnobserved, (resident * page).min(window.end - window.start));
                }
                self.begun = window.end;
                place.begun.store(self.begun, Ordering::Release);
            }
        }
        if self.begun >= size {
            place.begun.store(u64::MAX, Ordering::Release);
        }
    }

    /// Drops the marked pages of a range: those that a read touches.
    fn drop_marked(&self, mut at: u64, end: u64) -> Result<(), Errno> {
        while at < end {
            match sys::read_nowhere(self.file.fd(), at, STEP_BYTES.min(end - at), false)? {
                0 => break,
                more => at = at.saturating_add(more),
            }
        }
        Ok(())
    }
}

/// Drops a range that the reader brought in.
fn release(file: c_int, range: Range<u64>) {
    let length = range.end.saturating_sub(range.start);
    if sys::drop_pages(file, range).is_ok() {
        process::count(Count::StreamReleased, length);
    }
}

impl Drop for AheadReader {
    fn drop(&mut self) {
        self.place.leave();
    }
}

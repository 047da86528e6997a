//! Reads ahead of streams whose files this user may not see the residency of, so that the kernel itself knows what they brought in.
//!
//! An uncached read (`RWF_DONTCACHE`) marks the pages that it brings in, and any read drops a marked page that it has touched. What was
//! resident before has no mark, and stays. But the kernel's own read-ahead brings in large folios, which go as soon as a part of
//! them was read, and are read again: 1.5 times the bytes (Linux 6.18, ext4, calls of 128 KiB). With `POSIX_FADV_RANDOM` pages come alone,
//! and an uncached read that may not wait (`RWF_NOWAIT`) begins to bring all of its range in and returns. By such reads the
//! helper, on an open file of its own, keeps ahead of the reader: the bytes are read once.
//!
//! Calls that end within a page would have that page dropped, and read again. For who makes such, reads are plain, and the pages that
//! are resident before are probed ([`sys::probe`]): one page of each 64 KiB is read by itself for it. So they are of who reads by calls that are not
//! seen, which might otherwise get ahead of the helper before it notices.
//!
//! Invariants: a place in [`PLACES`] is free once both sides have given it up, the program's ([`Ahead`]) and the helper's ([`Reader`]);
//! what was read ahead and not come to goes as the helper does. Nobody waits for what the helper doesn't begin any more: it says when it
//! has left, and the program begins anew.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::stream::{AGAIN, IN_ORDER, WatchedStream};

use super::watch::position_of;
use super::{FileHash, Job, prepare, send};
use crate::counters::Count;
use crate::process;
use crate::residency::{PAGES, windows};
use crate::sys::{self, Errno};

/// Readers at a time; others' reads are uncached alone.
const READERS: usize = 8;
/// Bytes of one call.
const STEP: u64 = 128 << 10;
/// Bytes ahead of a reader, at first and at most; in between, twice what it has read.
const NEAR: u64 = 512 << 10;
const FAR: u64 = 32 << 20;
/// Bytes ahead of the position that are ever asked for.
const WANTED_MAX: u64 = 64 << 20;
/// Nanoseconds between two checks: of a reader that moves, and of one that hasn't for a while.
const SOON: u64 = 1_000_000;
const LATE: u64 = 25_000_000;
const WHILE: u64 = 100_000_000;
/// Nanoseconds that a reader waits for what it wants, at most, and between two checks.
const WAIT_MAX: u64 = 200_000_000;
const POLL: u64 = 100_000;

/// What a reader and the helper know of each other.
struct Place {
    /// The sides that have it: [`BOTH`] at first, 0 where it is free.
    sides: AtomicU32,
    /// Whether the program's side has given it up, and the helper's.
    is_over: AtomicBool,
    is_left: AtomicBool,
    /// Whether what was read is to be dropped behind it: the kernel's copies drop nothing.
    copies: AtomicBool,
    /// Whether calls end within pages, and so are plain.
    is_plain: AtomicBool,
    /// The program's descriptor, where only its position shows how far it has come; else -1.
    unseen: AtomicI32,
    /// Where the reader is, up to where it wants pages, and up to where they were begun to be read.
    position: AtomicU64,
    wanted: AtomicU64,
    begun: AtomicU64,
}

/// The program's side and the helper's.
const BOTH: u32 = 2;

static PLACES: [Place; READERS] = [const {
    Place {
        sides: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
        is_left: AtomicBool::new(false),
        copies: AtomicBool::new(false),
        is_plain: AtomicBool::new(false),
        unseen: AtomicI32::new(-1),
        position: AtomicU64::new(0),
        wanted: AtomicU64::new(0),
        begun: AtomicU64::new(0),
    }
}; READERS];

impl Place {
    /// One side gives it up.
    fn give_up(&self) {
        // A child of fork that was born in the middle of this has none left.
        let _ = self.sides.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |sides| sides.checked_sub(1));
    }

    /// The helper's side gives it up: it begins to read nothing more there.
    fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        self.begun.store(u64::MAX, Ordering::Release);
        self.give_up();
    }
}

/// What came of a wait for the helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// All was begun to be read, or nearly; or never can be.
    Begun,
    /// The helper has let go of the file: it may be asked anew.
    Left,
    /// It took too long.
    InVain,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// By uncached reads of whole pages, or copies by the kernel.
    Uncached,
    /// By plain reads of any length.
    Plain,
    /// By calls that are not seen.
    Unseen,
}

/// The reader's side: reading ahead ends with it.
#[derive(Debug)]
pub struct Ahead(usize);

impl Ahead {
    /// Has the helper read ahead of who is at `position` of the file that `fd` names. `None`: there is no helper, or no place.
    pub fn begin(fd: c_int, position: u64, calls: Calls) -> Option<Self> {
        let is_free = |place: &Place| {
            place.sides.compare_exchange(0, BOTH, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let index = if prepare() { PLACES.iter().position(is_free) } else { None }?;
        let place = PLACES.get(index)?;
        place.is_over.store(false, Ordering::Relaxed);
        place.is_left.store(false, Ordering::Relaxed);
        place.copies.store(false, Ordering::Relaxed);
        place.is_plain.store(calls != Calls::Uncached, Ordering::Relaxed);
        place.unseen.store(if calls == Calls::Unseen { fd } else { -1 }, Ordering::Relaxed);
        for at in [&place.position, &place.wanted, &place.begun] {
            at.store(position, Ordering::Relaxed);
        }
        if !send(fd, &Job::Ahead { index: index as u32 }) {
            place.sides.store(0, Ordering::Release);
            return None;
        }
        Some(Self(index))
    }

    /// Whether reads are to be plain.
    pub fn is_plain(&self) -> bool {
        self.place().is_some_and(|place| place.is_plain.load(Ordering::Relaxed))
    }

    fn place(&self) -> Option<&'static Place> {
        PLACES.get(self.0)
    }

    /// The reader has come to `position`.
    pub fn passed(&self, position: u64) {
        if let Some(place) = self.place() {
            place.position.store(position, Ordering::Release);
        }
    }

    /// Waits until all up to `end` was begun to be read, or nearly; for `WAIT_MAX` at most.
    pub fn wait_for(&self, end: u64) -> Waited {
        let Some(place) = self.place() else { return Waited::Left };
        let beyond = if self.is_plain() { AGAIN } else { 0 };
        let end = end.saturating_add(beyond);
        let end = end.min(place.position.load(Ordering::Relaxed).saturating_add(WANTED_MAX));
        place.wanted.store(end, Ordering::Release);
        let mut until = None;
        while place.begun.load(Ordering::Acquire) < end {
            let now = sys::now();
            if now > *until.get_or_insert(now.saturating_add(WAIT_MAX)) {
                return Waited::InVain;
            }
            sys::sleep(POLL);
        }
        if place.is_left.load(Ordering::Acquire) { Waited::Left } else { Waited::Begun }
    }

    /// The reader goes on by reads, which drop what they have touched.
    pub fn reads(&self) {
        if let Some(place) = self.place() {
            place.copies.store(false, Ordering::Relaxed);
        }
    }

    /// The same, for a copy by the kernel, behind which the helper drops what the reader brought in.
    pub fn wait_to_copy(&self, end: u64) -> Waited {
        if let (false, Some(place)) = (self.is_plain(), self.place()) {
            place.copies.store(true, Ordering::Relaxed);
        }
        self.wait_for(end)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(place) = self.place() {
            place.is_over.store(true, Ordering::Release);
            place.give_up();
        }
    }
}

/// The file could not be opened anew: nobody reads ahead there. That would come of another attempt, too.
pub(super) fn was_refused(index: u32) {
    if let Some(place) = PLACES.get(index as usize) {
        place.begun.store(u64::MAX, Ordering::Release);
        place.give_up();
    }
}

/// In a child of fork nobody reads ahead: what its parent had is the program's alone.
pub(super) fn after_fork() {
    for place in &PLACES {
        // What is not written to stays shared with the parent.
        if place.sides.load(Ordering::Relaxed) > 0 {
            place.is_left.store(true, Ordering::Relaxed);
            place.begun.store(u64::MAX, Ordering::Relaxed);
            place.sides.store(u32::from(!place.is_over.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

/// A reader, as the helper has it.
struct Reader {
    index: usize,
    /// Our own descriptor of the file; and where it is counted.
    file: c_int,
    hash: FileHash,
    from: u64,
    begun: u64,
    dropped: u64,
    position: u64,
    moved_at: u64,
    is_refused: bool,
    /// What is known of the file, for plain reads.
    stream: WatchedStream,
}

/// All readers.
pub(super) struct Readers([Option<Reader>; READERS]);

impl Readers {
    /// None: 64 KiB, made in place.
    pub(super) fn none() -> Self {
        Self(core::array::from_fn(|_| None))
    }

    /// Nanoseconds until the next check.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let rests = |reader: &Reader| now.saturating_sub(reader.moved_at) > WHILE;
        self.0.iter().flatten().map(|reader| if rests(reader) { LATE } else { SOON }).min()
    }

    /// Reads ahead for who has that place; `file` is our own descriptor.
    pub(super) fn add(&mut self, index: u32, file: c_int, hash: FileHash) {
        let index = index as usize;
        let (Some(free), Some(place)) = (self.0.get_mut(index), PLACES.get(index)) else {
            sys::close(file);
            return hash.give_back();
        };
        sys::read_in_no_order(file);
        let from = place.position.load(Ordering::Acquire) / sys::page_size() * sys::page_size();
        *free = Some(Reader {
            index,
            file,
            hash,
            from,
            begun: from,
            dropped: from,
            position: from,
            moved_at: sys::now(),
            is_refused: false,
            stream: WatchedStream::NEW,
        });
        self.go_on();
    }

    /// Goes on for all of them.
    pub(super) fn go_on(&mut self) {
        for reader in &mut self.0 {
            if reader.as_mut().is_some_and(|reader| !reader.go_on()) {
                *reader = None;
            }
        }
    }

    /// Forgets those of files that are to be let go of.
    pub(super) fn let_go(&mut self) {
        for reader in &mut self.0 {
            if reader.as_ref().is_some_and(|reader| reader.hash.is_unwanted()) {
                *reader = None;
            }
        }
    }
}

impl Reader {
    /// `false`: it is over.
    fn go_on(&mut self) -> bool {
        let Some(place) = PLACES.get(self.index) else { return false };
        let is_over = place.is_over.load(Ordering::Acquire);
        let unseen = place.unseen.load(Ordering::Relaxed);
        let seen = if unseen >= 0 && !is_over { position_of(unseen) } else { None };
        let position = seen.unwrap_or_else(|| place.position.load(Ordering::Acquire));
        let was = self.position;
        if position != self.position {
            (self.position, self.moved_at) = (position, sys::now());
        }
        if place.is_plain.load(Ordering::Relaxed) {
            self.probe(place, was);
            if is_over {
                self.stream.left().for_each(|range| release(self.file, range));
            }
            return !is_over;
        }
        if !place.copies.load(Ordering::Relaxed) {
            // What was come to by reads has gone, and would be read again.
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
        let ahead = position.saturating_sub(self.from).saturating_mul(2).clamp(NEAR, FAR);
        let size = sys::fstat(self.file).map_or(0, |stat| stat.st_size.max(0) as u64);
        let end = position.saturating_add(ahead).max(place.wanted.load(Ordering::Acquire)).min(size);
        self.begun = self.begun.max(position / STEP * STEP);
        while self.begun < end && !self.is_refused {
            match sys::read_nowhere(self.file, self.begun, STEP, true) {
                Ok(0) => break,
                Ok(more) => self.begun = self.begun.saturating_add(more),
                Err(Errno(libc::EAGAIN)) => self.begun = (self.begun / STEP + 1) * STEP,
                Err(_) => self.is_refused = true,
            }
            place.begun.store(self.begun, Ordering::Release);
        }
        if self.begun >= size || self.is_refused {
            place.begun.store(u64::MAX, Ordering::Release);
        }
        true
    }

    /// Probes what lies ahead of plain reads, and drops what they brought in.
    fn probe(&mut self, place: &Place, was: u64) {
        let (file, at) = (self.file, self.position);
        process::count(Count::StreamWasResident, self.stream.foreign(&(was..at)));
        self.stream.passed(was, at.saturating_sub(was)).for_each(|range| release(file, range));
        let size = sys::fstat(file).map_or(0, |stat| stat.st_size.max(0) as u64);
        if let Some(range) = self.stream.sample_for_read(at, IN_ORDER, size) {
            for window in windows(&range) {
                let mut pages = [1; PAGES];
                if !self.is_refused && sys::probe(file, &window, &mut pages).is_err() {
                    self.is_refused = true;
                    pages = [1; PAGES];
                }
                let page = sys::page_size();
                let count = (window.end - window.start).div_ceil(page);
                let resident = pages.iter().take(count as usize).filter(|&&page| page == 1).count() as u64;
                if !self.stream.saw(&window, resident * page) {
                    self.stream.saw_pages(window.start, page, &pages);
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

    /// Drops what is marked of a range: all that a read touches.
    fn drop_marked(&self, mut at: u64, end: u64) -> Result<(), Errno> {
        while at < end {
            match sys::read_nowhere(self.file, at, STEP.min(end - at), false)? {
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

impl Drop for Reader {
    fn drop(&mut self) {
        sys::close(self.file);
        self.hash.give_back();
        if let Some(place) = PLACES.get(self.index) {
            place.leave();
        }
    }
}

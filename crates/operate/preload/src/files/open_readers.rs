//! A table in which streams share their knowledge of open files: a page that another stream brought
//! in is a stream's, too. Without the table each would take the others' pages for resident before,
//! and they would stay for good.
//!
//! A reader publishes which windows it found empty. Another reader that finds pages in such a
//! window takes them for a stream's. All readers of a process share one table; all commands of a
//! user do if the launcher has created a file for it ([`share`]).
//!
//! Invariants: nobody waits and nothing is allocated; all bits may be zero. An entry is valid for
//! `LEASE_NS` after its last update, so that the entry of a killed reader expires. Without a free
//! place a reader publishes nothing, and others leave its pages.

use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use pagekeeper_policy::WINDOW;
use pagekeeper_policy::stream::windows_from;

use crate::files::identity::{FileIdentity, SharedIdentity};
use crate::{counters, sys};

/// Readers that have a place at a time.
const OPEN_READERS_MAX: usize = 256;
/// Nanoseconds for which an entry is valid after its last update.
const LEASE_NS: u64 = 30_000_000_000;
/// Nanoseconds for which the entry is valid of a reader that has left and whose pages a socket or a
/// pipe still holds.
const LEASE_OF_SENT_NS: u64 = 5_000_000_000;
/// Bytes of the table's file.
pub const TABLE_BYTES: u64 = size_of::<OpenReaders>() as u64;

/// The entry of one reader. The version is odd while the words after it are changed.
#[repr(C, align(64))]
struct Entry {
    /// The end of the lease, in nanoseconds of the monotonic clock; 0: the place is free. Odd: the
    /// place is taken, and the words after it are still those of its last reader.
    until: AtomicU64,
    /// The process that has the place.
    pid: AtomicU32,
    version: AtomicU32,
    file: SharedIdentity,
    /// The first window, and a bit for each from it on that was found empty. [`ALL_FIRST`]: the
    /// whole file is the reader's.
    first: AtomicU64,
    low: AtomicU64,
    high: AtomicU64,
    /// The number of times that the place was taken. A reader that lost it to another one of the
    /// same process sees that here.
    takings: AtomicU32,
}

/// In place of a first window: the reader created the file.
const ALL_FIRST: u64 = u64::MAX;
/// The windows of a file that the reader created: all.
pub const ALL_WINDOWS: (u64, u128) = (ALL_FIRST, u128::MAX);

/// The table.
#[repr(C)]
pub struct OpenReaders {
    /// Places from this one on were never taken.
    used: AtomicU32,
    entries: [Entry; OPEN_READERS_MAX],
}

// SAFETY: numbers.
static OWN_READERS: OpenReaders = unsafe { core::mem::zeroed() };

static SHARED_READERS: AtomicPtr<OpenReaders> = AtomicPtr::new(core::ptr::null_mut());

/// Shares the table with the user's other commands, by the file at that path, if it is such a
/// table.
pub fn share(path: &[u8]) {
    let Some(at) = counters::map_file(path, size_of::<OpenReaders>()) else { return };
    SHARED_READERS.store(core::ptr::with_exposed_provenance_mut(at), Ordering::Release);
}

fn table() -> &'static OpenReaders {
    // SAFETY: null, or a mapping that is never unmapped, long enough, and valid with all bits; all
    // of it is atomic.
    unsafe { SHARED_READERS.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWN_READERS)
}

/// A reader's place, which it gives up when dropped.
#[derive(Debug)]
pub struct ReaderPlace {
    index: usize,
    taking: u32,
}

impl ReaderPlace {
    /// Takes a free place; `None` if there is none.
    fn take(now: u64) -> Option<Self> {
        let (table, lease) = (table(), lease_end(now));
        let take = |entry: &Entry| {
            let until = entry.until.load(Ordering::Relaxed);
            // A lease that ends too late is from before a reboot.
            (until <= now || until > lease | 1)
                && entry.until.compare_exchange(until, lease | 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let (index, entry) = table.entries.iter().enumerate().find(|(_, entry)| take(entry))?;
        let taking = entry.takings.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        entry.pid.store(sys::getpid(), Ordering::Relaxed);
        // A killed reader may have left it odd.
        entry.version.fetch_and(!1, Ordering::AcqRel);
        table.used.fetch_max(index as u32 + 1, Ordering::AcqRel);
        Some(Self { index, taking })
    }

    fn entry(&self) -> Option<&'static Entry> {
        let entry = table().entries.get(self.index)?;
        // A reader without an update for too long has lost its place. In a child of fork, the place
        // is the parent's.
        let is_own = entry.takings.load(Ordering::Acquire) == self.taking
            && entry.pid.load(Ordering::Relaxed) == sys::getpid();
        is_own.then_some(entry)
    }

    /// Gives the place up later: nobody else knows of the pages that are still held.
    pub fn linger(self) {
        if let Some(entry) = self.entry() {
            let end = sys::now().saturating_add(LEASE_OF_SENT_NS) & !1;
            entry.until.store(end, Ordering::Release);
        }
        core::mem::forget(self);
    }
}

impl Drop for ReaderPlace {
    fn drop(&mut self) {
        if let Some(entry) = self.entry() {
            entry.until.store(0, Ordering::Release);
        }
    }
}

/// Publishes which windows of a file a reader found empty: those with a bit in `bits`, from the
/// window `first` on. For a file that it created, these are all ([`ALL_WINDOWS`]).
pub fn say(place: &mut Option<ReaderPlace>, file: FileIdentity, (first, bits): (u64, u128)) {
    let now = sys::now();
    if place.is_none() {
        *place = ReaderPlace::take(now);
    }
    let Some(entry) = place.as_ref().and_then(ReaderPlace::entry) else { return };
    entry.version.fetch_add(1, Ordering::AcqRel);
    fence(Ordering::Release);
    entry.file.set(file);
    entry.first.store(first, Ordering::Relaxed);
    entry.low.store(bits as u64, Ordering::Relaxed);
    entry.high.store((bits >> 64) as u64, Ordering::Relaxed);
    entry.version.fetch_add(1, Ordering::Release);
    entry.until.store(lease_end(now), Ordering::Release);
}

/// The end of a lease that begins now: an even number.
const fn lease_end(now: u64) -> u64 {
    now.saturating_add(LEASE_NS) & !1
}

/// Returns the windows of a range that other readers of the file found empty: a bit for each, from
/// its first on.
pub fn others(own: Option<&ReaderPlace>, file: FileIdentity, range: &Range<u64>) -> u128 {
    let (table, now) = (table(), sys::now());
    let used = table.used.load(Ordering::Acquire) as usize;
    let entries = table.entries.iter().take(used).enumerate();
    let others = entries.filter(|&(index, _)| own.is_none_or(|own| own.index != index));
    others
        .filter_map(|(_, entry)| entry.windows(file, range.start / WINDOW, now))
        .fold(0, |all, bits| all | bits)
}

impl Entry {
    fn windows(&self, file: FileIdentity, from: u64, now: u64) -> Option<u128> {
        let until = self.until.load(Ordering::Acquire);
        // A lease that ends too late is from before a reboot.
        if !until.is_multiple_of(2) || until <= now || until > lease_end(now) {
            return None;
        }
        let version = self.version.load(Ordering::Acquire);
        let own_file = self.file.get();
        let first = self.first.load(Ordering::Relaxed);
        let (low, high) = (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed);
        if !is_whole || own_file != file {
            return None;
        }
        let bits = u128::from(low) | u128::from(high) << 64;
        Some(if first == ALL_FIRST { u128::MAX } else { windows_from(first, bits, from) })
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn readers_of_a_file_know_each_others_windows() {
        let file = FileIdentity { device: 7, inode: 100 };
        let other_file = FileIdentity { device: 8, inode: 100 };
        let range = |first: u64| first * WINDOW..(first + 3) * WINDOW;
        let (mut one, mut two) = (None, None);
        say(&mut one, file, (10, 0b1011));
        assert_eq!(others(None, file, &range(10)), 0b1011);
        assert_eq!(others(None, file, &range(11)), 0b101);
        assert_eq!(others(None, file, &range(8)), 0b10_1100);
        assert_eq!(others(None, file, &range(210)), 0);
        assert_eq!(others(None, other_file, &range(10)), 0);
        // Its own windows do not count; those of several others are combined.
        assert_eq!(others(one.as_ref(), file, &range(10)), 0);
        say(&mut two, file, (12, 1));
        assert_eq!(others(one.as_ref(), file, &range(10)), 0b100);
        assert_eq!(others(None, file, &range(10)), 0b1111);
        say(&mut two, file, ALL_WINDOWS);
        assert_eq!(others(one.as_ref(), file, &range(1 << 40)), u128::MAX);
        drop(two);
        assert_eq!(others(one.as_ref(), file, &range(10)), 0);
        one.take().unwrap().linger();
        assert_eq!(others(None, file, &range(10)), 0b1011);
    }

    #[test]
    fn a_long_silent_reader_does_not_count() {
        let file = FileIdentity { device: 7, inode: 101 };
        let mut one = None;
        say(&mut one, file, (0, 1));
        let entry = one.as_ref().unwrap().entry().unwrap();
        let now = sys::now();
        assert_eq!(entry.windows(file, 0, now), Some(1));
        assert_eq!(entry.windows(file, 0, now + LEASE_NS + 1_000_000_000), None);
        // A clock that was reset.
        assert_eq!(entry.windows(file, 0, now.saturating_sub(1_000_000_000)), None);
    }

    #[test]
    fn a_place_that_another_took_is_lost_and_one_of_before_a_reboot_is_free() {
        let file = FileIdentity { device: 7, inode: 102 };
        let mut one = None;
        say(&mut one, file, (0, 1));
        let entry = one.as_ref().unwrap().entry().unwrap();
        entry.version.fetch_add(1, Ordering::AcqRel);
        entry.until.store(u64::MAX, Ordering::Release);
        let index = one.as_ref().unwrap().index;
        // Only the places up to it: other tests need the rest meanwhile.
        let mut taken = Vec::new();
        while taken.last().is_none_or(|place: &ReaderPlace| place.index != index) {
            taken.push(ReaderPlace::take(sys::now()).unwrap());
        }
        // The words of the reader before are nobody's until the new one has published its own.
        assert_eq!(entry.windows(file, 0, sys::now()), None);
        assert!(one.as_ref().unwrap().entry().is_none());
        assert!(entry.version.load(Ordering::Acquire).is_multiple_of(2));
    }
}

//! Where the program was in files that are read or written by calls that are not seen, as it closed them.
//!
//! A watch ([`super::watch`]) knows that of a file that is open from /proc, and of one that was closed from here. It is noted from the moment that a
//! watch is asked for: on a busy machine the program may be done with a file before the helper has begun.
//!
//! Invariants: the program notes, the helper takes; a place that is expected is given up once its watch begins, or does not come.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering, fence};

use libc::c_int;

use super::FileHash;
use super::watch::WATCHES;
use crate::sys;

/// By watch.
pub(super) static CLOSED: [Closed; WATCHES] =
    [const { Closed { fd: AtomicI32::new(-1), position: AtomicU64::new(0) } }; WATCHES];

/// The same of files whose watch was asked for and has not begun: on a busy machine the program may be done with one by then.
static EXPECTED: [Expected; WATCHES] = [const {
    Expected {
        closed: Closed { fd: AtomicI32::new(-1), position: AtomicU64::new(0) },
        inode: AtomicU64::new(0),
    }
}; WATCHES];

/// Of one file: the program's descriptor, and one more than the position; 0 while it is open.
pub(super) struct Closed {
    fd: AtomicI32,
    position: AtomicU64,
}

impl Closed {
    /// The watch begins: what was noted since it was asked for is known here from now on.
    pub(super) fn begin(&self, fd: c_int, inode: u64) {
        self.position.store(0, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Release);
        // Who closes it notes it in the one place or sees the other.
        fence(Ordering::SeqCst);
        for place in EXPECTED.iter().filter(|place| place.is_of(fd, inode)) {
            self.take(place.closed.position.load(Ordering::Acquire));
            place.give_up();
        }
    }

    /// The watch ends.
    pub(super) fn end(&self) {
        self.fd.store(-1, Ordering::Relaxed);
    }

    /// Notes where the program was as it closes it.
    fn note(&self, fd: c_int) {
        if let Ok(position) = sys::position(fd) {
            self.take(position.saturating_add(1));
        }
    }

    /// One more than a position; 0 changes nothing.
    fn take(&self, closed_at: u64) {
        // One that has the same number may have been closed before.
        let _ = self.position.compare_exchange(0, closed_at, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Where the program was as it closed it.
    pub(super) fn at(&self) -> Option<u64> {
        self.position.load(Ordering::Acquire).checked_sub(1)
    }
}

/// A descriptor and its file. The inode is no part of what decides who has the place: it tells two files apart that had one
/// number after each other.
struct Expected {
    closed: Closed,
    inode: AtomicU64,
}

/// The number of a place that is being taken.
const TAKEN: c_int = -2;

impl Expected {
    fn is_of(&self, fd: c_int, inode: u64) -> bool {
        self.closed.fd.load(Ordering::Acquire) == fd && self.inode.load(Ordering::Relaxed) == inode
    }

    fn give_up(&self) {
        self.closed.fd.store(-1, Ordering::Release);
    }
}

/// The watch of a file is about to be asked for: from here on its closing is noted. Without a place it is as the watch begins.
pub fn expect(fd: c_int, inode: u64) {
    let free = |place: &&Expected| {
        place.closed.fd.compare_exchange(-1, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(place) = EXPECTED.iter().find(free) {
        place.closed.position.store(0, Ordering::Relaxed);
        place.inode.store(inode, Ordering::Relaxed);
        place.closed.fd.store(fd, Ordering::Release);
    }
}

/// It will not be watched.
pub fn expect_no_more(fd: c_int, inode: u64) {
    EXPECTED.iter().filter(|place| place.is_of(fd, inode)).for_each(Expected::give_up);
}

/// A file of this descriptor could not be opened anew: which one of those that had its number is not known any more, so the first that was
/// closed.
pub(super) fn was_refused(fd: c_int) {
    let is_of = |place: &&Expected| place.closed.fd.load(Ordering::Acquire) == fd;
    let closed = EXPECTED.iter().filter(is_of).find(|place| place.closed.at().is_some());
    if let Some(place) = closed.or_else(|| EXPECTED.iter().find(is_of)) {
        place.give_up();
    }
}

/// In a child of fork nothing is asked for any more.
pub(super) fn after_fork() {
    // What is not written to stays shared with the parent.
    EXPECTED.iter().filter(|place| place.closed.fd.load(Ordering::Relaxed) != -1).for_each(Expected::give_up);
}

/// The program is about to close a file that is watched, perhaps.
pub fn closing(fd: c_int) {
    let is_of = |closed: &&Closed| closed.fd.load(Ordering::Acquire) == fd;
    EXPECTED.iter().map(|place| &place.closed).filter(is_of).for_each(|closed| closed.note(fd));
    fence(Ordering::SeqCst);
    for closed in CLOSED.iter().filter(is_of) {
        closed.note(fd);
        // Its room is free as it is closed.
        if let Ok(stat) = sys::fstat(fd)
            && stat.st_nlink == 0
        {
            super::let_go(FileHash::of(&stat));
        }
    }
}

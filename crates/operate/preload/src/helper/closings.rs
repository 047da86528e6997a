//! The file offsets at which the program closed files that it reads or writes by calls we do not hook.
//!
//! A watch ([`super::watch`]) reads the offset of an open file from /proc, and that of a closed file from here. Offsets are noted from the
//! moment that a watch is requested: on a busy machine the program may close a file before the helper has begun to watch it.
//!
//! Invariants: the program notes, the helper takes. A place in `EXPECTED` is given up once its watch begins or fails to begin.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering, fence};

use libc::c_int;

use super::FileHash;
use crate::sys;

/// Files watched at a time.
pub(super) const WATCHES: usize = 16;

/// The closed files, by watch.
pub(super) static CLOSED: [Closed; WATCHES] =
    [const { Closed { fd: AtomicI32::new(-1), position: AtomicU64::new(0) } }; WATCHES];

/// The closed files whose watch was requested and has not begun.
static EXPECTED: [Expected; WATCHES] = [const {
    Expected {
        closed: Closed { fd: AtomicI32::new(-1), position: AtomicU64::new(0) },
        inode: AtomicU64::new(0),
    }
}; WATCHES];

/// The closing of one file: the program's descriptor, and the offset plus one; 0 while the file is open.
pub(super) struct Closed {
    fd: AtomicI32,
    position: AtomicU64,
}

impl Closed {
    /// Begins the watch: takes over the offset noted since the request.
    pub(super) fn begin(&self, fd: c_int, inode: u64) {
        self.position.store(0, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Release);
        // The closing thread notes the offset in the place of `EXPECTED`, or sees the descriptor here.
        fence(Ordering::SeqCst);
        for place in EXPECTED.iter().filter(|place| place.is_of(fd, inode)) {
            self.take(place.closed.position.load(Ordering::Acquire));
            place.give_up();
        }
    }

    /// Ends the watch.
    pub(super) fn end(&self) {
        self.fd.store(-1, Ordering::Relaxed);
    }

    /// Notes the offset as the program closes the file.
    fn note(&self, fd: c_int) {
        if let Ok(position) = sys::position(fd) {
            self.take(position.saturating_add(1));
        }
    }

    /// Stores the offset plus one; 0 changes nothing.
    fn take(&self, closed_at: u64) {
        // Keeps the first: another file with the same number may be closed later.
        let _ = self.position.compare_exchange(0, closed_at, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns the offset at which the program closed the file.
    pub(super) fn at(&self) -> Option<u64> {
        self.position.load(Ordering::Acquire).checked_sub(1)
    }
}

/// A descriptor and its file. The inode does not decide who owns the place; it distinguishes two files that had the same descriptor number
/// one after the other.
struct Expected {
    closed: Closed,
    inode: AtomicU64,
}

/// The descriptor number of a place that is being filled in.
const TAKEN: c_int = -2;

impl Expected {
    fn is_of(&self, fd: c_int, inode: u64) -> bool {
        self.closed.fd.load(Ordering::Acquire) == fd && self.inode.load(Ordering::Relaxed) == inode
    }

    fn give_up(&self) {
        self.closed.fd.store(-1, Ordering::Release);
    }
}

/// Announces that a watch of the file is about to be requested: its closing is noted from here on. Without a free place, it is noted once
/// the watch begins.
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

/// Takes the announcement back: the file will not be watched.
pub fn expect_no_more(fd: c_int, inode: u64) {
    EXPECTED.iter().filter(|place| place.is_of(fd, inode)).for_each(Expected::give_up);
}

/// Gives up the place of a file that could not be opened anew. The descriptor alone does not say which of several files it was, so this
/// takes the first that was closed.
pub(super) fn was_refused(fd: c_int) {
    let is_of = |place: &&Expected| place.closed.fd.load(Ordering::Acquire) == fd;
    let closed = EXPECTED.iter().filter(is_of).find(|place| place.closed.at().is_some());
    if let Some(place) = closed.or_else(|| EXPECTED.iter().find(is_of)) {
        place.give_up();
    }
}

/// Gives up all places in a child of fork, where no watch is requested any more.
pub(super) fn after_fork() {
    // Writing only where needed keeps the memory shared with the parent.
    EXPECTED.iter().filter(|place| place.closed.fd.load(Ordering::Relaxed) != -1).for_each(Expected::give_up);
}

/// Notes the closing of a file, which may be watched.
pub fn closing(fd: c_int) {
    let is_of = |closed: &&Closed| closed.fd.load(Ordering::Acquire) == fd;
    EXPECTED.iter().map(|place| &place.closed).filter(is_of).for_each(|closed| closed.note(fd));
    fence(Ordering::SeqCst);
    for closed in CLOSED.iter().filter(is_of) {
        closed.note(fd);
        // A file without a name frees its disk space when the program closes it.
        if let Ok(stat) = sys::fstat(fd)
            && stat.st_nlink == 0
        {
            super::let_go(FileHash::of(&stat));
        }
    }
}

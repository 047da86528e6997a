//! The file offsets at which the program closed files that it reads or writes by calls we do not
//! hook.
//!
//! A watch ([`super::watch`]) reads the offset of an open file from /proc, and that of a closed
//! file from here. Offsets are noted from the moment that a watch is requested: on a busy machine
//! the program may close a file before the helper has begun to watch it.
//!
//! Invariants: the program notes, the helper takes. A place in `EXPECTED_WATCHES` is given up once
//! its watch begins or fails to begin.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering, fence};

use libc::c_int;

use super::FileHash;
use crate::sys;

/// Files watched at a time.
pub(super) const WATCHES_MAX: usize = 16;

/// The closed files, by watch.
pub(super) static CLOSED_OFFSETS: [ClosedOffset; WATCHES_MAX] = [const { ClosedOffset::NONE }; WATCHES_MAX];
/// The closed files whose watch was requested and has not begun.
static EXPECTED_WATCHES: [ClosedOffset; WATCHES_MAX] = [const { ClosedOffset::NONE }; WATCHES_MAX];
/// The descriptor number of a place that is being filled in.
const NUMBER_TAKEN: c_int = -2;

/// The closing of one file: the program's descriptor, and the offset plus one; 0 while the file is
/// open. The inode of an expected watch does not decide who owns the place; it distinguishes two
/// files that had the same descriptor number one after the other.
pub(super) struct ClosedOffset {
    fd: AtomicI32,
    position: AtomicU64,
    inode: AtomicU64,
}

impl ClosedOffset {
    const NONE: Self = Self { fd: AtomicI32::new(-1), position: AtomicU64::new(0), inode: AtomicU64::new(0) };

    /// Begins the watch: takes over the offset noted since the request.
    pub(super) fn begin(&self, fd: c_int, inode: u64) {
        self.position.store(0, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Release);
        // The closing thread notes the offset in the place of `EXPECTED_WATCHES`, or sees the
        // descriptor here.
        fence(Ordering::SeqCst);
        for place in EXPECTED_WATCHES.iter().filter(|place| place.is_of(fd, inode)) {
            self.take(place.position.load(Ordering::Acquire));
            place.end();
        }
    }

    /// Ends the watch, or gives up an expected one.
    pub(super) fn end(&self) {
        self.fd.store(-1, Ordering::Release);
    }

    fn is_named(&self, fd: c_int) -> bool {
        self.fd.load(Ordering::Acquire) == fd
    }

    fn is_of(&self, fd: c_int, inode: u64) -> bool {
        self.is_named(fd) && self.inode.load(Ordering::Relaxed) == inode
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

/// Announces that a watch of the file is about to be requested: its closing is noted from here on.
/// Without a free place, it is noted once the watch begins.
pub fn expect(fd: c_int, inode: u64) {
    let free = |place: &&ClosedOffset| {
        place.fd.compare_exchange(-1, NUMBER_TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(place) = EXPECTED_WATCHES.iter().find(free) {
        place.position.store(0, Ordering::Relaxed);
        place.inode.store(inode, Ordering::Relaxed);
        place.fd.store(fd, Ordering::Release);
    }
}

/// Takes the announcement back: the file will not be watched.
pub fn expect_no_more(fd: c_int, inode: u64) {
    EXPECTED_WATCHES.iter().filter(|place| place.is_of(fd, inode)).for_each(ClosedOffset::end);
}

/// Gives up the place of a file that could not be reopened. The descriptor alone does not say
/// which of several files it was, so this takes the first that was closed.
pub(super) fn was_refused(fd: c_int) {
    let places = || EXPECTED_WATCHES.iter().filter(|place| place.is_named(fd));
    if let Some(place) = places().find(|place| place.at().is_some()).or_else(|| places().next()) {
        place.end();
    }
}

/// Gives up all places in a child of fork, where no watch is requested any more.
pub(super) fn after_fork() {
    // Writing only where needed keeps the memory shared with the parent.
    EXPECTED_WATCHES
        .iter()
        .filter(|place| place.fd.load(Ordering::Relaxed) != -1)
        .for_each(ClosedOffset::end);
}

/// Notes the closing of a file, which may be watched.
pub fn closing(fd: c_int) {
    EXPECTED_WATCHES.iter().filter(|place| place.is_named(fd)).for_each(|place| place.note(fd));
    fence(Ordering::SeqCst);
    for closed in CLOSED_OFFSETS.iter().filter(|place| place.is_named(fd)) {
        closed.note(fd);
        // A file without a name frees its disk space when the program closes it.
        if let Ok(stat) = sys::fstat(fd)
            && stat.st_nlink == 0
        {
            super::let_go(FileHash::of(&stat));
        }
    }
}

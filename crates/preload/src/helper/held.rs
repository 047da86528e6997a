//! Files the helper has open, and which of them it must close early.
//!
//! An open file keeps its disk space after its last name is removed, and keeps its file system from being unmounted. Before either,
//! the helper closes that file, or all files. The pages of a deleted file go with it.
//!
//! Files are counted by a hash of their device and inode. A hash collision closes both files, and the other's pages stay.
//!
//! Invariant: a file is counted from before it is sent until the helper has closed it.

use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

use super::{ON, STATE, STATES, channel};
use crate::{process, sys, temporary};

/// Nanoseconds that are waited for the helper to let go, at most: it may be in a call that the disk is slow to end.
const LET_GO_MAX: u64 = 1_000_000_000;
/// Nanoseconds after which who waits checks whether the helper is still there.
const POLL: u64 = 20_000_000;

const FILE_HASHES: usize = 256;

/// How many files in hand have that hash.
static HELD: [AtomicU32; FILE_HASHES] = [const { AtomicU32::new(0) }; FILE_HASHES];
/// How many wait until there is none.
static UNWANTED: [AtomicU32; FILE_HASHES] = [const { AtomicU32::new(0) }; FILE_HASHES];
/// The sums of both; of the second also those who want nothing to be held.
static ALL_HELD: AtomicU32 = AtomicU32::new(0);
static SOME_UNWANTED: AtomicU32 = AtomicU32::new(0);
static ALL_UNWANTED: AtomicU32 = AtomicU32::new(0);

/// A file's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHash(u32);

impl FileHash {
    /// Where there is no file.
    pub(crate) const NONE: Self = Self(0);

    /// That of the file which this was said of.
    pub fn of(stat: &libc::stat) -> Self {
        let mixed = (stat.st_ino ^ stat.st_dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed >> 56) as u32)
    }

    /// As it came in a message.
    pub(super) fn from_number(number: u32) -> Self {
        Self(number % FILE_HASHES as u32)
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }

    fn in_all(self, all: &[AtomicU32; FILE_HASHES]) -> Option<&AtomicU32> {
        all.get(self.0 as usize)
    }

    /// The helper has one file more in hand, or is about to.
    pub(super) fn take(self) {
        ALL_HELD.fetch_add(1, Ordering::SeqCst);
        if let Some(held) = self.in_all(&HELD) {
            held.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One less: it is closed.
    pub(crate) fn give_back(self) {
        self.in_all(&HELD).into_iter().for_each(one_less);
        one_less(&ALL_HELD);
    }

    /// Whether the helper is to let go of it.
    pub(crate) fn is_unwanted(self) -> bool {
        SOME_UNWANTED.load(Ordering::SeqCst) > 0
            && (ALL_UNWANTED.load(Ordering::SeqCst) > 0
                || self.in_all(&UNWANTED).is_some_and(|unwanted| unwanted.load(Ordering::SeqCst) > 0))
    }
}

/// Whether nobody needs what the helper would do: it is to let go of the file, or the file has no name left.
pub(super) fn is_lost(file: c_int, place: FileHash) -> bool {
    place.is_unwanted() || has_no_name(file)
}

/// Whether nothing is to be held: a file system is about to be unmounted.
pub(super) fn is_nothing_wanted() -> bool {
    ALL_UNWANTED.load(Ordering::SeqCst) > 0
}

/// Whether the file's last name is gone: its pages go with it.
pub(crate) fn has_no_name(file: c_int) -> bool {
    sys::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Whether the file has more than one name.
pub(super) fn has_names(file: c_int) -> bool {
    sys::fstat(file).is_ok_and(|stat| stat.st_nlink > 1)
}

/// Whether the helper has any file in hand: a load.
#[inline]
pub fn holds_some() -> bool {
    ALL_HELD.load(Ordering::Relaxed) > 0
}

/// The helper has one more in hand, which it keeps by its own entry ([`crate::temporary`]).
pub(super) fn take_one() {
    ALL_HELD.fetch_add(1, Ordering::SeqCst);
}

/// One of these less.
pub(super) fn give_back_one() {
    one_less(&ALL_HELD);
}

fn one_less(held: &AtomicU32) {
    // Counts begin anew with a new helper, while the one before may still finish.
    let _ = held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| Some(held.saturating_sub(1)));
    if SOME_UNWANTED.load(Ordering::SeqCst) > 0 {
        sys::futex_wake(held);
    }
}

/// A temporary file that is kept is about to lose its last name: waits until the helper has let go of it.
pub fn let_go_of_kept(stat: &libc::stat) {
    temporary::lose(stat, |state, lost| {
        let end = sys::now().saturating_add(LET_GO_MAX);
        let mut is_notified = false;
        while state.load(Ordering::Acquire) == lost
            && STATE.load(Ordering::Acquire) & STATES == ON
            && sys::now() < end
        {
            is_notified = is_notified || channel::send_check();
            sys::futex_wait(state, lost, if is_notified { POLL } else { 1_000_000 });
        }
    });
}

/// The file is about to lose its last name, or to be closed without one: waits until the helper has let go of it.
pub fn let_go(place: FileHash) {
    if let (Some(unwanted), Some(held)) = (place.in_all(&UNWANTED), place.in_all(&HELD)) {
        wait_for_none(unwanted, held);
    }
}

/// A lease on the file that `fd` names is about to be taken, which is refused while others have it open.
pub fn let_go_of(fd: c_int) {
    if holds_some()
        && process::is_on()
        && let Ok(stat) = sys::fstat(fd)
    {
        let_go(FileHash::of(&stat));
        let_go_of_kept(&stat);
    }
}

/// A file system is about to be unmounted: the helper does what it was given, as long as the process's end would wait for that, and then
/// holds nothing.
pub fn let_go_of_all() {
    if holds_some() && process::is_on() {
        super::drain();
        wait_for_none(&ALL_UNWANTED, &ALL_HELD);
    }
}

fn wait_for_none(unwanted: &AtomicU32, held: &AtomicU32) {
    let end = sys::now().saturating_add(LET_GO_MAX);
    unwanted.fetch_add(1, Ordering::SeqCst);
    SOME_UNWANTED.fetch_add(1, Ordering::SeqCst);
    let mut is_notified = false;
    loop {
        let left = held.load(Ordering::SeqCst);
        let is_on = STATE.load(Ordering::Acquire) & STATES == ON;
        if left == 0 || !is_on || sys::now() >= end {
            break;
        }
        // Where there is no room for a message, the helper takes the next one soon.
        is_notified = is_notified || channel::send_check();
        sys::futex_wait(held, left, if is_notified { POLL } else { 1_000_000 });
    }
    SOME_UNWANTED.fetch_sub(1, Ordering::SeqCst);
    unwanted.fetch_sub(1, Ordering::SeqCst);
}

/// There is a new helper, which has nothing in hand.
pub(super) fn reset() {
    // What is not written to stays shared with the parent.
    if holds_some() {
        HELD.iter().chain([&ALL_HELD]).for_each(|held| held.store(0, Ordering::SeqCst));
    }
}

/// In a child of fork nobody waits, either.
pub(super) fn after_fork() {
    reset();
    if SOME_UNWANTED.swap(0, Ordering::SeqCst) > 0 {
        let waits = UNWANTED.iter().chain([&ALL_UNWANTED]);
        waits.for_each(|unwanted| unwanted.store(0, Ordering::SeqCst));
    }
}

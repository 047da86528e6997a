//! Files the helper has open, and those of them that it must close early.
//!
//! An open file keeps its disk space after its last name is removed, and keeps its file system from
//! being unmounted. Before either, the helper closes that file, or all files. The pages of a
//! deleted file go with it.
//!
//! Files are counted by a hash of their device and inode. A hash collision closes both files, and
//! the other's pages stay.
//!
//! Invariant: a file is counted from before it is sent until the helper has closed it.

use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

use super::{ON, STATE, STATES, channel};
use crate::files::identity::FileIdentity;
use crate::files::temporary;
use crate::{process, sys};

/// The longest wait for the helper to let go, in nanoseconds. It may be in a call that a slow disk
/// delays.
const LET_GO_MAX_NS: u64 = 1_000_000_000;
/// Nanoseconds after which a waiting thread checks whether the helper still exists.
const CLOSE_POLL_NS: u64 = 1_000_000;

const FILE_HASHES: usize = 256;

/// Files the helper has, by hash.
static HELD_FILES: [AtomicU32; FILE_HASHES] = [const { AtomicU32::new(0) }; FILE_HASHES];
/// Threads that wait until the helper has no such file, by hash.
static UNWANTED_FILES: [AtomicU32; FILE_HASHES] = [const { AtomicU32::new(0) }; FILE_HASHES];
/// The sums of both tables. `SOME_UNWANTED` includes `ALL_UNWANTED`, the threads that wait until
/// the helper has no file at all.
static ALL_HELD: AtomicU32 = AtomicU32::new(0);
static SOME_UNWANTED: AtomicU32 = AtomicU32::new(0);
static ALL_UNWANTED: AtomicU32 = AtomicU32::new(0);

/// The hash of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHash(u8);

impl FileHash {
    /// Stands for no file.
    pub(super) const NONE: Self = Self(0);

    /// Returns the hash of the file that `stat` describes.
    pub fn of(stat: &libc::stat) -> Self {
        Self((FileIdentity::of(stat).hash() >> 56) as u8)
    }

    fn of_all(self, all: &[AtomicU32; FILE_HASHES]) -> &AtomicU32 {
        &all[usize::from(self.0)]
    }

    /// Counts one more file that the helper has, or is about to have.
    pub(super) fn take(self) {
        ALL_HELD.fetch_add(1, Ordering::SeqCst);
        self.of_all(&HELD_FILES).fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one file less: it is closed, or was not sent.
    pub(super) fn give_back(self) {
        one_less(self.of_all(&HELD_FILES));
        one_less(&ALL_HELD);
    }

    fn is_unwanted(self) -> bool {
        SOME_UNWANTED.load(Ordering::SeqCst) > 0
            && (is_nothing_wanted() || self.of_all(&UNWANTED_FILES).load(Ordering::SeqCst) > 0)
    }
}

/// A file that the helper has open, and that is counted by its hash. It is closed and given back
/// when dropped.
#[derive(Debug)]
pub(super) struct HeldFile {
    fd: c_int,
    hash: Option<FileHash>,
}

impl HeldFile {
    /// Takes over a file that was counted before it was sent.
    pub(super) fn of(fd: c_int, hash: FileHash) -> Self {
        Self { fd, hash: Some(hash) }
    }

    /// Returns the helper's own descriptor.
    pub(super) fn fd(&self) -> c_int {
        self.fd
    }

    /// Stops counting the file by its hash: the helper keeps it under its own entry
    /// ([`crate::temporary`]).
    pub(super) fn keep(&mut self) {
        self.hash.take().map(|hash| hash.of_all(&HELD_FILES)).into_iter().for_each(one_less);
    }

    /// Whether the helper must let go of the file.
    pub(super) fn is_unwanted(&self) -> bool {
        self.hash.map_or_else(is_nothing_wanted, FileHash::is_unwanted)
    }

    /// Whether nobody needs the helper's work on the file: it must let go of it, or the file has no
    /// name left.
    pub(super) fn is_lost(&self) -> bool {
        self.is_unwanted() || has_no_name(self.fd)
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        sys::close(self.fd);
        match self.hash {
            Some(hash) => hash.give_back(),
            None => one_less(&ALL_HELD),
        }
    }
}

/// Whether the helper must let go of all files: a file system is about to be unmounted.
fn is_nothing_wanted() -> bool {
    ALL_UNWANTED.load(Ordering::SeqCst) > 0
}

/// Whether the file's last name is gone: its pages go with it.
pub(super) fn has_no_name(file: c_int) -> bool {
    sys::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Whether the file has more than one name.
pub(super) fn has_names(file: c_int) -> bool {
    sys::fstat(file).is_ok_and(|stat| stat.st_nlink > 1)
}

/// Whether the helper has any file. One load.
#[inline]
pub fn holds_some() -> bool {
    ALL_HELD.load(Ordering::Relaxed) > 0
}

fn one_less(held: &AtomicU32) {
    // Not below 0: counts start again with a new helper, while the one before may still finish.
    let _ = held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| Some(held.saturating_sub(1)));
    if SOME_UNWANTED.load(Ordering::SeqCst) > 0 {
        sys::futex_wake(held);
    }
}

/// Waits until the helper has let go of a kept temporary file, which is about to lose its last
/// name.
pub fn let_go_of_kept(stat: &libc::stat) {
    temporary::lose(stat, |state, lost| wait_while(state, |now| now == lost));
}

/// Waits until the helper has let go of a file, which is about to lose its last name, or to be
/// closed without one.
pub fn let_go(place: FileHash) {
    wait_for_none(place.of_all(&UNWANTED_FILES), place.of_all(&HELD_FILES));
}

/// Has the helper let go of the file that `fd` names, before a lease on it is taken: a lease is
/// refused while others have the file open.
pub fn let_go_of(fd: c_int) {
    if holds_some()
        && process::is_on()
        && let Ok(stat) = sys::fstat(fd)
    {
        let_go(FileHash::of(&stat));
        let_go_of_kept(&stat);
    }
}

/// Has the helper let go of all files, before a file system is unmounted. The helper first finishes
/// its work, for at most as long as the end of a process would wait.
pub fn let_go_of_all() {
    if holds_some() && process::is_on() {
        super::drain();
        wait_for_none(&ALL_UNWANTED, &ALL_HELD);
    }
}

fn wait_for_none(unwanted: &AtomicU32, held: &AtomicU32) {
    unwanted.fetch_add(1, Ordering::SeqCst);
    SOME_UNWANTED.fetch_add(1, Ordering::SeqCst);
    wait_while(held, |held| held > 0);
    SOME_UNWANTED.fetch_sub(1, Ordering::SeqCst);
    unwanted.fetch_sub(1, Ordering::SeqCst);
}

/// Has the helper check for files to let go of, and waits while the word says that it has one.
fn wait_while(word: &AtomicU32, is_held: impl Fn(u32) -> bool) {
    let mut is_notified = false;
    sys::wait_until(word, CLOSE_POLL_NS, LET_GO_MAX_NS, |now| {
        let is_on = STATE.load(Ordering::Acquire) & STATES == ON;
        if !is_held(now) || !is_on {
            return Some(());
        }
        // If the queue is full, the helper takes the next message soon.
        is_notified = is_notified || channel::send(channel::HelperOrder::Check);
        None
    });
}

/// Resets the counts for a new helper, which has no files.
pub(super) fn reset() {
    // Writing only where needed keeps the memory shared with the parent.
    if holds_some() {
        HELD_FILES.iter().chain([&ALL_HELD]).for_each(|held| held.store(0, Ordering::SeqCst));
    }
}

/// Resets the counts in a child of fork, where no thread waits either.
pub(super) fn after_fork() {
    reset();
    if SOME_UNWANTED.swap(0, Ordering::SeqCst) > 0 {
        let waits = UNWANTED_FILES.iter().chain([&ALL_UNWANTED]);
        waits.for_each(|unwanted| unwanted.store(0, Ordering::SeqCst));
    }
}

//! Temporary files: those that a process creates to read them again soon, as `sort` does. Their pages are neither written nor dropped at
//! once, since they would have to be read back from the disk.
//!
//! A temporary file is recognised by its creation: as a new file for reading and writing (`O_RDWR | O_CREAT | O_EXCL`, which mkstemp(3)
//! uses, or `O_TMPFILE`). If one turns out to be a result (it gets another name, as by rsync), the process keeps none any more. Files are
//! kept until they have no name left, for at most [`KEEP_MAX`], or to the end of the process or its next fork. Then they are released like
//! any output.
//!
//! Invariants:
//! 1. A process keeps at most its budget, in at most [`FILES`] files. The first [`UNWRITTEN`] bytes wait for no writeback; further bytes
//!    are written behind their writer.
//! 2. An entry has one owner: the state of the open file (`rules::writer`, or the helper's watch), and then the helper. Only the owner
//!    gives it up.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::counters::Count;
use crate::identity::{FileIdentity, SharedIdentity};
use crate::process::count;
use crate::sys;

/// Files kept at a time.
pub const FILES: usize = 256;
/// Bytes of them that are left to the kernel to write.
pub const UNWRITTEN: u64 = 64 << 20;
/// Nanoseconds for which a file is kept after it was closed.
pub const KEEP_MAX: u64 = 120_000_000_000;

/// The entry is free.
const FREE: u32 = 0;
/// It is being filled in.
const BEING_TAKEN: u32 = 1;
/// The file is still open.
const OPEN: u32 = 2;
/// It was closed, and the helper has it.
const CLOSED: u32 = 3;
/// The helper must let go of it: its last name is about to go.
const LOST: u32 = 4;

struct File {
    state: AtomicU32,
    identity: SharedIdentity,
    bytes: AtomicU64,
}

static KEPT: [File; FILES] = [const {
    File { state: AtomicU32::new(FREE), identity: SharedIdentity::NONE, bytes: AtomicU64::new(0) }
}; FILES];
/// Entries in use, and the bytes of all.
static COUNT: AtomicU32 = AtomicU32::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
/// Whether one turned out to be a result.
static ARE_RESULTS: AtomicBool = AtomicBool::new(false);

/// The current treatment of a temporary file's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing is done.
    Unwritten,
    /// It is written, and stays.
    Written,
    /// It is released like any output: there are too many bytes, or it is a result.
    No,
}

/// The entry of a temporary file that is kept. It is given up when dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Temporary(u32);

impl Temporary {
    /// Takes an entry for a new file; `None` if the file is not kept.
    pub fn begin(stat: &libc::stat, flags: c_int) -> Option<Self> {
        const NEW: c_int = libc::O_CREAT | libc::O_EXCL;
        let is_new = flags & NEW == NEW || flags & libc::O_TMPFILE == libc::O_TMPFILE;
        let is_temporary = flags & libc::O_ACCMODE == libc::O_RDWR && is_new && stat.st_size == 0;
        if !is_temporary || are_results() {
            return None;
        }
        let take = |file: &File| {
            file.state.compare_exchange(FREE, BEING_TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let (index, file) = KEPT.iter().enumerate().find(|(_, file)| take(file))?;
        COUNT.fetch_add(1, Ordering::Relaxed);
        file.identity.set(FileIdentity::of(stat));
        file.bytes.store(0, Ordering::Relaxed);
        file.state.store(OPEN, Ordering::Release);
        Some(Self(index as u32))
    }

    /// Returns the entry of that number, which its owner gave away.
    pub fn from_number(number: u32) -> Option<Self> {
        ((number as usize) < FILES).then_some(Self(number))
    }

    /// Gives the entry away to the receiver of the number.
    pub fn into_number(self) -> u32 {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    fn file(&self) -> Option<&'static File> {
        KEPT.get(self.0 as usize)
    }

    /// Records that the file reaches up to `end` now, and returns its treatment in a process that may keep `budget` bytes.
    pub fn grows(&self, end: u64, budget: u64) -> Keep {
        let Some(file) = self.file().filter(|_| !are_results()) else { return Keep::No };
        let more = end.saturating_sub(file.bytes.fetch_max(end, Ordering::Relaxed));
        let all = BYTES.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        if all > budget {
            Keep::No
        } else if all > UNWRITTEN {
            Keep::Written
        } else {
            Keep::Unwritten
        }
    }

    /// Records that the file was closed: the helper keeps it.
    pub fn close(&self) {
        if let Some(file) = self.file() {
            file.state.store(CLOSED, Ordering::Release);
        }
    }

    /// Whether its last name is about to go.
    pub fn is_lost(&self) -> bool {
        self.file().is_none_or(|file| file.state.load(Ordering::Acquire) == LOST)
    }

    /// Counts the bytes kept of a file that went with its last name.
    pub fn went(&self) {
        count(Count::StreamKept, self.file().map_or(0, |file| file.bytes.load(Ordering::Relaxed)));
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let Some(file) = self.file() else { return };
        BYTES.fetch_sub(file.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        file.state.store(FREE, Ordering::Release);
        sys::futex_wake(&file.state);
    }
}

/// Whether any file is kept. One load.
#[inline]
pub fn has_some() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Whether files that look temporary are results, so that none is kept.
pub fn are_results() -> bool {
    ARE_RESULTS.load(Ordering::Relaxed)
}

fn find(stat: &libc::stat) -> Option<&'static File> {
    let wanted = FileIdentity::of(stat);
    KEPT.iter().find(|file| file.state.load(Ordering::Acquire) >= OPEN && file.identity.get() == wanted)
}

/// Handles a file's new name. Returns whether it was a kept one, which is then a result.
pub fn renamed(stat: &libc::stat) -> bool {
    let is_result = find(stat).is_some();
    if is_result {
        ARE_RESULTS.store(true, Ordering::Relaxed);
    }
    is_result
}

/// Handles a file that is about to lose its last name. If the helper keeps it, `wait` waits for the helper to let go of it; it gets the
/// word to wait on, and its value until then.
pub fn lose(stat: &libc::stat, wait: impl FnOnce(&'static AtomicU32, u32)) {
    if let Some(file) = find(stat)
        && file.state.compare_exchange(CLOSED, LOST, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        wait(&file.state, LOST);
    }
}

/// Forgets all entries in a child of fork: they are the parent's.
pub fn after_fork() {
    if has_some() {
        for file in &KEPT {
            file.state.store(FREE, Ordering::Relaxed);
        }
    }
    COUNT.store(0, Ordering::Relaxed);
    BYTES.store(0, Ordering::Relaxed);
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[allow(unsafe_code, reason = "a struct of numbers")]
    fn file(inode: u64) -> libc::stat {
        // SAFETY: numbers.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        (stat.st_dev, stat.st_ino) = (7, inode);
        stat
    }

    const MADE: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

    #[test]
    fn a_temporary_file_is_kept_within_the_budget_until_it_is_a_result() {
        for flags in [
            libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL,
            libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
            libc::O_RDWR,
            libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL,
        ] {
            assert_eq!(Temporary::begin(&file(1), flags), None, "{flags:#o}");
        }
        let one = Temporary::begin(&file(1), MADE).unwrap();
        let other = Temporary::begin(&file(2), libc::O_RDWR | libc::O_TMPFILE).unwrap();
        let budget = 2 * UNWRITTEN;
        assert_eq!(one.grows(UNWRITTEN, budget), Keep::Unwritten);
        // Overwritten bytes do not add up.
        assert_eq!(one.grows(5, budget), Keep::Unwritten);
        assert_eq!(other.grows(1, budget), Keep::Written);
        assert_eq!(other.grows(UNWRITTEN, budget), Keep::Written);
        assert_eq!(other.grows(UNWRITTEN + 1, budget), Keep::No);
        drop(other);
        assert_eq!(one.grows(0, budget), Keep::Unwritten);
        // Nobody waits for a file that is open or not kept.
        lose(&file(1), |_, _| panic!("it is open"));
        one.close();
        lose(&file(2), |_, _| panic!("it is gone"));
        let mut waited = false;
        lose(&file(1), |state, lost| waited = state.load(Ordering::Relaxed) == lost);
        assert!(waited && one.is_lost() && has_some());
        let one = Temporary::from_number(one.into_number()).unwrap();
        drop(one);
        assert!(!has_some() && BYTES.load(Ordering::Relaxed) == 0);
        // The number of entries is bounded.
        let all: Vec<Temporary> =
            (0..FILES as u64).map(|inode| Temporary::begin(&file(inode), MADE).unwrap()).collect();
        assert_eq!(Temporary::begin(&file(1000), MADE), None);
        assert!(!renamed(&file(1000)) && !are_results());
        assert!(renamed(&file(3)) && all[3].grows(1, budget) == Keep::No);
        drop(all);
        assert_eq!(Temporary::begin(&file(1), MADE), None);
    }
}

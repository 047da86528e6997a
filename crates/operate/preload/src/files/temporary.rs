//! Temporary files: those that a process creates to read them again soon, as `sort` does. Their
//! pages are neither written nor dropped at once, since they would have to be read back from the
//! disk.
//!
//! A temporary file is recognised by its creation: as a new file for reading and writing
//! (`O_RDWR | O_CREAT | O_EXCL`, which mkstemp(3) uses, or `O_TMPFILE`). If one turns out to be a
//! result (it gets another name, as by rsync), the process keeps none any more. Files are kept
//! until they have no name left, for at most [`KEEP_MAX_NS`], or to the end of the process or its
//! next fork. Then they are released like any output.
//!
//! Invariants:
//! 1. A process keeps at most its budget, in at most [`KEPT_FILES_MAX`] files. The first
//!    [`UNWRITTEN_BYTES`] bytes wait for no writeback; further bytes are written behind their
//!    writer.
//! 2. An entry has one owner: the state of the open file (`rules::writer`, or the helper's watch),
//!    and then the helper. Only the owner gives it up.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::counters::Count;
use crate::files::identity::{FileIdentity, SharedIdentity};
use crate::process::count;
use crate::sys;

/// Files kept at a time.
pub const KEPT_FILES_MAX: usize = 256;
/// Bytes of them that are left to the kernel to write.
pub const UNWRITTEN_BYTES: u64 = 64 << 20;
/// Nanoseconds for which a file is kept after it was closed.
pub const KEEP_MAX_NS: u64 = 120_000_000_000;

/// The entry is free.
const ENTRY_FREE: u32 = 0;
/// It is being filled in.
const ENTRY_BEING_TAKEN: u32 = 1;
/// The file is still open.
const ENTRY_OPEN: u32 = 2;
/// It was closed, and the helper has it.
const ENTRY_CLOSED: u32 = 3;
/// The helper must let go of it: its last name is about to go.
const ENTRY_LOST: u32 = 4;

struct KeptEntry {
    state: AtomicU32,
    identity: SharedIdentity,
    bytes: AtomicU64,
}

// SAFETY: numbers.
static KEPT_FILES: [KeptEntry; KEPT_FILES_MAX] = unsafe { core::mem::zeroed() };
/// Entries in use, and the bytes of all.
static KEPT_COUNT: AtomicU32 = AtomicU32::new(0);
static KEPT_BYTES: AtomicU64 = AtomicU64::new(0);
/// Whether one turned out to be a result.
static ARE_RESULTS: AtomicBool = AtomicBool::new(false);

/// The current treatment of a temporary file's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepChoice {
    /// Nothing is done.
    Unwritten,
    /// It is written, and stays.
    Written,
    /// It is released like any output: there are too many bytes, or it is a result.
    No,
}

/// The entry of a temporary file that is kept. It is given up when dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Temporary(u8);

impl Temporary {
    /// Takes an entry for a new file; `None` if the file is not kept.
    pub fn begin(stat: &libc::stat, flags: c_int) -> Option<Self> {
        const NEW: c_int = libc::O_CREAT | libc::O_EXCL;
        let is_new = flags & NEW == NEW || flags & libc::O_TMPFILE == libc::O_TMPFILE;
        let is_temporary = flags & libc::O_ACCMODE == libc::O_RDWR && is_new && stat.st_size == 0;
        if !is_temporary || are_results() {
            return None;
        }
        let take = |file: &KeptEntry| {
            file.state
                .compare_exchange(ENTRY_FREE, ENTRY_BEING_TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let (index, file) = KEPT_FILES.iter().enumerate().find(|(_, file)| take(file))?;
        KEPT_COUNT.fetch_add(1, Ordering::Relaxed);
        file.identity.set(FileIdentity::of(stat));
        file.bytes.store(0, Ordering::Relaxed);
        file.state.store(ENTRY_OPEN, Ordering::Release);
        Some(Self(index as u8))
    }

    /// Returns the entry of that number, which its owner gave away.
    pub fn from_number(number: u8) -> Self {
        Self(number)
    }

    /// Gives the entry away to the receiver of the number.
    pub fn into_number(self) -> u8 {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    fn file(&self) -> &'static KeptEntry {
        &KEPT_FILES[usize::from(self.0)]
    }

    /// Records that the file reaches up to `end` now, and returns its treatment in a process that
    /// may keep `budget` bytes.
    pub fn grows(&self, end: u64, budget: u64) -> KeepChoice {
        if are_results() {
            return KeepChoice::No;
        }
        let more = end.saturating_sub(self.file().bytes.fetch_max(end, Ordering::Relaxed));
        let all = KEPT_BYTES.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        if all > budget {
            KeepChoice::No
        } else if all > UNWRITTEN_BYTES {
            KeepChoice::Written
        } else {
            KeepChoice::Unwritten
        }
    }

    /// Records that the file was closed: the helper keeps it.
    pub fn close(&self) {
        self.file().state.store(ENTRY_CLOSED, Ordering::Release);
    }

    /// Whether its last name is about to go.
    pub fn is_lost(&self) -> bool {
        self.file().state.load(Ordering::Acquire) == ENTRY_LOST
    }

    /// Counts the bytes kept of a file that went with its last name.
    pub fn went(&self) {
        count(Count::StreamKept, self.file().bytes.load(Ordering::Relaxed));
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let file = self.file();
        KEPT_BYTES.fetch_sub(file.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        KEPT_COUNT.fetch_sub(1, Ordering::Relaxed);
        file.state.store(ENTRY_FREE, Ordering::Release);
        sys::futex_wake(&file.state);
    }
}

/// Whether any file is kept. One load.
#[inline]
pub fn has_some() -> bool {
    KEPT_COUNT.load(Ordering::Relaxed) > 0
}

/// Whether files that look temporary are results, so that none is kept.
pub fn are_results() -> bool {
    ARE_RESULTS.load(Ordering::Relaxed)
}

fn find(stat: &libc::stat) -> Option<&'static KeptEntry> {
    let wanted = FileIdentity::of(stat);
    KEPT_FILES
        .iter()
        .find(|file| file.state.load(Ordering::Acquire) >= ENTRY_OPEN && file.identity.get() == wanted)
}

/// Handles a file's new name. Returns whether it was a kept one, which is then a result.
pub fn renamed(stat: &libc::stat) -> bool {
    let is_result = find(stat).is_some();
    if is_result {
        ARE_RESULTS.store(true, Ordering::Relaxed);
    }
    is_result
}

/// Handles a file that is about to lose its last name. If the helper keeps it, `wait` waits for the
/// helper to let go of it; it gets the word to wait on, and its value until then.
pub fn lose(stat: &libc::stat, wait: impl FnOnce(&'static AtomicU32, u32)) {
    if let Some(file) = find(stat)
        && file.state.compare_exchange(ENTRY_CLOSED, ENTRY_LOST, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        wait(&file.state, ENTRY_LOST);
    }
}

/// Forgets all entries in a child of fork: they are the parent's.
pub fn after_fork() {
    if has_some() {
        for file in &KEPT_FILES {
            file.state.store(ENTRY_FREE, Ordering::Relaxed);
        }
    }
    KEPT_COUNT.store(0, Ordering::Relaxed);
    KEPT_BYTES.store(0, Ordering::Relaxed);
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    fn file(inode: u64) -> libc::stat {
        // SAFETY: numbers.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        (stat.st_dev, stat.st_ino) = (7, inode);
        stat
    }

    const CREATED_FLAGS: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

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
        let one = Temporary::begin(&file(1), CREATED_FLAGS).unwrap();
        let other = Temporary::begin(&file(2), libc::O_RDWR | libc::O_TMPFILE).unwrap();
        let budget = 2 * UNWRITTEN_BYTES;
        assert_eq!(one.grows(UNWRITTEN_BYTES, budget), KeepChoice::Unwritten);
        // Overwritten bytes do not add up.
        assert_eq!(one.grows(5, budget), KeepChoice::Unwritten);
        assert_eq!(other.grows(1, budget), KeepChoice::Written);
        assert_eq!(other.grows(UNWRITTEN_BYTES, budget), KeepChoice::Written);
        assert_eq!(other.grows(UNWRITTEN_BYTES + 1, budget), KeepChoice::No);
        drop(other);
        assert_eq!(one.grows(0, budget), KeepChoice::Unwritten);
        // Nobody waits for a file that is open or not kept.
        lose(&file(1), |_, _| panic!("it is open"));
        one.close();
        lose(&file(2), |_, _| panic!("it is gone"));
        let mut waited = false;
        lose(&file(1), |state, lost| waited = state.load(Ordering::Relaxed) == lost);
        assert!(waited && one.is_lost() && has_some());
        let one = Temporary::from_number(one.into_number());
        drop(one);
        assert!(!has_some() && KEPT_BYTES.load(Ordering::Relaxed) == 0);
        // The number of entries is bounded.
        let all: Vec<Temporary> = (0..KEPT_FILES_MAX as u64)
            .map(|inode| Temporary::begin(&file(inode), CREATED_FLAGS).unwrap())
            .collect();
        assert_eq!(Temporary::begin(&file(1000), CREATED_FLAGS), None);
        assert!(!renamed(&file(1000)) && !are_results());
        assert!(renamed(&file(3)) && all[3].grows(1, budget) == KeepChoice::No);
        drop(all);
        assert_eq!(Temporary::begin(&file(1), CREATED_FLAGS), None);
    }
}

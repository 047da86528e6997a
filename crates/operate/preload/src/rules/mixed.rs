//! Files in direct I/O. If a profile says that a program reads a file by direct I/O only, its
//! resident pages are leftovers: they are released when the file is opened for direct I/O, and
//! after a buffered use. Otherwise they are kept and counted, since an engine may use both on
//! purpose. Buffered writers beside direct I/O are counted.
//!
//! Invariants: nothing is released while the process has the file open for buffered writing. Dirty
//! pages are written first. Released bytes are counted once, however many threads open the file at
//! the same time.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use pagekeeper_policy::file_action::FileAction;

use super::{FILES, Slot};
use crate::counters::Count;
use crate::files::table::FileRole;
use crate::helper::{self, HelperRequest};
use crate::{process, sys};

/// Grows whenever a file is opened for direct I/O; 0 until then.
static DIRECT_OPENS: AtomicU32 = AtomicU32::new(0);

/// Files whose pages are being dropped, by a hash that is not 0, each in its place.
static RELEASING_FILES: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Bytes at the start of a file that are checked for resident pages that are kept. Counting all
/// would take milliseconds for each GiB in small pages, at each open.
const SAMPLED_BYTES: u64 = 16 << 20;

/// The state of a data file.
#[derive(Debug, Clone, Copy)]
pub struct MixedUse {
    /// Whether it is open for writing.
    writes: bool,
    /// Whether it was counted as a writer beside direct I/O.
    counted: bool,
    /// The value of `DIRECT_OPENS` when its direct use was last checked.
    checked: u32,
}

impl MixedUse {
    /// The initial state.
    pub const NEW: Self = Self { writes: false, counted: false, checked: 0 };
}

/// Begins to follow a data file, or one that is open for direct I/O ([`FileRole::Data`],
/// [`FileRole::Direct`]).
pub fn opened(slot: &Slot, fd: c_int, flags: c_int) {
    let writes = sys::may_write(flags);
    slot.with(|state| state.mixed = MixedUse { writes, ..MixedUse::NEW });
    if slot.role() == Some(FileRole::Data) && DIRECT_OPENS.load(Ordering::Acquire) > 0 && is_direct_only(slot)
    {
        // The pages it brings in will be released when it is closed.
        helper::prepare();
    }
    if slot.role() == Some(FileRole::Direct) {
        DIRECT_OPENS.fetch_add(1, Ordering::AcqRel);
        if !is_direct_only(slot) {
            return count_kept(slot, fd);
        }
        let is_written =
            has_other(slot, FileRole::Data, |other| other.with(|state| state.mixed.writes).unwrap_or(true));
        if !is_written {
            release_once(slot, fd);
        }
    }
}

/// Whether the profile says that a program with direct I/O reads the file only by that.
fn is_direct_only(slot: &Slot) -> bool {
    let rule = usize::from(slot.rule.load(Ordering::Relaxed));
    process::plan()
        .rules()
        .get(rule)
        .is_some_and(|rule| rule.action == FileAction::Data { direct_only: true })
}

/// Whether another open file of the process has the same inode and the role, and is `wanted`.
fn has_other(slot: &Slot, role: FileRole, wanted: impl Fn(&Slot) -> bool) -> bool {
    FILES.entered(0, u32::MAX).any(|(_, other)| {
        !core::ptr::eq(other, slot)
            && other.role() == Some(role)
            && other.file() == slot.file()
            && wanted(other)
    })
}

/// Counts an open for direct I/O of a file whose resident pages stay. Not if residency cannot be
/// seen.
fn count_kept(slot: &Slot, fd: c_int) {
    if slot.has_counts() && sys::cachestat(fd, 0..SAMPLED_BYTES).is_ok_and(|seen| seen.cached > 0) {
        process::count(Count::MixedKeptOpens, 1);
    }
}

/// Releases all pages of a file, unless another thread is doing so: that one counts them.
fn release_once(slot: &Slot, fd: c_int) {
    let hash = slot.file().hash() | 1;
    let Some(place) = RELEASING_FILES.get((hash >> 58) as usize) else { return };
    match place.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            process::count(Count::MixedReleased, release_all(slot, fd));
            place.store(0, Ordering::Release);
        }
        Err(same) if same == hash => {}
        // Another file has the place: counting nothing is better than counting twice.
        Err(_) => _ = release_all(slot, fd),
    }
}

/// Writes the dirty pages of a file, drops all of its pages, and returns how many bytes went.
fn release_all(slot: &Slot, fd: c_int) -> u64 {
    let all = 0..u64::MAX;
    if !slot.has_counts() {
        // Dirty pages start to be written, and stay: seeing them go would take a sample of each
        // page of the file.
        return helper::drop_written(fd, all);
    }
    match sys::cachestat(fd, all.clone()) {
        Ok(seen) if seen.dirty + seen.writeback > 0 => helper::write_now_and_drop(fd, all),
        Ok(seen) if seen.cached > 0 => helper::drop_written(fd, all),
        // Nothing is there, or nothing can be seen.
        _ => 0,
    }
}

/// Runs after a write through the cache to a data file.
pub fn after_write(slot: &Slot) {
    let opens = DIRECT_OPENS.load(Ordering::Acquire);
    if opens == 0 {
        return;
    }
    let is_due = slot.with(|state| {
        let mixed = &mut state.mixed;
        let is_due = !mixed.counted && mixed.checked != opens;
        mixed.checked = opens;
        is_due
    });
    if is_due == Some(true) && has_other(slot, FileRole::Direct, |_| true) {
        slot.with(|state| state.mixed.counted = true);
        process::count(Count::MixedWriters, 1);
    }
}

/// Runs before the last descriptor of a data file is closed.
pub fn before_close(slot: &Slot, fd: c_int) {
    if slot.role() == Some(FileRole::Data)
        && DIRECT_OPENS.load(Ordering::Acquire) > 0
        && is_direct_only(slot)
        && has_other(slot, FileRole::Direct, |_| true)
    {
        let request =
            HelperRequest::AfterClose { range: 0..u64::MAX, release: true, count: Count::MixedReleased };
        if !helper::send(fd, &request) {
            process::count(Count::MixedReleased, helper::drop_written(fd, 0..u64::MAX));
        }
    }
}

/// Forgets, in a child of fork, the releases of its parent's threads.
pub fn after_fork() {
    for place in &RELEASING_FILES {
        place.store(0, Ordering::Relaxed);
    }
}

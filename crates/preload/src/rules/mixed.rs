//! Files in direct I/O. Where its profile says that a program with direct I/O reads a file by that alone, resident pages are leftovers:
//! they are released when the file is opened for direct I/O, and after a buffered use. Elsewhere they are kept, and that is counted: an
//! engine may use both on purpose. Buffered writers beside direct I/O are counted.
//!
//! Invariants: nothing is released while the process has the file open for buffered writing; dirty pages are written first; bytes that
//! went are counted once, however many threads open the file at that moment.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use super::{FILES, Slot};
use crate::counters::Count;
use crate::helper::{self, Job};
use crate::settings::Action;
use crate::table::FileRole;
use crate::{process, sys};

/// Grows whenever a file is opened for direct I/O: 0 while none was.
static DIRECT_OPENS: AtomicU32 = AtomicU32::new(0);

/// Files whose pages are being dropped, by a hash that is not 0, each in its place.
static RELEASING: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Bytes at the start of a file that show whether it has resident pages that are kept: a count of all would take milliseconds
/// for each GiB in small pages, at each open.
const SAMPLED_BYTES: u64 = 16 << 20;

/// What is known of a data file.
#[derive(Debug, Clone, Copy)]
pub struct Mixed {
    /// Open for writing.
    writes: bool,
    /// Counted as a writer beside direct I/O.
    counted: bool,
    /// `DIRECT_OPENS` when direct use of it was last checked for.
    checked: u32,
}

impl Mixed {
    /// Nothing known.
    pub const NEW: Self = Self { writes: false, counted: false, checked: 0 };
}

/// Begins to follow a data file, or one that is open for direct I/O ([`FileRole::Data`], [`FileRole::Direct`]).
pub fn opened(slot: &Slot, fd: c_int, flags: c_int) {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    slot.with(|state| state.mixed = Mixed { writes, ..Mixed::NEW });
    if slot.role() == Some(FileRole::Data) && DIRECT_OPENS.load(Ordering::Acquire) > 0 && is_direct_only(slot)
    {
        // What it brings in is to go as it is closed.
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

/// Whether the profile says that a program with direct I/O reads the file by that alone.
fn is_direct_only(slot: &Slot) -> bool {
    let rule = usize::from(slot.rule.load(Ordering::Relaxed));
    process::plan().rules().get(rule).is_some_and(|rule| rule.action == Action::Data { direct_only: true })
}

/// Device and inode of its file.
fn identity(slot: &Slot) -> (u64, u64) {
    (slot.device.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed))
}

/// Whether another open file of the process is of the same inode, and as asked for.
fn has_other(slot: &Slot, role: FileRole, wanted: impl Fn(&Slot) -> bool) -> bool {
    FILES.entered(0, u32::MAX).any(|(_, other)| {
        !core::ptr::eq(other, slot)
            && other.role() == Some(role)
            && identity(other) == identity(slot)
            && wanted(other)
    })
}

/// Counts an open for direct I/O of a file that has resident pages, which stay. Not where residency isn't seen.
fn count_kept(slot: &Slot, fd: c_int) {
    if slot.has_counts() && sys::cachestat(fd, 0..SAMPLED_BYTES).is_ok_and(|seen| seen.cached > 0) {
        process::count(Count::MixedKeptOpens, 1);
    }
}

/// Releases all pages of a file, unless another thread is just at it: that one counts them.
fn release_once(slot: &Slot, fd: c_int) {
    let (device, inode) = identity(slot);
    let hash = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let Some(place) = RELEASING.get((hash >> 58) as usize) else { return };
    match place.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            process::count(Count::MixedReleased, release_all(slot, fd));
            place.store(0, Ordering::Release);
        }
        Err(same) if same == hash => {}
        // Another file has the place: to count nothing is better than to count twice.
        Err(_) => _ = release_all(slot, fd),
    }
}

/// Writes what is dirty of a file, and drops all of its pages: how many bytes went.
fn release_all(slot: &Slot, fd: c_int) -> u64 {
    let all = 0..u64::MAX;
    if !slot.has_counts() {
        // What is dirty begins to be written, and stays: to see it go would take a sample of each page of the file.
        return helper::drop_written(fd, all);
    }
    match sys::cachestat(fd, all.clone()) {
        Ok(seen) if seen.dirty + seen.writeback > 0 => helper::write_now_and_drop(fd, all),
        Ok(seen) if seen.cached > 0 => helper::drop_written(fd, all),
        // Nothing there, or nothing that can be seen.
        _ => 0,
    }
}

/// After a write through the cache to a data file.
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

/// Before the last descriptor of a data file is closed.
pub fn before_close(slot: &Slot, fd: c_int) {
    if slot.role() == Some(FileRole::Data)
        && DIRECT_OPENS.load(Ordering::Acquire) > 0
        && is_direct_only(slot)
        && has_other(slot, FileRole::Direct, |_| true)
    {
        let job = Job::AfterClose { range: 0..u64::MAX, release: true, count: Count::MixedReleased };
        if !helper::send(fd, &job) {
            process::count(Count::MixedReleased, helper::drop_written(fd, 0..u64::MAX));
        }
    }
}

/// This is a child of fork: what its parent's threads were releasing is theirs.
pub fn after_fork() {
    for place in &RELEASING {
        place.store(0, Ordering::Relaxed);
    }
}

//! Finds a page's frame through its entry, and keeps it: the steps of a hit, in the order that
//! `readers` requires.
//!
//! Invariants: a found frame stays the page's for as long as the section lasts, a kept frame until
//! it is released. Takes no lock, waits for nobody; a page that can't be read is not found.

use super::entry::PageEntry;
use super::pool::FramePool;
use super::readers::{FrameHold, ReaderSlot};
use super::sync::{AtomicU32, BarrierPair, Ordering};
use super::table::EntryTable;

/// Raises the frequency of a page that is being read. Returns its frame, if the page can be read.
#[inline]
fn touch(entry: &AtomicU32, value: PageEntry) -> Option<u32> {
    let frame = value.readable()?;
    // Fails if the value changed meanwhile: then this read is not counted in the frequency.
    let _ = entry.compare_exchange(value.0, value.touched().0, Ordering::Relaxed, Ordering::Relaxed);
    Some(frame)
}

/// The place of a lookup in a read. It decides whether finding the page counts as a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupAttempt {
    /// The first lookup of a read.
    First,
    /// A lookup after a load that was counted itself.
    Again,
}

/// Calls `found` with the frame of a page, if the page can be read, within a section of the calling
/// thread's `slot`.
#[inline]
pub(crate) fn lookup<T>(
    slot: &ReaderSlot,
    barrier: BarrierPair,
    table: &EntryTable,
    page: u32,
    attempt: LookupAttempt,
    found: impl FnOnce(u32) -> T,
) -> Option<T> {
    let section = slot.enter(barrier);
    if let Some(entry) = table.entry(page) {
        // Acquired: the page was loaded before its value was stored.
        let value = PageEntry(entry.load(Ordering::Acquire));
        if let Some(frame) = value.settled().or_else(|| touch(entry, value)) {
            let done = found(frame);
            match attempt {
                LookupAttempt::First => slot.leave(section),
                LookupAttempt::Again => slot.leave_uncounted(section),
            }
            return Some(done);
        }
    }
    slot.leave_uncounted(section);
    None
}

/// The way in which a frame is kept for a guard.
#[derive(Debug)]
enum KeepMethod {
    /// The thread's slot names the frame.
    Held(FrameHold),
    /// The frame has a pin.
    Pinned,
}

/// A frame that is kept until it is [released](release).
#[derive(Debug)]
#[must_use = "a frame that is not released is lost"]
pub(crate) struct KeptFrame {
    pub(crate) frame: u32,
    by: KeepMethod,
}

/// Keeps a frame that was found in the current section, or that the caller loads: by the calling
/// thread's slot if possible, otherwise by a pin.
pub(crate) fn keep(slot: &ReaderSlot, pool: &FramePool, frame: u32, by_slot: bool) -> KeptFrame {
    let hold = if by_slot { slot.hold(frame) } else { None };
    let by = hold.map_or_else(
        || {
            pool.pin(frame);
            KeepMethod::Pinned
        },
        KeepMethod::Held,
    );
    KeptFrame { frame, by }
}

/// Releases a frame. `slot` is that of the thread that kept it; it is required if the frame was
/// kept by the slot.
#[inline]
pub(crate) fn release(slot: Option<&ReaderSlot>, pool: &FramePool, kept: KeptFrame) {
    match (kept.by, slot) {
        (KeepMethod::Held(hold), Some(slot)) => slot.release(hold),
        // A hold that is never released loses its frame, but breaks nothing.
        (KeepMethod::Held(_), None) => debug_assert!(false, "a hold without its slot"),
        (KeepMethod::Pinned, _) => pool.unpin(kept.frame),
    }
}

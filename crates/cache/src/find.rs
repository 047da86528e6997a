//! Finding a page's frame through its entry, and keeping it: the steps of a hit, in the order that `readers` asks for.
//!
//! Invariants: a frame that is found stays the page's for as long as the section lasts, and one that is kept until it is
//! let go. Takes no lock, waits for nobody; a page that can't be read is not found.

use super::pool::Pool;
use super::readers::{Hold, Slot};
use super::sync::{AtomicU32, Barrier, Ordering};
use super::table::Table;
use super::word::Word;

/// Raises the frequency of a page that is being read; its frame, if it can be read.
#[inline]
fn touch(entry: &AtomicU32, word: Word) -> Option<u32> {
    let frame = word.readable()?;
    // Fails where the word was changed meanwhile: then one read is forgotten.
    let _ = entry.compare_exchange(word.0, word.touched().0, Ordering::Relaxed, Ordering::Relaxed);
    Some(frame)
}

/// Whether a look at an entry counts as a hit if it finds the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The first of a read.
    First,
    /// After a load that was counted in its own right.
    Again,
}

/// Does `found` with the frame of a page, if it can be read, within a section of the calling thread's `slot`.
#[inline]
pub(crate) fn find<T>(
    slot: &Slot,
    barrier: Barrier,
    table: &Table,
    page: u32,
    look: Look,
    found: impl FnOnce(u32) -> T,
) -> Option<T> {
    let section = slot.enter(barrier);
    if let Some(entry) = table.entry(page) {
        // Acquired: the page was loaded before its word was stored.
        let word = Word(entry.load(Ordering::Acquire));
        if let Some(frame) = word.settled().or_else(|| touch(entry, word)) {
            let done = found(frame);
            match look {
                Look::First => slot.leave(section),
                Look::Again => slot.leave_uncounted(section),
            }
            return Some(done);
        }
    }
    slot.leave_uncounted(section);
    None
}

/// What keeps a frame for a guard.
#[derive(Debug)]
enum Kept {
    /// The thread's slot names it.
    Held(Hold),
    /// It has a pin.
    Pinned,
}

/// A frame that is kept until it is [let go](let_go).
#[derive(Debug)]
#[must_use = "a frame that is not let go is lost"]
pub(crate) struct Keeping {
    pub(crate) frame: u32,
    kept: Kept,
}

/// Keeps a frame that was found in the section under way, or that the caller loads: by the calling thread's slot if it
/// may and can, else by a pin.
pub(crate) fn keep(slot: &Slot, pool: &Pool, frame: u32, by_slot: bool) -> Keeping {
    let hold = if by_slot { slot.hold(frame) } else { None };
    let kept = hold.map_or_else(
        || {
            pool.pin(frame);
            Kept::Pinned
        },
        Kept::Held,
    );
    Keeping { frame, kept }
}

/// Lets a frame go. `slot` is that of the thread that kept it, which is needed if it was kept by the slot.
#[inline]
pub(crate) fn let_go(slot: Option<&Slot>, pool: &Pool, keeping: Keeping) {
    match (keeping.kept, slot) {
        (Kept::Held(hold), Some(slot)) => slot.let_go(hold),
        // What is held and never let go is lost, but never wrong.
        (Kept::Held(_), None) => debug_assert!(false, "a hold without its slot"),
        (Kept::Pinned, _) => pool.unpin(keeping.frame),
    }
}

//! The table of followed descriptors: it leads from a descriptor's number to a slot with the state
//! of its file.
//!
//! Its memory is allocated as files are followed ([`crate::chunks`]); a lookup is two loads.
//! Descriptors that share an open file (dup) share its slot.
//!
//! Invariants:
//! 1. An entry is 0, or the index of a slot in use plus one.
//! 2. A slot's `refs` is the number of entries that name it. At 0 the slot is free again, or will
//!    be once `busy` is given up.
//! 3. The state of a file ([`FileSlot::with`]) is accessed only by the thread that set `busy`.
//!    Nobody waits for it: a thread that finds it set skips the rule for this call. So a signal
//!    handler in the middle of a rule, or a thread that was ended there, blocks nobody. A thread
//!    whose handler jumped out of the middle finds that out at its next call, and starts again. A
//!    child of fork resets `busy` of threads that it does not have ([`Table::after_fork`]).
//! 4. A program that closes descriptors by calls we do not see leaves stale entries. A rule may
//!    then give advice on another file, which loses no byte. An entry is replaced whenever a hooked
//!    call hands out its number.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicUsize, Ordering};

use libc::c_int;

use crate::chunks::Chunks;
use crate::files::identity::{FileIdentity, SharedIdentity};
use crate::shared::Shared;
use crate::sys;

/// Descriptors that can be followed: the kernel's usual highest limit (`fs.nr_open`).
pub const DESCRIPTORS_MAX: usize = 1 << 20;
/// Open files that rules apply to at a time.
pub const SLOTS_MAX: usize = 4096;
/// Slots that data files leave to others: a database may open thousands of them before its next
/// log.
pub const RESERVED_SLOTS: usize = 1024;

/// Entries and slots that are allocated at once.
const ENTRIES_EACH: usize = 4096;
const SLOTS_EACH: usize = 16;

/// The state of a file before any call.
pub trait Fresh: Send {
    /// The initial state.
    const FRESH: Self;
}

/// The table; `S` is the state of an open file.
pub struct Table<S: 'static> {
    entries: Chunks<AtomicU16, ENTRIES_EACH, { DESCRIPTORS_MAX / ENTRIES_EACH }>,
    /// The highest descriptor that was ever followed.
    highest: AtomicU32,
    slots: Chunks<FileSlot<S>, SLOTS_EACH, { SLOTS_MAX / SLOTS_EACH }>,
    /// All slots, and those that data files may take.
    rooms: [SlotRoom; 2],
}

/// The slots from one index on.
struct SlotRoom {
    from: usize,
    /// The index at which the search for a free slot begins. Slots before it are in use, except for
    /// a few that were just given up.
    next: AtomicUsize,
    /// Slots in use.
    used: AtomicUsize,
}

impl SlotRoom {
    const fn from(from: usize) -> Self {
        Self { from, next: AtomicUsize::new(from), used: AtomicUsize::new(0) }
    }

    /// Returns the indices, beginning where a free one is likely; none if all are in use.
    fn indices(&self) -> impl Iterator<Item = usize> {
        let is_full = self.used.load(Ordering::Relaxed) >= SLOTS_MAX - self.from;
        let next = self.next.load(Ordering::Relaxed).max(self.from).min(SLOTS_MAX);
        let (ahead, again) = if is_full { (0..0, 0..0) } else { (next..SLOTS_MAX, self.from..next) };
        ahead.chain(again)
    }
}

/// The role of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FileRole {
    /// Read or written by a stream.
    Stream = 1,
    /// Bulk output that stays resident once it is written.
    BulkKept = 2,
    /// Bulk output that is released.
    BulkReleased = 3,
    /// A log.
    Log = 4,
    /// A data file in buffered use.
    Data = 5,
    /// A file in direct use.
    Direct = 6,
    /// A file of a process that may turn out to be a stream.
    Undecided = 7,
}

impl FileRole {
    /// Returns the role with that number, if there is one.
    const fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Stream),
            2 => Some(Self::BulkKept),
            3 => Some(Self::BulkReleased),
            4 => Some(Self::Log),
            5 => Some(Self::Data),
            6 => Some(Self::Direct),
            7 => Some(Self::Undecided),
            _ => None,
        }
    }
}

/// One open file. All bits are zero before it is first taken.
#[repr(align(64))]
pub struct FileSlot<S> {
    refs: AtomicU32,
    /// The thread that has the state ([`sys::thread`]); 0: none.
    busy: AtomicUsize,
    /// That thread's stack pointer at the time.
    stack: AtomicUsize,
    role: AtomicU8,
    counts: AtomicBool,
    /// The index of the plan's rule that applies to it.
    pub rule: AtomicU16,
    /// The file's identity.
    file: SharedIdentity,
    /// The state that is shared with threads that find the slot busy.
    pub shared: Shared,
    state: UnsafeCell<MaybeUninit<S>>,
}

// SAFETY: `state` is accessed only by the thread that set `busy` (invariant 3); all else is atomic.
unsafe impl<S: Send> Sync for FileSlot<S> {}

impl<S: Fresh> FileSlot<S> {
    /// Returns its role. Never `None` for a slot that an entry names: its role is stored first.
    pub fn role(&self) -> Option<FileRole> {
        let number = self.role.load(Ordering::Relaxed);
        let role = FileRole::of(number);
        debug_assert!(role.is_some(), "a slot of role {number}");
        role
    }

    /// Returns the identity of its file.
    pub fn file(&self) -> FileIdentity {
        self.file.get()
    }

    /// Changes its role from `from` to `to`; returns whether it was `from`.
    pub fn change_role(&self, from: FileRole, to: FileRole) -> bool {
        self.role.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether cachestat(2) counts the file's pages. Otherwise it reports none, which must not be
    /// relied on.
    pub fn has_counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Sets whether cachestat(2) counts the file's pages.
    pub fn set_counts(&self, has: bool) {
        self.counts.store(has, Ordering::Relaxed);
    }

    /// Whether no other followed descriptor names it.
    pub fn is_last(&self) -> bool {
        self.refs.load(Ordering::Acquire) <= 1
    }

    /// Sets `busy`. `Some(true)`: it was set by this thread, which jumped out of the middle
    /// (siglongjmp), so that `state` is unknown. A thread deeper in the same stack is in its signal
    /// handler.
    #[inline]
    fn set_busy(&self) -> Option<bool> {
        let (thread, stack) = (sys::thread(), sys::stack_pointer());
        let was_left = match self.busy.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => false,
            Err(busy) => {
                let is_left =
                    busy == thread && self.stack.load(Ordering::Relaxed) < stack && !sys::is_on_other_stack();
                if !is_left {
                    return None;
                }
                true
            }
        };
        self.stack.store(stack, Ordering::Relaxed);
        Some(was_left)
    }

    /// Whether this thread has the state. For a signal handler.
    pub fn is_own(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == sys::thread()
    }

    /// Accesses the state of the file, unless another thread has it now.
    pub fn with<R>(&self, act: impl FnOnce(&mut S) -> R) -> Option<R> {
        let was_left = self.set_busy()?;
        if was_left {
            // SAFETY: `busy` is ours; the old state is not dropped, since it may be half changed.
            unsafe { (*self.state.get()).write(S::FRESH) };
        }
        // SAFETY: `busy` was ours to set, and is given up below; nobody else accesses `state`
        // meanwhile. It is initialised: a slot is found by its references. The first one exists
        // only once `begin` had set `busy`, and `begin` gave that up with `state` set.
        let result = act(unsafe { (*self.state.get()).assume_init_mut() });
        self.busy.store(0, Ordering::Release);
        Some(result)
    }

    /// Takes a free slot, with a first reference; returns whether it was free.
    fn begin(&self, role: FileRole, file: FileIdentity) -> bool {
        // Only a thread that came too late can be busy with a slot without references: it is then
        // left alone.
        let Some(was_left) = self.set_busy() else { return false };
        let is_free = self.refs.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_free {
            // SAFETY: `busy` was ours to set, so that nobody else accesses `state`, which is
            // initialised if the slot ever had a role.
            unsafe {
                let state = &mut *self.state.get();
                if was_left || self.role.load(Ordering::Relaxed) == 0 {
                    state.write(S::FRESH);
                } else {
                    // The old value is dropped.
                    *state.assume_init_mut() = S::FRESH;
                }
            }
            // Release ordering: a child of fork that finds the slot finds `state` set.
            self.role.store(role as u8, Ordering::Release);
            self.counts.store(true, Ordering::Relaxed);
            self.rule.store(0, Ordering::Relaxed);
            self.file.set(file);
            self.shared.forget();
        }
        self.busy.store(0, Ordering::Release);
        is_free
    }
}

impl<S: Fresh> Default for Table<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Fresh> Table<S> {
    /// Creates a table that follows nothing and has no memory yet.
    pub const fn new() -> Self {
        const { assert!(align_of::<FileSlot<S>>() <= 4096) };
        Self {
            // SAFETY: numbers.
            entries: unsafe { Chunks::new() },
            highest: AtomicU32::new(0),
            // SAFETY: numbers, flags that are not set, and `state`, which may be anything; no part
            // of it needs a drop.
            slots: unsafe { Chunks::new() },
            rooms: [SlotRoom::from(0), SlotRoom::from(RESERVED_SLOTS)],
        }
    }

    /// Whether a descriptor has a slot: two loads, or one if no descriptor near it has one.
    #[inline]
    pub fn is_followed(&self, fd: c_int) -> bool {
        self.entries.get(fd as usize).is_some_and(|entry| entry.load(Ordering::Relaxed) != 0)
    }

    /// Returns the slot of a descriptor.
    pub fn slot_of(&self, fd: c_int) -> Option<&FileSlot<S>> {
        let entry = self.entries.get(fd as usize)?.load(Ordering::Acquire);
        if entry == 0 { None } else { self.named(entry) }
    }

    /// Whether cachestat(2) counts the pages of the file that the program's descriptor names
    /// ([`FileSlot::has_counts`]).
    pub fn has_counts(&self, fd: c_int) -> bool {
        self.slot_of(fd).is_none_or(FileSlot::has_counts)
    }

    /// Returns the slot that an entry names.
    #[inline]
    fn named(&self, entry: u16) -> Option<&FileSlot<S>> {
        self.slots.get(usize::from(entry).checked_sub(1)?)
    }

    /// Returns the highest descriptor that was ever followed.
    pub fn highest(&self) -> u32 {
        self.highest.load(Ordering::Relaxed)
    }

    /// Follows a file that was opened as `fd`. `None` if there are too many, the number is too
    /// high, or there is no memory.
    pub fn enter(&self, fd: c_int, role: FileRole, file: FileIdentity) -> Option<&FileSlot<S>> {
        let entry = self.entries.take(fd as usize)?;
        let room = self.room_for(role);
        for index in room.indices() {
            let slot = self.slots.take(index)?;
            if slot.refs.load(Ordering::Relaxed) != 0 || !slot.begin(role, file) {
                continue;
            }
            self.taken(index);
            room.next.store(index.saturating_add(1), Ordering::Relaxed);
            let old = entry.swap((index as u16).wrapping_add(1), Ordering::AcqRel);
            self.release(old);
            self.highest.fetch_max(fd as u32, Ordering::Relaxed);
            return Some(slot);
        }
        None
    }

    /// Makes `to` name what `from` names, as after dup; nothing if `from` is not followed.
    pub fn share(&self, from: c_int, to: c_int) {
        let number = to as u32;
        let index = self.entries.get(from as usize).map_or(0, |from| from.load(Ordering::Acquire));
        // No memory is allocated for nothing.
        let to = if index == 0 { self.entries.get(to as usize) } else { self.entries.take(to as usize) };
        let Some(to) = to else { return };
        if let Some(slot) = self.named(index) {
            if slot.refs.fetch_add(1, Ordering::AcqRel) == 0 {
                // The entry was given up just now.
                self.taken(usize::from(index).saturating_sub(1));
            }
            self.highest.fetch_max(number, Ordering::Relaxed);
        }
        self.release(to.swap(index, Ordering::AcqRel));
    }

    /// Forgets a descriptor: it is about to be closed, or its number was handed out for a file that
    /// no rule applies to.
    pub fn forget(&self, fd: c_int) {
        if let Some(entry) = self.entries.get(fd as usize) {
            // Most are empty: a load is cheaper than a swap.
            if entry.load(Ordering::Relaxed) != 0 {
                self.release(entry.swap(0, Ordering::AcqRel));
            }
        }
    }

    /// Iterates over the followed descriptors from `from` to `to`, both included, in ascending
    /// order.
    pub fn entered(&self, from: u32, to: u32) -> impl Iterator<Item = (c_int, &FileSlot<S>)> {
        let end = (to.min(self.highest()) as usize).saturating_add(1).min(DESCRIPTORS_MAX);
        (from as usize..end).filter_map(|fd| {
            let fd = fd as c_int;
            self.slot_of(fd).map(|slot| (fd, slot))
        })
    }

    /// Resets `busy` of the parent's other threads in a child of fork, and leaves the state as it
    /// was then. The caller's own `busy` stays, if a signal handler forked in the middle.
    pub fn after_fork(&self) {
        for (_, slot) in self.slots.taken() {
            let at_work = slot.busy.load(Ordering::Relaxed);
            if at_work != 0 && at_work != sys::thread() {
                slot.busy.store(0, Ordering::Release);
            }
        }
    }

    /// Takes a reference off the slot of an entry.
    fn release(&self, entry: u16) {
        if let Some(slot) = self.named(entry)
            && slot.refs.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.given_up(usize::from(entry).saturating_sub(1));
        }
    }

    /// Returns the slots that files of that role may take.
    fn room_for(&self, role: FileRole) -> &SlotRoom {
        let [all, data] = &self.rooms;
        if matches!(role, FileRole::Data | FileRole::Direct | FileRole::Undecided) { data } else { all }
    }

    /// Records that the slot at that index is taken.
    fn taken(&self, index: usize) {
        for room in self.rooms.iter().filter(|room| room.from <= index) {
            room.used.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the slot at that index is free again.
    fn given_up(&self, index: usize) {
        for room in self.rooms.iter().filter(|room| room.from <= index) {
            room.used.fetch_sub(1, Ordering::Relaxed);
            room.next.fetch_min(index, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    struct Nothing;

    impl Fresh for Nothing {
        const FRESH: Self = Self;
    }

    static FILES: Table<Nothing> = Table::new();

    fn file(inode: u64) -> FileIdentity {
        FileIdentity { device: 1, inode }
    }

    fn in_use() -> usize {
        let used = FILES.rooms[0].used.load(Ordering::Relaxed);
        assert_eq!(
            used,
            FILES.slots.taken().filter(|(_, slot)| slot.refs.load(Ordering::Relaxed) > 0).count()
        );
        used
    }

    /// Forks while another thread has one slot and this thread has another; returns which the child
    /// finds busy.
    fn busy_in_a_child(theirs: &'static FileSlot<Nothing>, ours: &'static FileSlot<Nothing>) -> [bool; 2] {
        let (begun, is_begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            theirs.with(|_| {
                begun.send(()).unwrap();
                let _ = ended.recv();
            });
        });
        is_begun.recv().unwrap();
        let mut status = 0;
        // SAFETY: the child makes no call except to end; the status is written to a variable that
        // has room for it.
        ours.with(|_| unsafe {
            let child = libc::fork();
            if child == 0 {
                FILES.after_fork();
                libc::_exit(
                    i32::from(theirs.with(|_| ()).is_none()) + 2 * i32::from(ours.with(|_| ()).is_none()),
                );
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        });
        drop(end);
        other.join().unwrap();
        let code = libc::WEXITSTATUS(status);
        assert!(libc::WIFEXITED(status) && code < 4);
        [code & 1 != 0, code & 2 != 0]
    }

    // One test, since the table belongs to the process.
    #[test]
    fn descriptors_lead_to_their_files() {
        assert!(
            !FILES.is_followed(-1)
                && !FILES.is_followed(700)
                && FILES.slot_of(-1).is_none()
                && FILES.slot_of(700).is_none()
                && FILES.slot_of(c_int::MAX).is_none()
        );
        let slot = FILES.enter(700, FileRole::Stream, file(2)).unwrap();
        assert_eq!((slot.role(), slot.file().inode), (Some(FileRole::Stream), 2));
        assert!(FILES.is_followed(700) && core::ptr::eq(FILES.slot_of(700).unwrap(), slot));
        assert!(slot.is_last());
        FILES.share(700, 701);
        FILES.share(700, 701);
        FILES.share(700, 700);
        assert!(!slot.is_last());
        assert_eq!(FILES.entered(690, 710).map(|(fd, _)| fd).collect::<Vec<_>>(), [700, 701]);
        FILES.forget(700);
        FILES.forget(700);
        assert!(slot.is_last() && FILES.slot_of(700).is_none());
        // The state of a file is not mistaken for that of the slot's next file.
        slot.set_counts(false);
        assert!(!FILES.has_counts(701) && FILES.has_counts(700));
        // The entry's number is handed out again.
        let other = FILES.enter(701, FileRole::Log, file(3)).unwrap();
        assert!(!core::ptr::eq(other, slot));
        assert_eq!(in_use(), 1);
        FILES.share(5000, 701);
        assert_eq!(in_use(), 0);
        assert!(
            core::ptr::eq(FILES.enter(700, FileRole::Stream, file(2)).unwrap(), slot) && slot.has_counts()
        );
        FILES.forget(700);
        assert!(FILES.enter(c_int::MAX, FileRole::Log, file(3)).is_none());

        let (one, two) = (
            FILES.enter(700, FileRole::Stream, file(2)).unwrap(),
            FILES.enter(701, FileRole::Stream, file(2)).unwrap(),
        );
        assert_eq!(busy_in_a_child(one, two), [false, true]);
        FILES.forget(700);
        FILES.forget(701);

        let base = 10_000;
        let slots: Vec<_> =
            (0..SLOTS_MAX as c_int).map_while(|n| FILES.enter(base + n, FileRole::Log, file(1))).collect();
        assert_eq!(slots.len(), SLOTS_MAX);
        assert!(FILES.enter(9000, FileRole::Log, file(1)).is_none());
        // A busy one leaves others out, and nobody waits for it.
        slots[0].with(|_| assert!(slots[0].with(|_| ()).is_none())).unwrap();
        for n in 0..SLOTS_MAX as c_int {
            FILES.forget(base + n);
        }
        assert_eq!(in_use(), 0);

        // Data files leave slots for a log.
        let taken = (0..5000).filter(|n| FILES.enter(base + n, FileRole::Data, file(1)).is_some()).count();
        assert_eq!((taken, FILES.rooms[1].indices().count()), (SLOTS_MAX - RESERVED_SLOTS, 0));
        let logs: Vec<_> = (0..RESERVED_SLOTS as c_int)
            .map_while(|n| FILES.enter(base - 1 - n, FileRole::Log, file(1)))
            .collect();
        assert!(logs.len() == RESERVED_SLOTS && FILES.enter(9, FileRole::Stream, file(1)).is_none());
        // The next file takes the slot that became free, and finds it at once.
        FILES.forget(base + 7);
        FILES.forget(base - 2);
        assert_eq!(
            FILES.rooms.each_ref().map(|room| room.indices().next()),
            [Some(1), Some(RESERVED_SLOTS + 7)]
        );
        assert!(core::ptr::eq(FILES.enter(9, FileRole::Log, file(1)).unwrap(), logs[1]));
        assert!(
            FILES.enter(base + 7, FileRole::Direct, file(1)).is_some()
                && FILES.enter(base + 5000, FileRole::Data, file(1)).is_none()
        );
        for fd in (0..base + 5000).filter(|&fd| FILES.is_followed(fd)) {
            FILES.forget(fd);
        }
        assert_eq!(in_use(), 0);
    }
}

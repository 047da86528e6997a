//! The shortest way of a hit: what [`read_at`](crate::CachedFile::read_at) does before anything else, and mostly all; and the same for a
//! page in place.
//!
//! Reads of more memory than the processor's caches hold are as fast as the processor can have their memory accesses under way
//! side by side, and that is a matter of instructions: it executes ahead over a few hundred of them. So this path has one
//! branch for each thing that must be so, and whatever is not so is left to the long way in `read`: another
//! thread's first read, a page that is absent or that has not been read four times, a file that was closed, a read across
//! pages, a kernel without membarrier(2), a process that was forked.
//!
//! Invariants: the addresses are those of the file's table and of the cache's arena, which the handle that owns this value
//! keeps; `open_bytes` is the file's length until it is closed, and 0 after that.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use pagekeeper_io::Process;

use crate::CachedFile;
use crate::entry::PageEntry;
use crate::handle::Shared;
use crate::readers::{Hold, Section, Slot};
use crate::sys::table::Table;
use crate::thread;

/// What a hit needs of its file and its cache, in one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct FastPath {
    entries: NonNull<AtomicU32>,
    frames: NonNull<u8>,
    open_bytes: AtomicU64,
    /// By which a thread knows its slot; of no thread where light barriers are instructions.
    slots: u64,
    page_size: usize,
    page_shift: u32,
    process: Process,
}

// SAFETY: entries are accessed as atomics only, frames by the rules of `readers`; both outlive this value (see above).
unsafe impl Send for FastPath {}
// SAFETY: as above.
unsafe impl Sync for FastPath {}

impl FastPath {
    /// Of a file of `bytes` bytes whose table this is.
    pub(crate) fn new(shared: &Shared, table: &Table, bytes: u64) -> Self {
        let page_shift = shared.settings.page_shift;
        Self {
            entries: table.first(),
            frames: shared.pool.arena.first(),
            open_bytes: AtomicU64::new(bytes),
            slots: shared.slots.number_if_asymmetric(),
            page_size: 1 << page_shift,
            page_shift,
            process: shared.process,
        }
    }

    /// From now on nothing is found.
    pub(crate) fn close(&self) {
        self.open_bytes.store(0, Ordering::Relaxed);
    }

    /// Bytes of a page.
    #[inline]
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Copies a part of one page that is resident and has been read often, for a thread that has read before. False if any
    /// of this is not so: then nothing was done.
    #[inline]
    pub(crate) fn copy(&self, offset: u64, buf: &mut [u8]) -> bool {
        // SAFETY: the buffer has as many bytes, and is borrowed mutably, so it is no part of the arena.
        unsafe { self.copy_to(offset, buf.as_mut_ptr(), buf.len(), || ()) }
    }

    /// The same to where `to` leads; `found` is called as soon as it is sure that `len` bytes will be copied, and before they are, so that
    /// nothing of it has to be kept over the copy.
    ///
    /// # Safety
    ///
    /// `to` is not NULL, and if `len` is at most a page it leads to as many bytes that nobody else uses, and that are no part of the arena.
    #[inline]
    unsafe fn copy_to(&self, offset: u64, to: *mut u8, len: usize, found: impl FnOnce()) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "below the page size")]
        let from = offset as usize & (self.page_size - 1);
        let (end, wrapped) = offset.overflowing_add(len as u64);
        if wrapped || len > self.page_size - from || end > self.open_bytes.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: the read ends within the file, so it begins in one of its pages, or is empty and begins at its end.
        #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
        let place = unsafe { self.find((offset >> self.page_shift) as usize) };
        let Some((slot, section, frame)) = place else { return false };
        found();
        // SAFETY: `from + len` is at most a page. The frame was found in a section by an acquired load of the entry, so it holds
        // the page, and is not loaded into before the section is left (invariants of `pool` and `readers`). What it is copied to is the
        // caller's promise.
        unsafe {
            let source = self.frames.add((frame as usize) << self.page_shift).add(from);
            std::ptr::copy_nonoverlapping(source.as_ptr(), to, len);
        }
        slot.leave(section);
        true
    }

    /// Keeps a whole page that is resident and has been read often, for a thread that has read before and holds few pages: its bytes, and
    /// what keeps them. `None` if any of this is not so: then nothing was done.
    #[inline]
    pub(crate) fn keep(&self, page: u64) -> Option<(NonNull<u8>, &Slot, Hold)> {
        if page >= self.open_bytes.load(Ordering::Relaxed) >> self.page_shift {
            return None;
        }
        // SAFETY: the file has this page.
        #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
        let (slot, section, frame) = unsafe { self.find(page as usize) }?;
        let Some(hold) = slot.hold(frame) else {
            slot.leave_uncounted(section);
            return None;
        };
        slot.leave(section);
        // SAFETY: entries have numbers of frames that the arena has.
        Some((unsafe { self.frames.add((frame as usize) << self.page_shift) }, slot, hold))
    }

    /// Begins a section in which the frame of a page is found, if it is resident and has been read often; else no section is under
    /// way.
    ///
    /// # Safety
    ///
    /// The file has this page, or just as many.
    #[inline]
    unsafe fn find(&self, page: usize) -> Option<(&Slot, Section, u32)> {
        if !self.process.is_current() {
            return None;
        }
        let slot = thread::current(self.slots)?;
        // SAFETY: `slots` is the number of the slots of the cache that the owner of this value keeps.
        let slot = unsafe { slot.as_ref() };
        let section = slot.announce();
        // The light half of the asymmetric barrier.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the table has an entry for each page and one more.
        let entry = unsafe { self.entries.add(page).as_ref() };
        if let Some(frame) = PageEntry(entry.load(Ordering::Acquire)).settled() {
            return Some((slot, section, frame));
        }
        slot.leave_uncounted(section);
        None
    }
}

impl CachedFile {
    /// As [`read_at`](Self::read_at) where the shortest way of a hit does: else false, and nothing was done. It can't panic, and calls
    /// `found` before it copies: for the C interface, which catches panics of all others, and whose calls keep as little as they can.
    ///
    /// # Safety
    ///
    /// `to` is not NULL, and if `len` is at most a page it leads to as many bytes that nobody else uses. `found` does not panic.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn read_shortest(&self, offset: u64, to: *mut u8, len: usize, found: impl FnOnce()) -> bool {
        // SAFETY: the caller's promise; what it may use is no part of the arena, which the cache gives to read only.
        unsafe { self.handle().fast_path.copy_to(offset, to, len, found) }
    }
}

//! The shortest way of a hit, for [`read_at`](crate::CachedFile::read_at) and for a page in place.
//! It runs first, and mostly nothing else runs.
//!
//! Reads of more memory than the processor's caches hold are as fast as the processor can overlap
//! memory accesses. The processor executes ahead over a few hundred instructions only, so few
//! instructions mean more overlap. This path has one branch for each condition, and leaves
//! everything else to the long way in `read`:
//!
//! - another thread's first read;
//! - a page that is absent or was not read four times;
//! - a closed file, or a read across pages;
//! - a kernel without membarrier(2), or a forked process.
//!
//! Several reads that are known at once overlap better than that: the processor is told to fetch
//! the entry of each page, then the page's bytes ([`FastPath::fetch_entry`],
//! [`FastPath::fetch_bytes`]), while it makes the reads before. These are hints. They take part in
//! no section, and the read itself is the same as alone.
//!
//! Invariants: the addresses are those of the file's table and of the cache's arena, which the
//! handle that owns this value keeps alive; `open_bytes` is the file's length until the file is
//! closed, and 0 after that.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use pagekeeper_io::Process;

use crate::CachedFile;
use crate::entry::PageEntry;
use crate::readers::{FrameHold, ReadSection, ReaderSlot};
use crate::sys::table::EntryTable;
use crate::thread;

/// Bytes of a line of the processor's caches. Where lines are longer, some are fetched twice.
const LINE_BYTES: usize = 64;

/// Maximum bytes of a page that are fetched for a search. More were faster for trees that the
/// processor's caches do not hold, and slower for others.
const SEARCHED_BYTES_MAX: usize = 2048;

/// Tells the processor to fetch a line into its nearest cache. Any address will do: one that is not
/// mapped is ignored.
#[inline]
pub(crate) fn fetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which neither faults nor changes anything.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
}

/// The data of the file and the cache that a hit needs, in one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct FastPath {
    entries: NonNull<AtomicU32>,
    frames: NonNull<u8>,
    open_bytes: AtomicU64,
    /// The number by which a thread finds its slot; a number of no thread if light barriers are
    /// instructions.
    slots: u64,
    page_size: usize,
    page_shift: u32,
    process: Process,
    closed: AtomicBool,
}

// SAFETY: entries are accessed as atomics only, frames by the rules of `readers`; both outlive this
// value (see above).
unsafe impl Send for FastPath {}
// SAFETY: as above.
unsafe impl Sync for FastPath {}

impl FastPath {
    /// Creates it for a file of `bytes` bytes with this table, in a cache whose frames of
    /// `1 << page_shift` bytes begin at `frames`, and whose slots have the number `slots`.
    pub(crate) fn new(
        table: &EntryTable,
        bytes: u64,
        frames: NonNull<u8>,
        page_shift: u32,
        slots: u64,
        process: Process,
    ) -> Self {
        let (entries, open_bytes, closed) = (table.first(), AtomicU64::new(bytes), AtomicBool::new(false));
        Self { entries, frames, open_bytes, slots, page_size: 1 << page_shift, page_shift, process, closed }
    }

    /// Closes the file: nothing is found from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.open_bytes.store(0, Ordering::Relaxed);
    }

    /// Whether the file was closed. An empty file is open with no bytes.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns the bytes of a page.
    #[inline]
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Copies a part of one page that is resident and has been read often, for a thread that has
    /// read before. Returns false, and does nothing, if any of these conditions fails.
    #[inline]
    pub(crate) fn copy(&self, offset: u64, buf: &mut [u8]) -> bool {
        // SAFETY: the buffer has `buf.len()` bytes, and is borrowed mutably, so it is not part of
        // the arena.
        unsafe { self.copy_to(offset, buf.as_mut_ptr(), buf.len(), || ()) }
    }

    /// Like `read_at`, with the destination `to`. Calls `found` as soon as it is certain that `len`
    /// bytes will be copied, and before the copy, so that nothing it needs must be kept across the
    /// copy.
    ///
    /// # Safety
    ///
    /// `to` is not NULL. If `len` is at most a page, `to` points to `len` bytes that nobody else
    /// uses and that are not part of the arena.
    #[inline]
    unsafe fn copy_to(&self, offset: u64, to: *mut u8, len: usize, found: impl FnOnce()) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "below the page size")]
        let from = offset as usize & (self.page_size - 1);
        let (end, wrapped) = offset.overflowing_add(len as u64);
        if wrapped || len > self.page_size - from || end > self.open_bytes.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: the read ends within the file, so it begins in one of its pages, or is empty and
        // begins at its end.
        #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
        let place = unsafe { self.find((offset >> self.page_shift) as usize) };
        let Some((slot, section, frame)) = place else { return false };
        found();
        // SAFETY: `from + len` is at most a page. The frame was found in a section by an acquired
        // load of the entry. So it holds the page, and is not loaded into before the section is
        // left (invariants of `pool` and `readers`). The caller promises the destination.
        unsafe {
            let source = self.frames.add((frame as usize) << self.page_shift).add(from);
            std::ptr::copy_nonoverlapping(source.as_ptr(), to, len);
        }
        slot.leave(section);
        true
    }

    /// Keeps a whole page that is resident and has been read often, for a thread that has read
    /// before and holds few pages. Returns the page's bytes and the slot and hold that keep them.
    /// Returns `None`, and does nothing, if any of these conditions fails.
    #[inline]
    pub(crate) fn keep(&self, page: u64) -> Option<(NonNull<u8>, &ReaderSlot, FrameHold)> {
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
        // SAFETY: entries hold numbers of frames that the arena has.
        Some((unsafe { self.frames.add((frame as usize) << self.page_shift) }, slot, hold))
    }

    /// Tells the processor to fetch the entry that a read at this offset needs.
    #[inline]
    pub(crate) fn fetch_entry(&self, offset: u64) {
        if let Some(entry) = self.entry_at(offset) {
            fetch_line(std::ptr::from_ref(entry).cast());
        }
    }

    /// Tells the processor to fetch up to `len` bytes from `offset` on, within one page, if the
    /// page is resident. The frame may be another page's by the time of the read: then the hint was
    /// in vain.
    #[inline]
    pub(crate) fn fetch_bytes(&self, offset: u64, len: usize) {
        let Some(entry) = self.entry_at(offset) else { return };
        let Some(frame) = PageEntry(entry.load(Ordering::Relaxed)).readable() else { return };
        #[expect(clippy::cast_possible_truncation, reason = "below the page size")]
        let from = offset as usize & (self.page_size - 1);
        let end = self.page_size.min(from + len);
        let frame = self.frames.as_ptr().wrapping_add((frame as usize) << self.page_shift);
        for at in (from & !(LINE_BYTES - 1)..end).step_by(LINE_BYTES) {
            fetch_line(frame.wrapping_add(at));
        }
    }

    /// Like [`fetch_bytes`](Self::fetch_bytes), for a page that is searched.
    #[inline]
    pub(crate) fn fetch_page(&self, page: u64) {
        self.fetch_bytes(page.saturating_mul(self.page_size as u64), SEARCHED_BYTES_MAX);
    }

    /// Returns the entry of the page that has this byte of the open file.
    #[inline]
    fn entry_at(&self, offset: u64) -> Option<&AtomicU32> {
        if offset >= self.open_bytes.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the file has the page, and the table an entry for each page.
        #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
        Some(unsafe { self.entries.add((offset >> self.page_shift) as usize).as_ref() })
    }

    /// Begins a section in which the frame of a page is found, if the page is resident and has been
    /// read often. Otherwise no section is in progress.
    ///
    /// # Safety
    ///
    /// The file has this page, or exactly `page` pages.
    #[inline]
    unsafe fn find(&self, page: usize) -> Option<(&ReaderSlot, ReadSection, u32)> {
        if !self.process.is_current() {
            return None;
        }
        let slot = thread::current(self.slots)?;
        // SAFETY: `slots` is the number of the slots of the cache that the owner of this value
        // keeps.
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
    /// Like [`read_at`](Self::read_at) for hits that the shortest way serves; otherwise returns
    /// false and does nothing. It can't panic, and calls `found` before it copies. For the C
    /// interface, which catches panics of all other calls, and whose calls keep as little state as
    /// they can.
    ///
    /// # Safety
    ///
    /// `to` is not NULL. If `len` is at most a page, `to` points to `len` bytes that nobody else
    /// uses. `found` does not panic.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn read_shortest(&self, offset: u64, to: *mut u8, len: usize, found: impl FnOnce()) -> bool {
        // SAFETY: the caller's promise. The bytes it may use are not part of the arena, which the
        // cache lends for reading only.
        unsafe { self.handle().fast_path.copy_to(offset, to, len, found) }
    }
}

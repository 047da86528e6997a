//! One call of more than a stream's windows can tell of, for as long as it takes: a read, with which pages of its range were not
//! resident before it; or a write to behind the file's end, where all pages are the writer's.
//!
//! Such a call stays one, since the kernel holds the file's position for the whole of it. So all that is read is sampled first; the
//! helper releases behind the call while it is made ([`crate::helper`]), and the reader or writer what is left of it afterwards.
//! A call of several buffers (`writev`) is not followed: they would have to be read to know how large it is.
//!
//! Invariants: a page is released only if it was not resident when it was sampled, or if it lies behind where the file ended as the
//! write began; what could not be sampled is left alone. The memory is the kernel's own, and goes with the last of its handles.

#![allow(unsafe_code, reason = "memory that is shared with the helper")]

use core::mem::{align_of, size_of};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagekeeper_policy::WINDOW;
use pagekeeper_policy::stream::PAGE;

use crate::counters::Count;
use crate::residency::Sampled;
use crate::sys;

/// Bytes of one call from which on it is treated so.
pub const LEAST: u64 = 64 << 20;
/// Pages of a word.
const EACH: u64 = 64;

/// What both sides have, with the words of a bit for each page behind it.
#[repr(C)]
struct Shared {
    handles: AtomicU32,
    is_over: AtomicBool,
    start: u64,
    end: u64,
    /// Counts the bytes that are released.
    released: Count,
    is_write: bool,
}

/// A handle of one such call.
pub struct LargeCall(NonNull<Shared>);

// SAFETY: what it points to is atomic, or never changed once the first handle is there.
unsafe impl Send for LargeCall {}
// SAFETY: likewise.
unsafe impl Sync for LargeCall {}

impl LargeCall {
    /// A read of a range that begins at a window, of which nothing is known. `None`: there is no memory for it.
    pub fn read(range: &Range<u64>) -> Option<Self> {
        Self::new(range, Count::StreamReleased, false)
    }

    /// A write to a range that begins at a window, behind the file's end. `None`: there is no memory for it.
    pub fn write(range: &Range<u64>, released: Count) -> Option<Self> {
        Self::new(range, released, true)
    }

    fn new(range: &Range<u64>, released: Count, is_write: bool) -> Option<Self> {
        const { assert!(align_of::<Shared>() == align_of::<AtomicU64>()) };
        #[allow(clippy::cast_ptr_alignment, reason = "it begins at a page")]
        let memory = NonNull::new(sys::take_memory(Self::room(range, is_write)).ok()?.cast::<Shared>())?;
        let shared = Shared {
            handles: AtomicU32::new(1),
            is_over: AtomicBool::new(false),
            start: range.start,
            end: range.end,
            released,
            is_write,
        };
        // SAFETY: whole pages of new memory, which nobody else knows.
        unsafe { memory.write(shared) };
        Some(Self(memory))
    }

    /// Bytes that are taken for it.
    fn room(range: &Range<u64>, is_write: bool) -> usize {
        size_of::<Shared>() + Self::words_of(range, is_write) * size_of::<u64>()
    }

    /// Words of a bit for each page; of a write there are none.
    fn words_of(range: &Range<u64>, is_write: bool) -> usize {
        if is_write { 0 } else { range.end.saturating_sub(range.start).div_ceil(PAGE * EACH) as usize }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: it is there for as long as a handle is.
        unsafe { self.0.as_ref() }
    }

    /// A bit for each page, the lowest first: set for one that may go.
    fn words(&self) -> &[AtomicU64] {
        let count = Self::words_of(&self.range(), self.is_write());
        // SAFETY: `new` took room for so many words behind the head, all zero, and aligned as the head is.
        unsafe { core::slice::from_raw_parts(self.0.add(1).cast().as_ptr(), count) }
    }

    /// A second handle, for the other side.
    #[must_use]
    pub fn share(&self) -> Self {
        self.shared().handles.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    /// The handle as an address, which [`from_address`](Self::from_address) takes back.
    pub fn into_address(self) -> *mut u8 {
        let address = self.0.cast().as_ptr();
        core::mem::forget(self);
        address
    }

    /// The handle of that address.
    ///
    /// # Safety
    ///
    /// It was given by [`into_address`](Self::into_address), and was not taken back yet.
    pub unsafe fn from_address(address: *mut u8) -> Option<Self> {
        NonNull::new(address.cast()).map(Self)
    }

    /// Its range, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.shared().start..self.shared().end
    }

    /// Whether it writes.
    pub fn is_write(&self) -> bool {
        self.shared().is_write
    }

    /// What counts the bytes that are released.
    pub fn released(&self) -> Count {
        self.shared().released
    }

    /// The call is over: from now on only the reader or writer releases.
    pub fn end(&self) {
        self.shared().is_over.store(true, Ordering::Release);
    }

    /// Whether it is.
    pub fn is_over(&self) -> bool {
        self.shared().is_over.load(Ordering::Acquire)
    }

    /// The pages of a range that may go, as ranges of bytes.
    pub fn own(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let all = self.range();
        let end = range.end.min(all.end);
        let mut at = range.start.max(all.start);
        core::iter::from_fn(move || {
            let start = self.next(at, true, end);
            at = self.next(start, false, end);
            (start < at).then_some(start..at)
        })
    }

    /// Says that a range's pages may go, or are not the reader's.
    pub fn set(&self, range: &Range<u64>, own: bool) {
        let all = self.range();
        let at = |at: u64| at.min(all.end).saturating_sub(all.start);
        let (mut page, end) = (at(range.start) / PAGE, at(range.end).div_ceil(PAGE));
        while page < end {
            let (word, bit) = (page / EACH, page % EACH);
            let count = (EACH - bit).min(end - page);
            let bits = u64::MAX.checked_shr((EACH - count) as u32).unwrap_or(0) << bit;
            if let Some(word) = self.words().get(word as usize) {
                if own {
                    word.fetch_or(bits, Ordering::Relaxed);
                } else {
                    word.fetch_and(!bits, Ordering::Relaxed);
                }
            }
            page += count;
        }
    }

    /// The first page from `at` on that may go, or may not; `end` if there is none.
    fn next(&self, at: u64, own: bool, end: u64) -> u64 {
        let start = self.shared().start;
        let mut at = at.min(end);
        while at < end {
            let page = at.saturating_sub(start) / PAGE;
            let word =
                self.words().get((page / EACH) as usize).map_or(0, |word| word.load(Ordering::Relaxed));
            let word = if own { word } else { !word } >> (page % EACH);
            if word != 0 {
                return (start + (page + u64::from(word.trailing_zeros())) * PAGE).min(end);
            }
            at = start + (page / EACH + 1) * EACH * PAGE;
        }
        end
    }
}

impl Drop for LargeCall {
    fn drop(&mut self) {
        let room = Self::room(&self.range(), self.is_write());
        if self.shared().handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the last handle; it was taken with that size.
            unsafe { sys::give_back(self.0.cast().as_ptr(), room) };
        }
    }
}

impl Sampled for LargeCall {
    fn saw(&mut self, range: &Range<u64>, resident: u64) -> bool {
        let is_known = resident == 0 || resident >= range.end.saturating_sub(range.start);
        if is_known {
            self.set(range, resident == 0);
        }
        is_known
    }

    fn saw_pages(&mut self, window: u64, page: u64, resident: &[u8]) {
        let end = window.saturating_add(WINDOW).min(self.range().end);
        for (start, byte) in (window..end).step_by(page.max(PAGE) as usize).zip(resident) {
            self.set(&(start..start.saturating_add(page).min(end)), byte & 1 == 0);
        }
    }
}

#[cfg(all(test, not(feature = "interpose")))]
#[allow(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn own(read: &LargeCall, range: Range<u64>) -> Vec<Range<u64>> {
        read.own(range).collect()
    }

    #[test]
    fn only_what_was_seen_not_to_be_resident_may_go() {
        let mut read = LargeCall::read(&(4 * MIB..300 * MIB + 5)).unwrap();
        assert_eq!(own(&read, 0..u64::MAX), []);
        assert!(!read.saw(&(4 * MIB..300 * MIB), MIB));
        assert!(read.saw(&(4 * MIB..100 * MIB), 0) && read.saw(&(200 * MIB..300 * MIB + 5), 0));
        assert!(read.saw(&(6 * MIB..8 * MIB), 2 * MIB));
        assert_eq!(own(&read, 0..u64::MAX), [4 * MIB..6 * MIB, 8 * MIB..100 * MIB, 200 * MIB..300 * MIB + 5]);
        assert_eq!(own(&read, 5 * MIB..9 * MIB), [5 * MIB..6 * MIB, 8 * MIB..9 * MIB]);
        let mut pages = [0; 512];
        (pages[0], pages[511]) = (1, 0xff);
        read.saw_pages(8 * MIB, 4096, &pages);
        assert_eq!(own(&read, 8 * MIB..11 * MIB), [8 * MIB + 4096..10 * MIB - 4096, 10 * MIB..11 * MIB]);
        // Pages of 64 KiB, the first of which is resident.
        read.saw_pages(200 * MIB, 65536, &[1, 0, 0]);
        assert_eq!(own(&read, 200 * MIB..202 * MIB), [200 * MIB + 65536..202 * MIB]);
    }

    #[test]
    fn of_a_write_nothing_is_noted_by_page() {
        let write = LargeCall::write(&(0..300 * MIB), Count::BulkReleased).unwrap();
        write.set(&(0..MIB), true);
        assert_eq!(own(&write, 0..u64::MAX), []);
        assert!(write.is_write() && write.released() == Count::BulkReleased);
    }

    #[test]
    fn the_last_handle_gives_the_memory_back() {
        let read = LargeCall::read(&(0..MIB)).unwrap();
        let other = read.share().into_address();
        read.set(&(0..4096), true);
        read.end();
        drop(read);
        // SAFETY: given above.
        let other = unsafe { LargeCall::from_address(other) }.unwrap();
        assert!(other.is_over());
        assert_eq!(own(&other, 0..MIB), [0..4096]);
        // SAFETY: null is none.
        assert!(unsafe { LargeCall::from_address(core::ptr::null_mut()) }.is_none());
    }
}

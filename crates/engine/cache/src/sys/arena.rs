//! The memory of all frames: one anonymous mapping, in huge pages where the kernel gives them.
//!
//! Invariants: the mapping lives as long as the value. The pool's rules say who may access a frame:
//! its loader alone, or readers that hold it in place. Creating the mapping touches none of it, so
//! memory is taken up as frames are first used. Memory returns to the kernel in whole kernel pages,
//! which contain several frames if they are larger (16 and 64 KiB on aarch64). Fails if the kernel
//! has no address space or no huge pages left.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags};

use super::memory;
use crate::settings::HugePages;

/// The size of a huge page, in bytes. On aarch64 with pages of 16 or 64 KiB, transparent huge pages
/// are larger; this is then a smaller size of hugetlb.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The memory of all frames.
#[derive(Debug)]
pub(crate) struct FrameArena {
    /// The mapping as it was created.
    mapping: NonNull<libc::c_void>,
    mapped: usize,
    /// Frame 0, at the first multiple of the huge page size in the mapping.
    frames: NonNull<u8>,
    page_shift: u32,
    count: u32,
    /// Number of frames in a kernel page, at least one.
    together: u32,
    /// Whether the memory is hugetlb memory, which is taken and given back in huge pages only.
    hugetlb: bool,
    in_huge_pages: bool,
}

// SAFETY: the mapping is plain memory owned by this value; each method states who may access which
// frame.
unsafe impl Send for FrameArena {}
// SAFETY: as above: shared references give access only through the unsafe methods below.
unsafe impl Sync for FrameArena {}

impl FrameArena {
    /// Maps `count` frames of `1 << page_shift` bytes. `kernel_page` is the size of a kernel page
    /// in bytes: [`memory::page`] or a multiple of it.
    pub(crate) fn new(
        kernel_page: usize,
        count: u32,
        page_shift: u32,
        huge: HugePages,
    ) -> rustix::io::Result<Self> {
        let len = (count as usize) << page_shift;
        let (mapped, flags) = match huge {
            HugePages::Hugetlb => {
                (len.next_multiple_of(HUGE_PAGE_BYTES), MapFlags::HUGETLB | MapFlags::HUGE_2MB)
            }
            // Room to begin at a multiple of the huge page size.
            HugePages::Transparent => (len + HUGE_PAGE_BYTES, MapFlags::NORESERVE),
            HugePages::Off => (len, MapFlags::NORESERVE),
        };
        let start = memory::map(mapped, flags)?;
        let mapping = NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)?;
        let skipped = match huge {
            HugePages::Transparent => start.cast::<u8>().align_offset(HUGE_PAGE_BYTES),
            HugePages::Hugetlb | HugePages::Off => 0,
        };
        // SAFETY: `skipped` is below HUGE, and HUGE more bytes than `len` were mapped.
        let frames = unsafe { mapping.cast::<u8>().add(skipped) };
        let advice = match huge {
            HugePages::Transparent => Some(Advice::LinuxHugepage),
            HugePages::Off => Some(Advice::LinuxNoHugepage),
            HugePages::Hugetlb => None,
        };
        if let Some(advice) = advice {
            // A kernel built without huge pages returns EINVAL: then there are none.
            // SAFETY: the range is this value's own mapping; the advice changes no content.
            let _ = unsafe { memory::advise(frames.as_ptr().cast(), len, advice) };
        }
        let (hugetlb, in_huge_pages) = (huge == HugePages::Hugetlb, huge != HugePages::Off);
        let together = u32::try_from(kernel_page >> page_shift).map_or(1, |frames| frames.max(1));
        Ok(Self { mapping, mapped, frames, page_shift, count, together, hugetlb, in_huge_pages })
    }

    /// Makes the kernel allocate memory for these frames now, rather than on first use. Their
    /// content stays. `MADV_POPULATE_WRITE`, Linux 5.14; fails on older kernels, and if there is no
    /// memory.
    pub(crate) fn take_up(&self, frames: Range<u32>) -> rustix::io::Result<()> {
        debug_assert!(frames.end <= self.count);
        let len = frames.len() << self.page_shift;
        // SAFETY: the range is of this value's own mapping; the advice changes no content, whoever
        // uses it meanwhile.
        unsafe { memory::advise(self.at(frames.start).as_ptr().cast(), len, Advice::LinuxPopulateWrite) }
    }

    /// Allows huge pages for the frames below `now`, where they were allowed for those below
    /// `before`. Otherwise khugepaged would fill a huge page of which only a few frames are used
    /// (`max_ptes_none`), and memory that was given back would return. Existing huge pages stay.
    pub(crate) fn move_end_of_huge_pages(&self, before: u32, now: u32) {
        if self.hugetlb || !self.in_huge_pages {
            return;
        }
        let end_below =
            |frames: u32| ((frames as usize) << self.page_shift) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let (before, now) = (end_below(before), end_below(now));
        if before == now {
            return;
        }
        let (first, advice) =
            if now < before { (now, Advice::LinuxNoHugepage) } else { (before, Advice::LinuxHugepage) };
        // Fails on a kernel that has no huge pages, or no memory to describe the mapping as two;
        // then nothing changes.
        // SAFETY: whole huge pages below the frames' end, of this value's own mapping; the advice
        // changes no content, whoever uses it.
        let _ =
            unsafe { memory::advise(self.frames.as_ptr().add(first).cast(), before.abs_diff(now), advice) };
    }

    /// Whether its frames are in huge pages, as far as the kernel has them.
    pub(crate) fn is_in_huge_pages(&self) -> bool {
        self.in_huge_pages
    }

    /// Returns the address of frame 0; the others follow.
    pub(crate) fn first(&self) -> NonNull<u8> {
        self.frames
    }

    /// Returns the bytes of the frames that have memory now, in whole kernel pages.
    #[cfg(test)]
    pub(crate) fn taken_up(&self) -> usize {
        let len = (self.count as usize) << self.page_shift;
        let mut pages = vec![0_u8; len.div_ceil(memory::page())];
        // SAFETY: the range is of this value's own mapping, and `pages` has a byte for each of its
        // pages.
        let asked = unsafe { libc::mincore(self.frames.as_ptr().cast(), len, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|&page| page & 1 == 1).count() * memory::page()
    }

    /// Returns the address of a frame.
    #[inline]
    fn at(&self, frame: u32) -> NonNull<u8> {
        debug_assert!(frame < self.count);
        // SAFETY: entries hold frame numbers below `count` only (invariant of the pool), and
        // `count` frames are mapped from `frames` on.
        unsafe { self.frames.add((frame as usize) << self.page_shift) }
    }

    /// Copies `buf.len()` bytes of a frame, starting at byte `from`.
    ///
    /// # Safety
    ///
    /// `from + buf.len()` is at most a page; the frame holds a page, and keeps holding it until
    /// this returns.
    #[inline]
    pub(crate) unsafe fn copy(&self, frame: u32, from: usize, buf: &mut [u8]) {
        debug_assert!(from + buf.len() <= 1 << self.page_shift);
        // SAFETY: source: within the frame by the caller's promise, not written meanwhile by the
        // caller's promise; destination: a borrowed slice, which is not part of the arena.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(frame).as_ptr().add(from), buf.as_mut_ptr(), buf.len());
        };
    }

    /// Returns the first `len` bytes of a frame.
    ///
    /// # Safety
    ///
    /// `len` is at most a page; the frame holds a page, and keeps holding it for all of `'a`.
    #[inline]
    pub(crate) unsafe fn page<'a>(&self, frame: u32, len: usize) -> &'a [u8] {
        debug_assert!(len <= 1 << self.page_shift);
        // SAFETY: mapped, within the frame, initialised (anonymous memory is zero until it is
        // loaded into), and not written for `'a`, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(frame).as_ptr(), len) }
    }

    /// Returns a whole frame, to load into.
    ///
    /// # Safety
    ///
    /// Only the caller uses the frame for all of `'a`: nobody reads it, nobody else loads into it.
    pub(crate) unsafe fn page_mut<'a>(&self, frame: u32) -> &'a mut [u8] {
        // SAFETY: mapped, within the arena, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(frame).as_ptr(), 1 << self.page_shift) }
    }

    /// Returns the address of a frame, for a read in flight.
    pub(crate) fn address(&self, frame: u32) -> NonNull<u8> {
        self.at(frame)
    }

    /// Returns the frames that share a kernel page with this one: their memory can only be given
    /// back together.
    pub(crate) fn together(&self, frame: u32) -> Range<u32> {
        let first = frame - frame % self.together;
        first..first.saturating_add(self.together).min(self.count)
    }

    /// Gives the memory of frames back to the kernel; they read as zeros until they are used again.
    /// Hugetlb memory stays.
    ///
    /// # Safety
    ///
    /// The frames are exactly those of [`together`](Self::together), and for each the conditions of
    /// [`page_mut`](Self::page_mut) hold.
    pub(crate) unsafe fn drop_memory(&self, frames: Range<u32>) {
        debug_assert_eq!(frames, self.together(frames.start));
        if self.hugetlb {
            // Most kernels refuse this. Some (5.18 to 6.0) drop the whole huge page that begins
            // with the frame, including the frames after it.
            return;
        }
        let len = frames.len() << self.page_shift;
        // SAFETY: the range consists of frames of this value's mapping, which nobody reads or
        // writes by the caller's promise. It consists of whole kernel pages: it begins with one,
        // and can end within one only after the last frame of all, where that page contains nothing
        // else.
        let _ = unsafe { memory::advise(self.at(frames.start).as_ptr().cast(), len, Advice::LinuxDontNeed) };
    }
}

impl Drop for FrameArena {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. Nobody has a reference into it any more, since
        // all references keep the cache alive.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.mapped) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u32 = 1001;

    fn fill(arena: &FrameArena) {
        for frame in 0..FRAMES {
            // SAFETY: single-threaded, and no other reference to the frame is alive.
            unsafe { arena.page_mut(frame) }.fill(u8::try_from(frame % 251).unwrap() + 1);
        }
    }

    /// Checks that each frame has its content, or zeros if it is among `dropped`.
    fn assert_filled(arena: &FrameArena, dropped: &Range<u32>) {
        for frame in 0..FRAMES {
            let expected = if dropped.contains(&frame) { 0 } else { frame % 251 + 1 };
            // SAFETY: nobody writes.
            let bytes = unsafe { arena.page(frame, 4096) };
            assert!(bytes.iter().all(|&byte| u32::from(byte) == expected), "frame {frame} of {dropped:?}");
        }
    }

    /// On a kernel with pages of more than 4 KiB, the frames beside one that is given back would
    /// become zeros.
    #[test]
    fn frames_lie_side_by_side_and_keep_their_bytes() {
        let pages = [4096, 16_384, 65_536].into_iter().filter(|&page| page >= memory::page());
        for (kernel_page, huge) in
            pages.flat_map(|page| [(page, HugePages::Transparent), (page, HugePages::Off)])
        {
            let arena = FrameArena::new(kernel_page, FRAMES, 12, huge).unwrap();
            fill(&arena);
            for frame in [0, 1, 500, 1000] {
                let mut buf = [0; 100];
                // SAFETY: within the page; nobody writes.
                unsafe { arena.copy(frame, 3996, &mut buf) };
                assert!(buf.iter().all(|&byte| u32::from(byte) == frame % 251 + 1));
            }
            for frame in [1, 500, 1000] {
                let together = arena.together(frame);
                assert!(
                    together.contains(&frame) && (together.start as usize).is_multiple_of(kernel_page / 4096)
                );
                assert_eq!(
                    together.len(),
                    if frame == 1000 { (1001 % (kernel_page / 4096)).max(1) } else { kernel_page / 4096 }
                );
                // SAFETY: nobody has a reference to any of them.
                unsafe { arena.drop_memory(together.clone()) };
                assert_filled(&arena, &together);
                fill(&arena);
            }
        }
    }

    #[test]
    fn a_frame_larger_than_the_kernels_pages_goes_alone() {
        let arena = FrameArena::new(memory::page(), 4, 16, HugePages::Off).unwrap();
        assert_eq!([0, 1, 3].map(|frame| arena.together(frame)), [0..1, 1..2, 3..4]);
    }

    /// `MADV_COLLAPSE` (Linux 6.1) turns small pages into a huge page now, as khugepaged does
    /// later.
    fn collapse(arena: &FrameArena, from: usize) -> rustix::io::Result<()> {
        // SAFETY: a huge page's bytes of this arena's own mapping; no content changes.
        let refused =
            unsafe { libc::madvise(arena.frames.as_ptr().add(from).cast(), HUGE_PAGE_BYTES, 25) } != 0;
        if refused {
            Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap())
        } else {
            Ok(())
        }
    }

    /// Only a few frames of the last huge page are in the budget: the whole huge page would exceed
    /// it.
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for huge pages")]
    fn returned_memory_is_not_merged_into_huge_pages() {
        let frames = u32::try_from(4 * HUGE_PAGE_BYTES / 4096).unwrap();
        let arena = FrameArena::new(memory::page(), frames, 12, HugePages::Transparent).unwrap();
        let in_use = frames / 2 + 7;
        for frame in 0..in_use {
            // SAFETY: single-threaded, and no other reference to the frame is alive.
            unsafe { arena.page_mut(frame) }.fill(1);
        }
        for frame in (in_use..frames).filter(|&frame| arena.together(frame).start == frame) {
            // SAFETY: nobody has a reference to any of them.
            unsafe { arena.drop_memory(arena.together(frame)) };
        }
        let before = arena.taken_up();
        arena.move_end_of_huge_pages(frames, in_use);
        if collapse(&arena, 0) == Err(rustix::io::Errno::INVAL) {
            pagekeeper_testing::skip(
                "this kernel makes no huge page of 2 MiB when asked (MADV_COLLAPSE, Linux 6.1)",
            );
            return;
        }
        assert_eq!(collapse(&arena, 2 * HUGE_PAGE_BYTES), Err(rustix::io::Errno::INVAL));
        assert_eq!(arena.taken_up(), before);
        // If the frames are back in the budget, a huge page is possible again, if one is available.
        arena.move_end_of_huge_pages(in_use, frames);
        assert_ne!(collapse(&arena, 2 * HUGE_PAGE_BYTES), Err(rustix::io::Errno::INVAL));
    }
}

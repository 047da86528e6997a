//! The memory of all frames: one anonymous mapping, in huge pages where the kernel gives them.
//!
//! Invariants: the mapping lives as long as the value; a frame is accessed only by those who have it by the rules of the
//! pool (its loader alone, or readers that hold it in place). Making the mapping touches none of it, so memory is taken
//! up as frames are first used. Memory goes back to the kernel in pages of the kernel's, which hold several frames where they are larger
//! (16 and 64 KiB on aarch64). Fails where the kernel has no address space or no huge pages left.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags};

use super::memory;
use crate::settings::HugePages;

/// The size of a huge page, in bytes. On aarch64 with pages of 16 or 64 KiB transparent ones are larger, and these the smaller of hugetlb.
const HUGE: usize = 2 << 20;

/// The memory of all frames.
#[derive(Debug)]
pub(crate) struct Arena {
    /// The mapping as it was made.
    mapping: NonNull<libc::c_void>,
    mapped: usize,
    /// Frame 0: the first multiple of a huge page in it.
    frames: NonNull<u8>,
    page_shift: u32,
    count: u32,
    /// Frames in a page of the kernel's, at least one.
    together: u32,
    /// Whether it is hugetlb memory, which is taken and given back in huge pages only.
    hugetlb: bool,
    in_huge_pages: bool,
}

// SAFETY: the mapping is plain memory owned by this value; who may access which frame is stated by each method.
unsafe impl Send for Arena {}
// SAFETY: as above: shared references give access only through the unsafe methods below.
unsafe impl Sync for Arena {}

impl Arena {
    /// Room for `count` frames of `1 << page_shift` bytes. `kernel_page`: bytes of a page of the kernel's, [`memory::page`] or a multiple of
    /// it.
    pub(crate) fn new(
        kernel_page: usize,
        count: u32,
        page_shift: u32,
        huge: HugePages,
    ) -> rustix::io::Result<Self> {
        let len = (count as usize) << page_shift;
        let (mapped, flags) = match huge {
            HugePages::Hugetlb => (len.next_multiple_of(HUGE), MapFlags::HUGETLB | MapFlags::HUGE_2MB),
            // Room to begin at a multiple of a huge page.
            HugePages::Transparent => (len + HUGE, MapFlags::NORESERVE),
            HugePages::Off => (len, MapFlags::NORESERVE),
        };
        let start = memory::map(mapped, flags)?;
        let mapping = NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)?;
        let skipped = match huge {
            HugePages::Transparent => start.cast::<u8>().align_offset(HUGE),
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
            // A kernel built without huge pages says EINVAL: then there are none, as asked or as the next best thing.
            // SAFETY: the range is this value's own mapping; the advice changes no content.
            let _ = unsafe { memory::advise(frames.as_ptr().cast(), len, advice) };
        }
        let (hugetlb, in_huge_pages) = (huge == HugePages::Hugetlb, huge != HugePages::Off);
        let together = u32::try_from(kernel_page >> page_shift).map_or(1, |frames| frames.max(1));
        Ok(Self { mapping, mapped, frames, page_shift, count, together, hugetlb, in_huge_pages })
    }

    /// Has the kernel give memory to these frames now, in place of when they are first used. What is in them stays.
    /// `MADV_POPULATE_WRITE`, Linux 5.14; fails on older ones, and where there is no memory.
    pub(crate) fn take_up(&self, frames: Range<u32>) -> rustix::io::Result<()> {
        debug_assert!(frames.end <= self.count);
        let len = frames.len() << self.page_shift;
        // SAFETY: the range is of this value's own mapping; the advice changes no content, whoever uses it meanwhile.
        unsafe { memory::advise(self.at(frames.start).as_ptr().cast(), len, Advice::LinuxPopulateWrite) }
    }

    /// Leaves the kernel the frames below `now` to have in huge pages, where it had those below `before`: as a whole huge page it would
    /// take up (khugepaged, `max_ptes_none`) even one of which a few frames are in use, and what was given back came again. Frames in
    /// huge pages stay so.
    pub(crate) fn move_end_of_huge_pages(&self, before: u32, now: u32) {
        if self.hugetlb || !self.in_huge_pages {
            return;
        }
        let end_below = |frames: u32| ((frames as usize) << self.page_shift) / HUGE * HUGE;
        let (before, now) = (end_below(before), end_below(now));
        if before == now {
            return;
        }
        let (first, advice) =
            if now < before { (now, Advice::LinuxNoHugepage) } else { (before, Advice::LinuxHugepage) };
        // Refused by a kernel that has no huge pages, or no memory to describe the mapping as two; then it is as it was.
        // SAFETY: whole huge pages below the frames' end, of this value's own mapping; the advice changes no content, whoever uses it.
        let _ =
            unsafe { memory::advise(self.frames.as_ptr().add(first).cast(), before.abs_diff(now), advice) };
    }

    /// Whether its frames are in huge pages, as far as the kernel has them.
    pub(crate) fn is_in_huge_pages(&self) -> bool {
        self.in_huge_pages
    }

    /// Where frame 0 begins; the others follow.
    pub(crate) fn first(&self) -> NonNull<u8> {
        self.frames
    }

    /// Bytes of the frames that have memory now, in whole pages of the kernel's.
    #[cfg(test)]
    pub(crate) fn taken_up(&self) -> usize {
        let len = (self.count as usize) << self.page_shift;
        let mut pages = vec![0_u8; len.div_ceil(memory::page())];
        // SAFETY: the range is of this value's own mapping, and `pages` has a byte for each of its pages.
        let asked = unsafe { libc::mincore(self.frames.as_ptr().cast(), len, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|&page| page & 1 == 1).count() * memory::page()
    }

    /// Where a frame begins.
    #[inline]
    fn at(&self, frame: u32) -> NonNull<u8> {
        debug_assert!(frame < self.count);
        // SAFETY: entries hold frame numbers below `count` only (invariant of the pool), and `count` frames are mapped
        // from `frames` on.
        unsafe { self.frames.add((frame as usize) << self.page_shift) }
    }

    /// Copies `buf.len()` bytes from byte `from` of a frame on.
    ///
    /// # Safety
    ///
    /// `from + buf.len()` is at most a page; the frame holds a page, and stays that page's until this returns.
    #[inline]
    pub(crate) unsafe fn copy(&self, frame: u32, from: usize, buf: &mut [u8]) {
        debug_assert!(from + buf.len() <= 1 << self.page_shift);
        // SAFETY: source: within the frame by the caller's promise, not written meanwhile by the caller's promise;
        // destination: a borrowed slice, which is no part of the arena.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(frame).as_ptr().add(from), buf.as_mut_ptr(), buf.len());
        };
    }

    /// The first `len` bytes of a frame.
    ///
    /// # Safety
    ///
    /// `len` is at most a page; the frame holds a page, and stays that page's for all of `'a`.
    #[inline]
    pub(crate) unsafe fn page<'a>(&self, frame: u32, len: usize) -> &'a [u8] {
        debug_assert!(len <= 1 << self.page_shift);
        // SAFETY: mapped, within the frame, initialised (anonymous memory is zero until it is loaded into), and not
        // written for `'a`, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(frame).as_ptr(), len) }
    }

    /// A whole frame, to load into.
    ///
    /// # Safety
    ///
    /// The frame is the caller's alone for all of `'a`: nobody reads it, nobody else loads into it.
    pub(crate) unsafe fn page_mut<'a>(&self, frame: u32) -> &'a mut [u8] {
        // SAFETY: mapped, within the arena, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(frame).as_ptr(), 1 << self.page_shift) }
    }

    /// The address of a frame, for a read in flight.
    pub(crate) fn address(&self, frame: u32) -> NonNull<u8> {
        self.at(frame)
    }

    /// The frames whose memory goes back to the kernel together with that of this one: all that are in one page of the kernel's.
    pub(crate) fn together(&self, frame: u32) -> Range<u32> {
        let first = frame - frame % self.together;
        first..first.saturating_add(self.together).min(self.count)
    }

    /// Gives the memory of frames back to the kernel; they read as zeros until they are used again. Hugetlb memory stays.
    ///
    /// # Safety
    ///
    /// They are all that go [`together`](Self::together), and for each the same holds as for [`page_mut`](Self::page_mut).
    pub(crate) unsafe fn drop_memory(&self, frames: Range<u32>) {
        debug_assert_eq!(frames, self.together(frames.start));
        if self.hugetlb {
            // Refused by most kernels; some (5.18 to 6.0) drop the whole huge page that begins with the frame, and with it
            // the frames behind it.
            return;
        }
        let len = frames.len() << self.page_shift;
        // SAFETY: the range is of frames of this value's mapping, which nobody reads or writes by the caller's promise, and of whole
        // pages of the kernel's: it begins with one, and only behind the last frame of all it may end within one, which holds no more.
        let _ = unsafe { memory::advise(self.at(frames.start).as_ptr().cast(), len, Advice::LinuxDontNeed) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; nobody has a reference into it any more, since all who do keep the
        // cache alive.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.mapped) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u32 = 1001;

    fn fill(arena: &Arena) {
        for frame in 0..FRAMES {
            // SAFETY: single-threaded, and no other reference to the frame is alive.
            unsafe { arena.page_mut(frame) }.fill(u8::try_from(frame % 251).unwrap() + 1);
        }
    }

    /// Whether each frame has what it was filled with, or zeros if it is among `dropped`.
    fn assert_filled(arena: &Arena, dropped: &Range<u32>) {
        for frame in 0..FRAMES {
            let expected = if dropped.contains(&frame) { 0 } else { frame % 251 + 1 };
            // SAFETY: nobody writes.
            let bytes = unsafe { arena.page(frame, 4096) };
            assert!(bytes.iter().all(|&byte| u32::from(byte) == expected), "frame {frame} of {dropped:?}");
        }
    }

    /// On a kernel with pages of more than 4 KiB, the frames beside one that is given back would be zeros.
    #[test]
    fn frames_lie_side_by_side_and_keep_their_bytes() {
        let pages = [4096, 16_384, 65_536].into_iter().filter(|&page| page >= memory::page());
        for (kernel_page, huge) in
            pages.flat_map(|page| [(page, HugePages::Transparent), (page, HugePages::Off)])
        {
            let arena = Arena::new(kernel_page, FRAMES, 12, huge).unwrap();
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
        let arena = Arena::new(memory::page(), 4, 16, HugePages::Off).unwrap();
        assert_eq!([0, 1, 3].map(|frame| arena.together(frame)), [0..1, 1..2, 3..4]);
    }

    /// `MADV_COLLAPSE` (Linux 6.1) makes a huge page out of small ones now, as khugepaged does in its time.
    fn collapse(arena: &Arena, from: usize) -> rustix::io::Result<()> {
        // SAFETY: a huge page's bytes of this arena's own mapping; no content changes.
        let refused = unsafe { libc::madvise(arena.frames.as_ptr().add(from).cast(), HUGE, 25) } != 0;
        if refused {
            Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap())
        } else {
            Ok(())
        }
    }

    /// Of the last huge page a few frames are in the budget: as a whole it would be more than that.
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for huge pages")]
    fn what_was_given_back_is_not_made_a_huge_page_of() {
        let frames = u32::try_from(4 * HUGE / 4096).unwrap();
        let arena = Arena::new(memory::page(), frames, 12, HugePages::Transparent).unwrap();
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
        assert_eq!(collapse(&arena, 2 * HUGE), Err(rustix::io::Errno::INVAL));
        assert_eq!(arena.taken_up(), before);
        // Taken back into the budget, it may be one again, if there is a huge page at hand.
        arena.move_end_of_huge_pages(in_use, frames);
        assert_ne!(collapse(&arena, 2 * HUGE), Err(rustix::io::Errno::INVAL));
    }
}

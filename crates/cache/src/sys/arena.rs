//! The memory of all frames: one anonymous mapping, in huge pages where the kernel gives them.
//!
//! Invariants: the mapping lives as long as the value; a frame is accessed only by those who have it by the rules of the
//! pool (its loader alone, or readers that hold it in place). Making the mapping touches none of it, so memory is taken
//! up as frames are first used. Fails where the kernel has no address space or no huge pages left.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags};

use super::memory;
use crate::settings::HugePages;

/// The size of a huge page of x86-64 and of aarch64 with 4 KiB pages, in bytes.
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
    /// Whether it is hugetlb memory, which is taken and given back in huge pages only.
    hugetlb: bool,
    in_huge_pages: bool,
}

// SAFETY: the mapping is plain memory owned by this value; who may access which frame is stated by each method.
unsafe impl Send for Arena {}
// SAFETY: as above: shared references give access only through the unsafe methods below.
unsafe impl Sync for Arena {}

impl Arena {
    /// Room for `count` frames of `1 << page_shift` bytes.
    pub(crate) fn new(count: u32, page_shift: u32, huge: HugePages) -> rustix::io::Result<Self> {
        let len = (count as usize) << page_shift;
        let (mapped, flags) = match huge {
            HugePages::Hugetlb => (len.next_multiple_of(HUGE), MapFlags::HUGETLB),
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
        Ok(Self { mapping, mapped, frames, page_shift, count, hugetlb, in_huge_pages })
    }

    /// Has the kernel give memory to these frames now, in place of when they are first used. What is in them stays.
    /// `MADV_POPULATE_WRITE`, Linux 5.14; fails on older ones, and where there is no memory.
    pub(crate) fn take_up(&self, frames: Range<u32>) -> rustix::io::Result<()> {
        debug_assert!(frames.end <= self.count);
        let len = frames.len() << self.page_shift;
        // SAFETY: the range is of this value's own mapping; the advice changes no content, whoever uses it meanwhile.
        unsafe { memory::advise(self.at(frames.start).as_ptr().cast(), len, Advice::LinuxPopulateWrite) }
    }

    /// Whether its frames are in huge pages, as far as the kernel has them.
    pub(crate) fn is_in_huge_pages(&self) -> bool {
        self.in_huge_pages
    }

    /// Where frame 0 begins; the others follow.
    pub(crate) fn first(&self) -> NonNull<u8> {
        self.frames
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

    /// Gives the memory of a frame back to the kernel; it reads as zeros until it is used again. Hugetlb memory stays.
    ///
    /// # Safety
    ///
    /// As for [`page_mut`](Self::page_mut).
    pub(crate) unsafe fn drop_memory(&self, frame: u32) {
        if self.hugetlb {
            // Refused by most kernels; some (5.18 to 6.0) drop the whole huge page that begins with the frame, and with it
            // the frames behind it.
            return;
        }
        // SAFETY: the range is one frame of this value's mapping, which nobody reads or writes by the caller's promise.
        let _ = unsafe {
            memory::advise(self.at(frame).as_ptr().cast(), 1 << self.page_shift, Advice::LinuxDontNeed)
        };
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

    #[test]
    fn frames_lie_side_by_side_and_keep_their_bytes() {
        for huge in [HugePages::Transparent, HugePages::Off] {
            let arena = Arena::new(1000, 12, huge).unwrap();
            for frame in 0..1000 {
                // SAFETY: single-threaded, and no other reference to the frame is alive.
                unsafe { arena.page_mut(frame) }.fill(u8::try_from(frame % 251).unwrap());
            }
            for frame in [0, 1, 500, 999] {
                let mut buf = [0; 100];
                // SAFETY: within the page; nobody writes.
                unsafe { arena.copy(frame, 3996, &mut buf) };
                assert!(buf.iter().all(|&byte| u32::from(byte) == frame % 251));
            }
            // SAFETY: nobody has a reference to frame 1.
            unsafe { arena.drop_memory(1) };
            // SAFETY: nobody writes.
            unsafe {
                assert!(arena.page(0, 4096).iter().all(|&byte| byte == 0));
                assert!(arena.page(1, 4096).iter().all(|&byte| byte == 0));
                assert!(arena.page(2, 4096).iter().all(|&byte| byte == 2));
            }
        }
    }
}

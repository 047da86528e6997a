//! Memory from the kernel: mmap(2) and madvise(2), with a stand-in for Miri, which knows no flags of the one and nothing of
//! the other.
//!
//! Invariant: [`advise`] with `LinuxDontNeed` leaves zeros, however it does that.
//!
//! The kernel's pages have 4 KiB on x86-64, and 4, 16 or 64 KiB on aarch64. Advice for part of one is refused, or taken for all of it:
//! whoever advises knows their size ([`page`]).

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_void;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The bytes of a page of the kernel's.
pub(crate) fn page() -> usize {
    if cfg!(miri) { 4096 } else { usize::try_from(pagekeeper_kernel::page_size()).unwrap_or(4096) }
}

/// Private memory that no file is behind: zeros, taken up on first use.
pub(super) fn map(len: usize, flags: MapFlags) -> rustix::io::Result<*mut c_void> {
    let flags = if cfg!(miri) { MapFlags::PRIVATE } else { MapFlags::PRIVATE | flags };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh range is asked for (null hint, no MAP_FIXED), so no existing memory is affected.
    unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }
}

/// So many zeros, which are taken up on first use where they are many.
pub(crate) fn zeros(len: usize) -> Box<[AtomicU32]> {
    let zeros = Box::into_raw(vec![0_u32; len].into_boxed_slice());
    // SAFETY: given up by its box just now; an atomic has the size, the alignment and all values of its integer.
    unsafe { Box::from_raw(zeros as *mut [AtomicU32]) }
}

/// Advises the kernel how memory will be used.
///
/// # Safety
///
/// The range is of whole pages that [`map`] gave. With `LinuxDontNeed` nobody relies on its content, or accesses it at the
/// same time but by atomics of 32 bits.
pub(super) unsafe fn advise(start: *mut c_void, len: usize, advice: Advice) -> rustix::io::Result<()> {
    if cfg!(miri) {
        if advice == Advice::LinuxDontNeed {
            for word in 0..len / 4 {
                // SAFETY: within the range, aligned since it begins with a page, and accessed as the caller promises.
                unsafe { AtomicU32::from_ptr(start.cast::<u32>().add(word)) }.store(0, Ordering::Relaxed);
            }
        }
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::madvise(start, len, advice) }
}

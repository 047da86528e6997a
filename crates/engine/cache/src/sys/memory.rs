//! Memory from the kernel: mmap(2) and madvise(2), with a stand-in for Miri, which supports neither
//! the flags of mmap nor madvise.
//!
//! Invariant: [`advise`] with `LinuxDontNeed` always leaves zeros.
//!
//! A kernel page has 4 KiB on x86-64, and 4, 16 or 64 KiB on aarch64. Advice for part of a page is
//! refused, or applied to the whole page. Callers therefore align to the page size ([`page`]).

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_void;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Returns the size of a kernel page in bytes.
pub(crate) fn page() -> usize {
    if cfg!(miri) { 4096 } else { usize::try_from(pagekeeper_kernel::page_size()).unwrap_or(4096) }
}

/// Maps private anonymous memory: zeros, taken up on first use.
pub(super) fn map(len: usize, flags: MapFlags) -> rustix::io::Result<*mut c_void> {
    let flags = if cfg!(miri) { MapFlags::PRIVATE } else { MapFlags::PRIVATE | flags };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh range is asked for (null hint, no MAP_FIXED), so no existing memory is
    // affected.
    unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }
}

/// Returns `len` zeros; long arrays are taken up on first use.
pub(crate) fn zeros(len: usize) -> Box<[AtomicU32]> {
    let zeros = Box::into_raw(vec![0_u32; len].into_boxed_slice());
    // SAFETY: just released by its box; an atomic has the size, the alignment and all values of its
    // integer.
    unsafe { Box::from_raw(zeros as *mut [AtomicU32]) }
}

/// Advises the kernel how memory will be used.
///
/// # Safety
///
/// The range consists of whole pages from [`map`]. With `LinuxDontNeed` nobody relies on its
/// content, and concurrent accesses are 32-bit atomic ones only.
pub(super) unsafe fn advise(start: *mut c_void, len: usize, advice: Advice) -> rustix::io::Result<()> {
    if cfg!(miri) {
        if advice == Advice::LinuxDontNeed {
            for word in 0..len / 4 {
                // SAFETY: within the range, aligned since it begins with a page, and accessed as
                // the caller promises.
                unsafe { AtomicU32::from_ptr(start.cast::<u32>().add(word)) }.store(0, Ordering::Relaxed);
            }
        }
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::madvise(start, len, advice) }
}

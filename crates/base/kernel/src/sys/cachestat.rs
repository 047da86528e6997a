//! cachestat(2), Linux 6.5: page-cache counts of a byte range of a file. Number 451 on every
//! architecture.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

/// The kernel's counts, in pages (`struct cachestat` of `linux/mman.h`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    pub(crate) cache: u64,
    pub(crate) dirty: u64,
    pub(crate) writeback: u64,
    pub(crate) evicted: u64,
    pub(crate) recently_evicted: u64,
}

/// Counts pages in `len` bytes from `off`; a `len` of 0 means to the end of the file.
pub(crate) fn cachestat(file: impl AsFd, off: u64, len: u64) -> Result<PageCounts, Errno> {
    let range = CachestatRange { off, len };
    let mut counts = PageCounts::default();
    // SAFETY: `range` and `counts` are live, aligned, `repr(C)` and of the layout the kernel's
    // structs have; the kernel only reads the first and writes the second, and keeps neither. The
    // descriptor is borrowed for the call. On a kernel without the call, 451 is unassigned and
    // gives ENOSYS.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut counts),
            0_u32,
        )
    };
    if result == 0 { Ok(counts) } else { Err(last_errno()) }
}

/// Returns the calling thread's `errno`.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

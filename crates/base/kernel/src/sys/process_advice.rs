//! `process_madvise(2)`, Linux 5.10: advice about another process's memory.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::cachestat::last_errno;

/// Pages out a range of addresses, in whole pages, of the process behind a pidfd
/// (`MADV_PAGEOUT`). Returns the number of bytes advised.
pub(crate) fn page_out(process: BorrowedFd<'_>, addresses: &Range<u64>) -> Result<u64, Errno> {
    let length = addresses.end.saturating_sub(addresses.start);
    let range = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(
            usize::try_from(addresses.start).map_err(|_| Errno::FAULT)?,
        ),
        iov_len: usize::try_from(length).map_err(|_| Errno::FAULT)?,
    };
    // SAFETY: `range` is one live iovec that the kernel only reads. What it points to is memory of
    // the other process (or nothing), which this one never touches. The advice changes no content:
    // what is paged out comes back when it is used.
    let result = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            std::ptr::from_ref(&range),
            1_usize,
            libc::MADV_PAGEOUT,
            0_u32,
        )
    };
    u64::try_from(result).map_err(|_| last_errno())
}

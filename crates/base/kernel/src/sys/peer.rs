//! `SO_PEERPIDFD` of unix(7), Linux 6.5: the process at the other end of a socket.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::cachestat::last_errno;

/// Returns a pidfd of the process that connected the other end of a Unix socket.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut descriptor: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or_default();
    // SAFETY: both pointers are of live values that this call alone uses; the kernel writes at most
    // `length` bytes, the size of `descriptor`, to the first, and a length to the second.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut descriptor).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel made this descriptor for this call, with close-on-exec, and nobody else
    // knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

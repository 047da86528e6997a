//! The parent and the owner of a namespace: `ioctl_nsfs(2)`.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::cachestat::last_errno;

/// Returns the parent of this PID or user namespace. `EPERM` if it is above the caller's.
pub(crate) fn parent(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    related(namespace, libc::NS_GET_PARENT)
}

/// Returns the user namespace in which a namespace was created. `EPERM` if that is not below the
/// caller's.
pub(crate) fn user_namespace(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    related(namespace, libc::NS_GET_USERNS)
}

fn related(namespace: BorrowedFd<'_>, request: libc::Ioctl) -> Result<OwnedFd, Errno> {
    // SAFETY: these two requests take no argument. The descriptor is borrowed for the call.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), request) };
    if result < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has made this descriptor for the caller, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Returns the user who created a user namespace, in the caller's user IDs.
pub(crate) fn owner(namespace: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut user: libc::uid_t = 0;
    // SAFETY: the kernel writes one uid_t to `user`, which lives through the call, and keeps
    // nothing. The descriptor is borrowed for the call.
    let result =
        unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_OWNER_UID, std::ptr::from_mut(&mut user)) };
    if result < 0 { Err(last_errno()) } else { Ok(user) }
}

//! File handles: `name_to_handle_at(2)` and `open_by_handle_at(2)`.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::cachestat::last_errno;

/// Length of the longest handle in bytes (`MAX_HANDLE_SZ` of `linux/exportfs.h`).
const HANDLE_BYTES_MAX: usize = 128;

/// `struct file_handle` of `linux/fcntl.h`, with room for its bytes.
#[repr(C)]
struct RawHandle {
    length: libc::c_uint,
    kind: libc::c_int,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// A file system's own identifier of an inode, in its own form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileHandle {
    /// The form: `enum fid_type` of `linux/exportfs.h`.
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

/// Returns the handle of an open file, even one opened by `O_PATH`.
pub(crate) fn handle_of(open: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
    let room = libc::c_uint::try_from(HANDLE_BYTES_MAX).map_err(|_| Errno::OVERFLOW)?;
    let mut raw = RawHandle { length: room, kind: 0, bytes: [0; HANDLE_BYTES_MAX] };
    let mut mount: libc::c_int = 0;
    // SAFETY: `raw` is live, aligned and has the layout of the kernel's struct followed by as many
    // bytes as its `length` says, and `mount` is a live int: the kernel writes at most these
    // and keeps neither. The path is a constant that ends in a nul. The descriptor is borrowed for
    // the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            open.as_raw_fd(),
            c"".as_ptr(),
            std::ptr::from_mut(&mut raw),
            std::ptr::from_mut(&mut mount),
            libc::AT_EMPTY_PATH,
        )
    };
    if result != 0 {
        return Err(last_errno());
    }
    let length = usize::try_from(raw.length).unwrap_or(HANDLE_BYTES_MAX).min(HANDLE_BYTES_MAX);
    Ok(FileHandle { kind: raw.kind, bytes: raw.bytes[..length].to_vec() })
}

/// Opens the file of a handle in the file system of `mount`, an open directory.
pub(crate) fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &FileHandle,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let mut raw = RawHandle { length: 0, kind: handle.kind, bytes: [0; HANDLE_BYTES_MAX] };
    raw.bytes.get_mut(..handle.bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(&handle.bytes);
    raw.length = libc::c_uint::try_from(handle.bytes.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: `raw` is live, aligned and has the layout of the kernel's struct followed by more
    // bytes than its `length` says; the kernel only reads it and keeps nothing. The descriptor is
    // borrowed for the call.
    let result = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), std::ptr::from_ref(&raw), flags.bits())
    };
    let opened = RawFd::try_from(result).map_err(|_| Errno::BADF)?;
    if opened < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has made this descriptor for the caller, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

//! `sync_file_range(2)`: starts or awaits writeback of a byte range. It writes no metadata and
//! flushes no device cache: it makes pages clean, not data durable.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::cachestat::last_errno;

/// Starts writeback of the dirty pages of the range. With `wait`, writes them and waits until none
/// is under writeback. A `len` of 0 means to the end of the file.
pub(crate) fn sync_file_range(file: impl AsFd, off: u64, len: u64, wait: bool) -> Result<(), Errno> {
    let mut flags = libc::SYNC_FILE_RANGE_WRITE;
    if wait {
        flags |= libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    }
    let off = i64::try_from(off).map_err(|_| Errno::INVAL)?;
    let len = i64::try_from(len).map_err(|_| Errno::INVAL)?;
    loop {
        // SAFETY: the call takes a borrowed descriptor and three integers; it touches no memory of
        // this process.
        let result = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), off, len, flags) };
        if result == 0 {
            return Ok(());
        }
        let errno = last_errno();
        if errno != Errno::INTR {
            return Err(errno);
        }
    }
}

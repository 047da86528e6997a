//! The extents of a file on its device: `FS_IOC_FIEMAP` of `linux/fs.h` and `linux/fiemap.h`.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::cachestat::last_errno;

/// `_IOWR('f', 11, struct fiemap)`; the same number on x86-64 and aarch64.
#[allow(
    clippy::cast_lossless,
    clippy::cast_possible_wrap,
    reason = "the same 32 bits, in the type that each C library has for them"
)]
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;

/// Maximum number of extents that one call returns.
const EXTENTS_PER_CALL: u32 = 64;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileExtent {
    /// Its offset in the file, in bytes.
    pub(crate) logical: u64,
    physical: u64,
    /// Bytes.
    pub(crate) length: u64,
    reserved: [u64; 2],
    /// `FIEMAP_EXTENT_*`.
    pub(crate) flags: u32,
    reserved_flags: [u32; 3],
}

/// `struct fiemap` with room for its extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FileExtent; EXTENTS_PER_CALL as usize],
}

/// Returns the first extents from byte `start` on, at most 64 of them; none at the end of the file.
pub(crate) fn extents_from(file: BorrowedFd<'_>, start: u64) -> Result<Vec<FileExtent>, Errno> {
    let mut map = Fiemap {
        start,
        length: u64::MAX - start,
        flags: 0,
        mapped_extents: 0,
        extent_count: EXTENTS_PER_CALL,
        reserved: 0,
        extents: [FileExtent::default(); EXTENTS_PER_CALL as usize],
    };
    // SAFETY: `map` lives through the call and has the kernel's layout; the kernel writes its head
    // and at most `extent_count` extents behind that, for which there is room, and keeps nothing.
    // The descriptor is borrowed for the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, std::ptr::from_mut(&mut map)) };
    if result < 0 {
        return Err(last_errno());
    }
    let found = map.mapped_extents.min(EXTENTS_PER_CALL) as usize;
    Ok(map.extents[..found].to_vec())
}

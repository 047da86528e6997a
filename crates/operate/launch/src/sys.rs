//! Facts about the host that take a call of the C library: its version, and whether a file may be
//! executed.
#![allow(unsafe_code, reason = "system calls that rustix has no safe form of; each block states its proof")]

use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, ProtFlags};

/// Returns the version of this program's C library; `None` if it is not glibc.
pub(crate) fn c_library() -> Option<&'static str> {
    #[cfg(target_env = "gnu")]
    // SAFETY: a string that is the C library's for good.
    return unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().ok();
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Tests whether a file's bytes may be executed where it is: noexec mounts and security modules
/// forbid it.
pub(crate) fn may_execute(file: &File) -> io::Result<()> {
    const PROBE_BYTES: usize = 1;
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: at an address that the kernel chooses, so nothing is replaced; never read, never
    // called, and unmapped at once.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), PROBE_BYTES, protection, MapFlags::PRIVATE, file, 0)?;
        rustix::mm::munmap(at, PROBE_BYTES)?;
    }
    Ok(())
}

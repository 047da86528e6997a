//! Hooks that open and create files.

use core::ffi::{c_char, c_int};

use libc::mode_t;

use super::opened;
use crate::{real, sys};

/// Files are opened as 64-bit ones on both architectures, as the C library's 64-bit functions do.
const LARGE_FLAG: c_int = if cfg!(target_arch = "x86_64") { 0 } else { libc::O_LARGEFILE };
const CREATED_FLAGS: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
const TEMPORARY_FLAGS: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

/// Notifies the rules of a file that was opened, and returns its descriptor.
#[inline]
fn noted(fd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: an opened file had a path. That of a temporary file was written into the program's
    // string.
    unsafe { opened(fd, path, flags) };
    fd
}

/// Replaces `openat`.
unsafe extern "C" fn first_openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let mode = if flags & (libc::O_CREAT | libc::O_TMPFILE) == 0 { 0 } else { mode };
    let args = [at as usize, path as usize, (flags | LARGE_FLAG) as usize, mode as usize];
    // SAFETY: the caller keeps openat's contract, which is the system call's.
    real::settle(unsafe { sys::call(libc::SYS_openat, args) }) as c_int
}

// Without a mode, `mode` is not read. The variants with a 2 are for programs built with
// _FORTIFY_SOURCE, which take no mode.
hooks! {
    fn [open open64](path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
    own(first_openat(libc::AT_FDCWD, path, flags, mode)), (next) => noted(next(path, flags, mode), path, flags);
    fn [openat openat64](at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
    own(first_openat(at, path, flags, mode)), (next) => noted(next(at, path, flags, mode), path, flags);
    fn [__open_2 __open64_2](path: *const c_char, flags: c_int) -> c_int,
    call(libc::SYS_openat, libc::AT_FDCWD, path, flags | LARGE_FLAG), (next) => noted(next(path, flags), path, flags);
    fn [__openat_2 __openat64_2](at: c_int, path: *const c_char, flags: c_int) -> c_int,
    call(libc::SYS_openat, at, path, flags | LARGE_FLAG), (next) => noted(next(at, path, flags), path, flags);
    fn [creat creat64](path: *const c_char, mode: mode_t) -> c_int,
    call(libc::SYS_openat, libc::AT_FDCWD, path, CREATED_FLAGS | LARGE_FLAG, mode), (next) => noted(next(path, mode), path, CREATED_FLAGS);
    fn [mkstemp mkstemp64](template: *mut c_char) -> c_int, or(-1), (next) => noted(next(template), template, TEMPORARY_FLAGS);
    fn [mkostemp mkostemp64 mkstemps mkstemps64](template: *mut c_char, more: c_int) -> c_int, or(-1),
    (next) => noted(next(template, more), template, TEMPORARY_FLAGS);
    fn [mkostemps mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, or(-1),
    (next) => noted(next(template, suffix, flags), template, TEMPORARY_FLAGS);
}

//! Hooks that open and create files.

use core::ffi::{c_char, c_int};

use libc::mode_t;

use super::opened;

const CREATED: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
const TEMPORARY: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

/// Notifies the rules of a file that was opened, and returns its descriptor.
#[inline]
fn noted(fd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: an opened file had a path. That of a temporary file was written into the program's string.
    unsafe { opened(fd, path, flags) };
    fd
}

// Without a mode, `mode` is not read. The variants with a 2 are for programs built with _FORTIFY_SOURCE, which take no mode.
every_call! {
    fn [open open64](path: *const c_char, flags: c_int, mode: mode_t) -> c_int: |next| {
        noted(next(path, flags, mode), path, flags)
    };
    fn [openat openat64](at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int: |next| {
        noted(next(at, path, flags, mode), path, flags)
    };
    fn [__open_2 __open64_2](path: *const c_char, flags: c_int) -> c_int: |next| {
        noted(next(path, flags), path, flags)
    };
    fn [__openat_2 __openat64_2](at: c_int, path: *const c_char, flags: c_int) -> c_int: |next| {
        noted(next(at, path, flags), path, flags)
    };
    fn [creat creat64](path: *const c_char, mode: mode_t) -> c_int: |next| {
        noted(next(path, mode), path, CREATED)
    };
    fn [mkstemp mkstemp64](template: *mut c_char) -> c_int: |next| {
        noted(next(template), template, TEMPORARY)
    };
    fn [mkostemp mkostemp64 mkstemps mkstemps64](template: *mut c_char, more: c_int) -> c_int: |next| {
        noted(next(template, more), template, TEMPORARY)
    };
    fn [mkostemps mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int: |next| {
        noted(next(template, suffix, flags), template, TEMPORARY)
    };
}

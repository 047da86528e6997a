//! Hooks that open and create files.

use core::ffi::{c_char, c_int};

use libc::mode_t;

use super::opened;
use crate::real;

macro_rules! open {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: with what the program gave; `mode` may not have been given, and is then not read.
            let fd = unsafe { real::$name.get()(path, flags, mode) };
            // SAFETY: what was opened had a name.
            unsafe { opened(fd, path, flags) };
            fd
        }
    )*};
}
open!(open open64);

macro_rules! open_at {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: with what the program gave; `mode` may not have been given, and is then not read.
            let fd = unsafe { real::$name.get()(directory, path, flags, mode) };
            // SAFETY: what was opened had a name.
            unsafe { opened(fd, path, flags) };
            fd
        }
    )*};
}
open_at!(openat openat64);

// What programs call that were built to be checked (_FORTIFY_SOURCE), where no mode is given.
macro_rules! open_checked {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: with what the program gave.
            let fd = unsafe { real::$name.get()(path, flags) };
            // SAFETY: what was opened had a name.
            unsafe { opened(fd, path, flags) };
            fd
        }
    )*};
}
open_checked!(__open_2 __open64_2);

macro_rules! open_at_checked {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: with what the program gave.
            let fd = unsafe { real::$name.get()(directory, path, flags) };
            // SAFETY: what was opened had a name.
            unsafe { opened(fd, path, flags) };
            fd
        }
    )*};
}
open_at_checked!(__openat_2 __openat64_2);

macro_rules! create {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            // SAFETY: with what the program gave.
            let fd = unsafe { real::$name.get()(path, mode) };
            // SAFETY: what was opened had a name.
            unsafe { opened(fd, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) };
            fd
        }
    )*};
}
create!(creat creat64);

// Temporary files, whose names the C library chooses and writes into the program's string.
macro_rules! temporary {
    ($($name:ident($($more:ident),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(template: *mut c_char, $($more: c_int),*) -> c_int {
            // SAFETY: with what the program gave.
            let fd = unsafe { real::$name.get()(template, $($more),*) };
            // SAFETY: what was made got a name.
            unsafe { opened(fd, template.cast_const(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) };
            fd
        }
    )*};
}
temporary! {
    mkstemp();
    mkstemp64();
    mkostemp(flags);
    mkostemp64(flags);
    mkstemps(suffix);
    mkstemps64(suffix);
    mkostemps(suffix, flags);
    mkostemps64(suffix, flags);
}

//! Hooks that open and create files.

use core::ffi::{c_char, c_int};

use libc::mode_t;

use super::opened;
use crate::real;

macro_rules! open {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: with the program's arguments; `mode` may not have been given, and is then not read.
            let fd = unsafe { real::$name.get()(path, flags, mode) };
            // SAFETY: an opened file had a path.
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
            // SAFETY: with the program's arguments; `mode` may not have been given, and is then not read.
            let fd = unsafe { real::$name.get()(directory, path, flags, mode) };
            // SAFETY: an opened file had a path.
            unsafe { opened(fd, path, flags) };
            fd
        }
    )*};
}
open_at!(openat openat64);

// The variants for programs built with _FORTIFY_SOURCE, which take no mode.
macro_rules! open_checked {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: with the program's arguments.
            let fd = unsafe { real::$name.get()(path, flags) };
            // SAFETY: an opened file had a path.
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
            // SAFETY: with the program's arguments.
            let fd = unsafe { real::$name.get()(directory, path, flags) };
            // SAFETY: an opened file had a path.
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
            // SAFETY: with the program's arguments.
            let fd = unsafe { real::$name.get()(path, mode) };
            // SAFETY: an opened file had a path.
            unsafe { opened(fd, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) };
            fd
        }
    )*};
}
create!(creat creat64);

// Temporary files. The C library chooses their names and writes them into the program's string.
macro_rules! temporary {
    ($($name:ident($($more:ident),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(template: *mut c_char, $($more: c_int),*) -> c_int {
            // SAFETY: with the program's arguments.
            let fd = unsafe { real::$name.get()(template, $($more),*) };
            // SAFETY: the new file's name is in `template`.
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

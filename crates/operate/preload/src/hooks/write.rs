//! Hooks that write, truncate and extend files.

use core::ffi::{c_int, c_void};

use libc::iovec;

use super::place;
use super::read::OWN;
use crate::rules::Slot;
use crate::{process, rules, sys};

/// Makes a write that a rule may apply to, by `plain`. Always one call: the kernel locks the file and its offset for the whole of it, so
/// that concurrent writes through one open file do not mix.
fn follow(slot: &Slot, fd: c_int, at: Option<i64>, plain: &dyn Fn() -> isize) -> isize {
    let Ok(at) = place(at, 0) else { return plain() };
    let result = plain();
    if process::is_on() {
        rules::after_write(slot, fd, at, result);
    }
    result
}

hook! {
    fn write(fd: c_int, buffer: *const c_void, length: usize) -> isize, of fd: |slot, next| {
        follow(slot, fd, None, &|| next(fd, buffer, length))
    };
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> isize, of fd: |slot, next| {
        follow(slot, fd, None, &|| next(fd, parts, count))
    };
}

macro_rules! pwrite {
    ($($name:ident)*) => { hook! {$(
        fn $name(fd: c_int, buffer: *const c_void, length: usize, at: i64) -> isize, of fd: |slot, next| {
            follow(slot, fd, Some(at), &|| next(fd, buffer, length, at))
        };
    )*} };
}
pwrite!(pwrite pwrite64);

macro_rules! pwritev {
    ($($name:ident)*) => { hook! {$(
        fn $name(fd: c_int, parts: *const iovec, count: c_int, at: i64) -> isize, of fd: |slot, next| {
            follow(slot, fd, Some(at), &|| next(fd, parts, count, at))
        };
    )*} };
}
pwritev!(pwritev pwritev64);

/// Tells the rules not to delay a write that must not wait (`RWF_NOWAIT`).
fn hurry(slot: &Slot, flags: c_int) {
    if flags & libc::RWF_NOWAIT != 0 && process::is_on() {
        slot.with(|state| state.writer.hurry());
    }
}

macro_rules! pwritev2 {
    ($($name:ident)*) => { hook! {$(
        fn $name(fd: c_int, parts: *const iovec, count: c_int, at: i64, flags: c_int) -> isize, of fd: |slot, next| {
            let place = if at == OWN { None } else { Some(at) };
            follow(slot, fd, place, &|| {
                let done = next(fd, parts, count, at, flags);
                hurry(slot, flags);
                done
            })
        };
    )*} };
}
pwritev2!(pwritev2 pwritev64v2);

/// Notifies the rules that the file was truncated or lengthened.
pub(super) fn resized(slot: &Slot, fd: c_int) {
    if process::is_on()
        && let Ok(stat) = sys::fstat(fd)
    {
        rules::after_truncate(slot, stat.st_size as u64);
    }
}

macro_rules! resize {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => { hook! {$(
        fn $name(fd: c_int, $($arg: $type),*) -> c_int, of fd: |slot, next| {
            let done = next(fd, $($arg),*);
            if done == 0 {
                resized(slot, fd);
            }
            done
        };
    )*} };
}
resize! {
    ftruncate(length: i64);
    ftruncate64(length: i64);
    fallocate(mode: c_int, at: i64, length: i64);
    fallocate64(mode: c_int, at: i64, length: i64);
    posix_fallocate(at: i64, length: i64);
    posix_fallocate64(at: i64, length: i64);
}

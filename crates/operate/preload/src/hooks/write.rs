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

/// Tells the rules not to delay a write that must not wait (`RWF_NOWAIT`).
fn hurry(slot: &Slot, flags: c_int) {
    if flags & libc::RWF_NOWAIT != 0 && process::is_on() {
        slot.with(|state| state.writer.hurry());
    }
}

/// Notifies the rules that the file was truncated or lengthened.
pub(super) fn resized(slot: &Slot, fd: c_int) {
    if process::is_on()
        && let Ok(stat) = sys::fstat(fd)
    {
        rules::after_truncate(slot, sys::size_in(&stat));
    }
}

/// Makes a call that truncates or lengthens a file, by `resize`.
fn follow_resize(slot: &Slot, fd: c_int, resize: impl FnOnce() -> c_int) -> c_int {
    let done = resize();
    if done == 0 {
        resized(slot, fd);
    }
    done
}

followed! {
    fn [write](fd: c_int, buffer: *const c_void, length: usize) -> isize, of fd: |slot, next| {
        follow(slot, fd, None, &|| next(fd, buffer, length))
    };
    fn [writev](fd: c_int, parts: *const iovec, count: c_int) -> isize, of fd: |slot, next| {
        follow(slot, fd, None, &|| next(fd, parts, count))
    };
    fn [pwrite pwrite64](fd: c_int, buffer: *const c_void, length: usize, at: i64) -> isize, of fd: |slot, next| {
        follow(slot, fd, Some(at), &|| next(fd, buffer, length, at))
    };
    fn [pwritev pwritev64](fd: c_int, parts: *const iovec, count: c_int, at: i64) -> isize, of fd: |slot, next| {
        follow(slot, fd, Some(at), &|| next(fd, parts, count, at))
    };
    fn [pwritev2 pwritev64v2](fd: c_int, parts: *const iovec, count: c_int, at: i64, flags: c_int) -> isize,
    of fd: |slot, next| {
        follow(slot, fd, Some(at).filter(|&at| at != OWN), &|| {
            let done = next(fd, parts, count, at, flags);
            hurry(slot, flags);
            done
        })
    };
    fn [ftruncate ftruncate64](fd: c_int, length: i64) -> c_int, of fd: |slot, next| {
        follow_resize(slot, fd, || next(fd, length))
    };
    fn [fallocate fallocate64](fd: c_int, mode: c_int, at: i64, length: i64) -> c_int, of fd: |slot, next| {
        follow_resize(slot, fd, || next(fd, mode, at, length))
    };
    fn [posix_fallocate posix_fallocate64](fd: c_int, at: i64, length: i64) -> c_int, of fd: |slot, next| {
        follow_resize(slot, fd, || next(fd, at, length))
    };
}

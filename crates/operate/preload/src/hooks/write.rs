//! Hooks that write, truncate and extend files.

use core::ffi::{c_int, c_void};

use libc::iovec;

use super::place;
use super::read::FILE_OFFSET;
use crate::rules::Slot;
use crate::{process, rules, sys};

/// Makes a write that a rule may apply to, by `plain`. Always one call: the kernel locks the file
/// and its offset for the whole of it, so that concurrent writes through one open file do not mix.
pub(super) fn follow(slot: &Slot, fd: c_int, at: Option<i64>, plain: &dyn Fn() -> isize) -> isize {
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

/// Makes a call that truncates or lengthens a file, by `resize`, and notifies the rules.
pub(super) fn follow_resize(slot: &Slot, fd: c_int, resize: impl FnOnce() -> c_int) -> c_int {
    let done = resize();
    if done == 0
        && process::is_on()
        && let Ok(stat) = sys::fstat(fd)
    {
        rules::after_truncate(slot, sys::size_in(&stat));
    }
    done
}

hooks! {
    fn [write](fd: c_int, buffer: *const c_void, length: usize) -> isize, call(libc::SYS_write, fd, buffer, length),
    (slot of fd, next) => follow(slot, fd, None, &|| next(fd, buffer, length));
    fn [writev](fd: c_int, parts: *const iovec, count: c_int) -> isize, call(libc::SYS_writev, fd, parts, count),
    (slot of fd, next) => follow(slot, fd, None, &|| next(fd, parts, count));
    fn [pwrite pwrite64](fd: c_int, buffer: *const c_void, length: usize, at: i64) -> isize,
    call(libc::SYS_pwrite64, fd, buffer, length, at),
    (slot of fd, next) => follow(slot, fd, Some(at), &|| next(fd, buffer, length, at));
    fn [pwritev pwritev64](fd: c_int, parts: *const iovec, count: c_int, at: i64) -> isize,
    call(libc::SYS_pwritev, fd, parts, count, at),
    (slot of fd, next) => follow(slot, fd, Some(at), &|| next(fd, parts, count, at));
    fn [pwritev2 pwritev64v2](fd: c_int, parts: *const iovec, count: c_int, at: i64, flags: c_int) -> isize,
    call(libc::SYS_pwritev2, fd, parts, count, at, 0, flags),
    (slot of fd, next) => follow(slot, fd, Some(at).filter(|&at| at != FILE_OFFSET), &|| {
        let done = next(fd, parts, count, at, flags);
        hurry(slot, flags);
        done
    });
    fn [ftruncate ftruncate64](fd: c_int, length: i64) -> c_int, call(libc::SYS_ftruncate, fd, length),
    (slot of fd, next) => follow_resize(slot, fd, || next(fd, length));
    fn [fallocate fallocate64](fd: c_int, mode: c_int, at: i64, length: i64) -> c_int,
    call(libc::SYS_fallocate, fd, mode, at, length),
    (slot of fd, next) => follow_resize(slot, fd, || next(fd, mode, at, length));
    fn [posix_fallocate posix_fallocate64](fd: c_int, at: i64, length: i64) -> c_int, or(libc::ENOSYS),
    (slot of fd, next) => follow_resize(slot, fd, || next(fd, at, length));
}

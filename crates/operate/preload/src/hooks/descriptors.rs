//! Hooks that close, duplicate and change descriptors, and that end the process.

use core::ffi::{c_int, c_long, c_uint};

use super::{closing, duplicated, opened};
use crate::process::HookScope;
use crate::rules::FILES;
use crate::{helper, process, real, rules, sys};

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if FILES.is_followed(fd) {
        closing(fd);
    }
    if helper::is_ours(fd) && helper::is_really_ours(fd) {
        real::set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: no pointers.
    unsafe { real::close.get()(fd) }
}

/// Notifies the rules before all descriptors of a range are closed.
pub(super) fn closing_all(first: u32, last: u32) {
    if FILES.highest() < first || !process::is_on() {
        return;
    }
    for (fd, _) in FILES.entered(first, last) {
        closing(fd);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let known = libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE;
    if first <= last && flags as c_uint & !known == 0 && flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
        closing_all(first, last);
    }
    // SAFETY: no pointers.
    let next = |first, last| unsafe { real::close_range.get()(first, last, flags) };
    if let Some((below, above)) = around_ours(first, last) {
        let done = below.map_or(0, |below| next(first, below));
        return above.map_or(done, |above| if done == 0 { next(above, last) } else { done });
    }
    next(first, last)
}

/// If a range that is to be closed contains the library's own descriptor, returns the last number before it and the first behind it, as far
/// as they are in the range.
fn around_ours(first: c_uint, last: c_uint) -> Option<(Option<c_uint>, Option<c_uint>)> {
    let fd = helper::ours()?;
    let ours = fd as c_uint;
    if !(first..=last).contains(&ours) || !helper::is_really_ours(fd) {
        return None;
    }
    Some(((first < ours).then(|| ours.saturating_sub(1)), (ours < last).then(|| ours.saturating_add(1))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let from = first.max(0) as c_uint;
    closing_all(from, c_uint::MAX);
    let mut next = first;
    if let Some((below, Some(above))) = around_ours(from, c_uint::MAX) {
        if let Some(below) = below
            && sys::close_range(from, below, 0).is_err()
        {
            (from..=below).for_each(|fd| sys::close(fd as c_int));
        }
        next = above as c_int;
    }
    // SAFETY: no pointers.
    unsafe { real::closefrom.get()(next) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    let new = unsafe { real::dup.get()(fd) };
    duplicated(fd, new);
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    replacing(from, to);
    // SAFETY: no pointers.
    let new = unsafe { real::dup2.get()(from, to) };
    duplicated(from, new);
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    replacing(from, to);
    // SAFETY: no pointers.
    let new = unsafe { real::dup3.get()(from, to, flags) };
    duplicated(from, new);
    new
}

/// Notifies the rules before `to` is closed and made to name the file of `from`.
#[inline]
fn replacing(from: c_int, to: c_int) {
    helper::make_room(to);
    if from != to
        && FILES.is_followed(to)
        // A closed descriptor replaces nothing.
        && sys::flags(from).is_ok()
    {
        closing(to);
    }
}

/// Sets the flags of an open file. If they turn direct I/O on or off, another rule applies to the file.
#[cold]
#[inline(never)]
fn set_flags(fd: c_int, flags: c_int, set: &dyn Fn() -> c_int) -> c_int {
    let changes = |now: c_int| (now ^ flags) & libc::O_DIRECT != 0;
    if !process::is_on() || !sys::flags(fd).is_ok_and(changes) {
        return set();
    }
    closing(fd);
    let done = set();
    if let Ok(flags) = sys::flags(fd) {
        // SAFETY: no path.
        unsafe { opened(fd, core::ptr::null(), flags) };
    }
    done
}

macro_rules! control {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: c_long) -> c_int {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn hooked(fd: c_int, command: c_int, argument: c_long) -> c_int {
                // SAFETY: no pointers.
                let next = || unsafe { real::$name.get()(fd, command, argument) };
                if command == libc::F_SETLEASE {
                    super::keeping_errno(|| helper::let_go_of(fd));
                    return next();
                }
                if command == libc::F_SETFL {
                    return set_flags(fd, argument as c_int, &next);
                }
                let new = next();
                duplicated(fd, new);
                new
            }
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFL | libc::F_SETLEASE)
                && process::hook_scope() != HookScope::Nothing
            {
                // SAFETY: with the program's arguments.
                return unsafe { hooked(fd, command, argument) };
            }
            // SAFETY: with the program's arguments: one that it left out is not read.
            unsafe { real::$name.get()(fd, command, argument) }
        }
    )*};
}
control!(fcntl fcntl64);

#[cold]
#[inline(never)]
fn ending() {
    if process::is_on() {
        rules::before_exit();
    }
}

macro_rules! exit {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C library's name")]
        unsafe extern "C" fn $name(status: c_int) -> ! {
            if process::hook_scope() != HookScope::Nothing {
                ending();
            }
            // SAFETY: no pointers.
            unsafe { real::$name.get()(status) }
        }
    )*};
}
exit!(_exit _Exit);

//! Hooks that close, duplicate and change descriptors, and that end the process.

use core::ffi::{c_int, c_long, c_uint};

use super::{closing, duplicated, opened};
use crate::process::HookScope;
use crate::rules::FILES;
use crate::{helper, introspection, process, real, rules, sys};

/// Notifies the rules before all descriptors of a range are closed.
pub(super) fn closing_all(first: u32, last: u32) {
    if FILES.highest() < first || !process::is_on() {
        return;
    }
    for (fd, _) in FILES.entered(first, last) {
        closing(fd);
    }
}

/// If a range that is to be closed contains the library's own descriptor, returns the last number
/// before it and the first behind it, as far as they are in the range.
fn around_ours(first: c_uint, last: c_uint) -> Option<(Option<c_uint>, Option<c_uint>)> {
    let fd = helper::ours()?;
    let ours = fd as c_uint;
    if !(first..=last).contains(&ours) || !helper::is_really_ours(fd) {
        return None;
    }
    Some(((first < ours).then(|| ours.saturating_sub(1)), (ours < last).then(|| ours.saturating_add(1))))
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

/// Sets the flags of an open file. If they turn direct I/O on or off, another rule applies to the
/// file.
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

/// Makes a call of fcntl that duplicates a descriptor, or changes an open file, by `next`.
#[cold]
#[inline(never)]
fn controlled(fd: c_int, command: c_int, argument: c_int, next: &dyn Fn() -> c_int) -> c_int {
    match command {
        libc::F_SETFL => set_flags(fd, argument, next),
        libc::F_SETLEASE => {
            super::keeping_errno(|| helper::let_go_of(fd));
            next()
        }
        _ => noted(fd, next()),
    }
}

/// Notes that a descriptor was duplicated, and returns the new one.
#[inline]
fn noted(from: c_int, to: c_int) -> c_int {
    duplicated(from, to);
    to
}

#[cold]
#[inline(never)]
fn ending() {
    if process::is_on() {
        rules::before_exit();
    }
}

/// Replaces `closefrom`, which C libraries before 2.34 lack.
fn first_closefrom(first: c_int) {
    let first = first.max(0);
    if sys::close_range(first as u32, c_uint::MAX, 0).is_ok() {
        return;
    }
    // Before Linux 5.9.
    let named = introspection::named_descriptors(|fd| {
        if fd >= first {
            sys::close(fd);
        }
    });
    if !named {
        (first..sys::descriptor_limit().min(1 << 20) as c_int).for_each(sys::close);
    }
}

fn first_exit(status: c_int) -> ! {
    loop {
        // SAFETY: no pointers; it does not return.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [status as usize]) };
    }
}

hooks! {
    fn [close](fd: c_int) -> c_int, call(libc::SYS_close, fd), (next) => {
        if FILES.is_followed(fd) {
            closing(fd);
        }
        if helper::is_ours(fd) && helper::is_really_ours(fd) {
            real::set_errno(libc::EBADF);
            return -1;
        }
        next(fd)
    };
    fn [close_range](first: c_uint, last: c_uint, flags: c_int) -> c_int,
    call(libc::SYS_close_range, first, last, flags), (next) => {
        let known = libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE;
        if first <= last && flags as c_uint & !known == 0 && flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
            closing_all(first, last);
        }
        if let Some((below, above)) = around_ours(first, last) {
            let done = below.map_or(0, |below| next(first, below, flags));
            return above.map_or(done, |above| if done == 0 { next(above, last, flags) } else { done });
        }
        next(first, last, flags)
    };
    fn [closefrom](first: c_int) -> (), own(first_closefrom(first)), (next) => {
        let from = first.max(0) as c_uint;
        closing_all(from, c_uint::MAX);
        let mut rest = first;
        if let Some((below, Some(above))) = around_ours(from, c_uint::MAX) {
            if let Some(below) = below
                && sys::close_range(from, below, 0).is_err()
            {
                (from..=below).for_each(|fd| sys::close(fd as c_int));
            }
            rest = above as c_int;
        }
        next(rest);
    };
    fn [dup](fd: c_int) -> c_int, call(libc::SYS_dup, fd), (next) => noted(fd, next(fd));
    fn [dup2](from: c_int, to: c_int) -> c_int, or(-1), (next) => {
        replacing(from, to);
        noted(from, next(from, to))
    };
    fn [dup3](from: c_int, to: c_int, flags: c_int) -> c_int, call(libc::SYS_dup3, from, to, flags), (next) => {
        replacing(from, to);
        noted(from, next(from, to, flags))
    };
    fn [fcntl fcntl64](fd: c_int, command: c_int, argument: c_long) -> c_int,
    call(libc::SYS_fcntl, fd, command, argument), (next) => {
        if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFL | libc::F_SETLEASE)
            && process::hook_scope() != HookScope::Nothing
        {
            return controlled(fd, command, argument as c_int, &|| next(fd, command, argument));
        }
        next(fd, command, argument)
    };
    fn [_exit _Exit](status: c_int) -> !, own(first_exit(status)),
    (first) => if process::hook_scope() != HookScope::Nothing { ending() };
}

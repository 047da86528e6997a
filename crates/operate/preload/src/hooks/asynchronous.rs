//! Hooks of calls that bypass the others: asynchronous I/O, system calls by number, and calls that
//! the helper's thread would disturb.

#![allow(clippy::many_single_char_names, reason = "the arguments of any system call")]

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use super::descriptors::closing_all;
use super::{closing, duplicated, keeping_errno, names, opened, read, sync, write};
use crate::launcher;
use crate::process::HookScope;
use crate::rules::{FILES, Slot};
use crate::settings::Part;
use crate::{helper, introspection, process, rules, sys};

/// Requests inspected per call.
const INSPECTED_MAX: usize = 16;

/// Notes the files of requests that are about to be submitted: their I/O is not hooked. Inspects
/// the first 64 calls, then one in 64.
#[cold]
#[inline(never)]
fn submitting(count: c_long, list: usize) {
    static CALLS_SEEN: AtomicU32 = AtomicU32::new(0);
    let calls = CALLS_SEEN.fetch_add(1, Ordering::Relaxed);
    if (calls >= 64 && !calls.is_multiple_of(64)) || !process::is_on() {
        return;
    }
    let Ok(count) = usize::try_from(count) else { return };
    // SAFETY: all bits are valid for numbers.
    let Some(requests) = (unsafe { introspection::peek::<usize, INSPECTED_MAX>(list, count) }) else {
        return;
    };
    for request in requests.into_iter().take(count) {
        // SAFETY: all bits are valid for numbers: a `struct iocb`, whose descriptor is at offset
        // 20.
        let Some([.., fd]) = (unsafe { introspection::peek::<c_int, 6>(request, 6) }) else { return };
        if let Some(slot) = FILES.slot_of(fd) {
            keeping_errno(|| rules::passed_by(slot, fd));
        }
    }
}

/// Disables the rules before a seccomp filter is set, which might kill the process for their system
/// calls.
#[cold]
#[inline(never)]
fn filtering() {
    if process::is_on() {
        keeping_errno(rules::before_exit);
        leaving();
        process::turn_off();
    }
}

/// Whether these arguments of prctl(2) set a filter. A call without a program only asks whether
/// filters are supported, and fails.
fn filters_by_prctl([option, mode, program]: [c_long; 3]) -> bool {
    option == c_long::from(libc::PR_SET_SECCOMP)
        && (mode != c_long::from(libc::SECCOMP_MODE_FILTER) || program != 0)
}

/// Whether these arguments of seccomp(2) set a filter. Its other operations only ask.
fn filters([operation, _, program]: [c_long; 3]) -> bool {
    operation == c_long::from(libc::SECCOMP_SET_MODE_STRICT)
        || (operation == c_long::from(libc::SECCOMP_SET_MODE_FILTER) && program != 0)
}

/// Ends the helper before a call that fails in a process with a second thread, or that takes
/// privileges from the calling thread alone.
#[cold]
#[inline(never)]
fn leaving() {
    keeping_errno(helper::leave_now);
}

/// Whether a number is that of one of these system calls.
macro_rules! is_one_of {
    ($number:expr, $($name:ident)+) => {
        matches!($number, $(libc::$name)|+)
    };
}

/// Whether the helper must be gone before this system call.
fn is_left_for(number: c_long) -> bool {
    is_one_of!(number,
        SYS_unshare SYS_setns SYS_capset SYS_landlock_restrict_self SYS_setuid SYS_setreuid SYS_setresuid SYS_setgid
        SYS_setregid SYS_setresgid SYS_setgroups)
}

/// Whether this system call is hooked.
#[inline]
fn is_hooked(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_one_of!(number, SYS_open SYS_creat SYS_dup2 SYS_unlink SYS_rename SYS_link) {
        return true;
    }
    is_left_for(number)
        || is_one_of!(number,
            SYS_read SYS_pread64 SYS_readv SYS_preadv SYS_preadv2 SYS_write SYS_pwrite64 SYS_writev SYS_pwritev
            SYS_pwritev2 SYS_fsync SYS_fdatasync SYS_openat SYS_openat2 SYS_close SYS_close_range SYS_dup SYS_dup3
            SYS_fcntl SYS_io_submit SYS_io_uring_setup SYS_seccomp SYS_prctl SYS_unlinkat SYS_renameat SYS_renameat2
            SYS_linkat SYS_umount2 SYS_sendfile SYS_copy_file_range SYS_splice SYS_ftruncate SYS_fallocate SYS_execve
            SYS_execveat)
}

/// Replaces libaio's function: it returns the error and leaves `errno`.
///
/// # Safety
///
/// As for `io_submit`.
unsafe fn first_submit(context: *mut c_void, count: c_long, list: *mut *mut c_void) -> c_int {
    let args = [context as usize, count as usize, list as usize];
    // SAFETY: by this function's contract, which is the system call's.
    unsafe { sys::call(libc::SYS_io_submit, args) }
        .map_or_else(|error| -error.0, |submitted| submitted as c_int)
}

hooks! {
    fn [io_submit](context: *mut c_void, count: c_long, list: *mut *mut c_void) -> c_int,
    own(first_submit(context, count, list)),
    (first) => if process::hook_scope() != HookScope::Nothing { submitting(count, list as usize) };
    fn [prctl](option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int,
    call(libc::SYS_prctl, option, a, b, c, d), (first) => {
        if filters_by_prctl([c_long::from(option), a, b]) && process::hook_scope() != HookScope::Nothing {
            filtering();
        }
    };
    fn [unshare](flags: c_int) -> c_int, call(libc::SYS_unshare, flags), (first) => leaving();
    fn [setns](fd: c_int, kind: c_int) -> c_int, call(libc::SYS_setns, fd, kind), (first) => leaving();
    fn [capset](header: *mut c_void, data: *const c_void) -> c_int, call(libc::SYS_capset, header, data),
    (first) => leaving();
    // Passes all calls on as they are.
    fn [syscall](
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
    ) -> c_long, call(number, a, b, c, d, e, f), (next) => {
        if is_hooked(number) && (process::hook_scope() != HookScope::Nothing || launcher::is_on()) {
            return hooked(number, [a, b, c, d, e], &|d, e| next(number, a, b, c, d, e, f));
        }
        next(number, a, b, c, d, e, f)
    };
}

/// Makes a hooked call by `next`, which takes its fourth and fifth argument: a copy may have a
/// shorter length.
#[cold]
#[inline(never)]
fn hooked(number: c_long, args: [c_long; 5], next: &dyn Fn(c_long, c_long) -> c_long) -> c_long {
    let [a, _, _, d, e] = args;
    if let Some(done) = super::exec::by_number(number, args, || next(d, e) as c_int) {
        return done.into();
    }
    if !process::is_on() {
        return next(d, e);
    }
    if let Some(slot) = FILES.slot_of(a as c_int)
        && let Some(done) = transferred(slot, number, args, &|| next(d, e) as isize)
    {
        return done as c_long;
    }
    let copy = |length| if number == libc::SYS_sendfile { next(length, e) } else { next(d, length) };
    if let Some(done) = super::copy::by_number(number, args, &copy) {
        return done;
    }
    before_call(number, args);
    names::before_call(number, args);
    let done = next(d, e);
    after_call(number, args, done);
    names::after_call(number, args, done);
    done
}

/// Makes a call that reads, writes, resizes or syncs a followed file, by `plain`. `None`: another
/// call.
fn transferred(
    slot: &Slot,
    number: c_long,
    [a, b, c, d, _]: [c_long; 5],
    plain: &dyn Fn() -> isize,
) -> Option<isize> {
    let fd = a as c_int;
    // Without a position it is a call that fails, or preadv2(2) or pwritev2(2) at the file offset.
    let at = Some(d).filter(|&at| at >= 0);
    Some(match number {
        libc::SYS_read => read::by_number(slot, fd, None, c as usize, plain),
        libc::SYS_pread64 => read::by_number(slot, fd, at, c as usize, plain),
        libc::SYS_readv => read::by_number(slot, fd, None, length_of(b, c), plain),
        libc::SYS_preadv | libc::SYS_preadv2 => read::by_number(slot, fd, at, length_of(b, c), plain),
        libc::SYS_write | libc::SYS_writev => write::follow(slot, fd, None, plain),
        libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => write::follow(slot, fd, at, plain),
        libc::SYS_ftruncate | libc::SYS_fallocate => {
            write::follow_resize(slot, fd, || plain() as c_int) as isize
        }
        libc::SYS_fsync | libc::SYS_fdatasync => sync::synced(slot, fd, plain() as c_int) as isize,
        _ => return None,
    })
}

/// Returns the bytes of a vectored call's buffers.
fn length_of(parts: c_long, count: c_long) -> usize {
    introspection::length_of(parts as *const libc::iovec, count as c_int) as usize
}

/// Notifies the rules before the call.
fn before_call(number: c_long, [a, b, c, ..]: [c_long; 5]) {
    match number {
        libc::SYS_close if FILES.is_followed(a as c_int) => closing(a as c_int),
        libc::SYS_close_range if c == 0 => closing_all(a as c_uint, b as c_uint),
        libc::SYS_io_submit => submitting(b, c as usize),
        libc::SYS_seccomp if filters([a, b, c]) => filtering(),
        libc::SYS_prctl if filters_by_prctl([a, b, c]) => filtering(),
        _ if is_left_for(number) => leaving(),
        _ => {}
    }
}

/// Notes that a ring was created: from now on, a stream's reads and writes may bypass the hooks.
/// The other rules are for files that are written by calls.
fn made_uring() {
    if process::part() != Part::Stream {
        return;
    }
    process::found_uring();
    for (fd, slot) in FILES.entered(0, FILES.highest()) {
        keeping_errno(|| rules::passed_by(slot, fd));
    }
}

/// Notifies the rules after a call that opened or duplicated a descriptor, whether or not it
/// succeeded.
fn after_call(number: c_long, [a, b, c, ..]: [c_long; 5], done: c_long) {
    let (fd, new) = (a as c_int, done as c_int);
    // SAFETY: an opened file had a path.
    let opened = |path: c_long, flags: c_int| unsafe { opened(new, path as *const c_char, flags) };
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => opened(a, b as c_int),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => opened(a, libc::O_CREAT | libc::O_WRONLY),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => duplicated(fd, new),
        libc::SYS_openat => opened(b, c as c_int),
        libc::SYS_openat2 => {
            // SAFETY: all bits are valid for a number: the call has read the flags, the first of a
            // `struct open_how`.
            let flags = unsafe { introspection::peek::<u64, 1>(c as usize, 1) }.map_or(0, |[flags]| flags);
            opened(b, flags as c_int);
        }
        libc::SYS_dup | libc::SYS_dup3 => duplicated(fd, new),
        libc::SYS_fcntl if [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&(b as c_int)) => {
            duplicated(fd, new);
        }
        libc::SYS_io_uring_setup if done >= 0 => made_uring(),
        _ => {}
    }
}

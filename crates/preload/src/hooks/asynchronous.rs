//! Hooks of calls that bypass the others: asynchronous I/O, system calls by number, and calls that the helper's thread would disturb.

#![allow(clippy::many_single_char_names, reason = "the arguments of any system call")]

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use super::descriptors::closing_all;
use super::{closing, duplicated, keeping_errno, names, opened};
use crate::parts::MAX_TRANSFER;
use crate::process::Concern;
use crate::rules::{FILES, How};
use crate::settings::Part;
use crate::{helper, introspection, launcher, process, real, rules};

/// Requests of a call that are inspected.
const FEW: usize = 16;

/// Requests are about to be submitted: the files that they name are read or written unseen. Inspected for the first calls, and for
/// few of the rest.
#[cold]
#[inline(never)]
fn submitting(count: c_long, list: usize) {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed);
    if (calls >= 64 && !calls.is_multiple_of(64)) || !process::is_on() {
        return;
    }
    let Ok(count) = usize::try_from(count) else { return };
    // SAFETY: all bits are valid for numbers.
    let Some(requests) = (unsafe { introspection::peek::<usize, FEW>(list, count) }) else { return };
    for request in requests.into_iter().take(count) {
        // SAFETY: all bits are valid for numbers: a `struct iocb`, whose descriptor lies at 20.
        let Some([.., fd]) = (unsafe { introspection::peek::<c_int, 6>(request, 6) }) else { return };
        if let Some(slot) = FILES.slot_of(fd) {
            keeping_errno(|| rules::passed_by(slot, fd));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn io_submit(context: *mut c_void, count: c_long, list: *mut *mut c_void) -> c_int {
    if process::concern() != Concern::Nothing {
        submitting(count, list as usize);
    }
    // SAFETY: with what the program gave.
    unsafe { real::io_submit.get()(context, count, list) }
}

/// A filter of system calls is about to be set, which the rules' own may end the process by: they are ended before.
#[cold]
#[inline(never)]
fn filtering() {
    if process::is_on() {
        keeping_errno(rules::before_exit);
        leaving();
        process::turn_off();
    }
}

/// Whether a filter is set by these arguments of prctl(2): the call without a program, by which it is asked whether filters can be, fails.
fn filters_by_prctl([option, mode, program]: [c_long; 3]) -> bool {
    option == c_long::from(libc::PR_SET_SECCOMP)
        && (mode != c_long::from(libc::SECCOMP_MODE_FILTER) || program != 0)
}

/// The same for seccomp(2), whose other operations ask, too.
fn filters([operation, _, program]: [c_long; 3]) -> bool {
    operation == c_long::from(libc::SECCOMP_SET_MODE_STRICT)
        || (operation == c_long::from(libc::SECCOMP_SET_MODE_FILTER) && program != 0)
}

/// A call is about to be made that fails where the process has a second thread, or that takes rights from the calling thread alone: the
/// helper is gone before.
#[cold]
#[inline(never)]
fn leaving() {
    keeping_errno(helper::leave_now);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    if filters_by_prctl([c_long::from(option), a, b]) && process::concern() != Concern::Nothing {
        filtering();
    }
    // SAFETY: with what the program gave: an argument that it left out is not read.
    unsafe { real::prctl.get()(option, a, b, c, d) }
}

macro_rules! leave {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            leaving();
            // SAFETY: with what the program gave.
            unsafe { real::$name.get()($($arg),*) }
        }
    )*};
}
leave! {
    unshare(flags: c_int);
    setns(fd: c_int, kind: c_int);
    capset(header: *mut c_void, data: *const c_void);
}

/// Whether a system call is one before which the helper is to be gone.
fn is_left_for(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_unshare
            | libc::SYS_setns
            | libc::SYS_capset
            | libc::SYS_landlock_restrict_self
            | libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
    )
}

/// Whether a system call is one that something is done for.
#[inline]
fn is_hooked(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(
        number,
        libc::SYS_open
            | libc::SYS_creat
            | libc::SYS_dup2
            | libc::SYS_unlink
            | libc::SYS_rename
            | libc::SYS_link
    ) {
        return true;
    }
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_writev
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_openat
            | libc::SYS_openat2
            | libc::SYS_close
            | libc::SYS_close_range
            | libc::SYS_dup
            | libc::SYS_dup3
            | libc::SYS_fcntl
            | libc::SYS_io_submit
            | libc::SYS_io_uring_setup
            | libc::SYS_seccomp
            | libc::SYS_prctl
            | libc::SYS_unlinkat
            | libc::SYS_renameat
            | libc::SYS_renameat2
            | libc::SYS_linkat
            | libc::SYS_umount2
            | libc::SYS_sendfile
            | libc::SYS_copy_file_range
            | libc::SYS_splice
            | libc::SYS_ftruncate
            | libc::SYS_fallocate
            | libc::SYS_execve
            | libc::SYS_execveat
    ) || is_left_for(number)
}

/// All are passed on as they are.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if is_hooked(number) && (process::concern() != Concern::Nothing || launcher::is_on()) {
        // SAFETY: with what the program gave.
        return unsafe { hooked(number, a, b, c, d, e, f) };
    }
    // SAFETY: with what the program gave: an argument that it left out is not read.
    unsafe { real::syscall.get()(number, a, b, c, d, e, f) }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn hooked(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if let Some(done) = super::exec::by_number(number, [a, b, c, d, e]) {
        return done;
    }
    let on = process::is_on();
    if on {
        before_call(number, [a, b, c, d]);
        names::before_call(number, [a, b, c, d], e);
    }
    // SAFETY: with what the program gave; of a copy a shorter length.
    let next = |d, e| unsafe { real::syscall.get()(number, a, b, c, d, e, f) };
    let copy = |length| if number == libc::SYS_sendfile { next(length, e) } else { next(d, length) };
    if on && let Some(done) = super::copy::by_number(number, [a, b, c, d, e], &copy) {
        return done;
    }
    let done = next(d, e);
    if on {
        after_call(number, [a, b, c, d], done);
        names::after_call(number, [a, b, c, d], done);
    }
    done
}

/// Before a call is made.
fn before_call(number: c_long, [a, b, c, d]: [c_long; 4]) {
    match number {
        libc::SYS_read => reading(a as c_int, None, c),
        libc::SYS_pread64 => reading(a as c_int, u64::try_from(d).ok(), c),
        libc::SYS_readv if FILES.is_followed(a as c_int) => reading(a as c_int, None, length_of(b, c)),
        // Without a position: one that fails, or preadv2(2) at the file's own.
        libc::SYS_preadv | libc::SYS_preadv2 if FILES.is_followed(a as c_int) => {
            reading(a as c_int, u64::try_from(d).ok(), length_of(b, c));
        }
        libc::SYS_close if FILES.is_followed(a as c_int) => closing(a as c_int),
        libc::SYS_close_range if c == 0 => closing_all(a as c_uint, b as c_uint),
        libc::SYS_io_submit => submitting(b, c as usize),
        libc::SYS_seccomp if filters([a, b, c]) => filtering(),
        libc::SYS_prctl if filters_by_prctl([a, b, c]) => filtering(),
        _ if is_left_for(number) => leaving(),
        _ => {}
    }
}

/// Bytes of a vectored call's buffers.
fn length_of(parts: c_long, count: c_long) -> c_long {
    introspection::length_of(parts as *const libc::iovec, count as c_int) as c_long
}

/// A part of a file is about to be read; by this call it can't be uncached.
fn reading(fd: c_int, at: Option<u64>, length: c_long) {
    if let (Some(slot), Ok(length)) = (FILES.slot_of(fd), u64::try_from(length))
        && rules::before_read(slot, fd, at, length.min(MAX_TRANSFER as u64)) == How::Uncached
    {
        rules::uncached_refused(slot);
    }
}

/// From now on, what a stream reads and writes may pass by. Other processes' rules are for files that are written by calls.
fn made_uring() {
    if process::part() != Part::Stream {
        return;
    }
    process::found_uring();
    for (fd, slot) in FILES.entered(0, FILES.highest()) {
        keeping_errno(|| rules::passed_by(slot, fd));
    }
}

/// After a call that succeeded, or failed.
fn after_call(number: c_long, [a, b, c, d]: [c_long; 4], done: c_long) {
    let fd = a as c_int;
    #[cfg(target_arch = "x86_64")]
    match number {
        // SAFETY: what was opened had a name.
        libc::SYS_open => return unsafe { opened(done as c_int, a as *const c_char, b as c_int) },
        libc::SYS_creat => {
            // SAFETY: what was opened had a name.
            return unsafe { opened(done as c_int, a as *const c_char, libc::O_CREAT | libc::O_WRONLY) };
        }
        libc::SYS_dup2 => return duplicated(fd, done as c_int),
        _ => {}
    }
    match number {
        // SAFETY: what was opened had a name.
        libc::SYS_openat => return unsafe { opened(done as c_int, b as *const c_char, c as c_int) },
        libc::SYS_openat2 => {
            // SAFETY: the call has read the flags, the first of a `struct open_how`; what was opened had a name.
            return unsafe {
                let flags = introspection::peek::<u64, 1>(c as usize, 1).map_or(0, |[flags]| flags);
                opened(done as c_int, b as *const c_char, flags as c_int);
            };
        }
        libc::SYS_dup | libc::SYS_dup3 => return duplicated(fd, done as c_int),
        libc::SYS_fcntl if [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&(b as c_int)) => {
            return duplicated(fd, done as c_int);
        }
        _ => {}
    }
    if number == libc::SYS_io_uring_setup && done >= 0 {
        return made_uring();
    }
    let Some(slot) = FILES.slot_of(fd) else { return };
    let at = u64::try_from(d).ok();
    match number {
        libc::SYS_read | libc::SYS_readv => rules::after_read(slot, fd, None, done as isize),
        libc::SYS_pread64 | libc::SYS_preadv | libc::SYS_preadv2 => {
            rules::after_read(slot, fd, at, done as isize);
        }
        libc::SYS_write | libc::SYS_writev => rules::after_write(slot, fd, None, done as isize),
        libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => {
            rules::after_write(slot, fd, at, done as isize);
        }
        libc::SYS_ftruncate | libc::SYS_fallocate if done == 0 => super::write::resized(slot, fd),
        libc::SYS_fsync | libc::SYS_fdatasync => rules::after_sync(slot, fd, done as c_int),
        _ => {}
    }
}

//! Hooks that read files.

use core::ffi::{c_int, c_long, c_void};

use libc::iovec;

use super::place;
use crate::parts::MAX_TRANSFER;
use crate::rules::{ReadMode, Slot};
use crate::sys::UNCACHED;
use crate::{introspection, process, real, rules};

/// Stands for the file offset in preadv2(2) and pwritev2(2).
pub(super) const FILE_OFFSET: i64 = -1;

/// The program's buffers: their list, and their number.
type Buffers = (*const iovec, c_int);

/// Reads uncached. `None`: that is not supported, and nothing was read.
fn uncached(slot: &Slot, fd: c_int, at: Option<u64>, (parts, count): Buffers) -> Option<isize> {
    let errno = real::errno();
    let at = at.map_or(FILE_OFFSET, |at| at as i64);
    // SAFETY: the program's own buffers, as it gave them.
    let done = unsafe { preadv64v2::NEXT.get()(fd, parts, count, at, UNCACHED) };
    if done < 0 && [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS].contains(&real::errno()) {
        rules::uncached_refused(slot);
        real::set_errno(errno);
        return None;
    }
    Some(done)
}

/// Makes a read that a rule may apply to, by `plain`. Always one call: the kernel holds the file
/// offset for the whole of it.
fn follow(
    slot: &Slot,
    fd: c_int,
    at: Option<i64>,
    buffer: *mut c_void,
    length: usize,
    plain: &dyn Fn() -> isize,
) -> isize {
    let (Ok(at), true) = (place(at, length), process::is_on()) else { return plain() };
    let whole = iovec { iov_base: buffer, iov_len: length };
    make(slot, fd, at, length.min(MAX_TRANSFER) as u64, Some((&raw const whole, 1)), plain)
}

/// Makes a read into several buffers that a rule may apply to.
fn follow_parts(
    slot: &Slot,
    fd: c_int,
    at: Option<i64>,
    buffers: Buffers,
    may_uncached: bool,
    plain: &dyn Fn() -> isize,
) -> isize {
    let (Ok(at), true) = (place(at, 0), process::is_on()) else { return plain() };
    let length = introspection::length_of(buffers.0, buffers.1).min(MAX_TRANSFER as u64);
    make(slot, fd, at, length, may_uncached.then_some(buffers), plain)
}

/// Makes a read by its number, which cannot be made uncached.
pub(super) fn by_number(
    slot: &Slot,
    fd: c_int,
    at: Option<i64>,
    length: usize,
    plain: &dyn Fn() -> isize,
) -> isize {
    let Ok(at) = place(at, length) else { return plain() };
    make(slot, fd, at, length.min(MAX_TRANSFER) as u64, None, plain)
}

/// Makes a read of `length` bytes, and notifies the rules before and after it. Reads uncached into
/// `buffers` if there are some, else by `plain`.
fn make(
    slot: &Slot,
    fd: c_int,
    at: Option<u64>,
    length: u64,
    buffers: Option<Buffers>,
    plain: &dyn Fn() -> isize,
) -> isize {
    let mode = rules::before_read(slot, fd, at, length);
    let result = rules::pace_read(slot, || {
        let done = match (mode, buffers) {
            (ReadMode::Plain, _) => None,
            (ReadMode::Uncached, Some(buffers)) => uncached(slot, fd, at, buffers),
            (ReadMode::Uncached, None) => {
                rules::uncached_refused(slot);
                None
            }
        };
        done.unwrap_or_else(plain)
    });
    rules::after_read(slot, fd, at, result);
    result
}

/// Notifies the rules before the program prefetches a part of the file.
pub(super) fn prefetch(slot: &Slot, fd: c_int, at: i64, length: usize) {
    if let Ok(Some(at)) = place(Some(at), length)
        && process::is_on()
    {
        rules::before_prefetch(slot, fd, at, length as u64);
    }
}

/// Makes a read into no buffer (a copy by the kernel), by `make`.
pub(super) fn follow_copy(
    slot: Option<&Slot>,
    fd: c_int,
    at: Option<u64>,
    length: usize,
    make: impl FnOnce() -> isize,
) -> isize {
    if let Some(slot) = slot
        && rules::before_read(slot, fd, at, length as u64) == ReadMode::Uncached
    {
        match at {
            Some(at) => rules::before_uncached_copy(slot, fd, at, length as u64),
            None => rules::uncached_refused(slot),
        }
    }
    let result = make();
    if let Some(slot) = slot {
        rules::after_read(slot, fd, at, result);
    }
    result
}

// Ends the program as the C library does if a buffer is too small for the data.
next! { __chk_fail() -> !, own(libc::abort()) }

/// Returns the number of a call that reads `length` bytes into a buffer of `room` bytes. Ends the
/// program if the buffer is too small.
fn checked(length: usize, room: usize, number: c_long) -> c_long {
    // SAFETY: it takes no arguments, and does not return.
    if length > room { unsafe { (__chk_fail::NEXT.get())() } } else { number }
}

// Offsets as preadv(2) takes them: on 64-bit architectures the low half has all 64 bits, and the
// high half is left out.
hooks! {
    fn [read](fd: c_int, buffer: *mut c_void, length: usize) -> isize, call(libc::SYS_read, fd, buffer, length),
    (slot of fd, next) => follow(slot, fd, None, buffer, length, &|| next(fd, buffer, length));
    fn [__read_chk](fd: c_int, buffer: *mut c_void, length: usize, room: usize) -> isize,
    call(checked(length, room, libc::SYS_read), fd, buffer, length),
    (slot of fd, next) => {
        let plain = || next(fd, buffer, length, room);
        if length > room { plain() } else { follow(slot, fd, None, buffer, length, &plain) }
    };
    fn [pread pread64](fd: c_int, buffer: *mut c_void, length: usize, at: i64) -> isize,
    call(libc::SYS_pread64, fd, buffer, length, at),
    (slot of fd, next) => follow(slot, fd, Some(at), buffer, length, &|| next(fd, buffer, length, at));
    fn [__pread_chk __pread64_chk](fd: c_int, buffer: *mut c_void, length: usize, at: i64, room: usize) -> isize,
    call(checked(length, room, libc::SYS_pread64), fd, buffer, length, at),
    (slot of fd, next) => {
        let plain = || next(fd, buffer, length, at, room);
        if length > room { plain() } else { follow(slot, fd, Some(at), buffer, length, &plain) }
    };
    fn [readv](fd: c_int, parts: *const iovec, count: c_int) -> isize, call(libc::SYS_readv, fd, parts, count),
    (slot of fd, next) => follow_parts(slot, fd, None, (parts, count), true, &|| next(fd, parts, count));
    fn [preadv preadv64](fd: c_int, parts: *const iovec, count: c_int, at: i64) -> isize,
    call(libc::SYS_preadv, fd, parts, count, at),
    (slot of fd, next) => follow_parts(slot, fd, Some(at), (parts, count), true, &|| next(fd, parts, count, at));
    fn [preadv2 preadv64v2](fd: c_int, parts: *const iovec, count: c_int, at: i64, flags: c_int) -> isize,
    call(libc::SYS_preadv2, fd, parts, count, at, 0, flags), (slot of fd, next) => {
        let place = Some(at).filter(|&at| at != FILE_OFFSET);
        follow_parts(slot, fd, place, (parts, count), flags == 0, &|| next(fd, parts, count, at, flags))
    };
    fn [readahead](fd: c_int, at: i64, length: usize) -> isize, call(libc::SYS_readahead, fd, at, length),
    (slot of fd, next) => {
        prefetch(slot, fd, at, length);
        next(fd, at, length)
    };
}

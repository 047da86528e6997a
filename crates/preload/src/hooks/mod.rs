//! The C library's functions, as the program finds them: each calls the next definition of its name, and notifies the rules.
//!
//! Each is first the call itself: only where the descriptor has a slot, or a name may be one that a rule is for, is more done, out of
//! line. Functions with variable arguments are defined with a fixed number of them: on x86-64 (System V) and aarch64 (AAPCS64, Linux)
//! whole numbers and pointers among the variable arguments are passed as those of fixed ones are, and one that a caller left out is
//! handed on unread, or read by nobody.
//!
//! Invariants: those of the crate ([`crate`]); and the program's memory is read by the kernel alone, or once a call with it has
//! succeeded, so that a bad address ends as it would have.

#![allow(unsafe_code, reason = "the C library's functions")]

use core::ffi::{CStr, c_char, c_int};
use core::num::TryFromIntError;

use crate::process::Concern;
use crate::rules::FILES;
use crate::{process, real, rules};

/// Defines functions that notify a rule where their descriptor is followed: `|slot, next| …` then makes the call, by `next`. Where
/// it isn't, the call is handed on by a jump.
macro_rules! hook {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty, of $fd:ident: |$slot:ident, $next:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn followed($($arg: $type),*) -> $result {
                // SAFETY: with what the program gave, or parts of it.
                let $next = |$($arg: $type),*| unsafe { crate::real::$name.get()($($arg),*) };
                match crate::rules::FILES.slot_of($fd) {
                    Some($slot) => $body,
                    None => $next($($arg),*),
                }
            }
            if crate::rules::FILES.is_followed($fd) {
                // SAFETY: the caller keeps the contract of the C library's function.
                unsafe { followed($($arg),*) }
            } else {
                // SAFETY: with what the program gave.
                unsafe { crate::real::$name.get()($($arg),*) }
            }
        }
    )*};
}

mod asynchronous;
mod copy;
mod descriptors;
mod exec;
pub(crate) mod formatted;
mod listed;
mod map;
mod names;
mod open;
mod read;
pub(crate) mod stdio;
mod sync;
mod write;

/// A position as the rules take it, of a call of so many bytes; an error where the kernel will refuse the call.
fn place(at: Option<i64>, length: usize) -> Result<Option<u64>, TryFromIntError> {
    let start = at.map(u64::try_from).transpose()?;
    i64::try_from((length as u64).saturating_add(start.unwrap_or(0)))?;
    Ok(start)
}

/// Leaves `errno` as it was: what the rules do where a file is opened or closed may make a thread, by the C library.
fn keeping_errno<R>(act: impl FnOnce() -> R) -> R {
    let errno = real::errno();
    let result = act();
    real::set_errno(errno);
    result
}

/// A descriptor was handed out. `path` is null where there is none.
///
/// # Safety
///
/// `path` is null or a string, as what has just been opened is.
#[inline]
unsafe fn opened(fd: c_int, path: *const c_char, flags: c_int) {
    if fd < 0 {
        return;
    }
    let concern = process::concern();
    if concern == Concern::Nothing {
        return;
    }
    if FILES.is_followed(fd) && process::is_on() {
        FILES.forget(fd);
    }
    if path.is_null() {
        return opened_file(fd, None, flags);
    }
    // SAFETY: by this function's contract.
    let path = unsafe { CStr::from_ptr(path) };
    if concern == Concern::All || process::concerns(path.to_bytes()) {
        opened_file(fd, Some(path), flags);
    }
}

#[cold]
#[inline(never)]
fn opened_file(fd: c_int, path: Option<&CStr>, flags: c_int) {
    if !process::is_on() {
        return;
    }
    keeping_errno(|| {
        rules::opened(fd, path, flags);
        if process::has_uring()
            && let Some(slot) = FILES.slot_of(fd)
        {
            rules::passed_by(slot, fd);
        }
    });
}

/// A descriptor that is followed is about to be closed: notifies the rule, and forgets it.
#[cold]
#[inline(never)]
fn closing(fd: c_int) {
    if let Some(slot) = FILES.slot_of(fd)
        && process::is_on()
    {
        keeping_errno(|| rules::before_close(slot, fd));
        FILES.forget(fd);
    }
}

/// A descriptor was duplicated.
#[inline]
fn duplicated(from: c_int, to: c_int) {
    if to >= 0 && from != to && (FILES.is_followed(from) || FILES.is_followed(to)) && process::is_on() {
        FILES.share(from, to);
    }
}

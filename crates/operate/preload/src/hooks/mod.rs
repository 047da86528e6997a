//! The C library's functions as the program finds them. Each calls the next definition of its name, and notifies the rules.
//!
//! The fast path of each is the call itself. Only if the descriptor has a slot, or a rule may apply to the name, is more done, out of line.
//! Functions with variable arguments are defined with a fixed number of arguments. On x86-64 (System V) and aarch64 (AAPCS64, Linux),
//! integers and pointers are passed the same way in both cases. An argument that the caller left out is passed on unread, or read by
//! nobody.
//!
//! Invariants: those of the crate ([`crate`]). The program's memory is read by the kernel alone, or only after a call with it succeeded, so
//! that a bad address fails as it would without the library.

#![allow(unsafe_code, reason = "the C library's functions")]

use core::ffi::{CStr, c_char, c_int};
use core::num::TryFromIntError;

use crate::process::HookScope;
use crate::rules::FILES;
use crate::{process, real, rules};

/// Defines hooks: `|next| …` makes the call, by `next`. Names in one pair of brackets have one signature and do the same.
macro_rules! every_call {
    ($(fn [$($name:ident)+] $args:tt -> $result:ty: |$next:ident| $body:expr;)*) => {
        $($(every_call! { @one $name $args -> $result: $next $body })+)*
    };
    (@one $name:ident($($arg:ident: $type:ty),*) -> $result:ty: $next:ident $body:expr) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C library's names")]
        pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: with the program's arguments, or parts of them. One that it left out is not read.
            let $next = |$($arg: $type),*| -> $result { unsafe { crate::real::$name.get()($($arg),*) } };
            $body
        }
    };
}

/// Defines hooks that notify a rule if their descriptor is followed: then `|slot, next| …` makes the call, by `next`. Otherwise the call is
/// passed on by a jump.
macro_rules! followed {
    ($(fn [$($name:ident)+] $args:tt -> $result:ty, of $fd:ident: |$slot:ident, $next:ident| $body:expr;)*) => {
        $($(followed! { @one $name $args -> $result, $fd $slot $next $body })+)*
    };
    (@one $name:ident($($arg:ident: $type:ty),*) -> $result:ty, $fd:ident $slot:ident $next:ident $body:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn followed($($arg: $type),*) -> $result {
                // SAFETY: with the program's arguments, or parts of them.
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
                // SAFETY: with the program's arguments.
                unsafe { crate::real::$name.get()($($arg),*) }
            }
        }
    };
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

/// Returns a position as the rules take it, for a call of `length` bytes; an error if the kernel will refuse the call.
fn place(at: Option<i64>, length: usize) -> Result<Option<u64>, TryFromIntError> {
    let start = at.map(u64::try_from).transpose()?;
    i64::try_from((length as u64).saturating_add(start.unwrap_or(0)))?;
    Ok(start)
}

/// Calls `act` and preserves `errno`: at an open or a close, the rules may create a thread through the C library.
fn keeping_errno<R>(act: impl FnOnce() -> R) -> R {
    let errno = real::errno();
    let result = act();
    real::set_errno(errno);
    result
}

/// Notifies the rules of a new descriptor. `path` is null if there is none.
///
/// # Safety
///
/// `path` is null or a string, such as the path of a file that was just opened.
#[inline]
unsafe fn opened(fd: c_int, path: *const c_char, flags: c_int) {
    if fd < 0 {
        return;
    }
    let scope = process::hook_scope();
    if scope == HookScope::Nothing {
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
    if scope == HookScope::All || process::is_in_scope(path.to_bytes()) {
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
        stdio::may_be_standard(fd);
        if process::has_uring()
            && let Some(slot) = FILES.slot_of(fd)
        {
            rules::passed_by(slot, fd);
        }
    });
}

/// Notifies the rule before a followed descriptor is closed, and forgets the descriptor.
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

/// Notes that a descriptor was duplicated.
#[inline]
fn duplicated(from: c_int, to: c_int) {
    if to >= 0 && from != to && (FILES.is_followed(from) || FILES.is_followed(to)) && process::is_on() {
        FILES.share(from, to);
        stdio::may_be_standard(to);
    }
}

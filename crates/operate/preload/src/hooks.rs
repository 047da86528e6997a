//! The C library's functions as the program finds them. Each calls the next definition of its name,
//! and notifies the rules.
//!
//! The fast path of each is the call itself. Only if the descriptor has a slot, or a rule may apply
//! to the name, is more done, out of line. Functions with variable arguments are defined with a
//! fixed number of arguments. On x86-64 (System V) and aarch64 (AAPCS64, Linux), integers and
//! pointers are passed the same way in both cases. An argument that the caller left out is passed
//! on unread, or read by nobody.
//!
//! Invariants: those of the crate ([`crate`]). The program's memory is read by the kernel alone, or
//! only after a call with it succeeded, so that a bad address fails as it would without the
//! library.

use core::ffi::{CStr, c_char, c_int};
use core::num::TryFromIntError;

use crate::process::HookScope;
use crate::rules::FILES;
use crate::{process, real, rules};

/// Defines the next definition of a function, in a module of its name. Until it is looked up,
/// `first` stands for it: it looks the function up, or else
/// - `call`: makes the system call of that number;
/// - `own`: evaluates the expression, which replaces the function;
/// - `or`: fails with `ENOSYS` and returns the value. Such a function is more than a system call,
///   and may be looked up by dlsym(3).
macro_rules! next {
    ($name:ident($($arg:ident: $type:ty),*) -> $result:ty, $source:ident $given:tt) => {
        #[allow(non_snake_case, unused_imports, unused_unsafe, reason = "the C library's names; one form for all")]
        pub(crate) mod $name {
            use super::*;

            pub(crate) static NEXT: crate::real::Next<unsafe extern "C" fn($($type),*) -> $result> = {
                unsafe extern "C" fn first($($arg: $type),*) -> $result {
                    // SAFETY: the caller keeps the contract of the C library's function, which the
                    // one that was found is, and which is the system call's.
                    next!(@first $source $given, unsafe { (NEXT.get())($($arg),*) })
                }
                crate::real::Next::new(crate::real::name(concat!(stringify!($name), "\0")), first as *const ())
            };
        }
    };
    (@first call ($number:expr $(, $given:expr)*), $found:expr) => {
        if NEXT.find_here() {
            $found
        } else {
            // SAFETY: likewise.
            crate::real::settle(unsafe { crate::sys::call($number, [$($given as usize),*]) }) as _
        }
    };
    (@first own ($own:expr), $found:expr) => {
        if NEXT.find_here() {
            $found
        } else {
            // SAFETY: likewise.
            unsafe { $own }
        }
    };
    (@first or ($failed:expr), $found:expr) => {
        if NEXT.find() {
            $found
        } else {
            crate::real::set_errno(libc::ENOSYS);
            $failed
        }
    };
}

/// Defines hooks, and the next definitions of their names ([`next!`]). Names in one pair of
/// brackets have one signature and do the same:
/// - `(next) => …`: makes the call by `next`;
/// - `(first) => …`: is done before the call;
/// - `(slot of fd, next) => …`: makes the call by `next` if that descriptor is followed. Otherwise
///   the call is passed on by a jump.
macro_rules! hooks {
    ($(fn [$($name:ident)+] $args:tt -> $result:ty, $source:ident $given:tt, $how:tt => $body:expr;)*) => {
        $($(
            next! { $name $args -> $result, $source $given }
            hooks! { @hook $name $args -> $result, $how $body }
        )+)*

        /// Looks up the next definitions.
        pub(super) fn find_all() {
            $($($name::NEXT.find();)+)*
        }
    };
    (@hook $name:ident($($arg:ident: $type:ty),*) -> $result:ty, (first) $first:expr) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, unused_unsafe, reason = "the C library's names; one form for all")]
        pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: with the program's arguments: a stream is open, by the function's contract.
            unsafe {
                $first;
                $name::NEXT.get()($($arg),*)
            }
        }
    };
    (@hook $name:ident($($arg:ident: $type:ty),*) -> $result:ty, ($next:ident) $body:expr) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C library's names")]
        pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: with the program's arguments, or parts of them. One that it left out is not
            // read.
            let $next = |$($arg: $type),*| -> $result { unsafe { $name::NEXT.get()($($arg),*) } };
            $body
        }
    };
    (@hook $name:ident($($arg:ident: $type:ty),*) -> $result:ty, ($slot:ident of $fd:ident, $next:ident) $body:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn followed($($arg: $type),*) -> $result {
                // SAFETY: with the program's arguments, or parts of them.
                let $next = |$($arg: $type),*| unsafe { $name::NEXT.get()($($arg),*) };
                match crate::rules::FILES.slot_of($fd) {
                    Some($slot) => $body,
                    None => $next($($arg),*),
                }
            }
            // SAFETY: the caller keeps the contract of the C library's function; with the program's
            // arguments.
            unsafe {
                if crate::rules::FILES.is_followed($fd) {
                    followed($($arg),*)
                } else {
                    $name::NEXT.get()($($arg),*)
                }
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

/// Looks up the next definitions of all hooks.
pub(crate) fn find_all() {
    asynchronous::find_all();
    copy::find_all();
    descriptors::find_all();
    exec::find_all();
    formatted::find_all();
    map::find_all();
    names::find_all();
    open::find_all();
    read::find_all();
    read::__chk_fail::NEXT.find();
    stdio::find_all();
    stdio::fileno::NEXT.find();
    sync::find_all();
    write::find_all();
}

/// Returns a position as the rules take it, for a call of `length` bytes; an error if the kernel
/// will refuse the call.
fn place(at: Option<i64>, length: usize) -> Result<Option<u64>, TryFromIntError> {
    let start = at.map(u64::try_from).transpose()?;
    i64::try_from((length as u64).saturating_add(start.unwrap_or(0)))?;
    Ok(start)
}

/// Calls `act` and preserves `errno`: at an open or a close, the rules may create a thread through
/// the C library.
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

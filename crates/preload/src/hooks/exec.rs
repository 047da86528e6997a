//! Hooks of exec, which ends the helper: its jobs are finished first, or the pages of files that were written and closed would stay.
//!
//! Not covered: `execl` and its like, whose variable arguments can't be passed on, and calls by number. Where the call fails, the
//! process keeps its helper, but files that it watched before are no longer watched.

use core::ffi::{c_char, c_int};

use super::keeping_errno;
use crate::process::Concern;
use crate::{helper, process, real};

/// A child of vfork has no helper, nor one of fork that has opened nothing.
#[cold]
#[inline(never)]
fn becoming() {
    if process::is_on() {
        keeping_errno(helper::drain);
    }
}

type Words = *const *const c_char;

macro_rules! exec {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            if process::concern() != Concern::Nothing {
                becoming();
            }
            // SAFETY: with what the program gave.
            unsafe { real::$name.get()($($arg),*) }
        }
    )*};
}
exec! {
    execve(path: *const c_char, words: Words, environment: Words);
    execv(path: *const c_char, words: Words);
    execvp(name: *const c_char, words: Words);
    execvpe(name: *const c_char, words: Words, environment: Words);
    fexecve(fd: c_int, words: Words, environment: Words);
}

//! Hooks that remove names of files, or unmount: a file that the helper has open would keep its disk space, and its file system busy. (NFS
//! and FUSE would rename a file that is open, so that its directory isn't empty: so the helper closes it before the call.) And those that
//! give names (rename, link): what looked like a temporary file is a result then.
//!
//! Not covered: names that other processes remove, and file systems that they unmount. The helper checks for the first from time to time.

use core::ffi::{CStr, c_char, c_int, c_uint};

use super::keeping_errno;
use crate::helper::{self, FileHash};
use crate::process::Concern;
use crate::rules::archive;
use crate::{noted, process, real, sys, temporary};

/// A name is about to be taken from a file.
#[inline]
fn losing(at: c_int, path: *const c_char) {
    if helper::holds_some() || temporary::has_some() || noted::is_on() {
        lost(at, path);
    }
}

#[cold]
#[inline(never)]
fn lost(at: c_int, path: *const c_char) {
    if !process::is_on() {
        return;
    }
    let Ok(stat) = sys::stat_at(at, path.addr()) else { return };
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return;
    }
    // One that has other names keeps its room.
    if stat.st_nlink > 1 {
        return has_other_name(&stat);
    }
    noted::lost(&stat);
    keeping_errno(|| {
        if helper::holds_some() {
            helper::let_go(FileHash::of(&stat));
        }
        // After that: what was in hand may be kept now.
        helper::let_go_of_kept(&stat);
    });
}

/// A file has a name beside the one that it was made by: if it was taken for a temporary one, it is none.
fn has_other_name(stat: &libc::stat) {
    if temporary::has_some() && temporary::renamed(stat) {
        keeping_errno(helper::keeps_results);
    }
}

/// Before one of these calls is made by its number.
pub(super) fn before_call(number: i64, [a, b, c, d]: [i64; 4], flags: i64) {
    let path = |at: i64| core::ptr::with_exposed_provenance(at as usize);
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_unlink => losing(libc::AT_FDCWD, path(a)),
        libc::SYS_rename => losing(libc::AT_FDCWD, path(b)),
        _ => {}
    }
    match number {
        libc::SYS_unlinkat if c as c_int & libc::AT_REMOVEDIR == 0 => losing(a as c_int, path(b)),
        libc::SYS_renameat => losing(c as c_int, path(d)),
        libc::SYS_renameat2 if flags as c_uint & KEEPS == 0 => losing(c as c_int, path(d)),
        libc::SYS_umount2 => keeping_errno(helper::let_go_of_all),
        _ => {}
    }
}

/// After one of these calls was made by its number.
pub(super) fn after_call(number: i64, arguments: [i64; 4], done: i64) {
    let path = |at: i64| core::ptr::with_exposed_provenance(at as usize);
    let [_, b, c, d] = arguments;
    let (from, at, to) = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_link => (arguments[0], libc::AT_FDCWD, b),
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => (b, c as c_int, d),
        _ => return,
    };
    renamed(done as c_int, path(from), at, path(to));
}

/// With one of these a rename takes no file's name away.
const KEEPS: c_uint = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;

macro_rules! before {
    ($($name:ident($($arg:ident: $type:ty),*): $before:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            $before;
            // SAFETY: with what the program gave.
            unsafe { real::$name.get()($($arg),*) }
        }
    )*};
}
before! {
    unlink(path: *const c_char): losing(libc::AT_FDCWD, path);
    unlinkat(at: c_int, path: *const c_char, flags: c_int): if flags & libc::AT_REMOVEDIR == 0 { losing(at, path) };
    remove(path: *const c_char): losing(libc::AT_FDCWD, path);
    umount(path: *const c_char): keeping_errno(helper::let_go_of_all);
    umount2(path: *const c_char, flags: c_int): keeping_errno(helper::let_go_of_all);
}

/// A file was given another name, if that succeeded.
#[inline]
fn renamed(done: c_int, from: *const c_char, at: c_int, path: *const c_char) {
    if done == 0 && process::concern() != Concern::Nothing {
        // SAFETY: the kernel has just read a path there.
        let to = unsafe { CStr::from_ptr(path) };
        noted::renamed(at, to);
        if temporary::has_some()
            && process::is_on()
            && let Ok(stat) = sys::stat_at(at, path.addr())
        {
            has_other_name(&stat);
        }
        // By a descriptor alone there may be no name.
        if process::concern() == Concern::Named && !from.is_null() && process::is_on() {
            // SAFETY: the kernel has just read a path there.
            let from = unsafe { CStr::from_ptr(from) };
            if from.to_bytes().ends_with(b".ready") {
                keeping_errno(|| archive::renamed(from, to));
            }
        }
    }
}

macro_rules! renaming {
    ($($name:ident($($arg:ident: $type:ty),*): $before:expr, $from:ident to $at:expr, $to:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            $before;
            // SAFETY: with what the program gave.
            let done = unsafe { real::$name.get()($($arg),*) };
            renamed(done, $from, $at, $to);
            done
        }
    )*};
}
renaming! {
    rename(from: *const c_char, to: *const c_char): losing(libc::AT_FDCWD, to), from to libc::AT_FDCWD, to;
    renameat(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char): losing(to_at, to), from to to_at, to;
    renameat2(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_uint):
        if flags & KEEPS == 0 { losing(to_at, to) }, from to to_at, to;
    link(from: *const c_char, to: *const c_char): {}, from to libc::AT_FDCWD, to;
    linkat(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_int): {}, from to to_at, to;
}

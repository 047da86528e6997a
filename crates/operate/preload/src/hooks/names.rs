//! Hooks that remove names of files, or unmount. A file that the helper has open would keep its disk space, and keep its file system busy.
//! On NFS and FUSE, removing an open file renames it, so that its directory is not empty. Therefore the helper closes the file before the
//! call. Also hooks that give names (rename, link): a file that looked like a temporary one is then a result.
//!
//! Not covered: names that other processes remove, and file systems that they unmount. The helper checks from time to time whether others
//! removed the names of its files.

use core::ffi::{CStr, c_char, c_int, c_uint};

use super::keeping_errno;
use crate::helper::{self, FileHash};
use crate::process::HookScope;
use crate::rules::archive;
use crate::{process, real, sys, temporary, tracked_files};

/// Notifies the helper before a name is removed from a file.
#[inline]
fn losing(at: c_int, path: *const c_char) {
    if helper::holds_some() || temporary::has_some() || tracked_files::is_on() {
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
    // A file with other names keeps its disk space.
    if stat.st_nlink > 1 {
        return has_other_name(&stat);
    }
    tracked_files::lost(&stat);
    keeping_errno(|| {
        if helper::holds_some() {
            helper::let_go(FileHash::of(&stat));
        }
        // Afterwards, since files that the helper had may be kept by now.
        helper::let_go_of_kept(&stat);
    });
}

/// Notes that a file has another name than the one it was created by: it is not a temporary file.
fn has_other_name(stat: &libc::stat) {
    if temporary::has_some() && temporary::renamed(stat) {
        keeping_errno(helper::keeps_results);
    }
}

/// Notifies the helper before one of these calls is made by its number.
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

/// Notes a new name after one of these calls was made by its number.
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

/// With one of these flags a rename removes no name of a file.
const KEEPS: c_uint = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;

macro_rules! before {
    ($($name:ident($($arg:ident: $type:ty),*): $before:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            $before;
            // SAFETY: with the program's arguments.
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

/// Notes the new name of a file if the call succeeded.
#[inline]
fn renamed(done: c_int, from: *const c_char, at: c_int, path: *const c_char) {
    if done == 0 && process::hook_scope() != HookScope::Nothing {
        // SAFETY: the kernel has just read a path there.
        let to = unsafe { CStr::from_ptr(path) };
        tracked_files::renamed(at, to);
        if temporary::has_some()
            && process::is_on()
            && let Ok(stat) = sys::stat_at(at, path.addr())
        {
            has_other_name(&stat);
        }
        // Calls that name the file by a descriptor alone may have no name.
        if process::hook_scope() == HookScope::Named && !from.is_null() && process::is_on() {
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
            // SAFETY: with the program's arguments.
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

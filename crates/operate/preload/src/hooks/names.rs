//! Hooks that remove names of files, or unmount. A file that the helper has open would keep its
//! disk space, and keep its file system busy. On NFS and FUSE, removing an open file renames it, so
//! that its directory is not empty. Therefore the helper closes the file before the call. Also
//! hooks that give names (rename, link): a file that looked like a temporary one is then a result.
//!
//! Not covered: names that other processes remove, and file systems that they unmount. The helper
//! checks from time to time whether others removed the names of its files.

use core::ffi::{CStr, c_char, c_int, c_uint};

use super::keeping_errno;
use crate::files::{temporary, tracked_files};
use crate::helper::{self, FileHash};
use crate::process::HookScope;
use crate::rules::archive;
use crate::{process, sys};

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
    let Ok(stat) = sys::lstat_at(at, path.addr()) else { return };
    if !sys::is_regular(&stat) {
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
pub(super) fn before_call(number: i64, [a, b, c, d, flags]: [i64; 5]) {
    let path = |at: i64| core::ptr::with_exposed_provenance(at as usize);
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_unlink => losing(libc::AT_FDCWD, path(a)),
        libc::SYS_rename => losing(libc::AT_FDCWD, path(b)),
        _ => {}
    }
    match number {
        libc::SYS_unlinkat => unlinking(a as c_int, path(b), c as c_int),
        libc::SYS_renameat => losing(c as c_int, path(d)),
        libc::SYS_renameat2 => replacing(c as c_int, path(d), flags as c_uint),
        libc::SYS_umount2 => unmounting(),
        _ => {}
    }
}

/// Notes a new name after one of these calls was made by its number.
pub(super) fn after_call(number: i64, [a, b, c, d, _]: [i64; 5], done: i64) {
    let path = |at: i64| core::ptr::with_exposed_provenance(at as usize);
    let (from, at, to) = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_link => (a, libc::AT_FDCWD, b),
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => (b, c as c_int, d),
        _ => return,
    };
    renamed(done as c_int, path(from), at, path(to));
}

/// With one of these flags a rename removes no name of a file.
const KEEPS_NAME_FLAGS: c_uint = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;

/// Notes the new name of a file if the call succeeded. Returns what the call did.
#[inline]
fn renamed(done: c_int, from: *const c_char, at: c_int, path: *const c_char) -> c_int {
    if done == 0 && process::hook_scope() != HookScope::Nothing {
        // SAFETY: the kernel has just read a path there.
        let to = unsafe { CStr::from_ptr(path) };
        tracked_files::renamed(at, to);
        if temporary::has_some()
            && process::is_on()
            && let Ok(stat) = sys::lstat_at(at, path.addr())
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
    done
}

/// Notifies the helper before a rename with these flags.
#[inline]
fn replacing(at: c_int, path: *const c_char, flags: c_uint) {
    if flags & KEEPS_NAME_FLAGS == 0 {
        losing(at, path);
    }
}

/// Notifies the helper before unlinkat.
#[inline]
fn unlinking(at: c_int, path: *const c_char, flags: c_int) {
    if flags & libc::AT_REMOVEDIR == 0 {
        losing(at, path);
    }
}

fn unmounting() {
    keeping_errno(helper::let_go_of_all);
}

hooks! {
    fn [unlink](path: *const c_char) -> c_int, call(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0),
    (first) => losing(libc::AT_FDCWD, path);
    fn [remove](path: *const c_char) -> c_int, or(-1), (first) => losing(libc::AT_FDCWD, path);
    fn [unlinkat](at: c_int, path: *const c_char, flags: c_int) -> c_int, call(libc::SYS_unlinkat, at, path, flags),
    (first) => unlinking(at, path, flags);
    fn [umount](path: *const c_char) -> c_int, call(libc::SYS_umount2, path, 0), (first) => unmounting();
    fn [umount2](path: *const c_char, flags: c_int) -> c_int, call(libc::SYS_umount2, path, flags),
    (first) => unmounting();
    fn [rename](from: *const c_char, to: *const c_char) -> c_int,
    call(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0), (next) => {
        losing(libc::AT_FDCWD, to);
        renamed(next(from, to), from, libc::AT_FDCWD, to)
    };
    fn [renameat](from_at: c_int, from: *const c_char, at: c_int, to: *const c_char) -> c_int,
    call(libc::SYS_renameat2, from_at, from, at, to, 0), (next) => {
        losing(at, to);
        renamed(next(from_at, from, at, to), from, at, to)
    };
    fn [renameat2](from_at: c_int, from: *const c_char, at: c_int, to: *const c_char, flags: c_uint) -> c_int,
    call(libc::SYS_renameat2, from_at, from, at, to, flags), (next) => {
        replacing(at, to, flags);
        renamed(next(from_at, from, at, to, flags), from, at, to)
    };
    fn [link](from: *const c_char, to: *const c_char) -> c_int,
    call(libc::SYS_linkat, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0),
    (next) => renamed(next(from, to), from, libc::AT_FDCWD, to);
    fn [linkat](from_at: c_int, from: *const c_char, at: c_int, to: *const c_char, flags: c_int) -> c_int,
    call(libc::SYS_linkat, from_at, from, at, to, flags),
    (next) => renamed(next(from_at, from, at, to, flags), from, at, to);
}

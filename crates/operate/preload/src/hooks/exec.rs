//! Hooks that start a program, in this process (exec) or in another (`posix_spawn`).
//!
//! An exec ends the helper. Its requests are finished first, since the pages of files that were
//! written and closed would otherwise stay. A program that would run without the rules is started
//! by the launcher ([`launcher`]), even if no rule applies to this process.
//!
//! Not covered: names relative to the directory that a `posix_spawn` changes to first. If the exec
//! fails, the process keeps its helper, but files that it watched before are no longer watched.

#![allow(clippy::many_single_char_names, reason = "the arguments of any system call")]

use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use super::keeping_errno;
use crate::files::paths::{join, path_of};
use crate::launcher::{self, Started, Words};
use crate::process::HookScope;
use crate::{helper, process, real, sys};

/// Bytes of a path, including the terminating null.
const EXEC_PATH_BYTES: usize = libc::PATH_MAX as usize;
/// The search path if there is no PATH (confstr(3), `_CS_PATH`).
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Finishes the helper's requests before an exec. A child of vfork has no helper, nor has a child
/// of fork that has opened nothing.
#[cold]
#[inline(never)]
fn becoming() {
    if process::hook_scope() != HookScope::Nothing && process::is_on() {
        keeping_errno(helper::drain);
    }
}

/// Returns what the call returns after the launcher's start, with `refused` if that program must
/// not be started; `None` if the program itself is to be started.
fn instead(started: Started, refused: impl FnOnce() -> c_int) -> Option<c_int> {
    match started {
        Started::Plainly => None,
        Started::By(result) => Some(result),
        Started::Refused => Some(refused()),
    }
}

/// Finds the file for a name, as execvp(3) does, and calls `then` with its path. `None` if there is
/// none.
#[cold]
#[inline(never)]
fn found<T>(name: *const c_char, then: impl FnOnce(*const c_char) -> T) -> Option<T> {
    if name.is_null() {
        return None;
    }
    // SAFETY: a string, by execvp's contract.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    if bytes.contains(&b'/') {
        return Some(then(name));
    }
    // SAFETY: the process's own environment: strings, with a null pointer behind the last.
    let path = unsafe { variable(b"PATH=") }.unwrap_or(DEFAULT_PATH);
    for directory in path.split(|&byte| byte == b':').filter(|_| !bytes.is_empty()) {
        let directory = if directory.is_empty() { b"." } else { directory };
        let mut file = [0_u8; EXEC_PATH_BYTES];
        let Some(path) = join(&mut file, &[directory, b"/", bytes]) else { continue };
        if sys::stat(path).is_ok_and(|stat| sys::is_regular(&stat)) && may_execute(path) {
            return Some(then(path.as_ptr()));
        }
    }
    None
}

/// Whether this process may execute a file.
fn may_execute(path: &CStr) -> bool {
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::X_OK as usize];
    // SAFETY: a string, which lives for the call.
    unsafe { sys::call(libc::SYS_faccessat, args) }.is_ok()
}

/// Returns the value of a variable of the process's environment. `name` ends in `=`.
///
/// # Safety
///
/// Nobody changes the environment meanwhile.
unsafe fn variable(name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: the C library's list; by this function's contract.
    unsafe { launcher::strings(real::environment()) }.find_map(|one| one.strip_prefix(name))
}

/// Finishes the helper's requests, and starts a program by the launcher if that is needed, or else
/// `plainly`.
fn started(by_launcher: impl FnOnce() -> Option<c_int>, plainly: impl FnOnce() -> c_int) -> c_int {
    becoming();
    if launcher::is_on() {
        let errno = real::errno();
        if let Some(result) = by_launcher() {
            return result;
        }
        real::set_errno(errno);
    }
    plainly()
}

/// Starts the launcher in this process if it is to start that program.
///
/// # Safety
///
/// As for execve.
unsafe fn exec(path: *const c_char, words: Words, environment: Words) -> Option<c_int> {
    // SAFETY: by this function's contract.
    unsafe {
        let start = |launcher, words| execve::NEXT.get()(launcher, words, environment);
        let refused = || {
            real::set_errno(libc::EACCES);
            -1
        };
        instead(launcher::instead(path, words, environment, start), refused)
    }
}

/// Starts the launcher if it is to start an open program.
///
/// # Safety
///
/// As for fexecve.
unsafe fn exec_open(fd: c_int, words: Words, environment: Words) -> Option<c_int> {
    let mut path = [0; EXEC_PATH_BYTES];
    path_of(fd, path.split_last_mut()?.1).ok()?;
    // SAFETY: by this function's contract; the path has a null byte behind it.
    unsafe { exec(path.as_ptr().cast(), words, environment) }
}

/// Starts the launcher for a path below an open directory, or for an open program.
///
/// # Safety
///
/// As for execveat.
unsafe fn exec_at(
    at: c_int,
    path: *const c_char,
    words: Words,
    environment: Words,
    flags: c_int,
) -> Option<c_int> {
    // Other flags, as to not follow links, are left to the kernel.
    if path.is_null() || flags & !libc::AT_EMPTY_PATH != 0 {
        return None;
    }
    // SAFETY: a string, by this function's contract.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    if name.is_empty() {
        // SAFETY: by this function's contract.
        return unsafe { exec_open(at, words, environment) };
    }
    if at == libc::AT_FDCWD || name.first() == Some(&b'/') {
        // SAFETY: likewise.
        return unsafe { exec(path, words, environment) };
    }
    let (mut directory, mut whole) = ([0; EXEC_PATH_BYTES], [0; EXEC_PATH_BYTES]);
    let path = join(&mut whole, &[path_of(at, &mut directory).ok()?, b"/", name])?;
    // SAFETY: by this function's contract.
    unsafe { exec(path.as_ptr(), words, environment) }
}

/// Starts the launcher in another process if it is to start that program.
///
/// # Safety
///
/// As for `posix_spawn`.
unsafe fn spawn(
    pid: *mut c_int,
    path: *const c_char,
    acts: *const c_void,
    how: *const c_void,
    words: Words,
    environment: Words,
) -> Option<c_int> {
    // SAFETY: by this function's contract.
    unsafe {
        let start = |launcher, words| posix_spawn::NEXT.get()(pid, launcher, acts, how, words, environment);
        instead(launcher::instead(path, words, environment, start), || libc::EACCES)
    }
}

/// Starts a program in another process by the launcher if that is needed, or else `plainly`.
fn spawned(by_launcher: impl FnOnce() -> Option<c_int>, plainly: impl FnOnce() -> c_int) -> c_int {
    if launcher::is_on()
        && let Some(result) = keeping_errno(by_launcher)
    {
        return result;
    }
    plainly()
}

/// Makes an exec call by its number, if it is one; `plain` makes it as it came.
pub(super) fn by_number(
    number: c_long,
    [a, b, c, d, e]: [c_long; 5],
    plain: impl FnOnce() -> c_int,
) -> Option<c_int> {
    // SAFETY: with the program's arguments.
    let by_launcher = || unsafe {
        match number {
            libc::SYS_execve => exec(a as *const c_char, b as Words, c as Words),
            _ => exec_at(a as c_int, b as *const c_char, c as Words, d as Words, e as c_int),
        }
    };
    matches!(number, libc::SYS_execve | libc::SYS_execveat).then(|| started(by_launcher, plain))
}

hooks! {
    fn [execve](path: *const c_char, words: Words, environment: Words) -> c_int, or(-1), (next) => {
        // SAFETY: with the program's arguments.
        started(|| unsafe { exec(path, words, environment) }, || next(path, words, environment))
    };
    fn [execv](path: *const c_char, words: Words) -> c_int, or(-1), (next) => {
        // SAFETY: with the program's arguments.
        started(|| unsafe { exec(path, words, real::environment()) }, || next(path, words))
    };
    fn [execvp](name: *const c_char, words: Words) -> c_int, or(-1), (next) => {
        // SAFETY: with the program's arguments.
        let by_launcher = |path| unsafe { exec(path, words, real::environment()) };
        started(|| found(name, by_launcher).flatten(), || next(name, words))
    };
    fn [execvpe](name: *const c_char, words: Words, environment: Words) -> c_int, or(-1), (next) => {
        // SAFETY: with the program's arguments.
        let by_launcher = |path| unsafe { exec(path, words, environment) };
        started(|| found(name, by_launcher).flatten(), || next(name, words, environment))
    };
    fn [fexecve](fd: c_int, words: Words, environment: Words) -> c_int, or(-1), (next) => {
        // SAFETY: with the program's arguments.
        started(|| unsafe { exec_open(fd, words, environment) }, || next(fd, words, environment))
    };
    fn [execveat](at: c_int, path: *const c_char, words: Words, environment: Words, flags: c_int) -> c_int,
    call(libc::SYS_execveat, at, path, words, environment, flags), (next) => {
        // SAFETY: with the program's arguments.
        let by_launcher = || unsafe { exec_at(at, path, words, environment, flags) };
        started(by_launcher, || next(at, path, words, environment, flags))
    };
    fn [posix_spawn](
        pid: *mut c_int, path: *const c_char, acts: *const c_void, how: *const c_void, words: Words, environment: Words
    ) -> c_int, or(libc::ENOSYS), (next) => {
        // SAFETY: with the program's arguments.
        let by_launcher = || unsafe { spawn(pid, path, acts, how, words, environment) };
        spawned(by_launcher, || next(pid, path, acts, how, words, environment))
    };
    fn [posix_spawnp](
        pid: *mut c_int, name: *const c_char, acts: *const c_void, how: *const c_void, words: Words, environment: Words
    ) -> c_int, or(libc::ENOSYS), (next) => {
        // SAFETY: with the program's arguments.
        let by_launcher = |path| unsafe { spawn(pid, path, acts, how, words, environment) };
        spawned(|| found(name, by_launcher).flatten(), || next(pid, name, acts, how, words, environment))
    };
}

//! Hooks that start a program, in this process (exec) or in another (`posix_spawn`).
//!
//! An exec ends the helper. Its requests are finished first, since the pages of files that were written and closed would otherwise stay. A
//! program that would run without the rules is started by the launcher ([`launcher`]), even if no rule applies to this process.
//!
//! Not covered: names relative to the directory that a `posix_spawn` changes to first. If the exec fails, the process keeps its helper, but
//! files that it watched before are no longer watched.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use super::keeping_errno;
use crate::launcher::{self, Started, Words};
use crate::process::HookScope;
use crate::sys::DescriptorPath;
use crate::{helper, process, real, sys};

/// Bytes of a path, including the terminating null.
const PATH: usize = libc::PATH_MAX as usize;
/// The search path if there is no PATH (confstr(3), `_CS_PATH`).
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Finishes the helper's requests before an exec. A child of vfork has no helper, nor has a child of fork that has opened nothing.
#[cold]
#[inline(never)]
fn becoming() {
    if process::hook_scope() != HookScope::Nothing && process::is_on() {
        keeping_errno(helper::drain);
    }
}

/// Returns what the exec returns after the launcher's start; `None` if the program itself is to be started.
fn instead_of_exec(started: Started) -> Option<c_int> {
    match started {
        Started::Plainly => None,
        Started::By(result) => Some(result),
        Started::Refused => {
            real::set_errno(libc::EACCES);
            Some(-1)
        }
    }
}

/// Returns the same as `posix_spawn` returns it.
fn instead_of_spawn(started: Started) -> Option<c_int> {
    match started {
        Started::Plainly => None,
        Started::By(result) => Some(result),
        Started::Refused => Some(libc::EACCES),
    }
}

/// Finds the file for a name, as execvp(3) does, and calls `then` with its path. `None` if there is none.
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
    for directory in path.split(|&byte| byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        let parts = directory.iter().chain(b"/").chain(bytes);
        if bytes.is_empty() || directory.len() + 1 + bytes.len() >= PATH {
            continue;
        }
        let mut file = [0_u8; PATH];
        for (to, &byte) in file.iter_mut().zip(parts) {
            *to = byte;
        }
        let Ok(path) = CStr::from_bytes_until_nul(&file) else { continue };
        if sys::stat(path).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG) && may_execute(path)
        {
            return Some(then(path.as_ptr()));
        }
    }
    None
}

/// Whether this process may execute a file.
fn may_execute(path: &CStr) -> bool {
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::X_OK as usize, 0, 0, 0];
    // SAFETY: a string, which lives for the call.
    unsafe { sys::call(libc::SYS_faccessat, args) }.is_ok()
}

/// Returns the value of a variable of the process's environment. `name` ends in `=`.
///
/// # Safety
///
/// Nobody changes the environment meanwhile.
unsafe fn variable(name: &[u8]) -> Option<&'static [u8]> {
    let environment = real::environment();
    if environment.is_null() {
        return None;
    }
    // SAFETY: the list ends with a null pointer, and each is a string.
    let mut all = (0..).map(|nth| unsafe { *environment.add(nth) }).take_while(|one| !one.is_null());
    // SAFETY: likewise.
    all.find_map(|one| unsafe { CStr::from_ptr(one) }.to_bytes().strip_prefix(name))
}

macro_rules! exec {
    ($($name:ident($($arg:ident: $type:ty),*) $instead:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            becoming();
            if launcher::is_on() {
                let errno = real::errno();
                // SAFETY: with the program's arguments.
                if let Some(result) = unsafe { $instead } {
                    return result;
                }
                real::set_errno(errno);
            }
            // SAFETY: with the program's arguments.
            unsafe { real::$name.get()($($arg),*) }
        }
    )*};
}

/// Starts the launcher in this process if it is to start that program.
///
/// # Safety
///
/// As for execve.
unsafe fn exec(path: *const c_char, words: Words, environment: Words) -> Option<c_int> {
    // SAFETY: by this function's contract.
    unsafe {
        let start = |launcher, words| real::execve.get()(launcher, words, environment);
        instead_of_exec(launcher::instead(path, words, environment, start))
    }
}

/// Starts the launcher if it is to start an open program.
///
/// # Safety
///
/// As for fexecve.
unsafe fn exec_open(fd: c_int, words: Words, environment: Words) -> Option<c_int> {
    let mut path = [0; PATH];
    let link = DescriptorPath::new(b"/proc/thread-self/fd/", fd);
    let room = path.split_last_mut()?.1;
    sys::read_link(link.as_c_str(), room).ok()?;
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
    let mut whole = [0; PATH];
    let link = DescriptorPath::new(b"/proc/thread-self/fd/", at);
    let room = whole.split_last_mut()?.1;
    let directory = sys::read_link(link.as_c_str(), room).ok()?.len();
    // A null byte stays behind it.
    let rest = room.get_mut(directory..).filter(|rest| rest.len() > name.len())?;
    for (to, &byte) in rest.iter_mut().zip(b"/".iter().chain(name)) {
        *to = byte;
    }
    // SAFETY: by this function's contract; the path has a null byte behind it.
    unsafe { exec(whole.as_ptr().cast(), words, environment) }
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
        let start = |launcher, words| real::posix_spawn.get()(pid, launcher, acts, how, words, environment);
        instead_of_spawn(launcher::instead(path, words, environment, start))
    }
}

exec! {
    execve(path: *const c_char, words: Words, environment: Words)
        exec(path, words, environment);
    execv(path: *const c_char, words: Words)
        exec(path, words, real::environment());
    execvp(name: *const c_char, words: Words)
        found(name, |path| exec(path, words, real::environment())).flatten();
    execvpe(name: *const c_char, words: Words, environment: Words)
        found(name, |path| exec(path, words, environment)).flatten();
    fexecve(fd: c_int, words: Words, environment: Words)
        exec_open(fd, words, environment);
    execveat(at: c_int, path: *const c_char, words: Words, environment: Words, flags: c_int)
        exec_at(at, path, words, environment, flags);
}

/// Handles exec calls made by their system call numbers. Returns what the exec returned, if the launcher was started or the call was
/// refused.
#[allow(clippy::many_single_char_names, reason = "the arguments of any system call")]
pub(super) fn by_number(number: c_long, [a, b, c, d, e]: [c_long; 5]) -> Option<c_long> {
    if !matches!(number, libc::SYS_execve | libc::SYS_execveat) {
        return None;
    }
    becoming();
    if !launcher::is_on() {
        return None;
    }
    let errno = real::errno();
    // SAFETY: with the program's arguments.
    let result = unsafe {
        if number == libc::SYS_execve {
            exec(a as *const c_char, b as Words, c as Words)
        } else {
            exec_at(a as c_int, b as *const c_char, c as Words, d as Words, e as c_int)
        }
    };
    if result.is_none() {
        real::set_errno(errno);
    }
    result.map(c_long::from)
}

macro_rules! spawned {
    ($($name:ident, |$path:ident, $then:ident| $instead:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            pid: *mut c_int,
            $path: *const c_char,
            acts: *const c_void,
            how: *const c_void,
            words: Words,
            environment: Words,
        ) -> c_int {
            if launcher::is_on() {
                let errno = real::errno();
                // SAFETY: with the program's arguments.
                let $then = |path| unsafe { spawn(pid, path, acts, how, words, environment) };
                let result = $instead;
                real::set_errno(errno);
                if let Some(result) = result {
                    return result;
                }
            }
            // SAFETY: with the program's arguments.
            unsafe { real::$name.get()(pid, $path, acts, how, words, environment) }
        }
    )*};
}
spawned! {
    posix_spawn, |path, then| then(path);
    posix_spawnp, |path, then| found(path, then).flatten();
}

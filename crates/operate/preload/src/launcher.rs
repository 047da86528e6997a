//! Detects programs that this process starts and that would run without the rules. Such a program cannot load libraries, gets an
//! environment without the library, starts others elsewhere, or is a stream that maps the file it reads. The launcher (`pagekeeper run`) is
//! started in its place, and becomes the program: with the library, followed by kernel events, or with a message that neither is possible.
//!
//! Invariants: the started program is the one that was named, with its words, environment, descriptors and process id. If the launcher
//! cannot be started, the program itself is started, unless all programs are required to have the rules. Nothing is allocated, except for
//! more words than `FEW`, and nothing is kept open. A program that cannot be read counts as an ordinary one.

#![allow(unsafe_code, reason = "follows the words and the environment that a program is given")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::helper::ForkGuard;
use crate::paths::join;
use crate::settings::{Plan, TEXT_MAX, VARIABLE};
use crate::sys;

/// A list of strings, ended by a null pointer.
pub type Words = *const *const c_char;

/// Programs that start another one without the library: as another user with another environment, or below another root.
pub const WRAPPERS: [&str; 9] =
    ["sudo", "su", "doas", "pkexec", "runuser", "chroot", "unshare", "nsenter", "bwrap"];

/// Programs that have another process start a command, which is not their descendant.
pub const ELSEWHERE: [&str; 11] = [
    "docker",
    "podman",
    "nerdctl",
    "kubectl",
    "crictl",
    "ctr",
    "lxc",
    "machinectl",
    "systemd-run",
    "at",
    "batch",
];

/// Streams that map the file they read, which the library does not see.
pub const MAPPING: [&str; 1] = ["b3sum"];

/// The prefix of all names of the library.
pub const LIBRARY_PREFIX: &str = "libpagekeeper-";

/// The number of words up to which no memory is allocated.
const FEW: usize = 256;
/// Words that come before the command's own.
const BEFORE: usize = 7;
/// Bytes of a path, including the terminating null.
const PATH: usize = libc::PATH_MAX as usize;
/// Programs for which it is remembered that they were reported.
const WARNED_PROGRAMS_MAX: usize = 64;
/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const LINE: usize = 256;
/// Bytes read from the start of a program: its headers, as linkers write them.
const START: usize = 4096;
/// The depth of nested interpreters that the kernel follows (`exec_binprm`).
const DEPTH: usize = 5;

struct Text<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: written by `set_up` alone, before anything else reads it.
unsafe impl<const N: usize> Sync for Text<N> {}

static LAUNCHER: Text<PATH> = Text(UnsafeCell::new([0; PATH]));
/// The settings, with a null byte behind them.
static SETTINGS: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
static IS_ON: AtomicBool = AtomicBool::new(false);
static IS_REQUIRED: AtomicBool = AtomicBool::new(false);
/// Hashes of reported programs, in memory that children share with this process until they exec.
static WARNED_PROGRAMS: AtomicPtr<[AtomicU32; WARNED_PROGRAMS_MAX]> = AtomicPtr::new(core::ptr::null_mut());

/// Whether programs that this process starts are examined. One load.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Turns this on if the plan names a launcher and this process is not the launcher itself.
///
/// # Safety
///
/// At most one call in a process, by its only thread. `text` is the text that the plan was read from, and lives as long as the process.
pub unsafe fn set_up(plan: &Plan<'_>, comm: &[u8], text: &'static [u8; TEXT_MAX + 1]) {
    let Some(path) = plan.launcher else { return };
    if base(path).get(..comm.len()) == Some(comm) {
        return;
    }
    // SAFETY: by this function's contract nobody reads it yet.
    let to = unsafe { &mut *LAUNCHER.0.get() };
    if join(to, &[path]).is_none() {
        return;
    }
    SETTINGS.store(text.as_ptr().cast_mut().cast(), Ordering::Relaxed);
    IS_REQUIRED.store(plan.is_required, Ordering::Relaxed);
    // It is never freed; zeroes are a valid value.
    if let Ok(memory) = sys::take_memory(size_of::<[AtomicU32; WARNED_PROGRAMS_MAX]>(), libc::MAP_SHARED) {
        WARNED_PROGRAMS.store(memory.cast(), Ordering::Relaxed);
    }
    IS_ON.store(true, Ordering::Release);
}

/// The outcome of a call that starts a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// The caller must start the program itself.
    Plainly,
    /// The launcher was started; the call's result.
    By(c_int),
    /// The program must not be started, since it would run without the rules.
    Refused,
}

/// Has the launcher start a program if it would run without the rules otherwise. `start` makes the call with the launcher and its words; if
/// it returns at all, it returns 0 for success.
///
/// # Safety
///
/// `path`, `words` and `environment` are what execve(2) takes.
pub unsafe fn instead(
    path: *const c_char,
    words: Words,
    environment: Words,
    start: impl FnOnce(*const c_char, Words) -> c_int,
) -> Started {
    // SAFETY: by this function's contract.
    unsafe {
        if path.is_null() || words.is_null() || (*words).is_null() {
            return Started::Plainly;
        }
        let file = CStr::from_ptr(path);
        let Ok(status) = sys::stat(file) else { return Started::Plainly };
        let is_covered = !is_cleared(environment)
            && !needs_more(base(CStr::from_ptr(*words).to_bytes()))
            && !needs_more(base(file.to_bytes()))
            && takes_library(file, &status);
        // The call for a file that cannot be executed fails by itself.
        if is_covered || !sys::is_regular(&status) || status.st_mode & 0o111 == 0 {
            return Started::Plainly;
        }
        by_launcher(file, words, start)
    }
}

/// Has the launcher start the program.
///
/// # Safety
///
/// `words` is a list that is not empty.
unsafe fn by_launcher(
    file: &CStr,
    words: Words,
    start: impl FnOnce(*const c_char, Words) -> c_int,
) -> Started {
    let launcher: *const c_char = LAUNCHER.0.get().cast();
    let is_required = IS_REQUIRED.load(Ordering::Relaxed);
    let first = is_first(file);
    let how = match (is_required, first) {
        (true, _) => c"require",
        (false, true) => c"say",
        (false, false) => c"quiet",
    };
    let before: [_; BEFORE] = [
        c"pagekeeper".as_ptr(),
        c"run".as_ptr(),
        c"--inside".as_ptr(),
        how.as_ptr(),
        SETTINGS.load(Ordering::Relaxed),
        file.as_ptr(),
        c"--".as_ptr(),
    ];
    let mut count = 0;
    // SAFETY: by this function's contract, since the null pointer was not reached yet.
    while unsafe { !(*words.add(count)).is_null() } {
        count += 1;
    }
    let mut few = [core::ptr::null(); FEW];
    let size = (count + BEFORE + 1) * size_of::<*const c_char>();
    let many = if count + BEFORE >= FEW { sys::take_memory(size, libc::MAP_PRIVATE).ok() } else { None };
    let to: *mut *const c_char = many.map_or(few.as_mut_ptr(), <*mut u8>::cast);
    let result = if count + BEFORE >= FEW && many.is_none() {
        -1
    } else {
        // SAFETY: `to` has room for so many pointers, and for the null pointer behind them, which its memory already is.
        unsafe {
            core::ptr::copy_nonoverlapping(before.as_ptr(), to, before.len());
            core::ptr::copy_nonoverlapping(words, to.add(before.len()), count);
        }
        start(launcher, to)
    };
    if let Some(memory) = many {
        // SAFETY: taken above, and not used any more.
        unsafe { sys::give_back(memory, size) };
    }
    if result == 0 {
        return Started::By(result);
    }
    if first {
        for part in [&b"pagekeeper: "[..], file.to_bytes(), b" is started without the rules\n"] {
            // SAFETY: a descriptor that need not be open, and bytes to be read.
            let _ = unsafe { sys::call(libc::SYS_write, [2, part.as_ptr() as usize, part.len()]) };
        }
    }
    if is_required { Started::Refused } else { Started::Plainly }
}

/// Whether that program has not been reported yet by this process or its children that did not exec.
fn is_first(file: &CStr) -> bool {
    let hash = file
        .to_bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
        | 1;
    // SAFETY: null, or memory that is never freed.
    let Some(warned) = (unsafe { WARNED_PROGRAMS.load(Ordering::Relaxed).as_ref() }) else { return true };
    for place in warned {
        match place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) if other == hash => return false,
            Err(_) => {}
        }
    }
    true
}

/// Whether an environment was made anew: it lacks both the library and its settings. One that lacks only one of them was changed on
/// purpose, to run without the rules.
///
/// # Safety
///
/// `environment` is null or a list of strings.
unsafe fn is_cleared(environment: Words) -> bool {
    if environment.is_null() {
        return true;
    }
    for nth in 0.. {
        // SAFETY: by this function's contract, since the null pointer was not reached yet.
        let one = unsafe { *environment.add(nth) };
        if one.is_null() {
            break;
        }
        // SAFETY: by this function's contract.
        let one = unsafe { CStr::from_ptr(one) }.to_bytes();
        let name = one.split(|&byte| byte == b'=').next().unwrap_or_default();
        let mut values = one.split(|byte| matches!(byte, b'=' | b':' | b' ')).skip(1);
        if name == VARIABLE.as_bytes()
            || name == b"LD_PRELOAD" && values.any(|name| base(name).starts_with(LIBRARY_PREFIX.as_bytes()))
        {
            return false;
        }
    }
    true
}

fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Whether the library is not sufficient for a program of that name.
fn needs_more(name: &[u8]) -> bool {
    WRAPPERS.iter().chain(&ELSEWHERE).chain(&MAPPING).any(|known| known.as_bytes() == name)
}

/// Whether the program's loader loads the library. It does not if there is no loader, if it is musl's, or if the program is privileged, so
/// that the loader ignores preloads it does not trust. Nor does the library cover Go programs, which make system calls themselves.
fn takes_library(file: &CStr, stat: &libc::stat) -> bool {
    let mut stat = *stat;
    let mut path = [0_u8; LINE];
    let mut first = [0_u8; START];
    for depth in 0..DEPTH {
        let named = if depth == 0 { file } else { CStr::from_bytes_until_nul(&path).unwrap_or(c"") };
        if depth > 0 {
            match sys::stat(named) {
                Ok(found) => stat = found,
                Err(_) => return true,
            }
        }
        if !sys::is_regular(&stat) {
            return true;
        }
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // Another thread's child would inherit the descriptor.
        let _guard = ForkGuard::begin();
        let Ok(fd) = sys::open(named, flags) else { return !is_privileged(&stat, None) };
        let length = sys::read(fd, &mut first).unwrap_or(0);
        let bytes = first.get(..length).unwrap_or_default();
        let kind = kind(bytes, |at, into| sys::read_at(fd, into, at).unwrap_or(0));
        let is_privileged = kind == Kind::Takes && is_privileged(&stat, Some(fd));
        sys::close(fd);
        match kind {
            Kind::Takes => return !is_privileged,
            Kind::Lacks => return false,
            Kind::Other => {}
        }
        let Some(interpreter) = interpreter(bytes) else { return true };
        if join(&mut path, &[interpreter]).is_none() {
            return true;
        }
    }
    true
}

/// Returns the program that a script's first line names.
fn interpreter(start: &[u8]) -> Option<&[u8]> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())
}

/// Whether the program gets privileges that this process does not have (`AT_SECURE`).
fn is_privileged(stat: &libc::stat, fd: Option<c_int>) -> bool {
    const GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    // SAFETY: no pointers.
    let id = |number| unsafe { sys::call(number, []) }.unwrap_or(0) as u32;
    let user = id(libc::SYS_getuid);
    let has_capabilities = |fd| {
        let args = [fd as usize, c"security.capability".as_ptr() as usize, 0, 0];
        // SAFETY: a name, and no buffer: only the length is queried.
        unsafe { sys::call(libc::SYS_fgetxattr, args) }.is_ok()
    };
    stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user
        || stat.st_mode & GROUP == GROUP && stat.st_gid != id(libc::SYS_getgid)
        || user != 0 && fd.is_some_and(has_capabilities)
}

/// The kind of a file, as the loader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A program that loads the library.
    Takes,
    /// A program that does not, or may not, load the library.
    Lacks,
    /// Not an ELF file: a script, or not executable.
    Other,
}

/// Determines the kind from the file's first bytes and further reads.
fn kind(start: &[u8], read_at: impl Fn(u64, &mut [u8]) -> usize) -> Kind {
    const MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    /// Bytes of one program header.
    const HEADER: usize = 56;
    /// The build id of Go's linker: note type 4, before the owner's name of 4 bytes.
    const GO_NOTE: &[u8] = b"\x04\0\0\0Go\0\0";
    let number = |bytes: &[u8], at: usize, length: usize| {
        let bytes = bytes.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    if !start.starts_with(b"\x7fELF") {
        return Kind::Other;
    }
    let is_native = start.get(4..6) == Some(&[2, 1])
        && number(start, 18, 2) == Some(MACHINE)
        && number(start, 54, 2) == Some(HEADER as u64);
    let (true, Some(at), Some(count)) = (is_native, number(start, 32, 8), number(start, 56, 2)) else {
        return Kind::Lacks;
    };
    let mut has_loader = false;
    for nth in 0..count as usize {
        let from = (at as usize).saturating_add(nth * HEADER);
        let segment = from.checked_add(HEADER).and_then(|end| start.get(from..end));
        let Some(segment) = segment else { return Kind::Lacks };
        let (kind, offset) = (number(segment, 0, 4), number(segment, 8, 8).unwrap_or(0));
        let mut bytes = [0_u8; 512];
        let length = (number(segment, 32, 8).unwrap_or(0) as usize).min(bytes.len());
        let Some(room) = bytes.get_mut(..length) else { continue };
        match kind.map(|kind| kind as u32) {
            Some(libc::PT_INTERP) => {
                let read = read_at(offset, room);
                let name = base(room.get(..read).unwrap_or_default());
                has_loader = !name.is_empty() && !name.starts_with(b"ld-musl-");
            }
            Some(libc::PT_NOTE) => {
                let read = read_at(offset, room);
                let notes = room.get(..read).unwrap_or_default();
                if notes.windows(GO_NOTE.len()).any(|bytes| bytes == GO_NOTE) {
                    return Kind::Lacks;
                }
            }
            _ => {}
        }
    }
    if has_loader { Kind::Takes } else { Kind::Lacks }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use super::*;

    fn takes(path: &Path) -> bool {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        takes_library(&path, &sys::stat(&path).unwrap())
    }

    fn cleared(environment: &[&CStr]) -> bool {
        let all: Vec<*const c_char> =
            environment.iter().map(|one| one.as_ptr()).chain([core::ptr::null()]).collect();
        // SAFETY: strings, ended by a null pointer.
        unsafe { is_cleared(all.as_ptr()) }
    }

    #[test]
    fn an_environment_is_cleared_that_has_neither_variable() {
        // SAFETY: null is allowed.
        assert!(unsafe { is_cleared(core::ptr::null()) });
        assert!(cleared(&[]) && cleared(&[c"A=b", c"LD_PRELOAD=/lib/jemalloc.so", c"PAGEKEEPER_RUNS=1"]));
        assert!(!cleared(&[c"A=b", c"LD_PRELOAD=/a.so:/run/libpagekeeper-0.so"]));
        assert!(!cleared(&[c"PAGEKEEPER_RUN=as auto"]));
    }

    #[test]
    fn a_script_is_what_its_interpreter_is() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(takes(Path::new("/bin/sh")) && takes(Path::new("/proc/self/exe")));
        assert!(takes(&place("text", b"echo")) && takes(&place("empty", b"")) && takes(dir.path()));
        // Without program headers nothing asks for a loader.
        let mut bare = own[..START].to_vec();
        bare[56..58].fill(0);
        let bare = place("bare", &bare);
        let mut foreign = own[..START].to_vec();
        foreign[18] = 3;
        assert!(!takes(&bare) && !takes(&place("foreign", &foreign)) && !takes(&place("short", &own[..60])));
        let script = place("script", format!("#! {} -x\n", bare.display()).as_bytes());
        assert!(!takes(&script));
        assert!(!takes(&place("twice", format!("#!{}", script.display()).as_bytes())));
        let own = dir.path().join("own");
        assert!(takes(&place("own", format!("#!{}\n", own.display()).as_bytes())));
        assert!(takes(&place("lost", b"#!/no/such/interpreter\n")) && takes(&place("none", b"#!\n")));
        assert!(takes(&place("long", &[b"#!/".as_slice(), &[b'a'; 5000]].concat())));
    }

    #[test]
    fn the_kind_is_read_of_the_notes_and_the_loader() {
        // A header, an interpreter at 300, and a note at 400.
        let program = |interpreter: &[u8], note: &[u8]| {
            let mut bytes = vec![0; 512];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
            (bytes[32], bytes[54], bytes[56]) = (64, 56, 2);
            let mut segment = |at: usize, kind: u8, offset: u16, size: usize| {
                bytes[at] = kind;
                bytes[at + 8..at + 10].copy_from_slice(&offset.to_le_bytes());
                bytes[at + 32] = size as u8;
            };
            segment(64, 3, 300, interpreter.len());
            segment(120, 4, 400, note.len());
            bytes[300..300 + interpreter.len()].copy_from_slice(interpreter);
            bytes[400..400 + note.len()].copy_from_slice(note);
            kind(&bytes, |at, into| {
                let from = &bytes[at as usize..];
                let length = into.len().min(from.len());
                into[..length].copy_from_slice(&from[..length]);
                length
            })
        };
        let glibc = b"/lib64/ld-linux-x86-64.so.2\0";
        assert_eq!(program(glibc, b""), Kind::Takes);
        assert_eq!(program(b"", b""), Kind::Lacks);
        assert_eq!(program(b"/lib/ld-musl-x86_64.so.1\0", b""), Kind::Lacks);
        assert_eq!(program(glibc, b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id"), Kind::Lacks);
        assert_eq!(program(glibc, b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0id"), Kind::Takes);
        assert_eq!(kind(b"#!/bin/sh", |_, _| 0), Kind::Other);
    }

    proptest::proptest! {
        #[test]
        fn no_file_is_too_odd(places in proptest::collection::vec((0_usize..START, proptest::prelude::any::<u8>()), 0..64)) {
            let mut bytes = std::fs::read("/proc/self/exe").unwrap();
            bytes.truncate(START);
            for (at, byte) in places {
                bytes[at] = byte;
            }
            let read = |at: u64, into: &mut [u8]| {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
                let length = into.len().min(from.len());
                into[..length].copy_from_slice(&from[..length]);
                length
            };
            kind(&bytes, read);
        }
    }
}

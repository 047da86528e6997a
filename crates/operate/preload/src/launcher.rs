//! Detects programs that this process starts and that would run without the rules. Such a program
//! cannot load libraries, gets an environment without the library, starts others elsewhere, or is a
//! stream that maps the file it reads. The launcher (`pagekeeper run`) is started in its place, and
//! becomes the program: with the library, followed by kernel events, or with a message that neither
//! is possible.
//!
//! Invariants: the started program is the one that was named, with its words, environment,
//! descriptors and process id. If the launcher cannot be started, the program itself is started,
//! unless all programs are required to have the rules. Nothing is allocated, except for more words
//! than `WORDS_ON_STACK`, and nothing is kept open. A program that cannot be read counts as an
//! ordinary one.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::files::paths::join;
use crate::helper::ForkGuard;
use crate::program::{ExecutableKind, base, interpreter, is_privileged, kind};
use crate::settings::{Plan, TEXT_MAX, VARIABLE};
use crate::sys::{self, OwnedDescriptor};

/// A list of strings, ended by a null pointer.
pub type Words = *const *const c_char;

/// Programs that start another one without the library: as another user with another environment,
/// or below another root.
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
const WORDS_ON_STACK: usize = 256;
/// Words that come before the command's own.
const WORDS_BEFORE: usize = 7;
/// Bytes of a path, including the terminating null.
const LAUNCHER_PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Programs for which it is remembered that they were reported.
const WARNED_PROGRAMS_MAX: usize = 64;
/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const FIRST_LINE_BYTES: usize = 256;
/// The depth of nested interpreters that the kernel follows (`exec_binprm`).
const DEPTH_MAX: usize = 5;

struct FixedText<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: written by `set_up` alone, before anything else reads it.
unsafe impl<const N: usize> Sync for FixedText<N> {}

static LAUNCHER_PATH: FixedText<LAUNCHER_PATH_BYTES> = FixedText(UnsafeCell::new([0; LAUNCHER_PATH_BYTES]));
/// The settings, with a null byte behind them.
static SETTINGS_TEXT: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
static LAUNCHER_ON: AtomicBool = AtomicBool::new(false);
static IS_REQUIRED: AtomicBool = AtomicBool::new(false);
/// Hashes of reported programs, in memory that children share with this process until they exec.
static WARNED_PROGRAMS: AtomicPtr<[AtomicU32; WARNED_PROGRAMS_MAX]> = AtomicPtr::new(core::ptr::null_mut());

/// Whether programs that this process starts are examined. One load.
#[inline]
pub fn is_on() -> bool {
    LAUNCHER_ON.load(Ordering::Relaxed)
}

/// Turns this on if the plan names a launcher and this process is not the launcher itself.
///
/// # Safety
///
/// At most one call in a process, by its only thread. `text` is the text that the plan was read
/// from, and lives as long as the process.
pub unsafe fn set_up(plan: &Plan<'_>, comm: &[u8], text: &'static [u8; TEXT_MAX + 1]) {
    let Some(path) = plan.launcher else { return };
    if base(path).get(..comm.len()) == Some(comm) {
        return;
    }
    // SAFETY: by this function's contract nobody reads it yet.
    let to = unsafe { &mut *LAUNCHER_PATH.0.get() };
    if join(to, &[path]).is_none() {
        return;
    }
    SETTINGS_TEXT.store(text.as_ptr().cast_mut().cast(), Ordering::Relaxed);
    IS_REQUIRED.store(plan.is_required, Ordering::Relaxed);
    // It is never freed; zeroes are a valid value.
    if let Ok(memory) = sys::take_memory(size_of::<[AtomicU32; WARNED_PROGRAMS_MAX]>(), libc::MAP_SHARED) {
        WARNED_PROGRAMS.store(memory.cast(), Ordering::Relaxed);
    }
    LAUNCHER_ON.store(true, Ordering::Release);
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

/// Has the launcher start a program if it would run without the rules otherwise. `start` makes the
/// call with the launcher and its words; if it returns at all, it returns 0 for success.
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
    let launcher: *const c_char = LAUNCHER_PATH.0.get().cast();
    let is_required = IS_REQUIRED.load(Ordering::Relaxed);
    let first = is_first(file);
    let how = match (is_required, first) {
        (true, _) => c"require",
        (false, true) => c"say",
        (false, false) => c"quiet",
    };
    let before: [_; WORDS_BEFORE] = [
        c"pagekeeper".as_ptr(),
        c"run".as_ptr(),
        c"--inside".as_ptr(),
        how.as_ptr(),
        SETTINGS_TEXT.load(Ordering::Relaxed),
        file.as_ptr(),
        c"--".as_ptr(),
    ];
    // SAFETY: by this function's contract.
    let count = unsafe { strings(words) }.count();
    let mut few = [core::ptr::null(); WORDS_ON_STACK];
    let size = (count + WORDS_BEFORE + 1) * size_of::<*const c_char>();
    let many = if count + WORDS_BEFORE >= WORDS_ON_STACK {
        sys::take_memory(size, libc::MAP_PRIVATE).ok()
    } else {
        None
    };
    let to: *mut *const c_char = many.map_or(few.as_mut_ptr(), <*mut u8>::cast);
    let result = if count + WORDS_BEFORE >= WORDS_ON_STACK && many.is_none() {
        -1
    } else {
        // SAFETY: `to` has room for this many pointers, and for the null pointer behind them, which
        // its memory already is.
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

/// Whether that program has not been reported yet by this process or its children that did not
/// exec.
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

/// Whether the program built a new environment, which lacks both the library and its settings. One
/// that lacks only one of them was changed on purpose, to run without the rules.
///
/// # Safety
///
/// `environment` is null or a list of strings.
unsafe fn is_cleared(environment: Words) -> bool {
    // SAFETY: by this function's contract.
    unsafe { strings(environment) }.all(|one| {
        let name = one.split(|&byte| byte == b'=').next().unwrap_or_default();
        let mut values = one.split(|byte| matches!(byte, b'=' | b':' | b' ')).skip(1);
        let is_library = |name| base(name).starts_with(LIBRARY_PREFIX.as_bytes());
        name != VARIABLE.as_bytes() && !(name == b"LD_PRELOAD" && values.any(is_library))
    })
}

/// Returns the strings of a list.
///
/// # Safety
///
/// `list` is null or a list of strings, and lives as long as they are used.
pub unsafe fn strings<'a>(list: Words) -> impl Iterator<Item = &'a [u8]> {
    let count = if list.is_null() { 0 } else { usize::MAX };
    // SAFETY: by this function's contract, since the null pointer was not reached yet.
    let all = (0..count).map(move |nth| unsafe { *list.add(nth) }).take_while(|one| !one.is_null());
    // SAFETY: likewise.
    all.map(|one| unsafe { CStr::from_ptr(one) }.to_bytes())
}

/// Whether the library is not sufficient for a program of that name.
fn needs_more(name: &[u8]) -> bool {
    WRAPPERS.iter().chain(&ELSEWHERE).chain(&MAPPING).any(|known| known.as_bytes() == name)
}

/// Whether the program's loader loads the library. It does not if there is no loader, if it is
/// musl's, or if the program is privileged, so that the loader ignores preloads it does not trust.
/// Nor does the library cover Go programs, which make system calls themselves.
fn takes_library(file: &CStr, stat: &libc::stat) -> bool {
    let mut stat = *stat;
    let mut path = [0_u8; FIRST_LINE_BYTES];
    let mut first = [0_u8; FIRST_LINE_BYTES];
    for depth in 0..DEPTH_MAX {
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
        let file = OwnedDescriptor(fd);
        match kind(&|at, into| sys::read_at(file.0, into, at).unwrap_or(0)) {
            ExecutableKind::Loads => return !is_privileged(&stat, Some(file.0)),
            ExecutableKind::Other => {}
            _ => return false,
        }
        let length = sys::read_at(file.0, &mut first, 0).unwrap_or(0);
        let bytes = first.get(..length).unwrap_or_default();
        let Some(interpreter) = interpreter(bytes) else { return true };
        if join(&mut path, &[interpreter]).is_none() {
            return true;
        }
    }
    true
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
    fn a_script_has_the_kind_of_its_interpreter() {
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
        let mut bare = own[..4096].to_vec();
        bare[56..58].fill(0);
        let bare = place("bare", &bare);
        let mut foreign = own[..4096].to_vec();
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
}

//! The unsafe part of the command: signals and standard descriptors as found at the start, waiting for single
//! signals, and dying of a signal. Also a process beside the command with messages to it, and a test whether a
//! file's bytes may be executed.
//!
//! Facts: Rust's runtime ignores SIGPIPE before `main`, and resets it and the signal mask in the processes it
//! starts. It also opens /dev/null in place of a closed descriptor 0 to 2. A program must find everything as if
//! nothing had stood before it. Services have SIGPIPE ignored (systemd.exec(5), `IgnoreSIGPIPE=`), and nohup(1)
//! ignores SIGHUP; a write to a closed descriptor must fail.
#![allow(unsafe_code, reason = "system calls that rustix has no safe form of; each block states its proof")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, Resource, WaitOptions, getpid, waitpid};

use crate::stack;

/// Whether SIGPIPE was ignored when this process started.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// A bit for each of the descriptors 0 to 2 that was closed then.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The loader calls this before `main`, and so before Rust's runtime changes anything.
#[used]
// SAFETY: entries of this section are pointers to functions of this form, called by the loader once each, when the C library is
// ready (System V gABI, "Initialization and Termination Functions").
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    // SAFETY: only asks, of a number that need not be a descriptor.
    let is_closed = |fd: &libc::c_int| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == -1;
    let closed = (0..=2).filter(is_closed).fold(0, |closed, fd| closed | 1 << fd);
    CLOSED.store(closed, Ordering::Relaxed);
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; `action` is memory of the right size, and zeroes are a value of it.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// The signals and standard descriptors as this process found them.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    mask: libc::sigset_t,
    pipe_ignored: bool,
    child_ignored: bool,
    size_limit_ignored: bool,
    closed: u8,
}

impl Found {
    /// Reads them, before anything here changes them.
    pub(crate) fn now() -> Self {
        let mut mask = empty_set();
        // SAFETY: only asks; `mask` is a set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask) };
        Self {
            mask,
            pipe_ignored: PIPE_IGNORED.load(Ordering::Relaxed),
            child_ignored: is_ignored(libc::SIGCHLD),
            size_limit_ignored: is_ignored(libc::SIGXFSZ),
            closed: CLOSED.load(Ordering::Relaxed),
        }
    }

    /// Makes a command start with everything as it was found.
    pub(crate) fn pass_on(self, command: &mut Command) {
        let stack = stack::given();
        let restore = move || {
            let action = |ignored| if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
            let closed = (0..=2).filter(|fd| self.closed & 1 << fd != 0);
            // SAFETY: close, signal and pthread_sigmask are async-signal-safe (signal-safety(7)); the set is a copy of a valid one.
            // What is closed is the runtime's, in a process that is about to become another program.
            unsafe {
                for fd in closed {
                    libc::close(fd);
                }
                libc::signal(libc::SIGPIPE, action(self.pipe_ignored));
                libc::signal(libc::SIGCHLD, action(self.child_ignored));
                libc::signal(libc::SIGXFSZ, action(self.size_limit_ignored));
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
            }
            stack.map_or(Ok(()), |limit| Ok(rustix::process::setrlimit(Resource::Stack, limit)?))
        };
        // SAFETY: the closure allocates nothing, takes no lock and calls async-signal-safe functions only.
        unsafe { command.pre_exec(restore) };
    }
}

/// Makes a write beyond the file size limit (`RLIMIT_FSIZE`) fail instead of ending this process.
pub(crate) fn survive_size_limit() {
    // SAFETY: SIG_IGN is an action of that signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Blocks all signals in this thread. Returns the previously blocked ones.
pub(crate) fn hold_all() -> HeldBefore {
    let (mut all, mut before) = (empty_set(), empty_set());
    // SAFETY: all are sets.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    HeldBefore(before)
}

/// The signals that a thread had blocked.
#[derive(Clone, Copy)]
pub(crate) struct HeldBefore(libc::sigset_t);

impl HeldBefore {
    /// Restores them in this thread.
    pub(crate) fn restore(self) {
        // SAFETY: it is a set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Whether this process leads its session. The leader's ID is 0 if it is outside of this PID namespace
/// (`pid_namespaces(7)`), as in a container that is entered from outside.
pub(crate) fn leads_session() -> bool {
    // SAFETY: both only ask, and touch no memory.
    unsafe { libc::getsid(0) == libc::getpid() }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset makes it a set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Blocked signals, taken one by one.
pub(crate) struct Held(libc::sigset_t);

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Came {
    /// Its number.
    pub(crate) signal: libc::c_int,
    /// Whether a process sent it, rather than the kernel, as for a terminal's keys.
    pub(crate) sent: bool,
}

impl Held {
    /// Blocks these from now on, in this thread and those it starts; and makes children waitable.
    pub(crate) fn hold(signals: &[libc::c_int]) -> Self {
        let mut set = empty_set();
        // SAFETY: `set` is a set; numbers that are no signals are refused. SIG_DFL is an action of SIGCHLD.
        unsafe {
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        }
        Self(set)
    }

    /// Whether one has arrived; if so, takes it.
    pub(crate) fn has_come(&self) -> bool {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both point to values of their types; nothing is to be said of the signal.
        unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const now) > 0 }
    }

    /// Waits for the next one.
    pub(crate) fn next(&self) -> io::Result<Came> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        loop {
            // SAFETY: both point to values of their types.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.0, info.as_mut_ptr()) };
            if signal > 0 {
                // SAFETY: zeroes are a value of it, and sigwaitinfo filled it in.
                let code = unsafe { info.assume_init() }.si_code;
                return Ok(Came { signal, sent: code <= 0 });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Ends this process by a signal, as the represented process ended; without a core dump, which that one has left
/// if it was wanted.
pub(crate) fn die_of(signal: libc::c_int) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let mut set = empty_set();
    // SAFETY: `set` is a set; SIG_DFL is an action of every signal, and refused for those that have no other.
    unsafe {
        libc::sigaddset(&raw mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Returns the version of this program's C library; `None` if it is not glibc.
pub(crate) fn c_library() -> Option<&'static str> {
    #[cfg(target_env = "gnu")]
    // SAFETY: a string that is the C library's for good.
    return unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().ok();
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Tests whether a file's bytes may be executed where it is: noexec mounts and security modules forbid it.
pub(crate) fn may_execute(file: &File) -> io::Result<()> {
    const LENGTH: usize = 1;
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: at an address that the kernel chooses, so nothing is replaced; never read, never called, and unmapped at once.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), LENGTH, protection, MapFlags::PRIVATE, file, 0)?;
        rustix::mm::munmap(at, LENGTH)?;
    }
    Ok(())
}

/// Starts a process that does `work` and ends. It is not a child of this one, and is in its own session and in the
/// root directory. Only `kept` and, as standard descriptors, `/dev/null` are open in it.
///
/// # Errors
///
/// If it can't be started or detached, or if this process has other threads.
pub(crate) fn apart(kept: &[BorrowedFd<'_>], work: impl FnOnce()) -> io::Result<()> {
    let child = fork(|| {
        // SAFETY: it takes nothing and touches no memory.
        unsafe { libc::setsid() };
        // The process forked here is reparented to init when this one ends.
        stand_apart(kept).is_ok()
            && fork(|| {
                work();
                true
            })
            .is_ok()
    })?;
    wait(child)
        .and_then(|is_fine| if is_fine { Ok(()) } else { Err(io::Error::other("no process can be started")) })
}

/// Makes the process that becomes the command send its ID, as a `u32`, and wait for an answer, up to the socket's
/// timeout. It becomes the command even without an answer.
pub(crate) fn announce(command: &mut Command, socket: Arc<UnixStream>) {
    let announce = move || {
        let pid = getpid().as_raw_pid().to_ne_bytes();
        // The reader may have ended, which must not end this process.
        if send(&*socket, &pid, SendFlags::NOSIGNAL).is_ok() {
            let _ = recv(&*socket, &mut [0; ANSWER_MAX], RecvFlags::empty());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing, takes no lock and makes three system calls.
    unsafe { command.pre_exec(announce) };
}

/// Maximum bytes of an answer; the rest is never read.
const ANSWER_MAX: usize = 256;

/// Forks a child that does `work`, and whose exit code says whether that succeeded. It runs nothing else of this
/// process: no destructor, no `atexit`.
fn fork(work: impl FnOnce() -> bool) -> io::Result<libc::pid_t> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 + usize::from(stack::has_waiting_thread()) {
        return Err(io::Error::other("this process has other threads"));
    }
    // SAFETY: this is the only thread, as was just seen, but for one that waits for it and does nothing else (`crate::stack`), and nothing
    // else here starts one: so no lock of the allocator or the runtime is held by a thread that the child does not have.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            stack::leave_waiting_thread();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let code = outcome.map_or(101, |is_fine| libc::c_int::from(!is_fine));
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(code) }
        }
        child => Ok(child),
    }
}

/// Waits for a child's end. Returns whether it exited by itself with code 0; true if ended children are not kept
/// (SIGCHLD ignored).
fn wait(child: libc::pid_t) -> io::Result<bool> {
    let Some(child) = Pid::from_raw(child) else { return Ok(false) };
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status.exit_status() == Some(0)),
            Ok(None) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The nice value of a process that has to run before others.
const AHEAD: i32 = -10;

/// Leaves everything that a process was started with: descriptors, directory, signals, priority.
fn stand_apart(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")?;
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first: u32 = 3;
    for fd in kept.into_iter().chain([u32::MAX]).filter(|&fd| fd >= 3) {
        if first < fd {
            // SAFETY: whatever is open there is never used again: this process ends without another look at what it inherited but `kept`.
            // `null` is among them, and is not closed once more.
            if unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) } != 0 {
                // A pipe that stays open would never end for others.
                return Err(io::Error::last_os_error());
            }
        }
        first = fd.saturating_add(1);
    }
    std::mem::forget(null);
    let set = empty_set();
    // SAFETY: `set` is a set; both are actions of all these signals.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        // A signal that ends a command's whole service or terminal must not end the process that cleans up after
        // it.
        for signal in [libc::SIGPIPE, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
    // Ahead of the process it watches, even on a busy machine. Without permission, the command's own priority must
    // do.
    let _ = rustix::process::setpriority_process(None, AHEAD);
    Ok(())
}

//! The signals and standard descriptors that this process was started with, for the command that it
//! becomes.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and resets it and the signal mask in the processes
//! it starts. It also opens /dev/null in place of a closed descriptor 0 to 2. A program must find
//! everything as if nothing had stood before it. Services have SIGPIPE ignored (systemd.exec(5),
//! `IgnoreSIGPIPE=`), and nohup(1) ignores SIGHUP; a write to a closed descriptor must fail.
#![allow(unsafe_code, reason = "system calls that rustix has no safe form of; each block states its proof")]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::process::Resource;

use crate::processes::{signals, stack};

/// Whether SIGPIPE was ignored when this process started.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// A bit for each of the descriptors 0 to 2 that was closed then.
static CLOSED_DESCRIPTORS: AtomicU8 = AtomicU8::new(0);

/// The loader calls this before `main`, and so before Rust's runtime changes anything.
#[used]
// SAFETY: entries of this section are pointers to functions of this form, called by the loader once
// each, when the C library is ready (System V gABI, "Initialization and Termination Functions").
#[unsafe(link_section = ".init_array")]
static START_HOOK: extern "C" fn() = record_start_state;

extern "C" fn record_start_state() {
    SIGPIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    // SAFETY: only asks, of a number that need not be a descriptor.
    let is_closed = |fd: &libc::c_int| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == -1;
    let closed = (0..=2).filter(is_closed).fold(0, |closed, fd| closed | 1 << fd);
    CLOSED_DESCRIPTORS.store(closed, Ordering::Relaxed);
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
pub struct StartState {
    mask: libc::sigset_t,
    pipe_ignored: bool,
    child_ignored: bool,
    size_limit_ignored: bool,
    closed: u8,
}

impl StartState {
    /// Reads them, before anything here changes them.
    pub fn now() -> Self {
        let mut mask = signals::empty_set();
        // SAFETY: only asks; `mask` is a set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask) };
        Self {
            mask,
            pipe_ignored: SIGPIPE_IGNORED.load(Ordering::Relaxed),
            child_ignored: is_ignored(libc::SIGCHLD),
            size_limit_ignored: is_ignored(libc::SIGXFSZ),
            closed: CLOSED_DESCRIPTORS.load(Ordering::Relaxed),
        }
    }

    /// Makes a command start with everything as it was found.
    pub(crate) fn pass_on(self, command: &mut Command) {
        let stack = stack::initial_limit();
        let restore = move || {
            let action = |ignored| if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
            let closed = (0..=2).filter(|fd| self.closed & 1 << fd != 0);
            // SAFETY: close, signal and pthread_sigmask are async-signal-safe (signal-safety(7));
            // the set is a copy of a valid one. What is closed is the runtime's, in a process that
            // is about to become another program.
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
        // SAFETY: the closure allocates nothing, takes no lock and calls async-signal-safe
        // functions only.
        unsafe { command.pre_exec(restore) };
    }
}

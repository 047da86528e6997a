//! Signals that are blocked and taken one by one, so that nothing runs in a handler; and a death by
//! a signal.
#![allow(unsafe_code, reason = "system calls that rustix has no safe form of; each block states its proof")]

use std::io;
use std::mem::MaybeUninit;

/// Makes a write beyond the file size limit (`RLIMIT_FSIZE`) fail instead of ending this process.
pub fn survive_size_limit() {
    // SAFETY: SIG_IGN is an action of that signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Blocks all signals in this thread. Returns the previously blocked ones.
pub(crate) fn hold_all() -> SavedSignalMask {
    let (mut all, mut before) = (empty_set(), empty_set());
    // SAFETY: all are sets.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    SavedSignalMask(before)
}

/// The signals that a thread had blocked.
#[derive(Clone, Copy)]
pub(crate) struct SavedSignalMask(libc::sigset_t);

impl SavedSignalMask {
    /// Restores them in this thread.
    pub(crate) fn restore(self) {
        // SAFETY: it is a set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Whether this process leads its session. The leader's ID is 0 if it is outside of this PID
/// namespace (`pid_namespaces(7)`), as in a container that is entered from outside.
pub(crate) fn leads_session() -> bool {
    // SAFETY: both only ask, and touch no memory.
    unsafe { libc::getsid(0) == libc::getpid() }
}

pub(crate) fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset makes it a set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Blocked signals, taken one by one.
pub(crate) struct BlockedSignals(libc::sigset_t);

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    /// Its number.
    pub(crate) signal: libc::c_int,
    /// Whether a process sent it, rather than the kernel, as for a terminal's keys.
    pub(crate) sent: bool,
}

impl BlockedSignals {
    /// Blocks these from now on, in this thread and those it starts; and makes children waitable.
    pub(crate) fn hold(signals: &[libc::c_int]) -> Self {
        let mut set = empty_set();
        // SAFETY: `set` is a set; numbers that are not signals are refused. SIG_DFL is an action of
        // SIGCHLD.
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
    pub(crate) fn next(&self) -> io::Result<ReceivedSignal> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        loop {
            // SAFETY: both point to values of their types.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.0, info.as_mut_ptr()) };
            if signal > 0 {
                // SAFETY: zeroes are a value of it, and sigwaitinfo filled it in.
                let code = unsafe { info.assume_init() }.si_code;
                return Ok(ReceivedSignal { signal, sent: code <= 0 });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Ends this process by a signal, as the represented process ended; without a core dump, which that
/// one has left if it was wanted.
pub(crate) fn die_of(signal: libc::c_int) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let mut set = empty_set();
    // SAFETY: `set` is a set; SIG_DFL is an action of every signal, and refused for those that have
    // no other.
    unsafe {
        libc::sigaddset(&raw mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

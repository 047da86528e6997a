//! A process that is not a child of this one and has nothing of it, and the line by which the
//! command's process tells it its ID.
#![allow(unsafe_code, reason = "system calls that rustix has no safe form of; each block states its proof")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, WaitOptions, getpid, waitpid};

use crate::processes::{signals, stack};

/// Starts a process that does `work` and ends. It is not a child of this one, and is in its own
/// session and in the root directory. Only `kept` and, as standard descriptors, `/dev/null` are
/// open in it.
///
/// # Errors
///
/// If it can't be started or detached, or if this process has other threads.
pub(crate) fn start_detached(kept: &[BorrowedFd<'_>], work: impl FnOnce()) -> io::Result<()> {
    let child = fork(|| {
        // It fails only for the leader of a group, which a new child is not.
        let _ = rustix::process::setsid();
        // The process forked here is reparented to init when this one ends.
        detach(kept).is_ok()
            && fork(|| {
                work();
                true
            })
            .is_ok()
    })?;
    wait(child)
        .and_then(|is_fine| if is_fine { Ok(()) } else { Err(io::Error::other("no process can be started")) })
}

/// Makes the process that becomes the command send its ID, as a `u32`, and wait for an answer, up
/// to the socket's timeout. It becomes the command even without an answer.
pub(crate) fn announce(command: &mut Command, socket: Arc<UnixStream>) {
    let announce = move || {
        let pid = getpid().as_raw_pid().to_ne_bytes();
        // The reader may have ended, which must not end this process.
        if send(&*socket, &pid, SendFlags::NOSIGNAL).is_ok() {
            let _ = recv(&*socket, &mut [0; ANSWER_BYTES_MAX], RecvFlags::empty());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing, takes no lock and makes three system calls.
    unsafe { command.pre_exec(announce) };
}

/// Maximum bytes of an answer; the rest is never read.
const ANSWER_BYTES_MAX: usize = 256;

/// Forks a child that does `work`, and whose exit code says whether that succeeded. It runs nothing
/// else of this process: no destructor, no `atexit`.
fn fork(work: impl FnOnce() -> bool) -> io::Result<libc::pid_t> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 + usize::from(stack::has_waiting_thread()) {
        return Err(io::Error::other("this process has other threads"));
    }
    // SAFETY: this is the only thread, as was just seen, but for one that waits for it and does
    // nothing else (`crate::stack`), and nothing else here starts one: so no lock of the allocator
    // or the runtime is held by a thread that the child does not have.
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

/// Waits for a child's end. Returns whether it exited by itself with code 0; true if ended children
/// are not kept (SIGCHLD ignored).
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
const FOLLOWER_NICE: i32 = -10;

/// Leaves everything that a process was started with: descriptors, directory, signals, priority.
fn detach(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
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
            // SAFETY: whatever is open there is never used again: this process ends without another
            // look at what it inherited but `kept`. `null` is among them, and is not closed once
            // more.
            if unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) } != 0 {
                // A pipe that stays open would never end for others.
                return Err(io::Error::last_os_error());
            }
        }
        first = fd.saturating_add(1);
    }
    std::mem::forget(null);
    let set = signals::empty_set();
    // SAFETY: `set` is a set; both are actions of all these signals.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        // A signal that ends a command's whole service or terminal must not end the process that
        // cleans up after it.
        for signal in [libc::SIGPIPE, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
    // Ahead of the process it watches, even on a busy machine. Without permission, the command's
    // own priority must do.
    let _ = rustix::process::setpriority_process(None, FOLLOWER_NICE);
    Ok(())
}

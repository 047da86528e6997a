//! The part of `ptrace(2)` needed to stop threads of another process for a moment, and `waitpid(2)`
//! for their stops.
//!
//! Everything applies to the calling thread alone: it is the tracer.

#![allow(unsafe_code)]

use rustix::io::Errno;

use super::cachestat::last_errno;

/// An event of a traced thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TraceEvent {
    /// It has stopped before receiving this signal; 0 for none.
    Stopped { signal: i32 },
    /// It has ended.
    Ended,
}

/// Starts tracing a thread, which keeps running. The kernel lets it go when the calling thread
/// ends.
pub(crate) fn seize(thread: i32) -> Result<(), Errno> {
    call(libc::PTRACE_SEIZE.into(), thread, 0)
}

/// Makes a traced thread stop soon.
pub(crate) fn interrupt(thread: i32) -> Result<(), Errno> {
    call(libc::PTRACE_INTERRUPT.into(), thread, 0)
}

/// Stops tracing a stopped thread. It continues with the given signal, unless a signal has stopped
/// its process.
pub(crate) fn detach(thread: i32, signal: i32) -> Result<(), Errno> {
    call(libc::PTRACE_DETACH.into(), thread, signal)
}

/// Makes a request; its type differs between C libraries.
fn call(request: libc::c_long, thread: i32, data: i32) -> Result<(), Errno> {
    let data = usize::try_from(data).map_err(|_| Errno::INVAL)?;
    // SAFETY: none of these requests reads or writes memory of this process: the address is unused,
    // and the last argument is a number.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request, thread, 0_usize, data) };
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}

/// Returns the next stop or end of a thread that the calling thread traces, or of a child that it
/// started, if any. Never blocks.
pub(crate) fn next_event() -> Result<Option<(i32, TraceEvent)>, Errno> {
    let mut status = 0;
    // SAFETY: `status` is a live integer that the call writes to.
    let thread =
        unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) };
    match thread {
        -1 => Err(last_errno()),
        0 => Ok(None),
        _ if !libc::WIFSTOPPED(status) => Ok(Some((thread, TraceEvent::Ended))),
        _ => {
            // A requested stop, or a stop of the whole process, delivers no signal.
            let is_asked = status >> 16 == libc::PTRACE_EVENT_STOP;
            let signal = if is_asked { 0 } else { libc::WSTOPSIG(status) };
            Ok(Some((thread, TraceEvent::Stopped { signal })))
        }
    }
}

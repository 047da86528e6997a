//! The part of `sched_setscheduler(2)` that one thread needs for itself.

#![allow(unsafe_code)]

use rustix::io::Errno;

use super::cachestat::last_errno;

/// Gives the calling thread real-time priority, so that it runs before all normal threads. Its
/// children do not inherit that.
pub(crate) fn set_real_time_priority() -> Result<(), Errno> {
    // The kernel's `struct sched_param`; musl's is another, and its function sets nothing.
    let priority: libc::c_int = 1;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and `priority` lives through the call, which only reads it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}

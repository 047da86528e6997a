//! The part of `sched_setscheduler(2)` that one thread needs for itself.

#![allow(unsafe_code)]

use rustix::io::Errno;

use super::cachestat::last_errno;

/// Gives the calling thread real-time priority, so that it runs before all normal threads. Its
/// children do not inherit that.
pub(crate) fn set_real_time_priority() -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and `parameters` lives through the call, which only reads
    // it.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}

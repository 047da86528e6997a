//! Short-lived descriptors that a forked child must not inherit: the one that names a file while it
//! is sent, and the helper's own before it has its own table. fork(2) waits until none is open, and
//! none is opened until the child exists.
//!
//! Not covered: forks by the system call itself, and by `_Fork`. Started programs (`posix_spawn`,
//! vfork and exec) inherit none: each descriptor is close-on-exec.
//!
//! Invariant: no wait is longer than [`FORK_WAIT_MAX_NS`]. A signal handler may fork or close files
//! while the thread that it interrupts is in the middle of the other.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// The longest wait, and the time between two checks, in nanoseconds.
const FORK_WAIT_MAX_NS: u64 = 50_000_000;
const FORK_POLL_NS: u64 = 1_000_000;

/// Threads that have such a descriptor, or are about to.
static FORK_GUARDS: AtomicU32 = AtomicU32::new(0);
/// Threads that fork.
static FORKING_THREADS: AtomicU32 = AtomicU32::new(0);

/// Delays forks of this process while it exists.
pub struct ForkGuard(());

impl ForkGuard {
    /// Waits until no thread forks. `None` if that takes too long.
    pub fn begin() -> Option<Self> {
        sys::wait_until(&FORKING_THREADS, FORK_POLL_NS, FORK_WAIT_MAX_NS, |_| {
            // Dropped before a wait: the forking thread waits for it.
            FORK_GUARDS.fetch_add(1, Ordering::SeqCst);
            let guard = Self(());
            (FORKING_THREADS.load(Ordering::SeqCst) == 0).then_some(guard)
        })
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        let left = FORK_GUARDS.fetch_sub(1, Ordering::SeqCst);
        if left == 1 && FORKING_THREADS.load(Ordering::SeqCst) > 0 {
            sys::futex_wake(&FORK_GUARDS);
        }
    }
}

/// Waits for short-lived descriptors before a thread forks.
pub(super) fn before_fork() {
    FORKING_THREADS.fetch_add(1, Ordering::SeqCst);
    sys::wait_until(&FORK_GUARDS, FORK_POLL_NS, FORK_WAIT_MAX_NS, |guards| (guards == 0).then_some(()));
}

/// Ends the fork in the parent, whether or not it succeeded.
pub fn forked() {
    FORKING_THREADS.fetch_sub(1, Ordering::SeqCst);
    sys::futex_wake(&FORKING_THREADS);
}

/// Resets the counts in the child, which has this thread only.
pub(super) fn after_fork() {
    FORK_GUARDS.store(0, Ordering::SeqCst);
    FORKING_THREADS.store(0, Ordering::SeqCst);
}

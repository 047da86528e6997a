//! Short-lived descriptors that a forked child must not inherit: the one that names a file while it is sent, and the helper's own before it
//! has its own table. fork(2) waits until none is open, and none is opened until the child exists.
//!
//! Not covered: forks by the system call itself, and by `_Fork`. Started programs (`posix_spawn`, vfork and exec) inherit none: each
//! descriptor is close-on-exec.
//!
//! Invariant: no wait is longer than [`FORK_WAIT_MAX_NS`]. A signal handler may fork or close files while the thread that it interrupts is
//! in the middle of the other.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// The longest wait, and the time between two checks, in nanoseconds.
const FORK_WAIT_MAX_NS: u64 = 50_000_000;
const POLL: u64 = 1_000_000;

/// Threads that have such a descriptor, or are about to.
static FORK_GUARDS: AtomicU32 = AtomicU32::new(0);
/// Threads that fork.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// Delays forks of this process while it exists.
pub struct ForkGuard(());

impl ForkGuard {
    /// Waits until no thread forks. `None` if that takes too long.
    pub fn begin() -> Option<Self> {
        let mut end = None;
        loop {
            let guard = Self::enter();
            let forking = FORKING.load(Ordering::SeqCst);
            if forking == 0 {
                return Some(guard);
            }
            // Dropped before the wait: the forking thread waits for it.
            drop(guard);
            let now = sys::now();
            if now >= *end.get_or_insert(now.saturating_add(FORK_WAIT_MAX_NS)) {
                return None;
            }
            sys::futex_wait(&FORKING, forking, POLL);
        }
    }

    fn enter() -> Self {
        FORK_GUARDS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        let left = FORK_GUARDS.fetch_sub(1, Ordering::SeqCst);
        if left == 1 && FORKING.load(Ordering::SeqCst) > 0 {
            sys::futex_wake(&FORK_GUARDS);
        }
    }
}

/// Waits for short-lived descriptors before a thread forks.
pub(super) fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    let mut end = None;
    loop {
        let guards = FORK_GUARDS.load(Ordering::SeqCst);
        if guards == 0 {
            return;
        }
        let now = sys::now();
        if now >= *end.get_or_insert(now.saturating_add(FORK_WAIT_MAX_NS)) {
            return;
        }
        sys::futex_wait(&FORK_GUARDS, guards, POLL);
    }
}

/// Ends the fork in the parent, whether or not it succeeded.
pub fn forked() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
    sys::futex_wake(&FORKING);
}

/// Resets the counts in the child, which has this thread only.
pub(super) fn after_fork() {
    FORK_GUARDS.store(0, Ordering::SeqCst);
    FORKING.store(0, Ordering::SeqCst);
}

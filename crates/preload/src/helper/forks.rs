//! Short-lived descriptors that a forked child must not inherit: what names a file while it is sent, and the helper's own before it has
//! its own table. fork(2) waits until none is open, and none is opened until the child exists.
//!
//! Not covered: forks by the system call itself, and by `_Fork`. Started programs (`posix_spawn`, vfork and exec) inherit none: each
//! descriptor is close-on-exec.
//!
//! Invariant: no wait is longer than [`MOMENT_MAX`]: a signal handler may fork or close files while the thread that it interrupts
//! is in the middle of the other.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Nanoseconds that are waited, at most, and between two checks.
const MOMENT_MAX: u64 = 50_000_000;
const POLL: u64 = 1_000_000;

/// Threads that have such a descriptor, or are about to.
static MOMENTS: AtomicU32 = AtomicU32::new(0);
/// Threads that fork.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// As long as it is there, no child is born.
pub struct Moment(());

impl Moment {
    /// Waits until nobody forks. `None`: that takes too long.
    pub fn begin() -> Option<Self> {
        let mut end = None;
        loop {
            let moment = Self::enter();
            let forking = FORKING.load(Ordering::SeqCst);
            if forking == 0 {
                return Some(moment);
            }
            // Left before the wait: who forks waits for it.
            drop(moment);
            let now = sys::now();
            if now >= *end.get_or_insert(now.saturating_add(MOMENT_MAX)) {
                return None;
            }
            sys::futex_wait(&FORKING, forking, POLL);
        }
    }

    fn enter() -> Self {
        MOMENTS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        let left = MOMENTS.fetch_sub(1, Ordering::SeqCst);
        if left == 1 && FORKING.load(Ordering::SeqCst) > 0 {
            sys::futex_wake(&MOMENTS);
        }
    }
}

/// A thread is about to fork.
pub(super) fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    let mut end = None;
    loop {
        let moments = MOMENTS.load(Ordering::SeqCst);
        if moments == 0 {
            return;
        }
        let now = sys::now();
        if now >= *end.get_or_insert(now.saturating_add(MOMENT_MAX)) {
            return;
        }
        sys::futex_wait(&MOMENTS, moments, POLL);
    }
}

/// It has forked, or could not: in the parent.
pub fn forked() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
    sys::futex_wake(&FORKING);
}

/// In the child there is but this thread.
pub(super) fn after_fork() {
    MOMENTS.store(0, Ordering::SeqCst);
    FORKING.store(0, Ordering::SeqCst);
}

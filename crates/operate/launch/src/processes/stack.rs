//! Space on the stack: a shell may give less (`ulimit -s`) than the command line's parser needs.
//!
//! The limit is raised if that is allowed, and reset for each command that is started. Otherwise,
//! all work is done in a thread with a larger stack, while the first thread waits for it.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::processes::signals::hold_all;

/// Bytes that are enough for everything.
const STACK_BYTES_MIN: u64 = 8 << 20;

static INITIAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();
static HAS_WAITER: AtomicBool = AtomicBool::new(false);

/// Returns the limit that this process was started with, if it has changed.
pub(crate) fn initial_limit() -> Option<Rlimit> {
    INITIAL_LIMIT.get().copied()
}

/// Whether the first thread only waits for the thread that works.
pub(crate) fn has_waiting_thread() -> bool {
    HAS_WAITER.load(Ordering::Relaxed)
}

/// Records, in a child of fork, that its only thread is the one that works.
pub(crate) fn leave_waiting_thread() {
    HAS_WAITER.store(false, Ordering::Relaxed);
}

/// Does the work with enough stack, if that is possible.
pub fn with_room(work: fn() -> ExitCode) -> ExitCode {
    let limit = getrlimit(Resource::Stack);
    if limit.current.is_none_or(|bytes| bytes >= STACK_BYTES_MIN) {
        return work();
    }
    let maximum = limit.maximum.map(|bytes| bytes.max(STACK_BYTES_MIN));
    if setrlimit(Resource::Stack, Rlimit { current: Some(STACK_BYTES_MIN), maximum }).is_ok() {
        let _ = INITIAL_LIMIT.set(limit);
        return work();
    }
    // Signals are handled by the other thread.
    let before = hold_all();
    HAS_WAITER.store(true, Ordering::Relaxed);
    let thread =
        std::thread::Builder::new().stack_size(usize::try_from(STACK_BYTES_MIN).unwrap_or(usize::MAX));
    let spawned = thread.spawn(move || {
        before.restore();
        work()
    });
    if let Ok(thread) = spawned {
        // A thread that panicked has reported why.
        return thread.join().unwrap_or(ExitCode::FAILURE);
    }
    HAS_WAITER.store(false, Ordering::Relaxed);
    before.restore();
    work()
}

//! Room on the stack: a shell may give less (`ulimit -s`) than the command line's parser takes.
//!
//! The limit is raised where that may be done, and is what it was for each command that is started. Else all is done in a thread with a
//! stack of its own, while the first one waits for it.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::run::hold_all_signals;

/// Bytes that do for all.
const ENOUGH: u64 = 8 << 20;

static GIVEN: OnceLock<Rlimit> = OnceLock::new();
static IS_WAITED_FOR: AtomicBool = AtomicBool::new(false);

/// The limit that this process was given, where it has another now.
pub(crate) fn given() -> Option<Rlimit> {
    GIVEN.get().copied()
}

/// Whether the first thread waits for the one that works, and does nothing else.
pub(crate) fn has_waiting_thread() -> bool {
    IS_WAITED_FOR.load(Ordering::Relaxed)
}

/// Says, in a child of fork, that its one thread is the one that works.
pub(crate) fn leave_waiting_thread() {
    IS_WAITED_FOR.store(false, Ordering::Relaxed);
}

/// Does the work with enough stack, if there is any way to have it.
pub(crate) fn with_room(work: fn() -> ExitCode) -> ExitCode {
    let limit = getrlimit(Resource::Stack);
    if limit.current.is_none_or(|bytes| bytes >= ENOUGH) {
        return work();
    }
    let maximum = limit.maximum.map(|bytes| bytes.max(ENOUGH));
    if setrlimit(Resource::Stack, Rlimit { current: Some(ENOUGH), maximum }).is_ok() {
        let _ = GIVEN.set(limit);
        return work();
    }
    // Signals are the other thread's.
    let before = hold_all_signals();
    IS_WAITED_FOR.store(true, Ordering::Relaxed);
    let thread = std::thread::Builder::new().stack_size(usize::try_from(ENOUGH).unwrap_or(usize::MAX));
    let spawned = thread.spawn(move || {
        before.restore();
        work()
    });
    if let Ok(thread) = spawned {
        // One that panicked has said why.
        return thread.join().unwrap_or(ExitCode::FAILURE);
    }
    IS_WAITED_FOR.store(false, Ordering::Relaxed);
    before.restore();
    work()
}

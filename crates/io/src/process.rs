//! Detects a fork. Back-ends can't be used in a forked child: it has none of the parent's threads, and shares the parent's
//! rings (memory shared with the kernel), which two processes must never use.
//!
//! Facts: handlers of `pthread_atfork(3)` run in a child of fork(2), not in one of vfork(2) or `posix_spawn(3)`, which share the parent's
//! memory until they execute another program. clone(2) called past the C library goes unnoticed.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

/// How many forks lie between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that something was made in.
///
/// ```
/// use pagekeeper_io::Process;
/// let maker = Process::current();
/// assert!(maker.is_current() && maker.require().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This one.
    pub fn current() -> Self {
        static FOLLOWED: Once = Once::new();
        FOLLOWED.call_once(|| {
            // SAFETY: the handler adds to a number, which is safe in a child of many threads; it is there as long as the program.
            // Without memory for it forks go unnoticed.
            #[expect(unsafe_code, reason = "a function that the C library is to call")]
            unsafe {
                libc::pthread_atfork(None, None, Some(forked));
            }
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is it, and not a child that was forked from it since. No system call.
    #[inline]
    pub fn is_current(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }

    /// An error, [`Error::Unavailable`], where this is a child.
    pub fn require(self) -> Result<(), Error> {
        if self.is_current() {
            return Ok(());
        }
        Err(Error::Unavailable {
            what: "what was made before this process was forked",
            call: "fork",
            errno: libc::EOPNOTSUPP,
        })
    }
}

//! Children of fork(2): they run code of the test's own process, and leave without its destructors.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// How long a child may take before it counts as hung, in seconds: far more than it needs on a busy machine.
const PATIENCE_SECONDS: u32 = 60;

/// A child that was forked.
#[derive(Debug)]
#[must_use = "a child that nobody waits for stays as a zombie"]
pub struct Forked(libc::pid_t);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEnd {
    /// What it did returned true.
    Well,
    /// What it did returned false, or panicked.
    Badly,
    /// It was still at it after a minute.
    Hung,
    /// Another signal ended it.
    Killed(i32),
}

/// Forks a child that does this alone.
///
/// # Panics
///
/// Where the system makes no process.
#[expect(unsafe_code, reason = "a fork")]
pub fn forked(does: impl FnOnce() -> bool) -> Forked {
    // SAFETY: the child runs code of this process, whose allocator glibc makes usable in it, and leaves without any of the
    // parent's destructors.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(PATIENCE_SECONDS);
            let is_well = catch_unwind(AssertUnwindSafe(does));
            libc::_exit(i32::from(!is_well.unwrap_or(false)));
        }
        assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
        Forked(pid)
    }
}

/// The same by the system call alone, which the C library knows nothing of.
///
/// # Panics
///
/// Where the system makes no process.
#[expect(unsafe_code, reason = "a fork")]
pub fn forked_past_libc(does: impl FnOnce() -> bool) -> Forked {
    // SAFETY: as above, but that locks of the C library are as they were: one thread alone may call this.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
        if pid == 0 {
            libc::alarm(PATIENCE_SECONDS);
            let is_well = catch_unwind(AssertUnwindSafe(does));
            libc::_exit(i32::from(!is_well.unwrap_or(false)));
        }
        assert!(pid > 0, "clone: {}", std::io::Error::last_os_error());
        Forked(libc::pid_t::try_from(pid).unwrap())
    }
}

impl Forked {
    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// Where it can't be waited for.
    #[expect(unsafe_code, reason = "waits for a fork")]
    pub fn end(self) -> ChildEnd {
        let mut status = 0;
        // SAFETY: a child of this process; the status is written to a value that lives over the call.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(waited, self.0, "waitpid: {}", std::io::Error::last_os_error());
        if libc::WIFSIGNALED(status) {
            return match libc::WTERMSIG(status) {
                libc::SIGALRM => ChildEnd::Hung,
                signal => ChildEnd::Killed(signal),
            };
        }
        if libc::WEXITSTATUS(status) == 0 { ChildEnd::Well } else { ChildEnd::Badly }
    }

    /// Waits for its end: whether it ended well.
    pub fn ends_well(self) -> bool {
        self.end() == ChildEnd::Well
    }
}

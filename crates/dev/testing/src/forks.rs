//! Children of fork(2). They run code of the test's own process and exit without its destructors.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seconds after which a child counts as hung: far more than it needs on a busy machine.
const PATIENCE_SECONDS: u32 = 60;

/// A forked child.
#[derive(Debug)]
#[must_use = "a child that nobody waits for stays as a zombie"]
pub struct ForkedChild(libc::pid_t);

/// The end of a forked child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEnd {
    /// Its closure returned true.
    Well,
    /// Its closure returned false, or panicked.
    Badly,
    /// It was still running after a minute.
    Hung,
    /// A signal other than the timeout's killed it.
    Killed(i32),
}

/// Forks a child that runs only this closure.
///
/// # Panics
///
/// If fork(2) fails.
#[expect(unsafe_code, reason = "a fork")]
pub fn forked(does: impl FnOnce() -> bool) -> ForkedChild {
    // SAFETY: the child runs code of this process. glibc keeps the allocator usable in it, and it
    // exits without any of the parent's destructors.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(PATIENCE_SECONDS);
            let is_well = catch_unwind(AssertUnwindSafe(does));
            libc::_exit(i32::from(!is_well.unwrap_or(false)));
        }
        assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
        ForkedChild(pid)
    }
}

/// Forks children one after the other: as many as the environment variable `PAGEKEEPER_FORKS` says,
/// or `forks`. Returns the number and the end of the first that does not end well.
///
/// # Panics
///
/// If fork(2) fails, or the variable is no number.
pub fn fork_often(forks: u32, does: impl Fn() -> bool) -> Option<(u32, ChildEnd)> {
    let forks = std::env::var("PAGEKEEPER_FORKS").map_or(forks, |forks| forks.parse().expect("a number"));
    let ends = (0..forks).map(|nth| (nth, forked(&does).end()));
    let bad = ends.into_iter().find(|(_, end)| *end != ChildEnd::Well);
    println!("{forks} forks beside other threads");
    bad
}

/// Forks like [`forked`], but by the system call alone, so that the C library does not notice.
///
/// # Panics
///
/// If the system call fails.
#[expect(unsafe_code, reason = "a fork")]
pub fn forked_past_libc(does: impl FnOnce() -> bool) -> ForkedChild {
    // SAFETY: as in `forked`, except that the C library's locks stay as they were: only a process
    // with one thread may call this.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
        if pid == 0 {
            libc::alarm(PATIENCE_SECONDS);
            let is_well = catch_unwind(AssertUnwindSafe(does));
            libc::_exit(i32::from(!is_well.unwrap_or(false)));
        }
        assert!(pid > 0, "clone: {}", std::io::Error::last_os_error());
        ForkedChild(libc::pid_t::try_from(pid).unwrap())
    }
}

impl ForkedChild {
    /// Waits until the child ends.
    ///
    /// # Panics
    ///
    /// If waitpid(2) fails.
    #[expect(unsafe_code, reason = "waits for a fork")]
    pub fn end(self) -> ChildEnd {
        let mut status = 0;
        // SAFETY: a child of this process; the status is written to a local variable that outlives
        // the call.
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

    /// Waits until the child ends, and returns whether it ended well.
    pub fn ends_well(self) -> bool {
        self.end() == ChildEnd::Well
    }
}

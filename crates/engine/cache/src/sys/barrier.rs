//! The two halves of an asymmetric memory barrier: a light half on every hit, a heavy half once for
//! each batch of evictions.
//!
//! The light half stands between a thread's announcement (a store) and its load of the entry. The
//! heavy half stands between the evictor's change of the entry and its load of the announcements.
//! Together they ensure that at least one of the two threads sees the other's store. With
//! membarrier(2) the light half only stops the compiler from reordering: the heavy half makes every
//! running thread of the process execute a full barrier (`MEMBARRIER_CMD_PRIVATE_EXPEDITED`, Linux
//! 4.14). If the call is missing or forbidden, both halves are `SeqCst` fences. If a filter permits
//! only the query, nothing is evicted, and pages that get no frame are read past the cache.
//!
//! A process must register first. If it has other threads, such as an `io_uring` worker,
//! registration takes a grace period of the kernel's RCU, 10 ms and more. Only the heavy half needs
//! the registration, so a thread does it in the background. A heavy half that comes earlier, or in
//! a child of fork(2), registers itself.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::thread::Builder;

/// `MEMBARRIER_CMD_QUERY`, `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration command, from
/// linux/membarrier.h.
const COMMAND_QUERY: libc::c_int = 0;
const COMMAND_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const COMMAND_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// The kind of both halves; the same for all threads that share a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierPair {
    /// membarrier(2).
    Asymmetric,
    /// `SeqCst` fences on both sides.
    Symmetric,
}

impl BarrierPair {
    /// Queries the kernel, and starts the registration. Miri does not support membarrier(2), so the
    /// result is `Symmetric` there. A build with `--cfg pagekeeper_sanitize` gets the same result,
    /// so that a sanitizer can see the barrier.
    pub(crate) fn probe() -> Self {
        // No lock: a fork during this must not leave a held lock to the child.
        static HAS_BEGUN_REGISTRATION: AtomicBool = AtomicBool::new(false);
        if cfg!(any(miri, pagekeeper_sanitize)) {
            return Self::Symmetric;
        }
        let needed = COMMAND_PRIVATE_EXPEDITED | COMMAND_REGISTER_PRIVATE_EXPEDITED;
        if membarrier(COMMAND_QUERY).is_none_or(|offered| offered & needed != needed) {
            return Self::Symmetric;
        }
        // If there is no thread, or the registration fails, the first heavy half registers.
        if !HAS_BEGUN_REGISTRATION.swap(true, Ordering::Relaxed) {
            let _ = Builder::new().name("cache_barrier".to_owned()).spawn(register);
        }
        Self::Asymmetric
    }

    /// Makes the reader's half.
    #[inline]
    pub(crate) fn light(self) {
        match self {
            Self::Asymmetric => compiler_fence(Ordering::SeqCst),
            Self::Symmetric => fence(Ordering::SeqCst),
        }
    }

    /// Makes the evictor's half. Returns false if it failed: the call was available at the start,
    /// and forbidden since (seccomp).
    #[must_use]
    pub(crate) fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        match self {
            Self::Asymmetric => barrier() || (register() && barrier()),
            Self::Symmetric => true,
        }
    }
}

fn barrier() -> bool {
    membarrier(COMMAND_PRIVATE_EXPEDITED).is_some()
}

fn register() -> bool {
    membarrier(COMMAND_REGISTER_PRIVATE_EXPEDITED).is_some()
}

/// Returns the call's result; `None` if it fails.
fn membarrier(command: libc::c_int) -> Option<libc::c_int> {
    let (flags, cpu): (libc::c_uint, libc::c_int) = (0, 0);
    // SAFETY: membarrier(2) reads and writes no memory of the caller; its arguments are plain
    // numbers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) };
    libc::c_int::try_from(result).ok().filter(|result| *result >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_can_be_called_again_and_again() {
        for barrier in [BarrierPair::probe(), BarrierPair::Symmetric] {
            for _ in 0..3 {
                barrier.light();
                assert!(barrier.heavy());
            }
        }
    }

    /// Runs again as a child, which is not registered: no other test of this process may have made
    /// a barrier.
    #[test]
    #[cfg_attr(any(miri, pagekeeper_sanitize), ignore = "no membarrier(2)")]
    fn a_heavy_half_that_comes_first_registers_the_process() {
        const FIRST: &str = "PAGEKEEPER_HEAVY_HALF_FIRST";
        if std::env::var_os(FIRST).is_some() {
            assert!(!barrier(), "registered already");
            assert!(BarrierPair::Asymmetric.heavy() && barrier());
            return;
        }
        if BarrierPair::probe() == BarrierPair::Symmetric {
            return;
        }
        let name = "sys::barrier::tests::a_heavy_half_that_comes_first_registers_the_process";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(FIRST, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}

//! The two halves of an asymmetric memory barrier: a light one on every hit, a heavy one once for each batch of
//! evictions.
//!
//! A light barrier between a thread's announcement (a store) and its load of the entry, and a heavy one
//! between the evictor's change of the entry and its load of the announcements, make sure that at least one of the two
//! sees the other. With membarrier(2) the light half is nothing but an order to the compiler: the heavy half makes
//! every running thread of the process execute a full barrier (`MEMBARRIER_CMD_PRIVATE_EXPEDITED`, Linux 4.14). Where
//! the call is missing or forbidden both halves are `SeqCst` fences.

#![allow(unsafe_code)]

use std::sync::atomic::{Ordering, compiler_fence, fence};

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration: linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Which kind both halves are of; the same for all threads that share a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// membarrier(2).
    Asymmetric,
    /// `SeqCst` fences on both sides.
    Symmetric,
}

impl Barrier {
    /// Finds out by doing. Miri knows nothing of membarrier(2), so there it is `Symmetric`, as in a build with `--cfg
    /// pagekeeper_sanitize`, which shows the other kind to a sanitizer.
    pub(crate) fn probe() -> Self {
        if cfg!(any(miri, pagekeeper_sanitize)) {
            return Self::Symmetric;
        }
        if membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED) {
            Self::Asymmetric
        } else {
            Self::Symmetric
        }
    }

    /// A reader's half.
    #[inline]
    pub(crate) fn light(self) {
        match self {
            Self::Asymmetric => compiler_fence(Ordering::SeqCst),
            Self::Symmetric => fence(Ordering::SeqCst),
        }
    }

    /// The evictor's half. False if it was not done: the call worked at the start, and was forbidden since (seccomp).
    #[must_use]
    pub(crate) fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        match self {
            Self::Asymmetric => membarrier(PRIVATE_EXPEDITED),
            Self::Symmetric => true,
        }
    }
}

fn membarrier(command: libc::c_int) -> bool {
    let (flags, cpu): (libc::c_uint, libc::c_int) = (0, 0);
    // SAFETY: membarrier(2) reads and writes no memory of the caller; its arguments are plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_can_be_called_again_and_again() {
        for barrier in [Barrier::probe(), Barrier::Symmetric] {
            for _ in 0..3 {
                barrier.light();
                assert!(barrier.heavy());
            }
        }
    }
}

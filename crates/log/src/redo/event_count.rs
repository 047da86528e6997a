//! A bell: threads sleep until it is rung.
//!
//! Who waits takes the [`Bell::count`] first, then looks whether there is anything to wait for, and then waits with that count:
//! a ring in between is not missed. Waking may be without a reason. Sleeping is a futex, so that all are woken by one
//! system call and nobody has to take a lock to go on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait, wake};

/// A bell.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: AtomicU32,
    asleep: AtomicU32,
}

impl Bell {
    /// How often it was rung, modulo 2^32.
    pub(super) fn count(&self) -> u32 {
        self.rung.load(Ordering::SeqCst)
    }

    /// Whether somebody sleeps; may be seen late.
    pub(super) fn has_sleepers(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) > 0
    }

    /// Sleeps until it was rung more often than `count`, at most so long.
    pub(super) fn wait(&self, count: u32, at_most: Option<Duration>) {
        // The count of sleepers is raised before the kernel looks at the rings, and read after they are raised: one of the two sees.
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let timeout = at_most.and_then(|at_most| {
            let tv_sec = at_most.as_secs().try_into().ok()?;
            Some(Timespec { tv_sec, tv_nsec: at_most.subsec_nanos().into() })
        });
        // Whatever it says, the caller looks again.
        let _ = wait(&self.rung, Flags::PRIVATE, count, timeout.as_ref());
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes all.
    pub(super) fn ring(&self) {
        self.wake(i32::MAX.unsigned_abs());
    }

    /// Wakes one, if one sleeps; those who were about to sleep look again.
    pub(super) fn ring_for_one(&self) {
        self.wake(1);
    }

    fn wake(&self, most: u32) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            // Fails for no address that is a variable's.
            let _ = wake(&self.rung, Flags::PRIVATE, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_missed() {
        let bell = Bell::default();
        let count = bell.count();
        bell.ring();
        bell.wait(count, None);
        assert!(!bell.has_sleepers());
    }

    #[test]
    fn all_are_woken() {
        let (bell, go) = (Bell::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        let count = bell.count();
                        if go.load(Ordering::Acquire) == 1 {
                            return;
                        }
                        bell.wait(count, None);
                    }
                });
            }
            while bell.asleep.load(Ordering::SeqCst) < 8 {
                std::thread::yield_now();
            }
            go.store(1, Ordering::Release);
            bell.ring();
        });
    }

    #[test]
    fn a_wait_ends_by_its_time() {
        let bell = Bell::default();
        bell.wait(bell.count(), Some(Duration::from_millis(1)));
    }
}

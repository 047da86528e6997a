//! An event count: threads sleep until it is notified.
//!
//! A waiter reads [`EventCount::count`], checks its condition, and then waits with that count, so a
//! notification in between is not missed. Wakeups may be spurious. The count is a futex: one system
//! call wakes all, and no waiter takes a lock to continue.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait, wake};

/// An event count; see the module.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    notified: AtomicU32,
    waiters: AtomicU32,
}

impl EventCount {
    /// Returns the number of notifications, modulo 2^32.
    pub(crate) fn count(&self) -> u32 {
        self.notified.load(Ordering::SeqCst)
    }

    /// Whether a thread waits. The answer may be out of date.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Sleeps until there are more notifications than `count`, but for at most `timeout`.
    pub(crate) fn wait(&self, count: u32, timeout: Option<Duration>) {
        // Waiters are counted before the kernel compares the count, and read after it is raised:
        // one of the two sides sees the other.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let timeout = timeout.and_then(|timeout| {
            let tv_sec = timeout.as_secs().try_into().ok()?;
            Some(Timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() })
        });
        // The caller checks again, whatever this returns.
        let _ = wait(&self.notified, Flags::PRIVATE, count, timeout.as_ref());
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes all waiters.
    pub(crate) fn notify_all(&self) {
        self.wake(i32::MAX.unsigned_abs());
    }

    /// Wakes one waiter, if there is any; threads that were about to sleep check again.
    pub(crate) fn notify_one(&self) {
        self.wake(1);
    }

    fn wake(&self, max: u32) {
        self.notified.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // Can't fail: the address is that of a variable.
            let _ = wake(&self.notified, Flags::PRIVATE, max);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_notification_before_the_wait_is_not_missed() {
        let event = EventCount::default();
        let count = event.count();
        event.notify_all();
        event.wait(count, None);
        assert!(!event.has_waiters());
    }

    #[test]
    fn all_are_woken() {
        let (event, go) = (EventCount::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        let count = event.count();
                        if go.load(Ordering::Acquire) == 1 {
                            return;
                        }
                        event.wait(count, None);
                    }
                });
            }
            while event.waiters.load(Ordering::SeqCst) < 8 {
                std::thread::yield_now();
            }
            go.store(1, Ordering::Release);
            event.notify_all();
        });
    }

    #[test]
    fn a_wait_ends_at_its_timeout() {
        let event = EventCount::default();
        event.wait(event.count(), Some(Duration::from_millis(1)));
    }
}

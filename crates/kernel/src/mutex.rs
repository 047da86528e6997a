//! Locks whose poison is ignored.
//!
//! The standard library marks a lock as poisoned when its holder panics, since what it guards may be half changed. The code here
//! makes every change under a lock whole before anything can panic, so a poisoned lock guards nothing torn; and one panic must not
//! spread to every thread that takes the lock later. Where a panic does end something (a log that was being written), its
//! owner says so by a state of its own.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a former holder panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}

/// What was locked, waited for or taken apart, whether or not a former holder panicked: for all that gives a [`LockResult`], such
/// as `RwLock::read`, `Condvar::wait`, `Mutex::into_inner`, and loom's counterparts.
pub fn ignore_poison<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_under_the_lock_leaves_it_usable() {
        let mutex = Mutex::new(1);
        let panicked = std::panic::catch_unwind(|| {
            *lock(&mutex) = 2;
            let _guard = lock(&mutex);
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err() && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
        assert_eq!(ignore_poison(mutex.into_inner()), 2);
    }
}

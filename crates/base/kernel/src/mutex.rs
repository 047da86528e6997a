//! Locks that ignore poisoning.
//!
//! The standard library poisons a lock when its holder panics, since the data may be half changed.
//! The code here completes every change under a lock before anything can panic, so a poisoned lock
//! guards consistent data. One panic must not spread to every thread that takes the lock later. If
//! a panic does end something (a log that was being written), its owner records that in its own
//! state.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a former holder panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}

/// Returns the value of a lock operation, whether or not a former holder panicked. It serves
/// everything that returns a [`LockResult`], such as `RwLock::read`, `Condvar::wait`,
/// `Mutex::into_inner`, and loom's counterparts.
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

//! A handle that one thread at a time may be in: it has a position or changes of its own. Fails with misuse where two are.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::status::Failure;

#[derive(Debug)]
pub(crate) struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Enters it.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, T>, Failure> {
        match self.0.try_lock() {
            Ok(guard) => Ok(guard),
            // After a panic it goes on as far as it can: what it stands on has rules of its own for that.
            Err(TryLockError::Poisoned(guard)) => Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::misuse("the handle is in use by another thread")),
        }
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn the_second_thread_is_refused() {
        let exclusive = Exclusive::new(7);
        let entered = exclusive.enter().unwrap();
        let second =
            std::thread::scope(|scope| scope.spawn(|| exclusive.enter().map(|_| ())).join().unwrap());
        assert_eq!(second.unwrap_err().status, Status::Misuse);
        drop(entered);
        assert_eq!(exclusive.into_inner(), 7);
    }
}

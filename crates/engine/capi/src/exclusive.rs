//! A handle with a position or changes of its own, which only one thread at a time may use. A
//! second thread gets a misuse error; a forked child gets an error as well.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pagekeeper_io::Process;

use crate::pointers::ClosingHandle;
use crate::status::CallFailure;

#[derive(Debug)]
pub struct ExclusiveHandle<T>(Mutex<T>, Process);

impl<T> ExclusiveHandle<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value), Process::current())
    }

    /// Locks the handle for a call.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, T>, CallFailure> {
        self.1.require()?;
        match self.0.try_lock() {
            Ok(guard) => Ok(guard),
            // After a panic it continues as far as possible: the value behind it has its own rules
            // for that.
            Err(TryLockError::Poisoned(guard)) => Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(CallFailure::misuse("the handle is in use by another thread"))
            }
        }
    }

    fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Closes a handle and returns its value. If another thread is using the handle, it stays open for
/// that thread. In a forked child it stays open for the parent.
pub(crate) fn give_up<T>(handle: ClosingHandle<ExclusiveHandle<T>>) -> Result<T, CallFailure> {
    drop(handle.get()?.enter()?);
    Ok(handle.open()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn the_second_thread_is_refused() {
        let exclusive = ExclusiveHandle::new(7);
        let entered = exclusive.enter().unwrap();
        let second =
            std::thread::scope(|scope| scope.spawn(|| exclusive.enter().map(|_| ())).join().unwrap());
        assert_eq!(second.unwrap_err().status, Status::Misuse);
        drop(entered);
        assert_eq!(give_up(Box::new(exclusive).into()).unwrap(), 7);
    }

    #[test]
    fn a_handle_is_not_freed_while_a_thread_uses_it() {
        let handle = Box::into_raw(Box::new(ExclusiveHandle::new(7)));
        // SAFETY: just created; closed once, at the end.
        let exclusive = unsafe { &*handle };
        let entered = exclusive.enter().unwrap();
        // SAFETY: a second box of the same handle. It is forgotten, since the handle is in use.
        let second = std::thread::scope(|scope| {
            let address = handle as usize;
            // SAFETY: as above.
            scope
                .spawn(move || give_up(unsafe { Box::from_raw(address as *mut ExclusiveHandle<i32>) }.into()))
                .join()
                .unwrap()
        });
        assert_eq!(second.unwrap_err().status, Status::Misuse);
        assert_eq!(*entered, 7);
        drop(entered);
        // SAFETY: nobody uses it any more.
        assert_eq!(give_up(unsafe { Box::from_raw(handle) }.into()).unwrap(), 7);
    }
}

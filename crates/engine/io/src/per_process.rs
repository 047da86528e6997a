//! A static's value that each process has for itself. At a fork another thread may hold the lock of
//! its parent's value, and nobody in the child would release it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use pagekeeper_kernel::mutex::lock;

use crate::Process;

/// A locked value for a static. A forked child begins with a new value.
///
/// ```
/// use pagekeeper_io::PerProcess;
/// static OPENED: PerProcess<Vec<&str>> = PerProcess::new();
/// OPENED.lock().push("000012.sst");
/// assert_eq!(*OPENED.lock(), ["000012.sst"]);
/// ```
#[derive(Debug)]
pub struct PerProcess<T>(AtomicPtr<OwnValue<T>>);

#[derive(Debug)]
struct OwnValue<T> {
    process: Process,
    value: Mutex<T>,
}

impl<T: Default> PerProcess<T> {
    /// Creates it without a value.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Locks this process's value, which is created at the first call.
    #[expect(unsafe_code, reason = "values that are never freed")]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let mut found = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: NULL, or a value that was leaked below: it lives as long as the program.
            if let Some(own) = unsafe { found.as_ref() }.filter(|own| own.process.is_current()) {
                return lock(&own.value);
            }
            let process = Process::current();
            let new = Box::into_raw(Box::new(OwnValue { process, value: Mutex::default() }));
            match self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => found = new,
                Err(of_another_thread) => {
                    // SAFETY: created above, and nobody else has its address.
                    drop(unsafe { Box::from_raw(new) });
                    found = of_another_thread;
                }
            }
        }
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_testing::{ChildEnd, forked};

    use super::*;

    #[test]
    fn a_child_waits_for_no_lock_of_its_parent() {
        static VALUE: PerProcess<Vec<u8>> = PerProcess::new();
        VALUE.lock().push(1);
        let held = VALUE.lock();
        let is_new = || {
            VALUE.lock().push(2);
            *VALUE.lock() == [2]
        };
        assert_eq!(forked(is_new).end(), ChildEnd::Well);
        assert_eq!(forked(|| is_new() && forked(is_new).ends_well()).end(), ChildEnd::Well);
        drop(held);
        assert_eq!(*VALUE.lock(), [1]);
    }
}

//! The frame of each exported call: nothing unwinds out of it, and its error is stored for the
//! calling thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::pointers::wanted;
use crate::status::{CallFailure, Status};

thread_local! {
    /// Message and errno of the last failure, if any.
    static LAST_FAILURE: RefCell<Option<(CString, c_int)>> = const { RefCell::new(None) };
}

/// Stores a failure for this thread.
pub(crate) fn note(failure: CallFailure) -> Status {
    let CallFailure { status, errno, message } = failure;
    let mut bytes = message.into_owned().into_bytes();
    bytes.retain(|&byte| byte != 0);
    let message = CString::new(bytes).unwrap_or_default();
    // A thread that is ending has nobody to read it.
    let _ = LAST_FAILURE.try_with(|last| *last.borrow_mut() = Some((message, errno)));
    status
}

/// Runs the body of a call.
pub(crate) fn call(body: impl FnOnce() -> Result<(), CallFailure>) -> Status {
    // Shared state that was being changed is behind locks that can be poisoned, or belongs to the
    // handle alone.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => note(failure),
        Err(panic) => note(of_panic(&*panic)),
    }
}

/// Runs the body of a call whose result its caller wants, and stores it.
pub(crate) fn fill<T>(
    out: Option<&mut MaybeUninit<T>>,
    what: &'static str,
    body: impl FnOnce() -> Result<T, CallFailure>,
) -> Status {
    call(|| {
        wanted(out, what)?.write(body()?);
        Ok(())
    })
}

/// Runs the body of a call that cannot fail. If it panics, the result is `otherwise`.
pub(crate) fn plain<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            note(of_panic(&*panic));
            otherwise
        }
    }
}

fn of_panic(panic: &(dyn std::any::Any + Send)) -> CallFailure {
    let said =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(|said| &**said));
    CallFailure::new(Status::Internal, format!("a panic in pagekeeper: {}", said.unwrap_or("without words")))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_error_message() -> *const c_char {
    let pointer = LAST_FAILURE
        .try_with(|last| last.borrow().as_ref().map_or(c"".as_ptr(), |(message, _)| message.as_ptr()));
    pointer.unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_error_number() -> c_int {
    LAST_FAILURE.try_with(|last| last.borrow().as_ref().map_or(0, |(_, errno)| *errno)).unwrap_or(0)
}

// Makes the same load that each call begins with.
#[unsafe(no_mangle)]
pub extern "C" fn pk_process_number() -> u64 {
    pagekeeper_io::Process::current().number().into()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn message() -> String {
        // SAFETY: a string that lives until the next failure of this thread.
        unsafe { CStr::from_ptr(pk_error_message()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_message() {
        assert_eq!(call(|| panic!("page {}", 7)), Status::Internal);
        assert_eq!(message(), "a panic in pagekeeper: page 7");
        assert_eq!(plain(3, || panic!("once more")), 3);
        assert_eq!(message(), "a panic in pagekeeper: once more");
    }

    #[test]
    fn a_failure_is_of_its_thread() {
        assert_eq!(call(|| Err(CallFailure::misuse("here\0 and there"))), Status::Misuse);
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
        assert_eq!((message(), pk_error_number()), ("here and there".to_owned(), 0));
    }
}

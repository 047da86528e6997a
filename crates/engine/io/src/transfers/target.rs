//! Memory that a read in flight fills, named by address: the reader neither owns nor borrows it.
//!
//! Invariant: whoever creates a [`ReadTarget`] promises that the memory is valid, and that nobody
//! else uses it until the read's `done` (for a stream: `ended`) has been called. All writes through
//! it depend on that promise.

use std::fmt;
use std::ptr::NonNull;

/// Memory that a read in flight fills: an address and a length in bytes.
///
/// ```
/// use std::ptr::NonNull;
/// use pagekeeper_io::ReadTarget;
///
/// let frame: &'static mut [u8] = Box::leak(vec![0_u8; 4096].into_boxed_slice());
/// let len = frame.len();
/// // SAFETY: leaked, so valid forever; no one else has its address.
/// let target = unsafe { ReadTarget::new(NonNull::from(frame).cast(), len) };
/// assert_eq!(target.len(), 4096);
/// ```
#[repr(transparent)]
pub struct ReadTarget(libc::iovec);

impl ReadTarget {
    /// Names `len` bytes from `start` on. For direct reads both must be aligned as the file
    /// requires (see [`crate::Error::Unaligned`]).
    ///
    /// # Safety
    ///
    /// The `len` bytes must be valid for writes, and nobody else may read or write them, until the
    /// `done` of the target's [`crate::OwnedRead`] has been called. They need not be initialised.
    /// For a [`crate::StreamRead`] they must be initialised, and [`crate::ReadStream::ended`] takes
    /// the place of `done`.
    #[expect(unsafe_code, reason = "the contract that the kernel's writes rest on")]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self(libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len })
    }

    /// Returns the start address.
    pub fn start(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }
}

impl fmt::Debug for ReadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}+{}", self.start(), self.len())
    }
}

// SAFETY: by the contract of `new` the memory belongs to the read, whichever thread performs it.
// The value itself is an address and a length, and gives no access without `unsafe`.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl Send for ReadTarget {}
// SAFETY: as above; a shared reference only gives the address and the length.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl Sync for ReadTarget {}

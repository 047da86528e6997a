//! Owned, aligned memory for direct I/O.
//!
//! Invariants: the memory starts at a multiple of [`AlignedBuf::ALIGN`]. All of its capacity is
//! initialised from the start, so no length exposes memory that was never written. If memory runs
//! out, the process aborts, as with the standard library's collections.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes that start at a multiple of 4096, which is enough for direct I/O nearly everywhere
/// ([`crate::DirectSupport`] reports the requirement).
///
/// ```
/// use pagekeeper_io::AlignedBuf;
/// let mut buf = AlignedBuf::new(8192);
/// assert!(buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
/// assert_eq!(*buf, [0; 8192]);
/// buf[..5].copy_from_slice(b"hello");
/// buf.set_len(4096); // write at most the first block
/// assert_eq!((buf.len(), buf.capacity()), (4096, 8192));
/// ```
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

/// Provides the aligned address of an empty buffer.
#[repr(align(4096))]
struct AlignedBlock;

impl AlignedBuf {
    /// The buffer starts at a multiple of this many bytes.
    pub const ALIGN: usize = 4096;

    /// Creates a buffer of `len` bytes, all zero.
    ///
    /// # Panics
    ///
    /// If `len` is close to `isize::MAX`.
    pub fn new(len: usize) -> Self {
        let layout = layout(len);
        if len == 0 {
            return Self { start: NonNull::<AlignedBlock>::dangling().cast(), len, capacity: 0 };
        }
        // SAFETY: the layout is not of size zero.
        #[expect(unsafe_code, reason = "memory of an alignment that Vec does not give")]
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len, capacity: len }
    }

    /// Returns the capacity in bytes, the maximum length.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the start address and the visible length.
    pub(crate) fn place(&self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }

    /// Sets the visible length to the first `len` bytes. Bytes that were hidden meanwhile keep
    /// their content.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "{len} bytes of a buffer of {}", self.capacity);
        self.len = len;
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, AlignedBuf::ALIGN).expect("a length below isize::MAX")
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` is at most the capacity, and all of that is allocated, initialised and
        // owned by `self`. An empty buffer has an aligned address that is not null.
        #[expect(unsafe_code, reason = "memory by address")]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.len)
        }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        #[expect(unsafe_code, reason = "memory by address")]
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len)
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.capacity > 0 {
            // SAFETY: allocated by `new` with this layout, and not freed before.
            #[expect(unsafe_code, reason = "gives back what `new` took")]
            unsafe {
                dealloc(self.start.as_ptr(), layout(self.capacity));
            }
        }
    }
}

// SAFETY: the buffer owns its memory, as a Vec does.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only reads.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl Sync for AlignedBuf {}

impl Default for AlignedBuf {
    /// Creates an empty buffer.
    fn default() -> Self {
        Self::new(0)
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_zero_and_as_long_as_asked() {
        for len in [0, 1, 511, 4096, 100_000] {
            let mut buf = AlignedBuf::new(len);
            assert!(buf.as_ptr().addr().is_multiple_of(4096));
            assert!(buf.len() == len && buf.iter().all(|byte| *byte == 0));
            buf.fill(7);
            buf.set_len(len / 2);
            assert_eq!(buf.len(), len / 2);
            buf.set_len(len);
            assert!(buf.iter().all(|byte| *byte == 7), "hidden bytes are kept");
        }
    }

    #[test]
    #[should_panic(expected = "of a buffer of 10")]
    fn the_visible_length_stays_within_the_buffer() {
        AlignedBuf::new(10).set_len(11);
    }
}

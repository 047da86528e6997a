//! Memory beside the cache, for a page that got no frame. Aligned for direct I/O.
//!
//! Invariant: the memory is owned by address, not by a `Box`. A box that is moved must be the only
//! way to its memory, but this value is moved while a read in flight fills its memory.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use pagekeeper_io::ReadTarget;

/// An alignment that satisfies the direct I/O of every file system.
const DIRECT_IO_ALIGN_BYTES: usize = 4096;

/// Room for one page.
#[derive(Debug)]
pub(crate) struct BypassBuffer {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory that this value owns; it is written through `&mut self` only, or by the read
// that the contract of `target` names.
unsafe impl Send for BypassBuffer {}
// SAFETY: as above.
unsafe impl Sync for BypassBuffer {}

impl BypassBuffer {
    /// Allocates `len` zero bytes.
    ///
    /// # Panics
    ///
    /// If `len` is 0, or more than can be addressed.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len > 0, "room for nothing");
        let Ok(layout) = Layout::from_size_align(len, DIRECT_IO_ALIGN_BYTES) else {
            panic!("room for {len} bytes")
        };
        // SAFETY: the layout's size is not 0.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, layout }
    }

    pub(crate) fn whole(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this length, initialised, and borrowed mutably as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }
    }

    /// Returns the first `len` bytes.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: allocated with at least this length, initialised, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), len.min(self.layout.size())) }
    }

    /// Returns the memory, for a read that fills it while `self` waits in the read's `done`.
    pub(crate) fn target(&mut self) -> ReadTarget {
        // SAFETY: the memory lives as long as `self`, also when `self` is moved; the caller moves
        // `self` into the `done` of the read that the target is for, and nobody accesses it before
        // `done` is called.
        unsafe { ReadTarget::new(self.memory, self.layout.size()) }
    }
}

impl Drop for BypassBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`, and freed nowhere else.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_and_as_long_as_asked_for() {
        for len in [4096, 65536] {
            let mut buffer = BypassBuffer::new(len);
            assert_eq!(buffer.whole().as_ptr().addr() % DIRECT_IO_ALIGN_BYTES, 0);
            assert_eq!(buffer.whole().len(), len);
            assert_eq!(buffer.bytes(len), vec![0; len]);
            buffer.whole().fill(7);
            assert_eq!(buffer.bytes(10), [7; 10]);
        }
    }
}

//! A read on its way, whichever way it came in.

use libc::iovec;

use crate::{BatchRead, IoFile, OwnedRead, scatter};

/// What a back-end carries from its begin to its end.
///
/// # Safety
///
/// Until the value is dropped or given back, its pieces must be the same at each call, and their memory valid for writes
/// and no one else's. The list of them must not move when the value does.
#[expect(unsafe_code, reason = "the promise that writes by address rest on")]
pub(crate) unsafe trait Job {
    fn file(&self) -> &dyn IoFile;
    fn offset(&self) -> u64;
    fn pieces(&self) -> &[iovec];
}

/// One read of a batch.
pub(crate) struct Part<'a> {
    index: usize,
    read: &'a BatchRead<'a>,
}

impl<'a> Part<'a> {
    /// # Safety
    ///
    /// There must be no other part of this read, and no one may look at its buffers until the part is gone.
    #[expect(unsafe_code, reason = "a shared borrow that gives the right to write")]
    pub(crate) unsafe fn new(index: usize, read: &'a BatchRead<'a>) -> Self {
        Self { index, read }
    }

    /// Its place in the batch.
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

// SAFETY: the buffers are borrowed alone by the batch, and by the contract of `new` the part has them to itself; the list
// of them is on the heap, and not changed while it is borrowed.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl Job for Part<'_> {
    fn file(&self) -> &dyn IoFile {
        self.read.file
    }

    fn offset(&self) -> u64 {
        self.read.offset
    }

    fn pieces(&self) -> &[iovec] {
        scatter::of_slices(&self.read.bufs)
    }
}

// SAFETY: by the contract of `Target` the memory is the read's alone until `done` has been called, which takes the value
// apart; the list of targets is on the heap, and not changed.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl Job for OwnedRead {
    fn file(&self) -> &dyn IoFile {
        &*self.file
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn pieces(&self) -> &[iovec] {
        scatter::of_targets(&self.targets)
    }
}

//! A read or write in progress, independent of the call that submitted it.

use libc::iovec;

use crate::transfers::transfer::TransferKind;
use crate::transfers::{pread, pwrite, scatter};
use crate::{BatchRead, Error, IoFile, OwnedRead, OwnedWrite, ReadTarget};

/// The data of a read or write that a back-end keeps from its start to its end.
///
/// # Safety
///
/// Until the value is dropped or returned, its kind and pieces must be the same at each call. The
/// memory of a read must be valid for writes and used by nobody else; that of a write must be valid
/// for reads and changed by nobody. The list of pieces must not move when the value does.
#[expect(unsafe_code, reason = "the promise that transfers by address rest on")]
pub unsafe trait TransferJob {
    /// Returns the direction of the transfer.
    fn kind(&self) -> TransferKind {
        TransferKind::Read
    }
    /// Returns the file.
    fn file(&self) -> &dyn IoFile;
    /// Returns the first byte in the file.
    fn offset(&self) -> u64;
    /// Returns the memory.
    fn pieces(&self) -> &[iovec];
}

/// One read of a batch.
pub struct BatchPart<'a> {
    index: usize,
    read: &'a BatchRead<'a>,
}

impl<'a> BatchPart<'a> {
    /// # Safety
    ///
    /// There must be no other part of this read, and nobody may access its buffers until the part
    /// is dropped.
    #[expect(unsafe_code, reason = "a shared borrow that gives the right to write")]
    pub unsafe fn new(index: usize, read: &'a BatchRead<'a>) -> Self {
        Self { index, read }
    }

    /// Returns the index in the batch.
    pub fn index(&self) -> usize {
        self.index
    }
}

// SAFETY: the batch borrows the buffers exclusively, and by the contract of `new` the part has them
// to itself. Their list is on the heap, and not changed while it is borrowed.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl TransferJob for BatchPart<'_> {
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

/// A background request.
#[derive(Debug)]
pub enum IoRequest {
    /// A read.
    Read(OwnedRead),
    /// A write, and the memory of its buffer as a list with one element on the heap.
    Write(OwnedWrite, Box<[ReadTarget; 1]>),
}

impl From<OwnedRead> for IoRequest {
    fn from(read: OwnedRead) -> Self {
        Self::Read(read)
    }
}

impl From<OwnedWrite> for IoRequest {
    fn from(write: OwnedWrite) -> Self {
        let (start, len) = write.buf.place();
        // SAFETY: the buffer owns this memory, wherever the buffer itself is moved. Only this
        // request has the buffer, and does not touch it before it is taken apart.
        #[expect(unsafe_code, reason = "memory that is owned beside it")]
        let target = unsafe { ReadTarget::new(start, len) };
        Self::Write(write, Box::new([target]))
    }
}

impl IoRequest {
    /// Performs the request, blocking, and calls its `done`.
    pub(crate) fn run(self) {
        match self {
            Self::Read(read) => pread::read_owned(read),
            Self::Write(write, _) => pwrite::write_owned(write),
        }
    }

    /// Reports the result. A write without an error is always complete.
    pub fn finish(self, result: Result<usize, Error>) {
        match self {
            Self::Read(read) => read.finish(result),
            Self::Write(write, _) => write.finish(result.map(|_| ())),
        }
    }
}

// SAFETY: by the contract of `ReadTarget` the memory of a read belongs to the read until `done` has
// been called, which takes the value apart. The memory of a write belongs to its buffer, which is
// not touched before that either. The lists of targets are on the heap, and not changed.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl TransferJob for IoRequest {
    fn kind(&self) -> TransferKind {
        match self {
            Self::Read(_) => TransferKind::Read,
            Self::Write(write, _) => TransferKind::Write(write.mode),
        }
    }

    fn file(&self) -> &dyn IoFile {
        match self {
            Self::Read(read) => &*read.file,
            Self::Write(write, _) => &*write.file,
        }
    }

    fn offset(&self) -> u64 {
        match self {
            Self::Read(read) => read.offset,
            Self::Write(write, _) => write.offset,
        }
    }

    fn pieces(&self) -> &[iovec] {
        match self {
            Self::Read(read) => scatter::of_targets(&read.targets),
            Self::Write(_, targets) => scatter::of_targets(&targets[..]),
        }
    }
}

//! A read or write in progress, whichever call submitted it.

use libc::iovec;

use crate::transfer::Kind;
use crate::{BatchRead, Error, IoFile, OwnedRead, OwnedWrite, Target, pread, pwrite, scatter};

/// What a back-end carries from its begin to its end.
///
/// # Safety
///
/// Until the value is dropped or given back, its kind and pieces must be the same at each call. The memory of a read must
/// be valid for writes and no one else's; that of a write valid for reads and changed by no one. The list of pieces must
/// not move when the value does.
#[expect(unsafe_code, reason = "the promise that transfers by address rest on")]
pub(crate) unsafe trait Job {
    /// Which way the bytes go.
    fn kind(&self) -> Kind {
        Kind::Read
    }
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

/// A request of the background.
#[derive(Debug)]
pub(crate) enum Request {
    Read(OwnedRead),
    /// And the memory of its buffer, as a list of one on the heap.
    Write(OwnedWrite, Box<[Target; 1]>),
}

impl From<OwnedRead> for Request {
    fn from(read: OwnedRead) -> Self {
        Self::Read(read)
    }
}

impl From<OwnedWrite> for Request {
    fn from(write: OwnedWrite) -> Self {
        let (start, len) = write.buf.place();
        // SAFETY: the buffer owns this memory, wherever the buffer itself is moved, and no one has it but this request, which
        // does not touch it before it is taken apart.
        #[expect(unsafe_code, reason = "memory that is owned beside it")]
        let target = unsafe { Target::new(start, len) };
        Self::Write(write, Box::new([target]))
    }
}

impl Request {
    /// Does it, blocking, and calls its `done`.
    pub(crate) fn run(self) {
        match self {
            Self::Read(read) => pread::read_owned(read),
            Self::Write(write, _) => pwrite::write_owned(write),
        }
    }

    /// Reports the result: of a write the count is all there is, or it is an error.
    pub(crate) fn finish(self, result: Result<usize, Error>) {
        match self {
            Self::Read(read) => read.finish(result),
            Self::Write(write, _) => write.finish(result.map(|_| ())),
        }
    }
}

// SAFETY: by the contract of `Target` the memory of a read is the read's alone until `done` has been called, which takes
// the value apart; that of a write is its own buffer's, which is not touched before that either. The lists of targets are
// on the heap, and not changed.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl Job for Request {
    fn kind(&self) -> Kind {
        match self {
            Self::Read(_) => Kind::Read,
            Self::Write(write, _) => Kind::Write(write.mode),
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

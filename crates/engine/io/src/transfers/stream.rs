//! A stream of reads: as one ends the next begins, so that the device always has as many in flight
//! as it can use.
//!
//! Invariants: a read owns its memory from the moment [`ReadStream::next`] returns it until
//! [`ReadStream::ended`] is called with its token. [`Io::read_stream`] does not return or unwind
//! before all reads have ended.

use std::io::IoSliceMut;

use libc::iovec;

use crate::transfers::job::TransferJob;
use crate::transfers::scatter;
use crate::{BatchRead, Error, IoFile, ReadTarget};

/// Reads in flight at once in a back-end without a better way.
const BATCH_READS_MAX: usize = 64;

/// One read of a stream.
pub struct StreamRead<'a> {
    /// The file.
    pub file: &'a dyn IoFile,
    /// The first byte to read.
    pub offset: u64,
    /// The targets, filled in this order. Their memory is initialised, valid, and belongs to the
    /// read until [`ReadStream::ended`] has been called with its token.
    pub targets: Vec<ReadTarget>,
    /// The reader's name for this read.
    pub token: usize,
}

impl std::fmt::Debug for StreamRead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamRead")
            .field("file", &self.file.path())
            .field("offset", &self.offset)
            .field("targets", &self.targets)
            .field("token", &self.token)
            .finish()
    }
}

/// A source of reads. It is asked for the next one while there is room, and notified of their ends,
/// all on the thread that called [`crate::Io::read_stream`].
pub trait ReadStream<'a> {
    /// Returns the next read, or `None` if there is none now. With nothing in flight that ends the
    /// stream; otherwise the stream is asked again after others have ended.
    fn next(&mut self) -> Option<StreamRead<'a>>;

    /// Reports the end of a read: the number of bytes, which is less than its targets hold only at
    /// end of file, or its error. Called once per read, in any order.
    fn ended(&mut self, token: usize, result: Result<usize, Error>);

    /// Called after some reads have ended and others have begun in their place. This is the time to
    /// process several completed reads together.
    fn turn(&mut self) {}
}

// SAFETY: by the contract of `ReadTarget` the memory belongs to the read until `ended` has been
// called. A back-end calls that after it took the job apart. The list of targets is on the heap,
// and not changed.
#[expect(unsafe_code, reason = "as stated above")]
unsafe impl TransferJob for StreamRead<'_> {
    fn file(&self) -> &dyn IoFile {
        self.file
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn pieces(&self) -> &[iovec] {
        scatter::of_targets(&self.targets)
    }
}

/// Serves a stream as one batch after another, each read by `read_batch`.
pub(crate) fn read_in_batches<'a>(
    read_batch: impl Fn(&mut [BatchRead<'_>], &mut dyn FnMut(usize, Result<usize, Error>)),
    stream: &mut dyn ReadStream<'a>,
) {
    loop {
        let reads: Vec<StreamRead<'a>> = std::iter::from_fn(|| stream.next()).take(BATCH_READS_MAX).collect();
        if reads.is_empty() {
            return;
        }
        let tokens: Vec<usize> = reads.iter().map(|read| read.token).collect();
        let mut batch: Vec<BatchRead<'a>> = reads.iter().map(borrowed).collect();
        read_batch(&mut batch, &mut |index, result| stream.ended(tokens[index], result));
        drop(batch);
        stream.turn();
    }
}

/// Returns the same read with its memory as slices, which are not used after `ended`.
fn borrowed<'a>(read: &StreamRead<'a>) -> BatchRead<'a> {
    let slice = |target: &ReadTarget| {
        // SAFETY: by the contract of `ReadTarget` and of `StreamRead` the memory is initialised,
        // valid, and belongs to the read until `ended` has been called. `read_in_batches` lets a
        // back-end use it only until `completed`, which calls `ended`.
        #[expect(unsafe_code, reason = "the promise of ReadTarget is taken up")]
        IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(target.start(), target.len()) })
    };
    BatchRead { file: read.file, offset: read.offset, bufs: read.targets.iter().map(slice).collect() }
}

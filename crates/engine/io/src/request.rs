//! Read and write requests to a back-end, in a batch or in the background.

use std::fmt;
use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::{AlignedBuf, Error, IoFile, ReadTarget, WriteMode};

/// One read of a batch: one range of one file, scattered over one or more buffers in order.
///
/// ```
/// use std::io::IoSliceMut;
/// use pagekeeper_io::{Access, BatchRead, Io};
/// use pagekeeper_simdisk::SimDisk;
///
/// let disk = SimDisk::new();
/// disk.create("/file", (0..100).collect::<Vec<u8>>())?;
/// let file = disk.open("/file".as_ref(), Access::Buffered)?;
/// let (mut head, mut tail) = ([0; 4], [0; 16]);
/// let (front, back) = head.split_at_mut(1);
/// let mut reads = [
///     BatchRead { file: &*file, offset: 10, bufs: vec![IoSliceMut::new(back), IoSliceMut::new(front)] },
///     BatchRead { file: &*file, offset: 90, bufs: vec![IoSliceMut::new(&mut tail)] },
/// ];
/// let mut counts = [0; 2];
/// disk.read_batch(&mut reads, &mut |index, result| counts[index] = result.unwrap());
/// assert_eq!(counts, [4, 10]); // the file ends at 100
/// assert_eq!(head, [13, 10, 11, 12]);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub struct BatchRead<'a> {
    /// The file.
    pub file: &'a dyn IoFile,
    /// The first byte to read.
    pub offset: u64,
    /// The buffers, filled in this order. Several buffers allow one read of adjacent pages into
    /// distant frames.
    pub bufs: Vec<IoSliceMut<'a>>,
}

/// A background read. It owns everything it needs until its `done` has been called.
///
/// ```
/// use std::{ptr::NonNull, sync::mpsc};
/// use pagekeeper_io::{Access, Io, OwnedRead, ReadTarget, Threads};
///
/// let io = Threads::new();
/// let file = io.open("/etc/passwd".as_ref(), Access::Buffered)?;
/// let frame: &'static mut [u8] = vec![0; 64].leak();
/// let start = NonNull::from(&mut *frame).cast();
/// let (sender, ended) = mpsc::channel();
/// io.submit(vec![OwnedRead {
///     file,
///     offset: 0,
///     // SAFETY: leaked, and no one's until `done` passes it on.
///     targets: vec![unsafe { ReadTarget::new(start, 64) }],
///     done: Box::new(move |result| sender.send((result, frame)).unwrap()),
/// }]);
/// let (result, frame) = ended.recv().unwrap();
/// assert!(frame[..result?].contains(&b':'));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub struct OwnedRead {
    /// The file.
    pub file: Arc<dyn IoFile>,
    /// The first byte to read.
    pub offset: u64,
    /// The targets, filled in this order.
    pub targets: Vec<ReadTarget>,
    /// Called once, from any thread, when the targets are filled or the read failed. The argument
    /// is the number of bytes, which is less than the targets hold only at end of file. The call
    /// should be short: other completions wait for it. If it panics, the panic hook reports that,
    /// and nothing else is affected.
    pub done: Box<dyn FnOnce(Result<usize, Error>) + Send>,
}

/// A background write. It owns everything it needs until its `done` has been called.
///
/// ```
/// use std::sync::mpsc;
/// use pagekeeper_io::{Access, AlignedBuf, Create, Io, OwnedWrite, WriteMode};
/// use pagekeeper_simdisk::SimDisk;
///
/// let io = SimDisk::new();
/// let file = io.open_writable("/file".as_ref(), Access::Direct, Create::New)?;
/// let (sender, ended) = mpsc::channel();
/// io.submit_writes(vec![OwnedWrite {
///     file: file.clone(),
///     offset: 4096,
///     buf: AlignedBuf::new(8192),
///     mode: WriteMode::Plain,
///     done: Box::new(move |buf, result| sender.send((buf, result)).unwrap()),
/// }]);
/// let (buf, result) = ended.recv().unwrap(); // the buffer comes back, to be filled again
/// result?;
/// assert_eq!((buf.len(), file.stat()?.size), (8192, 12_288));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub struct OwnedWrite {
    /// The file.
    pub file: Arc<dyn IoFile>,
    /// The offset of the first byte.
    pub offset: u64,
    /// The data: its visible bytes are written.
    pub buf: AlignedBuf,
    /// The mode of the write.
    pub mode: WriteMode,
    /// Called once, from any thread, when everything is written or the write failed; returns the
    /// buffer. Without other threads it runs on the submitter's thread. The call should be short:
    /// other completions wait for it. If it panics, the panic hook reports that, and nothing else
    /// is affected.
    pub done: Box<dyn FnOnce(AlignedBuf, Result<(), Error>) + Send>,
}

impl OwnedWrite {
    /// Returns the range of bytes that are written.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.buf.len() as u64)
    }

    /// Reports the result. A panic of `done` is caught after the panic hook: it must not end the
    /// thread that serves other requests.
    pub(crate) fn finish(self, result: Result<(), Error>) {
        let Self { file, done, buf, .. } = self;
        let _ = catch_unwind(AssertUnwindSafe(|| {
            done(buf, result);
            drop(file);
        }));
    }
}

impl fmt::Debug for OwnedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedWrite")
            .field("file", &self.file.path())
            .field("range", &self.range())
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl OwnedRead {
    /// Reports the result. A panic of `done` is caught after the panic hook: it must not end the
    /// thread that serves other reads.
    pub(crate) fn finish(self, result: Result<usize, Error>) {
        let Self { file, done, .. } = self;
        let _ = catch_unwind(AssertUnwindSafe(|| {
            done(result);
            drop(file);
        }));
    }
}

impl fmt::Debug for BatchRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchRead")
            .field("file", &self.file.path())
            .field("offset", &self.offset)
            .field("lengths", &self.bufs.iter().map(|buf| buf.len()).collect::<Vec<_>>())
            .finish()
    }
}

impl fmt::Debug for OwnedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRead")
            .field("file", &self.file.path())
            .field("offset", &self.offset)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

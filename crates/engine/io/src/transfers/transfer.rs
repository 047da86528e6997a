//! The loop around raw reads and writes, shared by all back-ends. A read continues until its memory
//! is full, the file ends, or an error is final; a write until everything is written, or an error
//! is final.
//!
//! Invariants: the first [`Transfer::done`] bytes from the offset on are in the read's memory, or
//! in the written file. A read that returns less than requested means end of file; a write never
//! returns less. `EINTR`, `EAGAIN` and short counts are retried, except in an atomic write, which
//! is a single raw write. After [`FRUITLESS_ATTEMPTS_MAX`] consecutive attempts without progress
//! the transfer fails with the last error, so it always ends.

use libc::iovec;

use crate::transfers::scatter;
use crate::{Access, Error, IoFile, WriteMode};

/// The transfer fails after this many consecutive attempts without progress.
const FRUITLESS_ATTEMPTS_MAX: u32 = 1000;
/// From this many attempts on, the thread yields before the next.
const FRUITLESS_ATTEMPTS_BEFORE_YIELD: u32 = 10;

/// The alignment at which a direct read or write resumes. It preserves every initial alignment up
/// to this one.
const RESUME_ALIGNMENT: usize = 4096;

/// Direct transfers are aligned at least to this everywhere; if not, that explains an `EINVAL`.
const ALIGNMENT_MIN: usize = 512;

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferKind {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write(WriteMode),
}

/// The state of a read or write that may take several raw ones.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    kind: TransferKind,
    offset: u64,
    len: usize,
    done: usize,
    fruitless: u32,
}

impl Transfer {
    /// Creates a transfer of `len` bytes from `offset` on.
    pub fn new(kind: TransferKind, offset: u64, len: usize) -> Self {
        Self { kind, offset, len, done: 0, fruitless: 0 }
    }

    /// Returns the direction.
    pub fn kind(&self) -> TransferKind {
        self.kind
    }

    /// Returns the result if it is known before any raw transfer: nothing to do, or a range beyond
    /// Linux's limit.
    pub fn before(&self, file: &dyn IoFile) -> Option<Result<usize, Error>> {
        if self.len == 0 {
            return Some(Ok(0));
        }
        // `-1` would even mean "the file's own position" to `io_uring`.
        let beyond = self.offset.checked_add(self.len as u64).is_none_or(|end| i64::try_from(end).is_err());
        beyond.then(|| Err(self.error(libc::EINVAL, file)))
    }

    /// Returns the offset of the next raw transfer.
    pub fn position(&self) -> u64 {
        self.offset + self.done as u64
    }

    /// Returns how many bytes have been transferred.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Processes the result of a raw transfer at [`Self::position`] for `asked` bytes: a count, or
    /// an error number. `pieces` is the whole memory. Returns the final result, or `None` if
    /// another raw transfer must follow.
    pub fn after(
        &mut self,
        asked: usize,
        got: Result<usize, i32>,
        file: &dyn IoFile,
        pieces: &[iovec],
    ) -> Option<Result<usize, Error>> {
        match got {
            Ok(count) if count == asked => {
                self.done += count;
                self.fruitless = 0;
                (self.done == self.len).then_some(Ok(self.done))
            }
            Ok(0) if self.kind == TransferKind::Read => Some(Ok(self.done)),
            // Some bytes were written, but not atomically. No file system does this: the rest would
            // take a second write.
            Ok(_) if self.is_atomic() => Some(Err(self.error(libc::EIO, file))),
            // No file system does this for a write; it counts as no progress.
            Ok(0) => self.retry_fruitless(libc::EIO, file),
            Ok(count) => self.continue_after_short(count, file),
            Err(errno @ (libc::EINTR | libc::EAGAIN)) => self.retry_fruitless(errno, file),
            Err(libc::EINVAL) if file.access() == Access::Direct && !self.is_aligned(pieces) => {
                Some(Err(Error::Unaligned { path: file.path().to_path_buf(), range: self.range() }))
            }
            Err(errno) => Some(Err(self.error(errno, file))),
        }
    }

    /// Continues after a short count. A direct read cannot simply continue at an unaligned end of
    /// file. So the size is checked, and if the file does not end there, the read resumes at an
    /// aligned offset.
    fn continue_after_short(&mut self, count: usize, file: &dyn IoFile) -> Option<Result<usize, Error>> {
        let reached = self.done + count;
        if file.access() == Access::Buffered {
            self.done = reached;
            self.fruitless = 0;
            return None;
        }
        if self.kind == TransferKind::Read {
            match file.stat() {
                Ok(stat) if stat.size <= self.offset + reached as u64 => return Some(Ok(reached)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        let resumed = reached - reached % RESUME_ALIGNMENT;
        if resumed <= self.done {
            return self.retry_fruitless(libc::EAGAIN, file);
        }
        self.done = resumed;
        self.fruitless = 0;
        None
    }

    fn retry_fruitless(&mut self, errno: i32, file: &dyn IoFile) -> Option<Result<usize, Error>> {
        self.fruitless += 1;
        if self.fruitless >= FRUITLESS_ATTEMPTS_MAX {
            return Some(Err(self.error(errno, file)));
        }
        if self.fruitless >= FRUITLESS_ATTEMPTS_BEFORE_YIELD {
            std::thread::yield_now();
        }
        None
    }

    fn is_atomic(&self) -> bool {
        self.kind == TransferKind::Write(WriteMode::Atomic)
    }

    fn is_aligned(&self, pieces: &[iovec]) -> bool {
        let is_natural = self.len.is_power_of_two() && self.offset.is_multiple_of(self.len as u64);
        self.offset.is_multiple_of(ALIGNMENT_MIN as u64)
            && scatter::are_aligned(pieces, ALIGNMENT_MIN)
            && (is_natural || !self.is_atomic())
    }

    fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.len as u64)
    }

    /// Creates the error of this read or write.
    pub(crate) fn error(&self, errno: i32, file: &dyn IoFile) -> Error {
        let (path, range) = (file.path().to_path_buf(), self.range());
        match self.kind {
            TransferKind::Read => Error::Read { path, range, errno },
            TransferKind::Write(_) => Error::Write { path, range, errno },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::path::Path;

    use super::*;
    use crate::FileStat;

    /// A file with only a size.
    struct Sized(u64, Access);

    impl IoFile for Sized {
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize, Error> {
            unreachable!("raw reads are played by the test")
        }
        fn stat(&self) -> Result<FileStat, Error> {
            Ok(FileStat { size: self.0, device: 0, inode: 0, modified: (0, 0), changed: (0, 0) })
        }
        fn access(&self) -> Access {
            self.1
        }
        fn path(&self) -> &Path {
            Path::new("file")
        }
        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    fn feed(
        transfer: &mut Transfer,
        file: &Sized,
        results: &[Result<usize, i32>],
    ) -> Vec<Option<Result<usize, Error>>> {
        results
            .iter()
            .map(|got| {
                let asked = transfer.len - transfer.done;
                transfer.after(asked, *got, file, &[])
            })
            .collect()
    }

    #[test]
    fn interruptions_and_short_counts_are_continued() {
        let file = Sized(100_000, Access::Buffered);
        let mut transfer = Transfer::new(TransferKind::Read, 10, 8192);
        let got =
            feed(&mut transfer, &file, &[Err(libc::EINTR), Ok(100), Err(libc::EAGAIN), Ok(8000), Ok(92)]);
        assert_eq!(got, [None, None, None, None, Some(Ok(8192))]);
    }

    #[test]
    fn nothing_more_is_the_end_of_file() {
        let file = Sized(0, Access::Buffered);
        let mut transfer = Transfer::new(TransferKind::Read, 0, 8192);
        // The size is not trusted (files of /proc have none): only a raw read of no bytes ends a
        // buffered read.
        assert_eq!(feed(&mut transfer, &file, &[Ok(100), Ok(0)]), [None, Some(Ok(100))]);
    }

    #[test]
    fn a_direct_read_ends_at_the_size_and_resumes_aligned_before_it() {
        let file = Sized(20_000, Access::Direct);
        let mut transfer = Transfer::new(TransferKind::Read, 8192, 16_384);
        assert_eq!(feed(&mut transfer, &file, &[Ok(5000)]), [None]);
        assert_eq!(transfer.position(), 8192 + 4096);
        assert_eq!(feed(&mut transfer, &file, &[Ok(20_000 - 8192 - 4096)]), [Some(Ok(20_000 - 8192))]);
    }

    #[test]
    fn a_read_that_never_gets_anywhere_fails_in_the_end() {
        for (access, errno, got) in [
            (Access::Buffered, libc::EINTR, Err(libc::EINTR)),
            (Access::Buffered, libc::EAGAIN, Err(libc::EAGAIN)),
            (Access::Direct, libc::EAGAIN, Ok(7)),
        ] {
            let file = Sized(1 << 20, access);
            let mut transfer = Transfer::new(TransferKind::Read, 0, 4096);
            let results = feed(&mut transfer, &file, &vec![got; FRUITLESS_ATTEMPTS_MAX as usize]);
            let (last, others) = results.split_last().unwrap();
            assert!(others.iter().all(Option::is_none));
            assert_eq!(last.as_ref().unwrap().as_ref().unwrap_err().errno(), Some(errno));
        }
    }

    #[test]
    fn an_invalid_direct_read_is_explained_where_it_is_not_aligned() {
        let file = Sized(1 << 20, Access::Direct);
        let unaligned = Error::Unaligned { path: "file".into(), range: 100..4196 };
        let got = feed(&mut Transfer::new(TransferKind::Read, 100, 4096), &file, &[Err(libc::EINVAL)]);
        assert_eq!(got, [Some(Err(unaligned))]);
        let got = feed(&mut Transfer::new(TransferKind::Read, 512, 4096), &file, &[Err(libc::EINVAL)]);
        assert!(matches!(got[0], Some(Err(Error::Read { errno: libc::EINVAL, .. }))));
    }

    #[test]
    fn a_write_continues_until_all_bytes_are_written() {
        let write = TransferKind::Write(WriteMode::Plain);
        let file = Sized(0, Access::Buffered);
        let mut transfer = Transfer::new(write, 10, 8192);
        let got = feed(&mut transfer, &file, &[Err(libc::EINTR), Ok(100), Ok(0), Ok(8092)]);
        assert_eq!(got, [None, None, None, Some(Ok(8192))]);
        // A direct write resumes at an aligned offset, whatever the size.
        let mut transfer = Transfer::new(write, 0, 8192);
        assert_eq!(feed(&mut transfer, &Sized(0, Access::Direct), &[Ok(5000)]), [None]);
        assert_eq!(transfer.position(), 4096);
        let full = feed(&mut Transfer::new(write, 10, 20), &file, &[Ok(5), Err(libc::ENOSPC)]);
        assert_eq!(
            full[1],
            Some(Err(Error::Write { path: "file".into(), range: 10..30, errno: libc::ENOSPC }))
        );
    }

    #[test]
    fn an_atomic_write_is_one_raw_write_or_fails() {
        let file = Sized(0, Access::Direct);
        let write = |offset, len| Transfer::new(TransferKind::Write(WriteMode::Atomic), offset, len);
        let failed = |range, errno| Some(Err(Error::Write { path: "file".into(), range, errno }));
        let unaligned = |range| Some(Err(Error::Unaligned { path: "file".into(), range }));
        for short in [0, 4096] {
            let got = feed(&mut write(0, 8192), &file, &[Err(libc::EINTR), Ok(short)]);
            assert_eq!(got, [None, failed(0..8192, libc::EIO)]);
        }
        let got = feed(&mut write(0, 8192), &file, &[Err(libc::EAGAIN), Ok(8192)]);
        assert_eq!(got, [None, Some(Ok(8192))]);
        for (offset, len, expected) in [
            (0, 8192, failed(0..8192, libc::EINVAL)),
            (4096, 8192, unaligned(4096..12_288)),
            (0, 12_288, unaligned(0..12_288)),
        ] {
            assert_eq!(feed(&mut write(offset, len), &file, &[Err(libc::EINVAL)]), [expected]);
        }
    }

    #[test]
    fn offsets_above_the_maximum_are_refused_before_any_read() {
        let file = Sized(1, Access::Buffered);
        for offset in [u64::MAX, u64::MAX - 4096, i64::MAX as u64] {
            let error = Transfer::new(TransferKind::Read, offset, 4096).before(&file).unwrap().unwrap_err();
            assert_eq!(error.errno(), Some(libc::EINVAL), "{offset}");
        }
        assert_eq!(Transfer::new(TransferKind::Read, u64::MAX, 0).before(&file), Some(Ok(0)));
        assert_eq!(Transfer::new(TransferKind::Read, 0, 1).before(&file), None);
    }
}

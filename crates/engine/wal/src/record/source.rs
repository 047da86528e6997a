//! A source of bytes for a reader of records, and the memory that they are read into.

use std::ops::Range;
use std::path::PathBuf;

use super::{BLOCK, RECORD_HEADER_BYTES, RecordHeader, is_whole};
use crate::Error;

/// A source of a reader's bytes.
pub(crate) trait LogSource {
    /// Fills `bytes` from `lsn` on, fewer only at [`Self::end`]. `lsn`, and the length and memory
    /// of `bytes`, are aligned to [`BLOCK`](super::BLOCK).
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error>;

    /// Returns the number of bytes to request at once, if that many may be wanted: a multiple of
    /// [`BLOCK`](super::BLOCK).
    fn chunk(&self) -> usize {
        4 << 20
    }

    /// Returns the end of the source: nothing at or past this LSN can be in it.
    fn end(&self) -> u64;

    /// Returns the file, and the byte in it, of an LSN.
    fn locate(&self, lsn: u64) -> (PathBuf, u64);
}

/// The bytes of a log that were read into memory so far.
pub(crate) trait LoadedBytes {
    /// Reads the `len` bytes from `lsn` on into memory, or those before `limit`. Reads more up to
    /// the limit if that costs little. Bytes before `lsn` are not requested again.
    fn load(&mut self, lsn: u64, len: usize, limit: u64) -> Result<(), Error>;

    /// Returns the bytes from `lsn` on, if all of them are in memory. After [`Self::load`] they
    /// are, unless the log ends before.
    fn get(&self, lsn: u64, len: usize) -> Option<&[u8]>;

    /// Announces that the records from `lsn` on are read next, under this salt.
    fn look_ahead(&mut self, _lsn: u64, _salt: u32, _limit: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Whether the record with this header, which was loaded, is whole.
    fn is_whole(&self, header: &RecordHeader) -> bool {
        self.get(header.lsn, RECORD_HEADER_BYTES + header.len)
            .is_some_and(|bytes| is_whole(bytes, header.len))
    }

    /// Returns the error of a part of this loaded range that the device could not read, if any.
    /// Such a part is filled with zeros.
    fn unreadable(&self, lsns: &Range<u64>) -> Option<Error>;

    /// Returns the end of the log's bytes: nothing at or past this LSN can be in it.
    fn end(&self) -> u64;

    /// Returns the file, and the byte in it, of an LSN.
    fn locate(&self, lsn: u64) -> (PathBuf, u64);
}

/// Blocks that could not be read, each with its error.
#[derive(Debug, Default)]
pub(crate) struct UnreadableBlocks(Vec<(u64, Error)>);

impl UnreadableBlocks {
    /// Adds the block that begins here.
    pub(crate) fn add(&mut self, block: u64, error: Error) {
        self.0.push((block, error));
    }

    /// Adds all blocks of another.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Returns the error of the first block with a byte in the range.
    pub(crate) fn within(&self, lsns: &Range<u64>) -> Option<Error> {
        let meets = |block: u64| block < lsns.end && lsns.start < block.saturating_add(BLOCK);
        let found = self.0.iter().filter(|(block, _)| meets(*block)).min_by_key(|(block, _)| *block);
        found.map(|(_, error)| error.clone())
    }
}

/// Whether an error means that the medium can't return its data there, and says nothing about the
/// neighbouring data.
pub(crate) fn is_of_medium(error: &Error) -> bool {
    let Error::Io(error) = error else { return false };
    error
        .errno()
        .is_some_and(|errno| matches!(errno, libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EBADMSG))
}

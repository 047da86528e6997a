//! A source of bytes for a reader of records, and the memory that they are read into.

use std::ops::Range;
use std::path::PathBuf;

use super::{BLOCK, HEADER, Header, is_whole};
use crate::Error;

/// Where a reader's bytes come from.
pub(crate) trait Source {
    /// Fills `bytes` from `lsn` on, fewer only at [`Self::end`]. `lsn`, and the length and memory of `bytes`, are aligned to
    /// [`BLOCK`](super::BLOCK).
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error>;

    /// Bytes to ask of it at once, where so many may be wanted: a multiple of [`BLOCK`](super::BLOCK).
    fn chunk(&self) -> usize {
        4 << 20
    }

    /// Where the source ends: nothing at or past this LSN can be in it.
    fn end(&self) -> u64;

    /// The file, and the byte in it, that an LSN stands for.
    fn locate(&self, lsn: u64) -> (PathBuf, u64);
}

/// The bytes of a log, as far as they were read into memory.
pub(crate) trait Reach {
    /// Reads the `len` bytes from `lsn` on into memory, or as many of them as stand before `limit`; more where that is at little
    /// cost, up to the limit. What is before `lsn` is not asked for again.
    fn load(&mut self, lsn: u64, len: usize, limit: u64) -> Result<(), Error>;

    /// The bytes from `lsn` on, if they are all there; after [`Self::load`] of them they are, or the log ends before.
    fn get(&self, lsn: u64, len: usize) -> Option<&[u8]>;

    /// The records from `lsn` on are what is asked for next, under this salt.
    fn look_ahead(&mut self, _lsn: u64, _salt: u32, _limit: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Whether the record at a place that was loaded is whole, whose header this is.
    fn is_whole(&self, header: &Header) -> bool {
        self.get(header.lsn, HEADER + header.len).is_some_and(|bytes| is_whole(bytes, header.len))
    }

    /// Why a part of this range, which was loaded, could not be read from the device, if so: zeros stand there.
    fn unreadable(&self, lsns: &Range<u64>) -> Option<Error>;

    /// Where it all ends: nothing at or past this LSN can be in it.
    fn end(&self) -> u64;

    /// The file, and the byte in it, that an LSN stands for.
    fn locate(&self, lsn: u64) -> (PathBuf, u64);
}

/// Blocks that could not be read, and why.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Vec<(u64, Error)>);

impl Unreadable {
    /// The block that begins here can't be read.
    pub(crate) fn add(&mut self, block: u64, error: Error) {
        self.0.push((block, error));
    }

    /// Takes in others.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The first of them that has a byte in the range.
    pub(crate) fn within(&self, lsns: &Range<u64>) -> Option<Error> {
        let meets = |block: u64| block < lsns.end && lsns.start < block.saturating_add(BLOCK);
        let found = self.0.iter().filter(|(block, _)| meets(*block)).min_by_key(|(block, _)| *block);
        found.map(|(_, error)| error.clone())
    }
}

/// Whether an error says that the medium can't give back what it has there, and nothing of what is beside it.
pub(crate) fn is_of_medium(error: &Error) -> bool {
    let Error::Io(error) = error else { return false };
    error
        .errno()
        .is_some_and(|errno| matches!(errno, libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EBADMSG))
}

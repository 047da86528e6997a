//! The part of a log that a reader has in memory.
//!
//! Invariant: the source is read in whole blocks, forwards, into memory that is aligned for direct
//! reads. Blocks that the device can't read are noted and replaced by zeros. Other errors of the
//! source are returned.

use std::ops::Range;
use std::path::PathBuf;

use super::source::{LoadedBytes, LogSource, UnreadableBlocks, is_of_medium};
use super::{BLOCK, BLOCK_LEN};
use crate::Error;
use crate::convert::to_usize;

/// A source, and a buffer over it.
#[derive(Debug)]
pub(crate) struct BufferedSource<S> {
    source: S,
    buffer: AlignedBlocks,
    unreadable: UnreadableBlocks,
}

impl<S: LogSource> BufferedSource<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, buffer: AlignedBlocks::default(), unreadable: UnreadableBlocks::default() }
    }
}

impl<S: LogSource> LoadedBytes for BufferedSource<S> {
    fn load(&mut self, lsn: u64, len: usize, limit: u64) -> Result<(), Error> {
        if self.buffer.get(lsn, len).is_some() {
            return Ok(());
        }
        let limit = limit.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        self.buffer.move_to(lsn - lsn % BLOCK);
        let from = self.buffer.end();
        let wanted =
            lsn.saturating_add(len.max(self.source.chunk()) as u64).min(limit).next_multiple_of(BLOCK);
        if from < wanted {
            let (source, unreadable) = (&mut self.source, &mut self.unreadable);
            let more = to_usize(wanted - from);
            self.buffer.fill(more, |bytes| match source.read(from, bytes) {
                Err(error) if is_of_medium(&error) => read_blocks(source, from, bytes, unreadable),
                read => read,
            })?;
        }
        Ok(())
    }

    fn get(&self, lsn: u64, len: usize) -> Option<&[u8]> {
        self.buffer.get(lsn, len)
    }

    fn unreadable(&self, lsns: &Range<u64>) -> Option<Error> {
        self.unreadable.within(lsns)
    }

    fn end(&self) -> u64 {
        self.source.end()
    }

    fn locate(&self, lsn: u64) -> (PathBuf, u64) {
        self.source.locate(lsn)
    }
}

/// Reads block by block, and notes unreadable blocks.
fn read_blocks<S: LogSource>(
    source: &mut S,
    from: u64,
    bytes: &mut [u8],
    unreadable: &mut UnreadableBlocks,
) -> Result<usize, Error> {
    let mut got = 0;
    for (block, bytes) in (from..).step_by(BLOCK_LEN).zip(bytes.chunks_mut(BLOCK_LEN)) {
        got += match source.read(block, bytes) {
            Err(error) if is_of_medium(&error) => {
                bytes.fill(0);
                unreadable.add(block, error);
                bytes.len()
            }
            Ok(len) if len < bytes.len() => return Ok(got + len),
            read => read?,
        };
    }
    Ok(got)
}

/// A part of the log in memory that is aligned for direct reads.
#[derive(Debug, Default)]
struct AlignedBlocks {
    /// The LSN of its first byte: a multiple of [`BLOCK`].
    start: u64,
    /// Bytes that it holds.
    len: usize,
    memory: Vec<u8>,
    /// The offset in `memory` at which it begins, so that its address is aligned.
    skipped: usize,
}

impl AlignedBlocks {
    /// Returns its end.
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// Returns the bytes at `lsn`, if all of them are buffered.
    fn get(&self, lsn: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(lsn.checked_sub(self.start)?).ok()?;
        let end = from.checked_add(len).filter(|end| *end <= self.len)?;
        self.memory.get(self.skipped + from..self.skipped + end)
    }

    /// Moves the start of the buffer to `start`, and keeps the bytes it has from there on.
    fn move_to(&mut self, start: u64) {
        if (self.start..self.end()).contains(&start) {
            let gone = to_usize(start - self.start);
            let from = self.skipped + gone;
            self.memory.copy_within(from..self.skipped + self.len, self.skipped);
            self.len -= gone;
        } else {
            self.len = 0;
        }
        self.start = start;
        // A partial block was the end of the source, and is read again.
        self.len -= self.len % BLOCK_LEN;
    }

    /// Adds up to `more` bytes, as many as `read` returns.
    fn fill(
        &mut self,
        more: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Error>,
    ) -> Result<(), Error> {
        let needed = self.len + more;
        if self.memory.len() < needed + BLOCK_LEN {
            let mut larger = vec![0; needed + BLOCK_LEN];
            let skipped = larger.as_ptr().align_offset(BLOCK_LEN).min(BLOCK_LEN);
            larger[skipped..skipped + self.len]
                .copy_from_slice(&self.memory[self.skipped..self.skipped + self.len]);
            (self.memory, self.skipped) = (larger, skipped);
        }
        let from = self.skipped + self.len;
        let got = read(&mut self.memory[from..from + more])?;
        self.len += got.min(more);
        Ok(())
    }
}

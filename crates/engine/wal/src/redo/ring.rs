//! The ring of files: maps LSNs to files, and reads, writes and syncs by LSN.
//!
//! Invariant: LSN x is byte (x modulo size) of file (x / size) modulo the number of files. Fails as
//! the disk does.

use std::io::IoSliceMut;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use pagekeeper_io::{BatchRead, Io, IoFile, WriteMode};

use crate::Error;
use crate::convert::to_usize;
use crate::record::{BLOCK, BLOCK_LEN, LogSource, UnreadableBlocks, is_of_medium};

/// Bytes of one read of a batch.
const READ_PIECE_BYTES: u64 = 512 << 10;

/// The number and size of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Bytes of each file, a multiple of a block.
    pub(super) file_bytes: u64,
    pub(super) files: u32,
}

impl Geometry {
    /// Returns the bytes of the ring.
    pub(super) fn capacity(self) -> u64 {
        self.file_bytes * u64::from(self.files)
    }

    /// Returns the index of the file, and the offset in it.
    pub(super) fn locate(self, lsn: u64) -> (usize, u64) {
        let index = (lsn / self.file_bytes) % u64::from(self.files);
        (to_usize(index), lsn % self.file_bytes)
    }

    /// Splits a range of LSNs, at most as long as the ring, at the ends of files. Yields the index
    /// of each file, and the range of bytes in it.
    pub(super) fn pieces(self, lsns: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let mut from = lsns.start;
        std::iter::from_fn(move || {
            let (index, offset) = self.locate(from);
            let len = (lsns.end.checked_sub(from)?).min(self.file_bytes - offset);
            from += len;
            (len > 0).then_some((index, offset..offset + len))
        })
    }
}

/// Returns the name of a file of the ring.
pub(super) fn name(index: u32) -> String {
    format!("redo.{index:03}")
}

/// Whether this could be the name of a file of the ring.
pub(super) fn is_name(name: &str) -> bool {
    name.strip_prefix("redo.").is_some_and(|digits| digits.parse::<u32>().is_ok())
}

/// The files, opened for writing.
pub(super) struct Ring {
    pub(super) geometry: Geometry,
    pub(super) files: Vec<Arc<dyn IoFile>>,
}

impl Ring {
    /// Writes the bytes from `lsn` on that fit into one file. Returns their number.
    pub(super) fn write(&self, lsn: u64, bytes: &[u8], mode: WriteMode) -> Result<usize, Error> {
        let (index, offset) = self.geometry.locate(lsn);
        let room = self.geometry.file_bytes - offset;
        let bytes = &bytes[..to_usize(room.min(bytes.len() as u64))];
        self.files[index].write_at(offset, bytes, mode)?;
        Ok(bytes.len())
    }

    /// Starts writeback of one write.
    pub(super) fn start_writeback(&self, lsn: u64, len: usize) -> Result<(), Error> {
        let (index, offset) = self.geometry.locate(lsn);
        Ok(self.files[index].start_writeback(offset..offset + len as u64)?)
    }

    /// Makes the bytes written at these LSNs durable.
    pub(super) fn sync(&self, lsns: Range<u64>) -> Result<(), Error> {
        let from = lsns.end.saturating_sub(self.geometry.capacity()).max(lsns.start);
        let mut synced = Vec::new();
        for (index, _) in self.geometry.pieces(from..lsns.end) {
            if !synced.contains(&index) {
                self.files[index].sync_data()?;
                synced.push(index);
            }
        }
        Ok(())
    }
}

/// The files, opened for reading, past the page cache if possible.
pub(super) struct RingSource {
    io: Arc<dyn Io>,
    geometry: Geometry,
    files: Arc<[Arc<dyn IoFile>]>,
    /// Nothing at or past this is in the ring.
    end: u64,
}

impl RingSource {
    /// Creates a source up to `end`. It reads the whole blocks before `end`, and the one that it
    /// lies in.
    pub(super) fn new(io: Arc<dyn Io>, geometry: Geometry, files: Arc<[Arc<dyn IoFile>]>, end: u64) -> Self {
        Self { io, geometry, files, end: end.next_multiple_of(BLOCK) }
    }
}

/// The result of a read.
pub(super) struct RingRead {
    /// The end of the bytes in memory.
    pub(super) upto: u64,
    /// The error, if not everything was read.
    pub(super) failed: Option<Error>,
    /// Blocks before `upto` that the device can't read: zeros replace them.
    pub(super) unreadable: UnreadableBlocks,
}

impl RingSource {
    /// Fills all parts, one after the other, from `lsn` on, with all pieces in flight at once. The
    /// range must be before the end, and aligned.
    pub(super) fn read_all<'a>(&self, lsn: u64, parts: impl IntoIterator<Item = &'a mut [u8]>) -> RingRead {
        let mut parts: Vec<_> = parts.into_iter().collect();
        let mut unreadable = UnreadableBlocks::default();
        let (upto, failed) = match self.read_pieces(lsn, parts.iter_mut().map(|part| &mut **part)) {
            (upto, Some(error)) if is_of_medium(&error) => {
                self.read_blocks(upto, lsn, &mut parts, &mut unreadable)
            }
            read => read,
        };
        RingRead { upto, failed, unreadable }
    }

    /// Reads block by block, from the failed piece on.
    fn read_blocks(
        &self,
        from: u64,
        lsn: u64,
        parts: &mut [&mut [u8]],
        unreadable: &mut UnreadableBlocks,
    ) -> (u64, Option<Error>) {
        let blocks = parts.iter_mut().flat_map(|part| part.chunks_mut(BLOCK_LEN));
        let mut upto = from;
        for (at, block) in (lsn..).step_by(BLOCK_LEN).zip(blocks).filter(|(at, _)| *at >= from) {
            match self.read_pieces(at, [&mut *block]) {
                (_, None) => {}
                (_, Some(error)) if is_of_medium(&error) => {
                    block.fill(0);
                    unreadable.add(at, error);
                }
                failed => return failed,
            }
            upto = at + block.len() as u64;
        }
        (upto, None)
    }

    /// Reads like [`Self::read_all`]. Returns the end of the bytes read, and the error there.
    fn read_pieces<'a>(
        &self,
        lsn: u64,
        parts: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> (u64, Option<Error>) {
        let mut end = lsn;
        let parts = parts.into_iter().map(|part| {
            let start = end;
            end += part.len() as u64;
            (start, part)
        });
        match self.read_parts(parts) {
            Some((upto, error)) => (upto, Some(error)),
            None => (end, None),
        }
    }

    /// Fills separate parts, each from its own LSN on, with all pieces in flight at once. The parts
    /// must be before the end, and aligned. Returns the first failed position and its error.
    pub(super) fn read_parts<'a>(
        &self,
        parts: impl IntoIterator<Item = (u64, &'a mut [u8])>,
    ) -> Option<(u64, Error)> {
        let mut reads = Vec::new();
        let mut starts = Vec::new();
        for (mut at, mut rest) in parts {
            for (index, range) in self.geometry.pieces(at..at + rest.len() as u64) {
                let mut offset = range.start;
                while offset < range.end {
                    let piece = to_usize((range.end - offset).min(READ_PIECE_BYTES));
                    let (front, back) = rest.split_at_mut(piece);
                    rest = back;
                    let bufs = vec![IoSliceMut::new(front)];
                    reads.push(BatchRead { file: &*self.files[index], offset, bufs });
                    starts.push((at, piece));
                    offset += piece as u64;
                    at += piece as u64;
                }
            }
        }
        let mut failed: Option<(u64, Error)> = None;
        self.io.read_batch(&mut reads, &mut |index, result| {
            let (start, len) = starts[index];
            let error = match result {
                Ok(got) if got == len => return,
                Ok(got) => {
                    let (path, offset) = self.locate(start);
                    let found = offset + got as u64;
                    Error::WrongSize { path, expected: self.geometry.file_bytes, found }
                }
                Err(error) => error.into(),
            };
            if failed.as_ref().is_none_or(|(first, _)| start < *first) {
                failed = Some((start, error));
            }
        });
        failed
    }
}

impl std::fmt::Debug for RingSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingSource")
            .field("geometry", &self.geometry)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl LogSource for RingSource {
    /// Reads all pieces at once.
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        let wanted = self.end.saturating_sub(lsn).min(bytes.len() as u64);
        let len = to_usize(wanted);
        let (_, failed) = self.read_pieces(lsn, [&mut bytes[..len]]);
        failed.map_or(Ok(len), Err)
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn locate(&self, lsn: u64) -> (PathBuf, u64) {
        let (index, offset) = self.geometry.locate(lsn);
        (self.files[index].path().to_path_buf(), offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsns_go_round_and_ranges_are_cut_where_files_end() {
        let ring = Geometry { file_bytes: 8192, files: 3 };
        assert_eq!(ring.capacity(), 24_576);
        assert_eq!((ring.locate(0), ring.locate(8192 * 3 + 100)), ((0, 0), (0, 100)));
        let pieces: Vec<_> = ring.pieces(20_000..30_000).collect();
        assert_eq!(pieces, [(2, 3616..8192), (0, 0..5424)]);
        assert_eq!(ring.pieces(5..5).count(), 0);
    }

    #[test]
    fn names_of_files_are_known() {
        assert_eq!((name(0), name(1234)), ("redo.000".into(), "redo.1234".into()));
        assert!(is_name("redo.007") && !is_name("redo.x") && !is_name("control"));
    }
}

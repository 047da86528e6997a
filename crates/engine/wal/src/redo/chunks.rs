//! Contiguous chunks of the log in memory.
//!
//! Invariants: there is no gap between the chunks. Memory is reused once nobody holds a part of it:
//! touching memory for the first time takes as long as reading it from a fast disk.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use pagekeeper_kernel::mutex::lock;

use super::mapping::Mapping;
use crate::convert::to_usize;
use crate::record::{self, RECORD_HEADER_BYTES, RecordHeader};

/// Bytes of a chunk's memory.
pub(super) const CHUNK_BYTES: usize = 4 << 20;

/// Unused memory, in pieces of [`CHUNK_BYTES`] bytes.
type SpareMemory = Mutex<Vec<Mapping>>;

/// Memory of a chunk with parts in use. It is returned when the last part is dropped, if the reader
/// still exists.
struct LentMemory {
    /// Set until the drop.
    map: Option<Mapping>,
    home: Weak<SpareMemory>,
}

impl AsRef<[u8]> for LentMemory {
    fn as_ref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        if let Some((map, home)) = self.map.take().zip(self.home.upgrade()) {
            give_back(&home, map);
        }
    }
}

fn give_back(spare: &SpareMemory, map: Mapping) {
    if map.len() == CHUNK_BYTES {
        lock(spare).push(map);
    }
}

/// The owner of the memory.
#[derive(Debug)]
enum ChunkMemory {
    Ours(Mapping),
    /// Returned records may refer to parts of it.
    Shared(Bytes),
}

/// A part of the log in memory.
#[derive(Debug)]
pub(super) struct Chunk {
    start: u64,
    /// Bytes of the memory that belong to the log.
    len: usize,
    memory: ChunkMemory,
}

impl Chunk {
    /// Creates a chunk as it was read: the log from `start` on is in the first `len` bytes.
    pub(super) fn read(start: u64, map: Mapping, len: usize) -> Self {
        Self { start, len, memory: ChunkMemory::Ours(map) }
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// Whether it holds all of this range.
    pub(super) fn has(&self, lsns: &Range<u64>) -> bool {
        self.start <= lsns.start && lsns.end <= self.end()
    }

    /// Returns its part of this range.
    pub(super) fn part(&self, lsns: &Range<u64>) -> &[u8] {
        let memory = match &self.memory {
            ChunkMemory::Ours(map) => &map[..],
            ChunkMemory::Shared(bytes) => bytes,
        };
        &memory[self.offsets(lsns)]
    }

    /// Returns its part of this range to be kept: a slice of its memory if that is shared already,
    /// otherwise a copy.
    pub(super) fn to_bytes(&self, lsns: &Range<u64>) -> Bytes {
        match &self.memory {
            ChunkMemory::Ours(_) => Bytes::copy_from_slice(self.part(lsns)),
            ChunkMemory::Shared(bytes) => bytes.slice(self.offsets(lsns)),
        }
    }

    /// Returns its part of this range without a copy. The part outlives the chunk.
    fn share(&mut self, lsns: &Range<u64>, home: &Arc<SpareMemory>) -> Bytes {
        let offsets = self.offsets(lsns);
        let memory = std::mem::replace(&mut self.memory, ChunkMemory::Shared(Bytes::new()));
        let bytes = match memory {
            ChunkMemory::Ours(map) => {
                Bytes::from_owner(LentMemory { map: Some(map), home: Arc::downgrade(home) })
            }
            ChunkMemory::Shared(bytes) => bytes,
        };
        let part = bytes.slice(offsets);
        self.memory = ChunkMemory::Shared(bytes);
        part
    }

    fn offsets(&self, lsns: &Range<u64>) -> Range<usize> {
        let offset = |lsn: u64| to_usize(lsn.clamp(self.start, self.end()) - self.start);
        offset(lsns.start)..offset(lsns.end)
    }
}

/// Chunks without a gap.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: VecDeque<Chunk>,
    spare: Arc<SpareMemory>,
}

impl Chunks {
    pub(super) fn extend(&mut self, chunks: Vec<Chunk>) {
        self.chunks.extend(chunks);
        debug_assert!(self.chunks.iter().is_sorted_by(|before, after| before.end() == after.start));
    }

    /// Returns memory of up to `count` chunks to read into, the most recently used first.
    pub(super) fn take_spare(&self, count: usize) -> Vec<Mapping> {
        let mut spare = lock(&self.spare);
        let left = spare.len().saturating_sub(count);
        spare.drain(left..).rev().collect()
    }

    /// Returns the index of the chunk with this byte.
    fn index(&self, lsn: u64) -> Option<usize> {
        let index = self.chunks.partition_point(|chunk| chunk.start <= lsn).checked_sub(1)?;
        self.chunks.get(index).is_some_and(|chunk| lsn < chunk.end()).then_some(index)
    }

    /// Returns the chunk that holds all of this range.
    pub(super) fn one_with(&self, lsns: &Range<u64>) -> Option<&Chunk> {
        self.chunks.get(self.index(lsns.start)?).filter(|chunk| chunk.has(lsns))
    }

    /// Returns this range without a copy, if one chunk holds all of it.
    pub(super) fn share(&mut self, lsns: &Range<u64>) -> Option<Bytes> {
        let index = self.index(lsns.start)?;
        let chunk = self.chunks.get_mut(index).filter(|chunk| chunk.has(lsns))?;
        Some(chunk.share(lsns, &self.spare))
    }

    /// Iterates over the available parts of this range, in order.
    fn parts(&self, lsns: Range<u64>) -> impl Iterator<Item = &[u8]> {
        let first = self.chunks.partition_point(|chunk| chunk.end() <= lsns.start);
        let end = lsns.end;
        self.chunks
            .range(first..)
            .take_while(move |chunk| chunk.start < end)
            .map(move |chunk| chunk.part(&lsns))
    }

    /// Returns a contiguous copy of this range.
    pub(super) fn join(&self, lsns: &Range<u64>) -> Chunk {
        let bytes = Bytes::from(self.parts(lsns.clone()).collect::<Vec<_>>().concat());
        Chunk { start: lsns.start, len: bytes.len(), memory: ChunkMemory::Shared(bytes) }
    }

    /// Returns the bytes of a header; `None` unless all of them are there.
    pub(super) fn header(&self, lsn: u64) -> Option<[u8; RECORD_HEADER_BYTES]> {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        let mut filled = 0;
        for part in self.parts(lsn..lsn.checked_add(RECORD_HEADER_BYTES as u64)?) {
            bytes[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        (filled == RECORD_HEADER_BYTES).then_some(bytes)
    }

    /// Whether all of a record is there and matches its checksum.
    pub(super) fn is_whole(&self, header: &RecordHeader) -> bool {
        let body = header.lsn + RECORD_HEADER_BYTES as u64;
        let (mut crc, mut len) = (0, 0);
        for part in self.parts(body..body + header.len as u64) {
            crc = crc32c::crc32c_append(crc, part);
            len += part.len();
        }
        len == header.len && self.header(header.lsn).is_some_and(|bytes| record::has_checksum(&bytes, crc))
    }

    /// Drops the chunks before `lsn`.
    pub(super) fn forget(&mut self, lsn: u64) {
        let behind = self.chunks.partition_point(|chunk| chunk.end() <= lsn);
        for chunk in self.chunks.drain(..behind) {
            if let ChunkMemory::Ours(map) = chunk.memory {
                give_back(&self.spare, map);
            }
        }
    }
}

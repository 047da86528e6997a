//! Contents of simulated files: the bytes that were written; elsewhere zeros or a computed pattern.
//!
//! Invariants: bytes are kept in chunks that copies share until one of them writes, so that copying
//! a disk costs a step per chunk and copies no bytes. Each chunk lies at least partly below the
//! length; its part behind the length counts as never written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Fills `buf` with the content of a patterned file from `offset` on (see
/// [`crate::SimDisk::create_patterned`]). It depends only on seed and offset.
///
/// ```
/// let (mut whole, mut part) = ([0; 64], [0; 7]);
/// pagekeeper_simdisk::pattern(42, 0, &mut whole);
/// pagekeeper_simdisk::pattern(42, 13, &mut part);
/// assert_eq!(part, whole[13..20]);
/// ```
pub fn pattern(seed: u64, offset: u64, buf: &mut [u8]) {
    let mut at = offset;
    let mut rest = buf;
    while !rest.is_empty() {
        let word = mix(seed ^ mix(at / 8)).to_le_bytes();
        let within = (at % 8) as usize;
        let count = rest.len().min(8 - within);
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&word[within..within + count]);
        at = at.wrapping_add(count as u64);
        rest = later;
    }
}

/// Computes splitmix64: each bit of the result depends on all bits of `of`.
pub(crate) fn mix(of: u64) -> u64 {
    let mut z = of.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Size of a chunk in bytes: a page.
pub(crate) const CHUNK_BYTES: usize = 4096;
/// Bytes that a device writes as a whole or not at all.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// The bytes of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileContent {
    len: u64,
    /// The seed of bytes that were never written; zeros without one.
    pattern: Option<u64>,
    chunks: BTreeMap<u64, Arc<[u8; CHUNK_BYTES]>>,
}

impl FileContent {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    pub(crate) fn patterned(seed: u64, len: u64) -> Self {
        Self { len, pattern: Some(seed), chunks: BTreeMap::new() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Sets the length. New bytes are zeros, or the pattern.
    pub(crate) fn set_len(&mut self, to: u64) {
        if to < self.len {
            let (chunk, within) = place(to);
            if within > 0 && self.chunks.contains_key(&chunk) {
                let mut tail = vec![0; CHUNK_BYTES - within];
                self.unwritten(to, &mut tail);
                self.chunk(chunk)[within..].copy_from_slice(&tail);
            }
            self.chunks.split_off(&to.div_ceil(CHUNK_BYTES as u64));
        }
        self.len = to;
    }

    /// Fills `to` with the content as if nothing had been written.
    fn unwritten(&self, offset: u64, to: &mut [u8]) {
        match self.pattern {
            Some(seed) => pattern(seed, offset, to),
            None => to.fill(0),
        }
    }

    /// Copies bytes from `offset` on. Behind the end they are the bytes that were never written.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) {
        for (at, within) in parts(offset, to.len()) {
            let (chunk, start) = place(at);
            let to = &mut to[within];
            match self.chunks.get(&chunk) {
                Some(bytes) => to.copy_from_slice(&bytes[start..start + to.len()]),
                None => self.unwritten(at, to),
            }
        }
    }

    /// Writes bytes, and extends the file if they end behind it.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        for (at, within) in parts(offset, bytes.len()) {
            let (chunk, start) = place(at);
            let bytes = &bytes[within];
            match <&[u8; CHUNK_BYTES]>::try_from(bytes) {
                Ok(whole) => drop(self.chunks.insert(chunk, Arc::new(*whole))),
                Err(_) => self.chunk(chunk)[start..start + bytes.len()].copy_from_slice(bytes),
            }
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Returns a chunk to write to.
    fn chunk(&mut self, number: u64) -> &mut [u8; CHUNK_BYTES] {
        let pattern = self.pattern;
        Arc::make_mut(self.chunks.entry(number).or_insert_with(|| {
            let mut bytes = [0; CHUNK_BYTES];
            if let Some(seed) = pattern {
                self::pattern(seed, number * CHUNK_BYTES as u64, &mut bytes);
            }
            Arc::new(bytes)
        }))
    }

    /// Copies a range from `other`, up to the end of this file.
    pub(crate) fn copy_from(&mut self, other: &Self, range: Range<u64>) {
        let end = range.end.min(self.len);
        let mut at = range.start;
        while at < end {
            let (chunk, start) = place(at);
            let next = end.min((chunk + 1) * CHUNK_BYTES as u64);
            let count = usize::try_from(next - at).expect("no more than a chunk");
            if start == 0 && (count == CHUNK_BYTES || next == self.len && self.len >= other.len) {
                match other.chunks.get(&chunk) {
                    Some(bytes) => drop(self.chunks.insert(chunk, Arc::clone(bytes))),
                    None => drop(self.chunks.remove(&chunk)),
                }
            } else {
                let mut bytes = [0; CHUNK_BYTES];
                other.read(at, &mut bytes[..count]);
                self.chunk(chunk)[start..start + count].copy_from_slice(&bytes[..count]);
            }
            at = next;
        }
    }
}

/// Returns the chunk of an offset, and the offset in the chunk.
fn place(offset: u64) -> (u64, usize) {
    let within = usize::try_from(offset % CHUNK_BYTES as u64).expect("less than a chunk");
    (offset / CHUNK_BYTES as u64, within)
}

/// Splits a range at chunk boundaries. Yields the start of each part, and its range in the bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let count = (CHUNK_BYTES - place(at).1).min(len - done);
        let part = (at, done..done + count);
        done += count;
        (count > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &FileContent) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(content.len()).unwrap()];
        content.read(0, &mut bytes);
        bytes
    }

    #[test]
    fn the_pattern_is_the_same_however_it_is_cut() {
        let mut whole = vec![0; 1000];
        pattern(7, (1 << 42) - 500, &mut whole);
        for (start, len) in [(0, 1), (3, 5), (8, 8), (1, 999), (500, 9)] {
            let mut part = vec![0; len];
            pattern(7, (1 << 42) - 500 + start as u64, &mut part);
            assert_eq!(part, whole[start..start + len]);
        }
        let mut other = vec![0; 1000];
        pattern(8, (1 << 42) - 500, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn it_holds_the_same_bytes_as_a_vector() {
        let mut content = FileContent::default();
        let mut expected: Vec<u8> = Vec::new();
        for turn in 0..500_u64 {
            let random = mix(turn);
            let index = |number: u64| usize::try_from(number).unwrap();
            let (start, len) = (index(random % 20_000), index((random >> 32) % 9000));
            if random.is_multiple_of(5) {
                content.set_len(start as u64);
                expected.resize(start, 0);
            } else {
                let data = vec![turn.to_le_bytes()[0]; len];
                content.write(start as u64, &data);
                if len > 0 {
                    expected.resize(expected.len().max(start + len), 0);
                    expected[start..start + len].copy_from_slice(&data);
                }
            }
            assert!(bytes(&content) == expected, "after {turn}");
        }
    }

    #[test]
    fn a_copy_is_independent_and_takes_over_given_content() {
        let mut content = FileContent::from_bytes(&[1; 10_000]);
        let mut copy = content.clone();
        content.write(4000, &[2; 5000]);
        assert_eq!(bytes(&copy), [1; 10_000]);
        copy.copy_from(&content, 4000..8192);
        let mut expected = vec![1; 10_000];
        expected[4000..8192].fill(2);
        assert_eq!(bytes(&copy), expected);
        content.set_len(9000);
        content.set_len(10_000);
        copy.copy_from(&content, 9000..u64::MAX);
        expected[9000..].fill(0);
        assert_eq!(bytes(&copy), expected);
        content.write(100, &[3]);
        copy.set_len(5000);
        copy.copy_from(&content, 0..u64::MAX);
        copy.set_len(6000);
        assert_eq!(bytes(&copy)[5000..], [0; 1000], "nothing comes in behind the end");
        assert_eq!((bytes(&copy)[100], bytes(&copy)[4999]), (3, 2));
    }

    #[test]
    fn a_pattern_can_be_written_over() {
        let mut content = FileContent::patterned(7, 1 << 40);
        content.write(1 << 30, b"here");
        let (mut got, mut expected) = ([0; 20], [0; 20]);
        content.read((1 << 30) - 8, &mut got);
        pattern(7, (1 << 30) - 8, &mut expected);
        expected[8..12].copy_from_slice(b"here");
        assert_eq!(got, expected);
    }
}

//! An increment: the pages that commits changed since a backup, in a file of its own.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..8 | `pkincr` and two zeros |
//! | 8..10 | version: 1 |
//! | 10..16 | zeros |
//! | 16..24 | id of the store |
//! | 24..32 | seq of the commit that it begins at: no page in it is of this one, or of one before |
//! | 32..40 | seq of the commit that it is as of |
//! | 40..48 | bytes of the file |
//! | 48..56 | page images in it |
//! | 56..60 | CRC-32C of all bytes from 8192 on |
//! | 60..64 | the last four bytes of the superblock: its CRC-32C |
//! | 64..4092 | zeros |
//! | 4092..4096 | CRC-32C of all before |
//! | 4096..8192 | a superblock as a store's: the store as of that commit |
//! | 8192.. | chunks |
//!
//! A chunk begins with 4096 bytes, behind which come its images, header and payload:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `pkp` and 1 |
//! | 4..8 | images: at most 1 MiB of them |
//! | 8..12 | ranges of pages that were never written: at most 255 |
//! | 12..16 | zeros |
//! | 16.. | for each range the first page, and how many (8 bytes each) |
//! | .. 4096 | zeros |
//!
//! Invariant: what is not whole, from its first byte to its last, is no increment; magic, version and CRC of the first block stand where they are in all versions.

use std::ops::Range;

use super::superblock::{Found, MAX_PAGES, SLOT, Superblock};

/// Bytes before the first chunk.
pub(crate) const HEADER: usize = 2 * SLOT;
/// Bytes of a chunk before its images.
pub(crate) const CHUNK_HEADER: usize = 4096;
/// The maximum bytes of a chunk's images.
pub(crate) const MAX_IMAGE_BYTES: usize = 1 << 20;
/// The maximum ranges of a chunk.
pub(crate) const MAX_RANGES: usize = (CHUNK_HEADER - RANGES) / 16;
/// The only version there is.
pub(crate) const VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"pkincr\0\0";
const CHUNK_MAGIC: [u8; 4] = *b"pkp\x01";
const CHECKED: usize = SLOT - 4;
const RANGES: usize = 16;

/// Why bytes are no increment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IncrementFault {
    #[error("not an increment's")]
    Foreign,
    #[error("its checksum does not hold")]
    Checksum,
    #[error("what it says makes no sense")]
    Senseless,
    #[error("of version {0}")]
    Version(u16),
}

/// What it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IncrementHeader {
    /// It has what later commits than this one changed.
    pub(crate) since: u64,
    /// Of the file.
    pub(crate) bytes: u64,
    /// Page images in it: a page may have several, of which the last one counts.
    pub(crate) images: u64,
    /// Of all behind the header.
    pub(crate) body_crc: u32,
    /// The store as of its last commit: with neither journal nor number, which are each copy's own.
    pub(crate) superblock: Superblock,
}

impl IncrementHeader {
    /// As bytes.
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let slot = self.superblock.encode();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        let numbers =
            [self.superblock.store, self.since, self.superblock.checkpoint_seq, self.bytes, self.images];
        for (number, room) in numbers.iter().zip(bytes[16..56].chunks_exact_mut(8)) {
            room.copy_from_slice(&number.to_le_bytes());
        }
        bytes[56..60].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[60..64].copy_from_slice(&slot[CHECKED..]);
        let crc = crc32c::crc32c(&bytes[..CHECKED]);
        bytes[CHECKED..SLOT].copy_from_slice(&crc.to_le_bytes());
        bytes[SLOT..].copy_from_slice(&slot);
        bytes
    }

    /// From the first bytes of a file.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, IncrementFault> {
        let header = bytes.first_chunk::<HEADER>().ok_or(IncrementFault::Foreign)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        if header[..8] != MAGIC {
            return Err(IncrementFault::Foreign);
        }
        if crc32c::crc32c(&header[..CHECKED]).to_le_bytes() != header[CHECKED..SLOT] {
            return Err(IncrementFault::Checksum);
        }
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != VERSION {
            return Err(IncrementFault::Version(version));
        }
        let superblock = match Superblock::decode(&header[SLOT..]) {
            Found::Superblock(superblock) => superblock,
            Found::Version(version) => return Err(IncrementFault::Version(version)),
            Found::Nothing(_) => return Err(IncrementFault::Checksum),
        };
        let found = Self {
            since: long(24),
            bytes: long(40),
            images: long(48),
            body_crc: u32::from_le_bytes(std::array::from_fn(|byte| header[56 + byte])),
            superblock,
        };
        let is_sound = header[60..64] == header[HEADER - 4..]
            && long(16) == found.superblock.store
            && long(32) == found.superblock.checkpoint_seq
            && found.since <= found.superblock.checkpoint_seq
            && found.bytes >= HEADER as u64
            && found.images <= found.bytes / u64::from(found.superblock.page_size);
        if is_sound { Ok(found) } else { Err(IncrementFault::Senseless) }
    }
}

/// What a chunk says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    /// Images behind it.
    pub(crate) images: usize,
    /// Pages that were never written, or whose room was given back.
    pub(crate) blank: Vec<Range<u64>>,
}

impl ChunkHeader {
    /// Over the first bytes of a chunk, which are zeros.
    ///
    /// # Panics
    /// If there are too many ranges.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&CHUNK_MAGIC);
        let count = |number: usize| {
            u32::try_from(number).unwrap_or_else(|_| unreachable!("a chunk is small")).to_le_bytes()
        };
        bytes[4..8].copy_from_slice(&count(self.images));
        bytes[8..12].copy_from_slice(&count(self.blank.len()));
        for (at, range) in self.blank.iter().enumerate() {
            let room = &mut bytes[RANGES + at * 16..][..16];
            room[..8].copy_from_slice(&range.start.to_le_bytes());
            room[8..].copy_from_slice(&(range.end - range.start).to_le_bytes());
        }
    }

    /// From the first bytes of a chunk.
    pub(crate) fn decode(bytes: &[u8], page_size: usize) -> Result<Self, IncrementFault> {
        let header = bytes.first_chunk::<CHUNK_HEADER>().ok_or(IncrementFault::Senseless)?;
        let count = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte])) as usize;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let (images, ranges) = (count(4), count(8));
        if header[..4] != CHUNK_MAGIC || images > MAX_IMAGE_BYTES / page_size || ranges > MAX_RANGES {
            return Err(IncrementFault::Senseless);
        }
        let blank = (0..ranges).map(|range| {
            let (first, number) = (long(RANGES + range * 16), long(RANGES + range * 16 + 8));
            let end = first.checked_add(number).filter(|end| *end <= MAX_PAGES && *end > first);
            Ok(first..end.ok_or(IncrementFault::Senseless)?)
        });
        Ok(Self { images, blank: blank.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::superblock::Meta;
    use super::*;

    fn header() -> IncrementHeader {
        let meta = Meta { root: Some(3), pages: 300, user: b"users".to_vec(), ..Meta::default() };
        let superblock = Superblock {
            number: 0,
            store: 7,
            page_size: 4096,
            checkpoint_seq: 300,
            checkpoint_lsn: 0,
            max_journal_bytes: 1 << 20,
            first_diffs: false,
            journal: 0,
            meta,
        };
        IncrementHeader { since: 200, bytes: 1 << 16, images: 9, body_crc: 0x0102_0304, superblock }
    }

    /// The bytes as they are on disks: what was written once must be read forever.
    #[test]
    fn an_increment_looks_as_it_always_did() {
        let mut expected =
            b"pkincr\0\0\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\xc8\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0".to_vec();
        expected.extend(b"\0\0\x01\0\0\0\0\0\x09\0\0\0\0\0\0\0\x04\x03\x02\x01");
        let slot = header().superblock.encode();
        expected.extend(&slot[CHECKED..]);
        expected.resize(CHECKED, 0);
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        expected.extend(slot);
        assert_eq!(header().encode()[..], expected);
        assert_eq!(IncrementHeader::decode(&expected), Ok(header()));

        let chunk = ChunkHeader { images: 2, blank: vec![5..7, 9..10] };
        let mut bytes = [0; CHUNK_HEADER];
        chunk.encode(&mut bytes);
        let mut expected = b"pkp\x01\x02\0\0\0\x02\0\0\0\0\0\0\0".to_vec();
        for number in [5_u64, 2, 9, 1] {
            expected.extend(number.to_le_bytes());
        }
        expected.resize(CHUNK_HEADER, 0);
        assert_eq!(bytes[..], expected);
        assert_eq!(ChunkHeader::decode(&bytes, 4096), Ok(chunk));
    }

    #[test]
    fn each_flipped_bit_of_the_header_is_detected() {
        let whole = header().encode();
        for bit in 0..HEADER * 8 {
            let mut rotten = whole;
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert!(IncrementHeader::decode(&rotten).is_err(), "bit {bit}");
        }
        assert_eq!(IncrementHeader::decode(&whole[..HEADER - 1]), Err(IncrementFault::Foreign));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = header().encode();
            bytes[at] = byte;
            let crc = crc32c::crc32c(&bytes[..CHECKED]);
            bytes[CHECKED..SLOT].copy_from_slice(&crc.to_le_bytes());
            IncrementHeader::decode(&bytes)
        };
        assert_eq!(with(8, 2), Err(IncrementFault::Version(2)));
        // Another store; a start behind the end; another end; shorter than its header; more images than it has room for.
        for (at, byte) in [(16, 8), (25, 2), (32, 0x2d), (42, 0), (49, 9), (60, 0)] {
            assert_eq!(with(at, byte), Err(IncrementFault::Senseless), "byte {at}");
        }
        // More than 1 MiB; too many ranges; one that is empty; one that goes over all ends.
        for (at, byte) in [(5, 2), (9, 1), (24, 0), (23, 0xff)] {
            let mut bytes = [0; CHUNK_HEADER];
            ChunkHeader { images: 1, blank: std::iter::once(5..7).collect() }.encode(&mut bytes);
            bytes[at] = byte;
            assert_eq!(ChunkHeader::decode(&bytes, 4096), Err(IncrementFault::Senseless), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(content in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = [0; CHUNK_HEADER];
            bytes[..4].copy_from_slice(&CHUNK_MAGIC);
            bytes[4..4 + content.len()].copy_from_slice(&content);
            let _ = ChunkHeader::decode(&bytes, 4096);
        }
    }
}

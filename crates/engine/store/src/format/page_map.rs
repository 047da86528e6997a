//! The page map: the last written checksum of each page, stored apart from the page. It
//! distinguishes an old but intact page (after a lost or misplaced write) from the right one.
//!
//! Blocks of 4096 bytes, each with two places in the file that are written in turn. Block b has the
//! pages from b × 1008 on.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..4 | CRC-32C of all bytes behind it |
//! | 4..7 | `pkm` |
//! | 7 | version, 1 |
//! | 8..16 | number of the block |
//! | 16..24 | id of the store |
//! | 24..32 | number of the write of this block, from 1: it stands in place (number modulo 2) |
//! | 32..40 | seq: it is as of this commit |
//! | 40..48, 48..56 | doubt: above the first seq and up to the second a page may be newer than its entry |
//! | 56..64 | zeros |
//! | 64.. | for each page 4 bytes: 0: never written; 1: not known; else its checksum, where 0 and 1 stand as 2 and 3 |
//!
//! Invariant: a place of zeros was never written. It stands for a block of pages that were never
//! written.

use super::page::{PageFault, PageHeader};
use crate::Seq;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;
const BLOCK_HEADER_BYTES: usize = 64;
/// Pages of a block.
pub(crate) const BLOCK_PAGES: usize = (BLOCK_BYTES - BLOCK_HEADER_BYTES) / 4;

const BLOCK_MAGIC: [u8; 4] = *b"pkm\x01";

/// The entries of a page that was never written, and of a page whose state is unknown.
pub(crate) const ENTRY_NEVER_WRITTEN: u32 = 0;
pub(crate) const ENTRY_UNKNOWN: u32 = 1;

/// Returns the entry of a page with this checksum.
pub(crate) const fn entry(crc: u32) -> u32 {
    if crc < 2 { crc + 2 } else { crc }
}

/// A block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapBlock {
    /// The number of its last write; 0 if it was never written.
    pub(crate) number: u64,
    pub(crate) seq: Seq,
    /// Pages of commits above the first and up to the second may be newer than their entries. The
    /// range is not empty.
    pub(crate) doubt: Option<(Seq, Seq)>,
    pub(crate) entries: Box<[u32; BLOCK_PAGES]>,
}

/// The reason why an intact page is not the one that was written last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapFault {
    #[error("it was written, and is all zeros: written data is lost")]
    Blank,
    #[error(
        "it is whole, as of commit {0}, but not what was written there last: a write was lost or went elsewhere"
    )]
    Other(Seq),
    #[error("it is whole, as of commit {0}, and was never written")]
    Unexpected(Seq),
}

impl MapBlock {
    /// Creates a block of pages that were never written, or whose state is unknown.
    pub(crate) fn of(entry: u32) -> Self {
        Self { number: 0, seq: Seq::NONE, doubt: None, entries: Box::new([entry; BLOCK_PAGES]) }
    }

    /// Returns the block for two places that are both corrupt: as if it had been written twice, and
    /// nothing is known.
    fn lost() -> Self {
        Self { number: 2, ..Self::of(ENTRY_UNKNOWN) }
    }

    /// Whether both places were corrupt.
    pub(crate) fn is_lost(&self) -> bool {
        *self == Self::lost()
    }

    /// Encodes a place into `bytes`.
    pub(crate) fn encode(&self, block: u64, store: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        bytes[4..8].copy_from_slice(&BLOCK_MAGIC);
        let (above, upto) = self.doubt.unwrap_or_default();
        let numbers = [block, store, self.number, self.seq.get(), above.get(), upto.get()];
        for (room, number) in bytes[8..].chunks_mut(8).zip(numbers) {
            room.copy_from_slice(&number.to_le_bytes());
        }
        for (room, entry) in bytes[BLOCK_HEADER_BYTES..].chunks_mut(4).zip(self.entries.iter()) {
            room.copy_from_slice(&entry.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes a place, 0 or 1; `None` if it is corrupt. A place behind the file's end was never
    /// written.
    pub(crate) fn decode(bytes: &[u8], block: u64, store: u64, place: u64) -> Option<Self> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Some(Self::of(ENTRY_NEVER_WRITTEN));
        }
        let bytes = bytes.first_chunk::<BLOCK_BYTES>()?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let is_whole = crc32c::crc32c(&bytes[4..]) == word(0)
            && bytes[4..8] == BLOCK_MAGIC
            && (long(8), long(16)) == (block, store)
            && long(24) > 0
            && long(24) % 2 == place;
        is_whole.then(|| Self {
            number: long(24),
            seq: Seq::new(long(32)),
            doubt: Some((Seq::new(long(40)), Seq::new(long(48)))).filter(|(above, upto)| above < upto),
            entries: Box::new(std::array::from_fn(|at| word(BLOCK_HEADER_BYTES + 4 * at))),
        })
    }

    /// Returns the block from the content of both places. `upto` is the commit up to which the map
    /// is complete: an older place may lack later changes.
    pub(crate) fn newest(places: [Option<Self>; 2], upto: Seq) -> Self {
        let (found, is_older) = match places {
            [Some(first), Some(second)] => {
                let (older, newer) =
                    if first.number > second.number { (second, first) } else { (first, second) };
                // A second write of the block may have become zeros.
                let is_older = older.number == 0 && newer.number > 0;
                (newer, is_older)
            }
            // The second place is written first, so the content of the other place is not all that
            // was lost.
            [None, Some(Self { number: 0, .. }) | None] => (Self::lost(), false),
            [Some(found), None] | [None, Some(found)] => (found, true),
        };
        let mut found = found;
        if is_older && found.seq < upto {
            let (above, before) = found.doubt.unwrap_or((found.seq, upto));
            found.doubt = Some((above.min(found.seq), before.max(upto)));
        }
        found
    }

    /// Checks that a page that was read is the one in its entry.
    pub(crate) fn check(&self, entry: u32, found: &Result<PageHeader, PageFault>) -> Result<(), MapFault> {
        let is_doubtful = |seq: Seq| self.doubt.is_some_and(|(above, upto)| above < seq && seq <= upto);
        match found {
            _ if entry == ENTRY_UNKNOWN => Ok(()),
            Ok(header) if self::entry(header.crc) == entry || is_doubtful(header.seq) => Ok(()),
            Ok(header) if entry == ENTRY_NEVER_WRITTEN => Err(MapFault::Unexpected(header.seq)),
            Ok(header) => Err(MapFault::Other(header.seq)),
            Err(PageFault::NeverWritten) if entry != ENTRY_NEVER_WRITTEN => Err(MapFault::Blank),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::page::PageKind;
    use super::*;
    use crate::PageNo;

    const STORE: u64 = 7;

    fn block(number: u64, seq: u64) -> MapBlock {
        MapBlock { number, seq: Seq::new(seq), ..MapBlock::of(ENTRY_NEVER_WRITTEN) }
    }

    fn doubt(above: u64, upto: u64) -> (Seq, Seq) {
        (Seq::new(above), Seq::new(upto))
    }

    fn encoded(block: &MapBlock) -> Vec<u8> {
        let mut bytes = vec![0xee; BLOCK_BYTES];
        block.encode(3, STORE, &mut bytes);
        bytes
    }

    /// These bytes are on users' disks and must stay readable.
    #[test]
    fn the_format_of_a_block_is_fixed() {
        let mut given = MapBlock { doubt: Some(doubt(4, 5)), ..block(9, 300) };
        (given.entries[0], given.entries[1007]) = (ENTRY_UNKNOWN, 0x0102_0304);
        let mut expected =
            b"pkm\x01\x03\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0".to_vec();
        expected.extend(b"\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01");
        expected.resize(BLOCK_BYTES - 8, 0);
        expected.extend(b"\x04\x03\x02\x01");
        let expected = [&crc32c::crc32c(&expected).to_le_bytes(), &expected[..]].concat();
        assert_eq!(encoded(&given), expected);
        assert_eq!(MapBlock::decode(&expected, 3, STORE, 1), Some(given));
        for (block, store, place) in [(2, STORE, 1), (3, 8, 1), (3, STORE, 0)] {
            assert_eq!(MapBlock::decode(&expected, block, store, place), None);
        }
        for bit in (0..BLOCK_BYTES * 8).step_by(7) {
            let mut rotten = expected.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(MapBlock::decode(&rotten, 3, STORE, 1), None, "bit {bit}");
        }
        assert_eq!(MapBlock::decode(&[], 3, STORE, 1), Some(MapBlock::of(ENTRY_NEVER_WRITTEN)));
    }

    #[test]
    fn the_newer_place_counts_and_an_older_one_is_doubted() {
        let (old, new) = (block(4, 10), block(5, 20));
        let newest = |first: Option<&MapBlock>, second: Option<&MapBlock>| {
            let found = MapBlock::newest([first.cloned(), second.cloned()], Seq::new(20));
            (found.number, found.doubt)
        };
        assert_eq!(newest(Some(&old), Some(&new)), (5, None));
        assert_eq!(newest(Some(&old), None), (4, Some(doubt(10, 20))));
        assert_eq!(newest(None, Some(&new)), (5, None));
        assert_eq!(newest(Some(&block(0, 0)), Some(&block(1, 10))), (1, Some(doubt(10, 20))));
        assert_eq!(newest(Some(&block(0, 0)), Some(&block(0, 0))), (0, None));
        assert_eq!(newest(Some(&block(0, 0)), Some(&block(3, 10))), (3, Some(doubt(10, 20))));
        assert_eq!(newest(Some(&block(0, 0)), None), (0, Some(doubt(0, 20))));
        assert_eq!([newest(None, Some(&block(0, 0))), newest(None, None)], [(2, None); 2]);
        assert!(
            MapBlock::newest([None, None], Seq::new(20)).entries.iter().all(|entry| *entry == ENTRY_UNKNOWN)
        );
    }

    #[test]
    fn a_page_must_be_the_one_that_was_written_last() {
        let header =
            PageHeader { crc: 0, kind: PageKind::Data, page: PageNo::new(0), seq: Seq::new(0), store: STORE };
        let of = |crc, seq| Ok(PageHeader { crc, seq: Seq::new(seq), ..header });
        let doubtful = MapBlock { doubt: Some(doubt(4, 6)), ..block(1, 4) };
        let check = |entry, found| doubtful.check(entry, &found);
        assert_eq!(check(77, of(77, 3)), Ok(()));
        assert_eq!(check(entry(1), of(1, 3)), Ok(()));
        assert_eq!(check(77, of(78, 3)), Err(MapFault::Other(Seq::new(3))));
        assert_eq!([5, 6].map(|seq| check(77, of(78, seq))), [Ok(()); 2]);
        assert_eq!([4, 7].map(|seq| check(77, of(78, seq)).is_err()), [true; 2]);
        assert_eq!(check(ENTRY_NEVER_WRITTEN, of(78, 3)), Err(MapFault::Unexpected(Seq::new(3))));
        assert_eq!(check(77, Err(PageFault::NeverWritten)), Err(MapFault::Blank));
        assert_eq!(check(ENTRY_NEVER_WRITTEN, Err(PageFault::NeverWritten)), Ok(()));
        assert_eq!(check(ENTRY_UNKNOWN, of(78, 3)), Ok(()));
    }

    proptest! {
        #[test]
        fn random_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..BLOCK_BYTES + 10), block: u64, store: u64, place in 0_u64..2) {
            let _ = MapBlock::decode(&bytes, block, store, place);
        }
    }
}

//! A segment's name and its header block.
//!
//! The header is the first 4096 bytes and never changes. It holds:
//! - the log's id, which exposes a file of another log;
//! - the segment's number, which exposes a renamed file;
//! - the salt of its records;
//! - the end of the previous segment, which exposes a truncated one.

use std::ops::Range;

use pagekeeper_io::{AlignedBuf, IoFile};

use crate::Error;
use crate::record::BLOCK_LEN;

/// Bytes of the header: one block. The first record follows it.
pub(super) const SEGMENT_HEADER_BYTES: u64 = crate::record::BLOCK;

const SEGMENT_MAGIC: &[u8; 8] = b"PKBINLOG";
const SEGMENT_VERSION: u32 = 1;
const SEGMENT_PREFIX: &str = "binlog.";

/// The contents of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) log_id: u64,
    pub(super) number: u64,
    pub(super) salt: u32,
    /// The end of the previous segment's records, in bytes; 0 if there was none.
    pub(super) previous_end: u64,
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> AlignedBuf {
        let mut block = AlignedBuf::new(BLOCK_LEN);
        block[..8].copy_from_slice(SEGMENT_MAGIC);
        block[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&self.salt.to_le_bytes());
        block[16..24].copy_from_slice(&self.log_id.to_le_bytes());
        block[24..32].copy_from_slice(&self.number.to_le_bytes());
        block[32..40].copy_from_slice(&self.previous_end.to_le_bytes());
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Decodes a header; `None` if the block holds none. An error is the number of an unknown
    /// version.
    pub(super) fn decode(block: &[u8]) -> Result<Option<Self>, u32> {
        match Self::decode_any(block) {
            Some((_, version)) if version != SEGMENT_VERSION => Err(version),
            found => Ok(found.map(|(header, _)| header)),
        }
    }

    /// Decodes a header of any version. Also returns the version.
    fn decode_any(block: &[u8]) -> Option<(Self, u32)> {
        let block: &[u8; BLOCK_LEN] = block.try_into().ok()?;
        let word = |at: Range<usize>| block[at].try_into().map(u32::from_le_bytes).ok();
        let long = |at: Range<usize>| block[at].try_into().map(u64::from_le_bytes).ok();
        if &block[..8] != SEGMENT_MAGIC || word(4092..4096)? != crc32c::crc32c(&block[..4092]) {
            return None;
        }
        let header = Self {
            salt: word(12..16)?,
            log_id: long(16..24)?,
            number: long(24..32)?,
            previous_end: long(32..40)?,
        };
        Some((header, word(8..12)?))
    }

    /// Reads a segment's header from its file.
    pub(super) fn read(file: &dyn IoFile) -> Result<Option<Self>, Error> {
        let mut block = AlignedBuf::new(BLOCK_LEN);
        let len = file.read_at(0, &mut block)?;
        Self::decode(&block[..len])
            .map_err(|version| Error::UnknownVersion { path: file.path().to_path_buf(), version })
    }
}

/// Returns the file name of a segment.
pub(super) fn segment_name(number: u64) -> String {
    format!("{SEGMENT_PREFIX}{number:06}")
}

/// Returns the number of the segment with this name; `None` for any other name.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix(SEGMENT_PREFIX)?.parse().ok()?;
    (number > 0 && segment_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (number, name) in [
            (1, "binlog.000001"),
            (999_999, "binlog.999999"),
            (1_000_000, "binlog.1000000"),
            (u64::MAX, "binlog.18446744073709551615"),
        ] {
            assert_eq!(segment_name(number), name);
            assert_eq!(segment_number(name), Some(number));
        }
        for name in [
            "binlog.1",
            "binlog.000000",
            "binlog.0000001",
            "binlog.index",
            "binlog.",
            "binlog.+00001",
            "redo.000001",
        ] {
            assert_eq!(segment_number(name), None, "{name}");
        }
    }

    #[test]
    fn a_header_is_read_back_and_any_changed_bit_shows() {
        let header = SegmentHeader {
            log_id: 0xfeed_beef_0123_4567,
            number: 12,
            salt: 0x89ab_cdef,
            previous_end: 1 << 30,
        };
        let block = header.encode();
        assert_eq!(SegmentHeader::decode(&block), Ok(Some(header)));
        assert_eq!(SegmentHeader::decode(&block[..4095]), Ok(None));
        for at in 0..block.len() {
            let mut changed = block.to_vec();
            changed[at] ^= 1 << (at % 8);
            assert_eq!(SegmentHeader::decode(&changed), Ok(None), "byte {at}");
        }
        let mut newer = block.to_vec();
        newer[8] = 2;
        let crc = crc32c::crc32c(&newer[..4092]);
        newer[4092..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&newer), Err(2));
    }
}

//! Records: the encoding of a log's entries on disk, and the rules for accepting bytes as a record
//! when they are read back.
//!
//! A record is a header of 24 bytes, little endian, and a body, filled up with zeros to a multiple
//! of 8:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | CRC-32C over the body and then the rest of the header |
//! | 4..8 | length of the body in the low 28 bits, kind in the high 4 |
//! | 8..16 | LSN: the position of the record's first byte in the log |
//! | 16..20 | salt of the epoch |
//! | 20..24 | distance from the LSN back to the durable end known then, in units of 8 bytes |
//!
//! Invariants:
//! 1. A record is accepted only at the LSN in its header, with the salt in force there, and with a
//!    matching checksum. Neither data from before a wraparound nor the remains of a crash past the
//!    end are mistaken for a record.
//! 2. Each sync begins with padding up to the next block, and no synced block is written again: a
//!    write that a crash tears damages nothing that was acknowledged.
//! 3. After a crash a log continues under a new salt, from the first block start past the end that
//!    was found on: an epoch. The epochs are listed not in the records but in the log's metadata (a
//!    ring's control file, a segment's header).
//!
//! Reading ([`RecordReader`]) ends at the first place without a record, unless the metadata or a
//! later record proves that this place was durable. Damaged padding that the metadata says was
//! durable is skipped, since it holds nothing.

mod buffered;
mod reader;
mod source;
#[cfg(test)]
mod tests;

use crate::convert::to_usize;
use crate::limits::RECORD_BYTES_MAX;
pub(crate) use buffered::BufferedSource;
pub(crate) use reader::{EpochAt, LogEntry, RecordReader};
pub(crate) use source::{LoadedBytes, LogSource, UnreadableBlocks, is_of_medium};

/// The unit of writes and syncs, in bytes. A sync ends at a multiple of it.
pub(crate) const BLOCK: u64 = BLOCK_LEN as u64;

/// [`BLOCK`] for lengths of memory.
pub(crate) const BLOCK_LEN: usize = 4096;

/// Bytes of a record without its body.
pub(crate) const RECORD_HEADER_BYTES: usize = 24;

/// The purpose of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// An entry. It also completes the group of the parts before it.
    Data,
    /// Fills up a block.
    Padding,
    /// An entry of a group that continues with the next record. It counts only with the data record
    /// that ends the group.
    Part,
    /// A kind from a newer version.
    Unknown(u8),
}

/// A record without its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    /// Bytes of the body.
    pub(crate) len: usize,
    /// The record's position.
    pub(crate) lsn: u64,
    pub(crate) salt: u32,
    /// The durable end known when the record was created; never more than was durable.
    pub(crate) durable_upto: u64,
}

/// Returns the size of a record with a body of this many bytes: a multiple of 8.
pub(crate) const fn size(body: usize) -> u64 {
    (RECORD_HEADER_BYTES as u64 + body as u64).next_multiple_of(8)
}

/// Returns the size of the padding due at `lsn`: at least a header, up to the start of a block.
/// Returns 0 if a block starts there.
pub(crate) const fn padding_size(lsn: u64) -> u64 {
    let rest = lsn.next_multiple_of(BLOCK) - lsn;
    if rest == 0 || rest >= RECORD_HEADER_BYTES as u64 { rest } else { rest + BLOCK }
}

impl RecordHeader {
    /// Creates the header of a record with this body.
    pub(crate) fn new(kind: RecordKind, body: &[u8], lsn: u64, salt: u32, durable_upto: u64) -> Self {
        debug_assert!(body.len() <= RECORD_BYTES_MAX && lsn.is_multiple_of(8) && durable_upto <= lsn);
        Self { kind, len: body.len(), lsn, salt, durable_upto }
    }

    /// Returns the header's bytes, with the checksum over it and the body.
    pub(crate) fn encode(&self, body: &[u8]) -> [u8; RECORD_HEADER_BYTES] {
        self.encode_over(crc32c::crc32c(body))
    }

    /// Encodes like [`Self::encode`], from the CRC-32C of the body, which can be computed before
    /// the LSN is known.
    pub(crate) fn encode_over(&self, body_crc: u32) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        let kind = match self.kind {
            RecordKind::Data => 1,
            RecordKind::Padding => 2,
            RecordKind::Part => 4,
            RecordKind::Unknown(kind) => u32::from(kind),
        };
        debug_assert!(self.len <= RECORD_BYTES_MAX);
        #[expect(clippy::cast_possible_truncation, reason = "at most `LONGEST`, which has 28 bits")]
        let len = self.len as u32;
        let behind = u32::try_from((self.lsn - self.durable_upto).div_ceil(8)).unwrap_or(u32::MAX);
        bytes[4..8].copy_from_slice(&(len | kind << LEN_BITS).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.salt.to_le_bytes());
        bytes[20..24].copy_from_slice(&behind.to_le_bytes());
        let crc = checksum(&bytes, body_crc);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at `lsn` under `salt`, if `bytes` may begin a record. Does not check its
    /// checksum.
    pub(crate) fn decode(bytes: &[u8], lsn: u64, salt: u32) -> Option<Self> {
        let header = Self::decode_any(bytes)?;
        (header.lsn == lsn && header.salt == salt).then_some(header)
    }

    /// Decodes like [`Self::decode`], at any LSN and under any salt.
    pub(crate) fn decode_any(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let lsn = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
        let len_kind = word(4)?;
        let kind = match len_kind >> LEN_BITS {
            1 => RecordKind::Data,
            2 => RecordKind::Padding,
            4 => RecordKind::Part,
            // No record is all zeros.
            0 => return None,
            kind => RecordKind::Unknown(kind.to_le_bytes()[0]),
        };
        let durable_upto = match word(20)? {
            // This distance or more: nothing is known.
            u32::MAX => 0,
            behind => lsn.saturating_sub(u64::from(behind) * 8),
        };
        Some(Self { kind, len: (len_kind & LEN_MASK) as usize, lsn, salt: word(16)?, durable_upto })
    }

    /// Returns the size of the whole record.
    pub(crate) const fn size(&self) -> u64 {
        size(self.len)
    }

    /// Returns the LSN of the next record; `None` on overflow.
    pub(crate) const fn next(&self) -> Option<u64> {
        self.lsn.checked_add(self.size())
    }
}

/// Whether the record at the start of `bytes` matches its checksum. Its header states a body of
/// `len` bytes.
pub(crate) fn is_whole(bytes: &[u8], len: usize) -> bool {
    let (Some(header), Some(body)) = (
        bytes.first_chunk::<RECORD_HEADER_BYTES>(),
        bytes.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + len),
    ) else {
        return false;
    };
    has_checksum(header, crc32c::crc32c(body))
}

/// Whether a record matches its checksum, given the CRC-32C of its body.
pub(crate) fn has_checksum(header: &[u8; RECORD_HEADER_BYTES], body_crc: u32) -> bool {
    header[..4] == checksum(header, body_crc).to_le_bytes()
}

/// Encodes a whole record.
pub(crate) fn encode(kind: RecordKind, body: &[u8], lsn: u64, salt: u32, durable_upto: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + body.len().next_multiple_of(8));
    bytes.extend_from_slice(&RecordHeader::new(kind, body, lsn, salt, durable_upto).encode(body));
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Encodes the padding due at `lsn`; empty if a block starts there.
pub(crate) fn encode_padding(lsn: u64, salt: u32, durable_upto: u64) -> Vec<u8> {
    static ZEROS: [u8; 2 * BLOCK_LEN] = [0; 2 * BLOCK_LEN];
    match to_usize(padding_size(lsn)) {
        0 => Vec::new(),
        size => encode(RecordKind::Padding, &ZEROS[..size - RECORD_HEADER_BYTES], lsn, salt, durable_upto),
    }
}

/// Whether `bytes`, of the size of the padding due at `lsn`, are that padding with damage.
///
/// Everything in padding is known beforehand except the durable end. Its checksum therefore
/// identifies it, whatever else in it is damaged. If the checksum itself is damaged, everything
/// else has to match, and the checksum must not be that of data.
pub(crate) fn is_damaged_padding(bytes: &[u8], lsn: u64, salt: u32) -> bool {
    let Some(durable) = bytes.get(20..RECORD_HEADER_BYTES) else { return false };
    let body = vec![0; bytes.len() - RECORD_HEADER_BYTES];
    let due = |kind| {
        let mut due = encode(kind, &body, lsn, salt, lsn);
        due[20..RECORD_HEADER_BYTES].copy_from_slice(durable);
        let crc = checksum(due.first_chunk().unwrap_or(&[0; RECORD_HEADER_BYTES]), crc32c::crc32c(&body));
        due[..4].copy_from_slice(&crc.to_le_bytes());
        due
    };
    let padding = due(RecordKind::Padding);
    bytes[..4] == padding[..4] || bytes[4..] == padding[4..] && bytes[..4] != due(RecordKind::Data)[..4]
}

const LEN_BITS: u32 = 28;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;

fn checksum(header: &[u8; RECORD_HEADER_BYTES], body_crc: u32) -> u32 {
    crc32c::crc32c_append(body_crc, &header[4..])
}

//! Records: how an entry of a log is encoded on disk, and which bytes are accepted as one when they are read back.
//!
//! A record is a header of 24 bytes, little endian, and a body, filled up with zeros to a multiple of 8:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | CRC-32C over the body and then the rest of the header |
//! | 4..8 | length of the body in the low 28 bits, kind in the high 4 |
//! | 8..16 | LSN: where in the log the record's first byte stands |
//! | 16..20 | salt of the epoch |
//! | 20..24 | how far behind the LSN the log was known to be durable, in units of 8 bytes |
//!
//! Invariants:
//! 1. A record is accepted only at the LSN that its header names, with the salt in force there, and with a matching
//!    checksum: neither data from before a wraparound nor what a crash left past the end is mistaken for a record.
//! 2. Each sync begins with padding up to the next block, and no synced block is written again: a write that a crash
//!    tears damages nothing that was acknowledged.
//! 3. After a crash a log goes on under a new salt, from the first block start past the end that was found on: an epoch. Which
//!    epochs there are is not in the records but with what names the log (a ring's control file, a segment's header).
//!
//! Reading ([`Reader`]) ends at the first place where no record stands, unless that place is known to have been durable: by what
//! names the log, or by a later record. A damaged padding that what names the log says was durable is passed over, since it holds nothing.

mod buffered;
mod reader;
mod source;
#[cfg(test)]
mod tests;

use crate::convert::to_usize;
use crate::limits::LONGEST;
pub(crate) use buffered::Buffered;
pub(crate) use reader::{Entry, EpochAt, Reader};
pub(crate) use source::{Reach, Source, Unreadable, is_of_medium};

/// What is written and synced at once at the least, in bytes; a sync ends at a multiple of it.
pub(crate) const BLOCK: u64 = BLOCK_LEN as u64;

/// The same, for lengths of memory.
pub(crate) const BLOCK_LEN: usize = 4096;

/// Bytes of a record beside its body.
pub(crate) const HEADER: usize = 24;

/// What a record is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An entry, and with it all of the group that the parts before it belong to.
    Data,
    /// Nothing: it fills up a block.
    Padding,
    /// An entry of a group that goes on with the next record: it counts only with the data record that ends the group.
    Part,
    /// Something that a newer version writes.
    Unknown(u8),
}

/// A record but for its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Bytes of the body.
    pub(crate) len: usize,
    /// Where it stands.
    pub(crate) lsn: u64,
    pub(crate) salt: u32,
    /// Up to where the log was known to be durable when the record was made; never beyond what was.
    pub(crate) durable_upto: u64,
}

/// Bytes that a record with a body of so many takes up: a multiple of 8.
pub(crate) const fn size(body: usize) -> u64 {
    (HEADER as u64 + body as u64).next_multiple_of(8)
}

/// Bytes of the padding that is due at `lsn`: at least a header, and up to the start of a block. 0 if one starts there.
pub(crate) const fn padding_size(lsn: u64) -> u64 {
    let rest = lsn.next_multiple_of(BLOCK) - lsn;
    if rest == 0 || rest >= HEADER as u64 { rest } else { rest + BLOCK }
}

impl Header {
    /// The header of a record whose body this is.
    pub(crate) fn new(kind: Kind, body: &[u8], lsn: u64, salt: u32, durable_upto: u64) -> Self {
        debug_assert!(body.len() <= LONGEST && lsn.is_multiple_of(8) && durable_upto <= lsn);
        Self { kind, len: body.len(), lsn, salt, durable_upto }
    }

    /// The header's bytes, with the checksum over it and the body.
    pub(crate) fn encode(&self, body: &[u8]) -> [u8; HEADER] {
        self.encode_over(crc32c::crc32c(body))
    }

    /// As [`Self::encode`], where the body's own CRC-32C is known: it can be taken before the LSN is.
    pub(crate) fn encode_over(&self, body_crc: u32) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let kind = match self.kind {
            Kind::Data => 1,
            Kind::Padding => 2,
            Kind::Part => 4,
            Kind::Unknown(kind) => u32::from(kind),
        };
        debug_assert!(self.len <= LONGEST);
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

    /// What a record at `lsn` under `salt` says of itself, if `bytes` may begin one. Its checksum is not checked.
    pub(crate) fn decode(bytes: &[u8], lsn: u64, salt: u32) -> Option<Self> {
        let header = Self::decode_any(bytes)?;
        (header.lsn == lsn && header.salt == salt).then_some(header)
    }

    /// As [`Self::decode`], at whatever place and under whatever salt.
    pub(crate) fn decode_any(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let lsn = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
        let len_kind = word(4)?;
        let kind = match len_kind >> LEN_BITS {
            1 => Kind::Data,
            2 => Kind::Padding,
            4 => Kind::Part,
            // No record is all zeros.
            0 => return None,
            kind => Kind::Unknown(kind.to_le_bytes()[0]),
        };
        let durable_upto = match word(20)? {
            // Or more: nothing is known.
            u32::MAX => 0,
            behind => lsn.saturating_sub(u64::from(behind) * 8),
        };
        Some(Self { kind, len: (len_kind & LEN_MASK) as usize, lsn, salt: word(16)?, durable_upto })
    }

    /// Bytes of the whole record.
    pub(crate) const fn size(&self) -> u64 {
        size(self.len)
    }

    /// Where the next record stands; `None` past the end of all numbers.
    pub(crate) const fn next(&self) -> Option<u64> {
        self.lsn.checked_add(self.size())
    }
}

/// Whether the record that `bytes` begin with, whose header says that its body has `len` bytes, has its checksum.
pub(crate) fn is_whole(bytes: &[u8], len: usize) -> bool {
    let (Some(header), Some(body)) = (bytes.first_chunk::<HEADER>(), bytes.get(HEADER..HEADER + len)) else {
        return false;
    };
    has_checksum(header, crc32c::crc32c(body))
}

/// Whether a record has its checksum, by the CRC-32C of its body.
pub(crate) fn has_checksum(header: &[u8; HEADER], body_crc: u32) -> bool {
    header[..4] == checksum(header, body_crc).to_le_bytes()
}

/// The bytes of a whole record.
pub(crate) fn encode(kind: Kind, body: &[u8], lsn: u64, salt: u32, durable_upto: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len().next_multiple_of(8));
    bytes.extend_from_slice(&Header::new(kind, body, lsn, salt, durable_upto).encode(body));
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// The bytes of the padding that is due at `lsn`; none if a block starts there.
pub(crate) fn encode_padding(lsn: u64, salt: u32, durable_upto: u64) -> Vec<u8> {
    static ZEROS: [u8; 2 * BLOCK_LEN] = [0; 2 * BLOCK_LEN];
    match to_usize(padding_size(lsn)) {
        0 => Vec::new(),
        size => encode(Kind::Padding, &ZEROS[..size - HEADER], lsn, salt, durable_upto),
    }
}

/// Whether `bytes`, as many as the padding that is due at `lsn` has, are that padding with some of them damaged.
///
/// Everything in a padding is known beforehand but for how much was durable. So its checksum identifies it, whatever else of it is damaged.
/// Where the checksum itself is damaged everything else has to be right, and the checksum must not be that of data.
pub(crate) fn is_damaged_padding(bytes: &[u8], lsn: u64, salt: u32) -> bool {
    let Some(durable) = bytes.get(20..HEADER) else { return false };
    let body = vec![0; bytes.len() - HEADER];
    let due = |kind| {
        let mut due = encode(kind, &body, lsn, salt, lsn);
        due[20..HEADER].copy_from_slice(durable);
        let crc = checksum(due.first_chunk().unwrap_or(&[0; HEADER]), crc32c::crc32c(&body));
        due[..4].copy_from_slice(&crc.to_le_bytes());
        due
    };
    let padding = due(Kind::Padding);
    bytes[..4] == padding[..4] || bytes[4..] == padding[4..] && bytes[..4] != due(Kind::Data)[..4]
}

const LEN_BITS: u32 = 28;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;

fn checksum(header: &[u8; HEADER], body_crc: u32) -> u32 {
    crc32c::crc32c_append(body_crc, &header[4..])
}

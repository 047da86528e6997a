//! A commit on its way to a replica: the entry of the journal as it stands there.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..4 | CRC-32C of all bytes behind it |
//! | 4..7 | `pks` |
//! | 7 | version: 1 |
//! | 8..16 | id of the store |
//! | 16..24 | seq of the commit |
//! | 24.. | for each part of the entry 4 bytes, its length, and the body of its record |
//!
//! Invariant: bytes that are not whole are no commit.

use bytes::Bytes;

use super::entry::{Entry, EntryReader};

const MAGIC: [u8; 4] = *b"pks\x01";
const HEADER: usize = 24;

/// Why bytes are no commit that was shipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShippedFault {
    #[error("too short")]
    Short,
    #[error("its checksum does not hold")]
    Checksum,
    #[error("not of a version that is known here")]
    Version,
    #[error("its parts don't fit")]
    Parts,
    #[error("what it says makes no sense in this store")]
    Senseless,
}

/// A commit, to be sent to a replica; from `Follower::next`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shipped {
    pub(crate) store: u64,
    pub(crate) seq: u64,
    pub(crate) parts: Vec<Bytes>,
}

impl Shipped {
    /// Its number.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The id of the store that it is of.
    pub fn store(&self) -> u64 {
        self.store
    }

    /// As bytes, with a checksum.
    pub fn encode(&self) -> Vec<u8> {
        let len = self.parts.iter().map(|part| 4 + part.len()).sum::<usize>();
        let mut bytes = Vec::with_capacity(HEADER + len);
        bytes.extend([0; 4]);
        bytes.extend(MAGIC);
        bytes.extend(self.store.to_le_bytes());
        bytes.extend(self.seq.to_le_bytes());
        for part in &self.parts {
            let len = u32::try_from(part.len()).unwrap_or_else(|_| unreachable!("no record is so long"));
            bytes.extend(len.to_le_bytes());
            bytes.extend(part);
        }
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// From bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ShippedFault> {
        let header = bytes.first_chunk::<HEADER>().ok_or(ShippedFault::Short)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        if crc32c::crc32c(&bytes[4..]).to_le_bytes() != header[..4] {
            return Err(ShippedFault::Checksum);
        }
        if header[4..8] != MAGIC {
            return Err(ShippedFault::Version);
        }
        let mut parts = Vec::new();
        let mut rest = &bytes[HEADER..];
        while let Some((len, behind)) = rest.split_first_chunk() {
            let part = behind.split_at_checked(u32::from_le_bytes(*len) as usize);
            let Some((part, behind)) = part else { break };
            parts.push(Bytes::copy_from_slice(part));
            rest = behind;
        }
        if !rest.is_empty() || parts.is_empty() {
            return Err(ShippedFault::Parts);
        }
        Ok(Self { store: long(8), seq: long(16), parts })
    }

    /// What it says, for a store of pages with payloads of so many bytes.
    pub(crate) fn entry(&self, payload: usize) -> Result<Entry, ShippedFault> {
        let mut reader = EntryReader::new(payload);
        let mut read = None;
        for part in &self.parts {
            if read.is_some() {
                return Err(ShippedFault::Senseless);
            }
            read = reader.read(part).map_err(|_| ShippedFault::Senseless)?;
        }
        read.filter(|entry| entry.seq == self.seq).ok_or(ShippedFault::Senseless)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shipped() -> Shipped {
        Shipped { store: 7, seq: 300, parts: vec![Bytes::from_static(b"one"), Bytes::from_static(b"")] }
    }

    /// The bytes as they are sent: what was sent by one version must be read by all later ones.
    #[test]
    fn a_commit_looks_as_it_always_did() {
        let rest = b"pks\x01\x07\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0\x03\0\0\0one\0\0\0\0";
        let expected = [&crc32c::crc32c(rest).to_le_bytes()[..], rest].concat();
        assert_eq!(shipped().encode(), expected);
        assert_eq!(Shipped::read(&expected).unwrap(), shipped());
    }

    #[test]
    fn what_is_not_whole_is_no_commit() {
        let whole = shipped().encode();
        for bit in 0..whole.len() * 8 {
            let mut rotten = whole.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert!(Shipped::read(&rotten).is_err(), "bit {bit}");
        }
        for len in 0..whole.len() {
            assert!(Shipped::read(&whole[..len]).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(content in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = [&[0; 4], &MAGIC[..], &content].concat();
            let crc = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            if let Ok(found) = Shipped::read(&bytes) {
                prop_assert_eq!(found.encode(), bytes);
                let _ = found.entry(4064);
            }
        }
    }
}

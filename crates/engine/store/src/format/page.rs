//! A page of the data file: a header that identifies it, and the payload.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..4 | CRC-32C of all bytes behind it |
//! | 4 | kind: 1 data, 2 free, 3 trunk of the free list |
//! | 5..8 | zeros |
//! | 8..16 | number of the page |
//! | 16..24 | seq of the commit that changed it last |
//! | 24..32 | id of the store |
//! | 32.. | payload |
//!
//! Invariant: a page is valid only with its checksum, at its own place, and in its own store. A
//! page of zeros was never written; no written page looks like that.

use crate::{PageNo, Seq};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 32;

/// The use of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// A user's page.
    Data = 1,
    /// A free page, whose payload is zeros.
    Free = 2,
    /// A part of the free list.
    Trunk = 3,
}

/// A page's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// The checksum of everything behind it.
    pub(crate) crc: u32,
    pub(crate) kind: PageKind,
    /// Its number.
    pub(crate) page: PageNo,
    /// The seq of the commit that changed it last.
    pub(crate) seq: Seq,
    /// The id of its store.
    pub(crate) store: u64,
}

/// The reason why bytes are not the requested page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PageFault {
    #[error("it was never written")]
    NeverWritten,
    #[error("its checksum does not hold")]
    Checksum,
    #[error("it is of kind {0}, which this pagekeeper does not know")]
    Kind(u8),
    #[error("page {0} stands in its place")]
    OtherPage(PageNo),
    #[error("it belongs to another store, {0:016x}")]
    OtherStore(u64),
    #[error("bytes of its header that must be zeros are not")]
    Reserved,
}

impl PageKind {
    /// Returns the kind that this byte encodes.
    pub(crate) const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Data),
            2 => Some(Self::Free),
            3 => Some(Self::Trunk),
            _ => None,
        }
    }
}

/// Writes the header of a page whose payload is in place. Returns the checksum.
///
/// # Panics
/// If the page is shorter than a header.
pub(crate) fn seal(bytes: &mut [u8], kind: PageKind, page: PageNo, seq: Seq, store: u64) -> u32 {
    bytes[4] = kind as u8;
    bytes[5..8].fill(0);
    bytes[8..16].copy_from_slice(&page.get().to_le_bytes());
    bytes[16..24].copy_from_slice(&seq.get().to_le_bytes());
    bytes[24..HEADER_BYTES].copy_from_slice(&store.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Returns the checksum in a page's header.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc))
}

/// Reads a whole page as page number `page` of a store.
pub(crate) fn check(bytes: &[u8], page: PageNo, store: u64) -> Result<PageHeader, PageFault> {
    let header = bytes.first_chunk::<HEADER_BYTES>().ok_or(PageFault::Checksum)?;
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
    let crc = u32::from_le_bytes(std::array::from_fn(|byte| header[byte]));
    if crc32c::crc32c(&bytes[4..]) != crc {
        let is_blank = header == &[0; HEADER_BYTES] && bytes.iter().all(|byte| *byte == 0);
        return Err(if is_blank { PageFault::NeverWritten } else { PageFault::Checksum });
    }
    let found = PageHeader {
        crc,
        kind: PageKind::of(header[4]).ok_or(PageFault::Kind(header[4]))?,
        page: PageNo::new(long(8)),
        seq: Seq::new(long(16)),
        store: long(24),
    };
    if header[5..8] != [0; 3] {
        Err(PageFault::Reserved)
    } else if found.store != store {
        Err(PageFault::OtherStore(found.store))
    } else if found.page != page {
        Err(PageFault::OtherPage(found.page))
    } else {
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STORE: u64 = 0x0102_0304_0506_0708;
    const PAGE: PageNo = PageNo::new(7);

    fn page(payload: &[u8]) -> Vec<u8> {
        let mut bytes = [&[0xee; HEADER_BYTES], payload].concat();
        seal(&mut bytes, PageKind::Trunk, PAGE, Seq::new(300), STORE);
        bytes
    }

    /// These bytes are on users' disks and must stay readable.
    #[test]
    fn the_format_of_a_page_is_fixed() {
        let expected = b"\x82\xea\x5a\x23\x03\0\0\0\x07\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01pages";
        assert_eq!(page(b"pages"), expected);
        let header = check(expected, PAGE, STORE).unwrap();
        assert_eq!(
            header,
            PageHeader {
                crc: 0x235a_ea82,
                kind: PageKind::Trunk,
                page: PAGE,
                seq: Seq::new(300),
                store: STORE
            }
        );
    }

    #[test]
    fn each_flipped_bit_is_detected() {
        let whole = page(&[0x5a; 4096 - HEADER_BYTES]);
        check(&whole, PAGE, STORE).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut rotten = whole.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&rotten, PAGE, STORE), Err(PageFault::Checksum), "bit {bit}");
        }
    }

    #[test]
    fn a_valid_block_of_another_page_is_reported() {
        let whole = page(b"payload");
        assert_eq!(check(&whole, PAGE + 1, STORE), Err(PageFault::OtherPage(PAGE)));
        assert_eq!(check(&whole, PAGE, 1), Err(PageFault::OtherStore(STORE)));
        assert_eq!(check(&[0; 4096], PAGE, STORE), Err(PageFault::NeverWritten));
        assert_eq!(check(&[], PAGE, STORE), Err(PageFault::Checksum));
        assert_eq!(check(&whole[..31], PAGE, STORE), Err(PageFault::Checksum));
        let resealed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            let crc = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            check(&bytes, PAGE, STORE)
        };
        assert_eq!(resealed(4, 9), Err(PageFault::Kind(9)));
        assert_eq!(resealed(4, 0), Err(PageFault::Kind(0)));
        assert_eq!(resealed(6, 1), Err(PageFault::Reserved));
    }

    #[test]
    fn faults_are_described_in_plain_words() {
        assert_eq!(PageFault::OtherPage(PageNo::new(9)).to_string(), "page 9 stands in its place");
        assert_eq!(PageFault::OtherStore(255).to_string(), "it belongs to another store, 00000000000000ff");
    }

    proptest! {
        #[test]
        fn a_page_is_read_as_it_was_sealed(payload: Vec<u8>, kind in 1_u8..=3, page: u64, seq: u64, store: u64) {
            let (kind, page, seq) = (PageKind::of(kind).unwrap(), PageNo::new(page), Seq::new(seq));
            let mut bytes = [&[0; HEADER_BYTES], &payload[..]].concat();
            let crc = seal(&mut bytes, kind, page, seq, store);
            prop_assert_eq!(check(&bytes, page, store), Ok(PageHeader { crc, kind, page, seq, store }));
            prop_assert_eq!(&bytes[HEADER_BYTES..], &payload);
        }

        #[test]
        fn random_bytes_cause_no_panic(bytes: Vec<u8>, page: u64, store: u64) {
            prop_assert!(check(&bytes, PageNo::new(page), store).is_err());
        }
    }
}

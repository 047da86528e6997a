//! The warm set: the pages that were resident, so that they can be loaded again. It is a hint: a
//! damaged or foreign one is not used.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..6 | `pkwarm` |
//! | 6..8 | version, 1 |
//! | 8..16 | id of the store |
//! | 16.. | for each range, in ascending order, as varints: distance from the end of the one before, number of pages |
//! | last 4 | CRC-32C of all before |

use std::ops::Range;

use super::varint;
use crate::PageNo;

const WARM_MAGIC: [u8; 6] = *b"pkwarm";
const WARM_VERSION: u16 = 1;
const WARM_HEADER_BYTES: usize = 16;

/// Encodes the file. The ranges ascend, do not overlap, and are not empty.
pub(crate) fn encode(store: u64, ranges: &[Range<PageNo>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(WARM_HEADER_BYTES + 4 + ranges.len() * 4);
    out.extend_from_slice(&WARM_MAGIC);
    out.extend_from_slice(&WARM_VERSION.to_le_bytes());
    out.extend_from_slice(&store.to_le_bytes());
    let mut end = PageNo::new(0);
    for range in ranges {
        debug_assert!(end <= range.start && range.start < range.end);
        varint::put(&mut out, range.start - end);
        varint::put(&mut out, range.end - range.start);
        end = range.end;
    }
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Returns the ranges of pages in the file, which ascend, do not overlap, and are not empty; `None`
/// if it is damaged, of another store or of a later version.
pub(crate) fn decode(bytes: &[u8], store: u64) -> Option<Vec<Range<PageNo>>> {
    let (checked, crc) = bytes.split_last_chunk::<4>()?;
    let (header, mut rest) = checked.split_first_chunk::<WARM_HEADER_BYTES>()?;
    let is_ours = header[..6] == WARM_MAGIC
        && header[6..8] == WARM_VERSION.to_le_bytes()
        && header[8..] == store.to_le_bytes();
    if !is_ours || crc32c::crc32c(checked).to_le_bytes() != *crc {
        return None;
    }
    let mut number = || {
        let (number, len) = varint::get(rest)?;
        rest = &rest[len..];
        Some((number, rest.is_empty()))
    };
    let mut ranges: Vec<Range<PageNo>> = Vec::new();
    let mut is_end = checked.len() == WARM_HEADER_BYTES;
    while !is_end {
        let (distance, _) = number()?;
        let pages;
        (pages, is_end) = number()?;
        let start = ranges.last().map_or(0, |last| last.end.get()).checked_add(distance)?;
        let end = start.checked_add(pages).filter(|end| *end > start)?;
        ranges.push(PageNo::new(start)..PageNo::new(end));
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pages(start: u64, end: u64) -> Range<PageNo> {
        PageNo::new(start)..PageNo::new(end)
    }

    /// These bytes are on users' disks and must stay readable.
    #[test]
    fn the_format_of_a_warm_set_is_fixed() {
        let mut expected = b"pkwarm\x01\0\x08\x07\x06\x05\x04\x03\x02\x01\0\x01\x02\x80\x01".to_vec();
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        let (store, ranges) = (0x0102_0304_0506_0708, [pages(0, 1), pages(3, 131)]);
        assert_eq!(encode(store, &ranges), expected);
        assert_eq!(decode(&expected, store).as_deref(), Some(&ranges[..]));
        assert_eq!(decode(&expected, store + 1), None);
        for bit in 0..expected.len() * 8 {
            let mut rotten = expected.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&rotten, store), None, "bit {bit}");
        }
        for len in 0..expected.len() {
            assert_eq!(decode(&expected[..len], store), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn a_warm_set_is_read_as_written(store: u64, steps in prop::collection::vec((0_u64..1 << 40, 1_u64..1 << 20), 0..50)) {
            let mut end = 0;
            let ranges: Vec<_> = steps.into_iter().map(|(gap, count)| {
                let start = end + gap;
                end = start + count;
                pages(start, end)
            }).collect();
            prop_assert_eq!(decode(&encode(store, &ranges), store), Some(ranges));
        }

        #[test]
        fn random_bytes_cause_no_panic(content: Vec<u8>) {
            let mut bytes = encode(7, &[]);
            bytes.truncate(WARM_HEADER_BYTES);
            bytes.extend(content);
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            if let Some(ranges) = decode(&bytes, 7) {
                prop_assert!(ranges.iter().all(|range| !range.is_empty()));
                prop_assert_eq!(decode(&encode(7, &ranges), 7), Some(ranges));
            }
        }
    }
}

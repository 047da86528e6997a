//! Groups of records in memory: staged by the caller that appends them, sealed by the leader that
//! writes them.
//!
//! A record's header and checksum depend on its position, which is known only when it is written. A
//! staged record therefore has room for its header, which holds only the length, the flag
//! [`GOES_ON`], and the checksum of the body.

use crate::convert::to_usize;
use crate::record::{self, RECORD_HEADER_BYTES, RecordHeader, RecordKind};

/// Set in a staged length if more records of the group follow.
const GOES_ON: u64 = 1 << 63;

/// Returns the bytes that a group takes up at the start of a segment, with the padding up to the
/// next block.
pub(super) fn padded_size(records: &[&[u8]]) -> u64 {
    let size = records.iter().map(|record| record::size(record.len())).sum();
    size + record::padding_size(size)
}

/// Adds a group to `bytes`; `sums` are the CRC-32C of its records.
pub(super) fn stage(bytes: &mut Vec<u8>, records: &[&[u8]], sums: &[u32]) {
    let size: usize =
        records.iter().map(|record| RECORD_HEADER_BYTES + record.len().next_multiple_of(8)).sum();
    bytes.reserve(size);
    for (left, (record, sum)) in (0..records.len()).rev().zip(records.iter().zip(sums)) {
        let goes_on = if left == 0 { 0 } else { GOES_ON };
        bytes.extend_from_slice(&(record.len() as u64 | goes_on).to_le_bytes());
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(&[0; RECORD_HEADER_BYTES - 12]);
        bytes.extend_from_slice(record);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
}

/// Turns staged bytes into records, the first of them at `lsn`.
pub(super) fn seal(bytes: &mut [u8], mut lsn: u64, salt: u32, durable_upto: u64) {
    let mut rest = bytes;
    while let Some((header, behind)) = rest.split_first_chunk_mut::<RECORD_HEADER_BYTES>() {
        let staged = header.first_chunk().map_or(0, |staged| u64::from_le_bytes(*staged));
        let sum = header[8..].first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
        let kind = if staged & GOES_ON == 0 { RecordKind::Data } else { RecordKind::Part };
        let len = to_usize(staged & !GOES_ON);
        *header = RecordHeader { kind, len, lsn, salt, durable_upto }.encode_over(sum);
        lsn += record::size(len);
        rest = &mut behind[len.next_multiple_of(8)..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_and_sealing_yields_the_same_records() {
        let records: [&[u8]; 4] = [b"", b"a", &[7; 8], &[9; 5000]];
        let sums = records.map(crc32c::crc32c);
        let mut bytes = Vec::new();
        stage(&mut bytes, &records, &sums);
        stage(&mut bytes, &records[3..], &sums[3..]);
        let whole = bytes.len() as u64;
        assert_eq!(padded_size(&[&records[..], &records[3..]].concat()), whole + record::padding_size(whole));
        seal(&mut bytes, 4096, 5, 4096);
        let mut expected = Vec::new();
        let kinds =
            [RecordKind::Part, RecordKind::Part, RecordKind::Part, RecordKind::Data, RecordKind::Data];
        for (record, kind) in records.iter().chain(&records[3..]).zip(kinds) {
            let lsn = 4096 + expected.len() as u64;
            expected.extend(record::encode(kind, record, lsn, 5, 4096));
        }
        assert_eq!(bytes, expected);
    }
}

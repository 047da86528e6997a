//! The warm set of a store: any bytes are parsed or rejected, and a parsed set is the same after it
//! was written and read again.
//!
//! The bytes are tried as they are, and as ranges after a valid header, with a valid checksum,
//! which mutations never hit.

use crate::format::warm;

const WARM_STORE: u64 = 7;

/// Runs one input.
pub fn fuzz_one(data: &[u8]) {
    try_reading(data);
    let mut sealed = warm::encode(WARM_STORE, &[]);
    sealed.truncate(sealed.len() - 4);
    sealed.extend_from_slice(data);
    let crc = crc32c::crc32c(&sealed);
    sealed.extend_from_slice(&crc.to_le_bytes());
    assert_eq!(warm::decode(&sealed, WARM_STORE + 1), None);
    try_reading(&sealed);
}

fn try_reading(bytes: &[u8]) {
    if let Some(ranges) = warm::decode(bytes, WARM_STORE) {
        assert!(ranges.iter().all(|range| range.start < range.end));
        assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
        assert_eq!(warm::decode(&warm::encode(WARM_STORE, &ranges), WARM_STORE), Some(ranges));
    }
}

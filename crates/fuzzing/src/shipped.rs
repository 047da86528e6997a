//! A commit that is shipped to a replica: any bytes are read or refused, and what is read is written again as the same bytes.
//!
//! The bytes are tried as they are, and with a checksum that holds, which mutations never meet.

use crate::format::page::HEADER;
use crate::format::shipped::Shipped;

/// Reads an input.
pub(crate) fn fuzz_one(data: &[u8]) {
    try_reading(data);
    let mut sealed = [&[0; 4], &b"pks\x01"[..], data].concat();
    let crc = crc32c::crc32c(&sealed[4..]);
    sealed[..4].copy_from_slice(&crc.to_le_bytes());
    try_reading(&sealed);
}

fn try_reading(bytes: &[u8]) {
    let Ok(found) = Shipped::read(bytes) else { return };
    assert_eq!(found.encode(), bytes);
    for page in [4096, 65536] {
        if let Ok(entry) = found.entry(page - HEADER) {
            assert_eq!(entry.seq, found.seq());
        }
    }
}

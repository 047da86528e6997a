//! `PostgreSQL`'s replication slots: any bytes are parsed or rejected, and arithmetic on a parsed
//! position does not fail.
//!
//! The bytes are tried as they are, and in each version with a valid checksum, which mutations
//! never hit.

use pagekeeper_catalog::postgresql::slot::{ReplicationSlot, SLOT_BYTES};
use pagekeeper_policy::names::SegmentSize;

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    try_reading(data);
    for version in [2, 3, 5] {
        try_reading(&sealed(data, version));
    }
}

/// Returns the bytes with the magic, a version, the actual length, and a valid checksum.
fn sealed(data: &[u8], version: u32) -> Vec<u8> {
    let mut sealed = data.to_vec();
    sealed.resize(data.len().clamp(108, SLOT_BYTES), 0);
    let len = u32::try_from(sealed.len() - 16).unwrap_or_default();
    for (at, number) in [(0, 0x0105_1ca1), (8, version), (12, len)] {
        sealed[at..at + 4].copy_from_slice(&u32::to_le_bytes(number));
    }
    let checksum = crc32c::crc32c(&sealed[8..]);
    sealed[4..8].copy_from_slice(&checksum.to_le_bytes());
    sealed
}

fn try_reading(bytes: &[u8]) {
    if let Ok(ReplicationSlot { restart_lsn: Some(lsn), .. }) = ReplicationSlot::parse(bytes) {
        assert!(lsn > 0);
        let (_, offset) = SegmentSize::DEFAULT.place_of(lsn);
        assert!(offset < SegmentSize::DEFAULT.bytes());
    }
}

/// Returns a logical slot.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut bytes = vec![0; 200];
    bytes[16..22].copy_from_slice(b"polled");
    for (at, figure) in [(80, 5_u64), (96, 0x150_07c8), (112, 0x150_0800)] {
        bytes[at..at + 8].copy_from_slice(&figure.to_le_bytes());
    }
    vec![sealed(&bytes, 2)]
}

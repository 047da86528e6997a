//! An increment of a store: any bytes are read or refused, and what is read is written again as the same numbers.
//!
//! The bytes are tried as they are, and with checksums that hold, which mutations never meet: a superblock, then the fields of the
//! header; and as the first bytes of a chunk.

use crate::format::increment::{CHUNK_HEADER, ChunkHeader, HEADER, IncrementHeader};
use crate::format::superblock::{MAX_PAGES, SLOT};

/// Where fields that the first block has of its own end.
const FIELDS: usize = 64;

/// Reads an input.
pub(crate) fn fuzz_one(data: &[u8]) {
    try_reading(data);
    let mut sealed = vec![0; HEADER];
    sealed[SLOT..SLOT + 10].copy_from_slice(b"pkstore\0\x02\0");
    let (fields, slot) = data.split_at(data.len().min(FIELDS - 10));
    let slot = &slot[..slot.len().min(SLOT - 14)];
    sealed[SLOT + 10..SLOT + 10 + slot.len()].copy_from_slice(slot);
    let crc = crc32c::crc32c(&sealed[SLOT..HEADER - 4]).to_le_bytes();
    sealed[HEADER - 4..].copy_from_slice(&crc);
    sealed[10..10 + fields.len()].copy_from_slice(fields);
    sealed[..10].copy_from_slice(b"pkincr\0\0\x01\0");
    sealed[FIELDS - 4..FIELDS].copy_from_slice(&crc);
    let crc = crc32c::crc32c(&sealed[..SLOT - 4]).to_le_bytes();
    sealed[SLOT - 4..SLOT].copy_from_slice(&crc);
    try_reading(&sealed);

    let mut chunk = vec![0; CHUNK_HEADER];
    chunk[..4].copy_from_slice(b"pkp\x01");
    let rest = &data[..data.len().min(CHUNK_HEADER - 4)];
    chunk[4..4 + rest.len()].copy_from_slice(rest);
    for page_size in [4096, 65536] {
        let Ok(found) = ChunkHeader::decode(&chunk, page_size) else { continue };
        assert!(found.images * page_size <= 1 << 20);
        assert!(found.blank.iter().all(|range| range.start < range.end && range.end <= MAX_PAGES));
        let mut again = vec![0; CHUNK_HEADER];
        found.encode(&mut again);
        assert_eq!(ChunkHeader::decode(&again, page_size), Ok(found));
    }
}

fn try_reading(bytes: &[u8]) {
    if let Ok(found) = IncrementHeader::decode(bytes) {
        assert!(found.since <= found.superblock.checkpoint_seq);
        assert_eq!(IncrementHeader::decode(&found.encode()), Ok(found));
    }
}

//! The page map of a store: any bytes are parsed or rejected, and a parsed map is the same after it
//! was written and read again.
//!
//! The bytes are tried as they are, and as the content of a block with a valid checksum, which
//! mutations never hit.

use crate::Seq;
use crate::format::page_map::{BLOCK_BYTES, MapBlock};

const MAP_STORE: u64 = 7;
const NUMBER: u64 = 3;

/// Runs one input.
pub fn fuzz_one(data: &[u8]) {
    try_reading(data);
    let mut sealed = vec![0; BLOCK_BYTES];
    MapBlock::newest([None, None], Seq::NONE).encode(NUMBER, MAP_STORE, &mut sealed);
    let room = &mut sealed[24..];
    let len = data.len().min(room.len());
    room[..len].copy_from_slice(&data[..len]);
    let crc = crc32c::crc32c(&sealed[4..]);
    sealed[..4].copy_from_slice(&crc.to_le_bytes());
    try_reading(&sealed);
}

fn try_reading(bytes: &[u8]) {
    for place in 0..2 {
        let Some(found) = MapBlock::decode(bytes, NUMBER, MAP_STORE, place) else { continue };
        if found.number > 0 {
            let mut again = vec![0xee; BLOCK_BYTES];
            found.encode(NUMBER, MAP_STORE, &mut again);
            assert_eq!(MapBlock::decode(&again, NUMBER, MAP_STORE, place), Some(found.clone()));
        }
        let newest = MapBlock::newest([Some(found.clone()), None], Seq::MAX);
        assert_eq!((newest.number, newest.seq, newest.entries), (found.number, found.seq, found.entries));
    }
}

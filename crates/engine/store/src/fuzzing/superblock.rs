//! The superblock of a store: any bytes are parsed or rejected, and a parsed superblock is the same
//! after it was written and read again.
//!
//! The bytes are tried as they are, and as the content of two slots with valid checksums, which
//! mutations never hit.

use crate::format::superblock::{MAX_USER_BYTES, SLOT_BYTES, SlotContent, Superblock, newest};

/// Runs one input.
pub fn fuzz_one(data: &[u8]) {
    try_reading(data);
    let (first, second) = data.split_at(data.len() / 2);
    try_reading(&[seal(first), seal(second)].concat());
}

fn seal(content: &[u8]) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..10].copy_from_slice(b"pkstore\0\x02\0");
    let room = &mut slot[10..SLOT_BYTES - 4];
    let len = content.len().min(room.len());
    room[..len].copy_from_slice(&content[..len]);
    let crc = crc32c::crc32c(&slot[..SLOT_BYTES - 4]);
    slot[SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    slot
}

fn try_reading(bytes: &[u8]) {
    let slot = |slot: usize| Superblock::decode(bytes.get(slot * SLOT_BYTES..).unwrap_or_default());
    let slots = [slot(0), slot(1)];
    if let Some(SlotContent::Superblock(found)) = newest([&slots[0], &slots[1]]).map(|slot| &slots[slot]) {
        assert!(found.page_size.is_power_of_two() && found.meta.user.len() <= MAX_USER_BYTES);
        assert_eq!(Superblock::decode(&found.encode()), SlotContent::Superblock(found.clone()));
    }
}

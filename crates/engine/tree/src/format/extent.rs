//! Extents: consecutive pages with a part of a large value. The first page has a head; all other
//! bytes belong to the value.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..2 | `tv` |
//! | 2..4 | zeros |
//! | 4..8 | pages of the extent |
//! | 8..12 | head of the next one; all ones: there is none |
//! | 12..16 | zeros |
//! | 16.. | the value continues here, and in the whole of each page that follows |
//!
//! Invariant: the pages of a value are exactly as many as its length needs in these extents. Bytes
//! behind its end in the last one are zeros.

use super::{NodeFault, long};

/// Bytes of the head.
pub(crate) const EXTENT_HEAD_BYTES: usize = 16;
/// Stands for the next extent if there is none.
const NO_EXTENT: u32 = u32::MAX;

/// Consecutive pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) pages: u32,
    /// The head of the next one.
    pub(crate) next: Option<u32>,
}

impl Extent {
    /// Decodes it from the payload of its first page.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, NodeFault> {
        let Some(head) = bytes.first_chunk::<EXTENT_HEAD_BYTES>() else { return Err(NodeFault::Magic) };
        if &head[..2] != b"tv" {
            return Err(NodeFault::Magic);
        }
        let extent =
            Self { pages: long(head, 4), next: Some(long(head, 8)).filter(|next| *next != NO_EXTENT) };
        let is_sound = head[2..4] == [0; 2] && head[12..] == [0; 4] && extent.pages > 0;
        if is_sound { Ok(extent) } else { Err(NodeFault::Head) }
    }

    pub(crate) fn encode(self) -> [u8; EXTENT_HEAD_BYTES] {
        let mut head = [0; EXTENT_HEAD_BYTES];
        head[..2].copy_from_slice(b"tv");
        head[4..8].copy_from_slice(&self.pages.to_le_bytes());
        head[8..12].copy_from_slice(&self.next.unwrap_or(NO_EXTENT).to_le_bytes());
        head
    }
}

/// Returns the number of pages of an extent with this many bytes of a value.
pub(crate) fn pages_for(bytes: u64, payload: usize) -> u64 {
    (bytes + EXTENT_HEAD_BYTES as u64).div_ceil(payload as u64)
}

/// Returns the bytes of a value that an extent of this many pages holds.
pub(crate) fn room_of(pages: u64, payload: usize) -> u64 {
    pages * payload as u64 - EXTENT_HEAD_BYTES as u64
}

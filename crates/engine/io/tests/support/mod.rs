//! Memory to read into, and bytes to write.

use std::ops::{Deref, DerefMut};

/// Memory aligned to pages. It does not move when the value does.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

pub(crate) fn aligned(len: usize) -> Memory {
    const PAGE_BYTES: usize = 4096;
    let bytes = vec![0xee_u8; len + PAGE_BYTES];
    let skip = bytes.as_ptr().align_offset(PAGE_BYTES);
    Memory { bytes, skip, len }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.skip..self.skip + self.len]
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.len]
    }
}

/// Returns bytes that differ from offset to offset.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pagekeeper_simdisk::pattern(99, 0, &mut bytes);
    bytes
}

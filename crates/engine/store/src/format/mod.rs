//! What stands on the disk, byte for byte: encoding and decoding alone, without any I/O.
//!
//! Invariants: whatever bytes are given, decoding ends in a value or in what is wrong with them, never in a panic; and it takes no
//! more memory than a small multiple of the bytes given. What was written by one version is read by all later ones.
//! `docs/src/store-format.md` specifies all of it.

pub(crate) mod entry;
pub(crate) mod page;
pub(crate) mod page_map;
pub(crate) mod superblock;
pub(crate) mod trunk;
mod varint;
pub(crate) mod warm;

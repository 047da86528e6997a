//! The on-disk formats, byte for byte: only encoding and decoding, without I/O.
//!
//! Invariants: for any bytes, decoding returns a value or what is wrong with them, and never
//! panics. It takes no more memory than a small multiple of the given bytes. All later versions
//! read what one version has written. `docs/src/store-format.md` specifies all formats.

pub(crate) mod entry;
pub(crate) mod page;
pub(crate) mod page_map;
pub(crate) mod superblock;
pub(crate) mod trunk;
mod varint;
pub(crate) mod warm;

//! The pages of a tree, byte for byte: decoding, and changes in place, without I/O.
//!
//! Three kinds of pages: a leaf, an inner page, and the head of an extent, which is a row of pages
//! with a part of a large value.
//!
//! Invariants: for any bytes of a page, reading and changing it returns a value or what is wrong
//! with it, and never panics. `docs/src/store-format.md` specifies the format. Nothing here depends
//! on a store.

pub(crate) mod edit;
pub(crate) mod extent;
pub(crate) mod node;

/// Returns the maximum bytes of a key in pages with this payload: three entries with such keys fit
/// into a page, so that each full page can be split.
pub(crate) const fn max_key(payload: usize) -> usize {
    let entry = payload.saturating_sub(node::NODE_HEAD_BYTES) / 3;
    entry.saturating_sub(edit::entry_len(0, node::LARGE_REF_BYTES))
}
/// Maximum bytes of a value.
pub(crate) const MAX_VALUE: usize = u32::MAX as usize;
/// Maximum level of an inner page.
pub(crate) const MAX_LEVEL: u8 = 31;

/// The reason why a page is not valid in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NodeFault {
    #[error("it is no page of a tree")]
    Magic,
    #[error("it is of level {found}, where {wanted} should be")]
    Level { found: u8, wanted: u8 },
    #[error("it has a level that no tree has")]
    TooHigh,
    #[error("its head makes no sense")]
    Head,
    #[error("entry {0} does not lie within it")]
    Entry(usize),
    #[error("a key has no place in it by what it begins with")]
    Prefix,
    #[error("its entries lie in each other")]
    Overlap,
    #[error("entry {0} is not in order")]
    Order(usize),
    #[error("a value's pages don't fit its length")]
    Extent,
    #[error("a value has something behind it")]
    Tail,
    #[error("the scan came by more pages than there are")]
    Cycle,
}

/// Reads the number at an offset that is known to exist.
#[inline]
fn short(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn set_short(bytes: &mut [u8], at: usize, number: usize) -> Result<(), NodeFault> {
    let number = u16::try_from(number).map_err(|_| NodeFault::Head)?;
    bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
    Ok(())
}

/// Reads the number at an offset that is known to exist.
#[inline]
fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

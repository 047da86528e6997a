//! What the pages of a tree hold, byte for byte: decoding, and changes in place, without any I/O.
//!
//! Three kinds of pages: a leaf, an inner page, and the head of an extent, which is pages in a row with a part of a large value.
//!
//! Invariants: whatever bytes a page has, reading and changing it ends in a value or in what is wrong with it, never in a panic.
//! `docs/src/store-format.md` specifies all of it. Nothing here knows of a store.

pub(crate) mod edit;
pub(crate) mod extent;
pub(crate) mod node;

/// Maximum bytes of a key, whatever the size of a page: of the smallest, an inner page then has seven keys or more.
pub(crate) const MAX_KEY: usize = 512;
/// No inner page has a level above it.
pub(crate) const MAX_LEVEL: u8 = 31;

/// What is wrong with a page of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
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

/// The number at a place that is known to be there.
#[inline]
fn short(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn set_short(bytes: &mut [u8], at: usize, number: usize) -> Result<(), Fault> {
    let number = u16::try_from(number).map_err(|_| Fault::Head)?;
    bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
    Ok(())
}

/// The number at a place that is known to be there.
#[inline]
fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

//! Conversion of byte counts from files to memory.

/// Converts a length of memory, or an offset in it. It always fits if pointers have 64 bits, and
/// then costs nothing.
///
/// # Panics
///
/// If it does not fit: the caller bounds it by the size of something in memory.
pub(crate) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a length in memory fits in a usize")
}

//! Numbers of bytes, from files to memory.

/// A length of memory, or an offset in it. Always fits where pointers have 64 bits, and costs nothing there.
///
/// # Panics
///
/// Where it does not fit: whoever calls bounds it by what is in memory.
pub(crate) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("what is in memory has a length that fits in a usize")
}

//! Limits that all logs share, and that errors name.

/// The longest body of a record, in bytes: its length has 28 bits.
pub(crate) const LONGEST: usize = (1 << 28) - 1;

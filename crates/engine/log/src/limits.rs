//! Limits and names that all logs share.

/// The longest body of a record, in bytes: its length has 28 bits.
pub(crate) const LONGEST: usize = (1 << 28) - 1;

/// What a file system has at its root: a directory with nothing else in it is an empty one.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

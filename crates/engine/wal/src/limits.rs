//! Limits and names that all logs share.

/// The maximum length of a record's body, in bytes: the length field has 28 bits.
pub(crate) const RECORD_BYTES_MAX: usize = (1 << 28) - 1;

/// The name of the file that is locked while a log is open.
pub(crate) const LOCK_NAME: &str = "lock";

/// The name at the root of a file system. A directory with nothing else in it counts as empty.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

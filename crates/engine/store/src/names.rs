//! Names in a store's directory that several modules use.

/// The file that is locked while the store is open.
pub(crate) const LOCK: &str = "lock";
/// The directory of the journal.
pub(crate) const JOURNAL: &str = "journal";
/// That of the journal that took its place. The next one is in the first again.
pub(crate) const OTHER_JOURNAL: &str = "journal.2";

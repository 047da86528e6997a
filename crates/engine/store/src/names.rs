//! Names in a store's directory that several modules use.

/// The file that is locked while the store is open.
pub(crate) const LOCK: &str = "lock";
/// The directory of the journal.
pub(crate) const JOURNAL: &str = "journal";
/// The directory of a journal that replaced it. The next replacement uses the first name again.
pub(crate) const OTHER_JOURNAL: &str = "journal.2";

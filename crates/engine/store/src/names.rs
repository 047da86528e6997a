//! Names in a store's directory that several modules use.

/// The file that is locked while the store is open.
pub(crate) const LOCK_NAME: &str = "lock";
/// The directory of the journal.
pub(crate) const JOURNAL_NAME: &str = "journal";
/// The directory of a journal that replaced it. The next replacement uses the first name again.
pub(crate) const OTHER_JOURNAL_NAME: &str = "journal.2";
/// The file for old versions of pages. It has this name only for a moment.
pub(crate) const VERSIONS_NAME: &str = "versions";
/// The socket at which the process that has the store open takes requests for backups.
pub(crate) const BACKUP_SOCKET_NAME: &str = "backup.sock";

//! The error type of a store. It is `Clone`, so that one failed sync can be reported to everyone
//! who waited for it.

use std::path::PathBuf;

use crate::PageNo;
use pagekeeper_text::escaped;

/// An error of a store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk failed, or a file cannot be opened. The message names the call, the path and the
    /// system's error.
    #[error(transparent)]
    Io(#[from] pagekeeper_io::Error),
    /// The journal failed, or is invalid.
    #[error("the journal: {0}")]
    Journal(#[from] pagekeeper_wal::Error),
    /// A page could not be read through the cache.
    #[error(transparent)]
    Cache(#[from] pagekeeper_cache::Error),
    /// The cache cannot be made with these settings.
    #[error("the page cache: {0}")]
    CacheSetting(#[from] pagekeeper_cache::BuildError),
    /// There is no store, and none was to be made.
    #[error("{}: no store here", escaped(path))]
    NoStore {
        /// The directory, or its part that is missing.
        path: PathBuf,
    },
    /// A store is to be made in a directory that is not empty.
    #[error("{}: not empty, so that no store can be made here: it has {found}", escaped(path))]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// A backup or repair makes its own directory, but something of that name exists. It was left
    /// as it is.
    #[error(
        "{}: {}",
        escaped(path),
        if *is_unfinished { "never finished, by a backup or repair that was interrupted: remove it, or give another name" }
        else { "there already, and left as it is: give a name that nothing has" }
    )]
    Exists {
        /// The existing path.
        path: PathBuf,
        /// Whether it is a store that was never finished.
        is_unfinished: bool,
    },
    /// Making the store was interrupted, or the backup, restore or repair that made it. It never
    /// was a store.
    #[error("{}: this store was never finished: make it again", escaped(path))]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },
    /// Neither superblock is intact. Nothing was changed.
    #[error(
        "{}: neither of its two slots can be used ({found}), so that the store can't be opened; it is left as it is: restore the last backup, or save what can be saved by `pagekeeper store repair`",
        escaped(path)
    )]
    BrokenSuperblock {
        /// The file.
        path: PathBuf,
        /// The content of each slot, in words.
        found: String,
    },
    /// The superblock's file is missing, but there was one. Nothing was changed.
    #[error(
        "{}: gone, and {found} of its store is still there; that is left as it is: put the file back, restore the last backup, or save what can be saved by `pagekeeper store repair`",
        escaped(path)
    )]
    LostSuperblock {
        /// The file.
        path: PathBuf,
        /// One of the store's names that exist.
        found: String,
    },
    /// A file that every store has is missing. Nothing was changed.
    #[error(
        "{}: gone, and the rest of its store is still there; that is left as it is: put the file back, restore the last backup, or save what can be saved by `pagekeeper store repair`",
        escaped(path)
    )]
    LostFile {
        /// The file.
        path: PathBuf,
    },
    /// The store, or a commit in its journal, was written by a newer pagekeeper. Nothing was
    /// changed.
    #[error(
        "{}: written by a newer pagekeeper: version {version}, and this one knows version {known}: use a newer one",
        escaped(path)
    )]
    UnknownVersion {
        /// The file or directory.
        path: PathBuf,
        /// Its version.
        version: u16,
        /// The newest version known here.
        known: u16,
    },
    /// The store was made before the first release of pagekeeper.
    #[error(
        "{}: version {version}, of before the first release, which no pagekeeper opens any more: make the store again",
        escaped(path)
    )]
    OldVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u16,
    },
    /// No process serves backups of the store: none has it open, or the one that has it open does
    /// not serve backups.
    #[error("{}: no process that has this store open serves backups of it", escaped(path))]
    NoBackupsServed {
        /// The store's directory.
        path: PathBuf,
    },
    /// The process that has the store open made no backup.
    #[error("{}: the process that has this store open made no backup: {reason}", escaped(path))]
    BackupRefused {
        /// The store's directory.
        path: PathBuf,
        /// Its error, in words.
        reason: String,
    },
    /// The process that has the store open reports a backup, but it is missing or not what it
    /// should be. Anything that exists there was left as it is.
    #[error(
        "{}: no backup that can be confirmed, though the process that has the store open says that it made one: {reason}",
        escaped(path)
    )]
    BackupNotConfirmed {
        /// The path where it should be.
        path: PathBuf,
        /// The finding there, in words.
        reason: String,
    },
    /// A file of the store is shorter than what was written to it. Nothing was changed.
    #[error(
        "{}: {found} bytes long, and the store has {expected} bytes of it: it was cut off, and what stood there is lost; it is left as it is: restore the last backup, or save what can be saved by `pagekeeper store repair`",
        escaped(path)
    )]
    CutOff {
        /// The file.
        path: PathBuf,
        /// Its length, in bytes.
        found: u64,
        /// Its minimum length, in bytes.
        expected: u64,
    },
    /// The store's page size is not the one that was asked for.
    #[error("{}: pages of {found} bytes, not of {wanted}", escaped(path))]
    OtherPageSize {
        /// The directory.
        path: PathBuf,
        /// The store's page size, in bytes.
        found: usize,
        /// The given page size, in bytes.
        wanted: usize,
    },
    /// The store is open read-only.
    #[error("the store is open to read only")]
    ReadOnly,
    /// This thread already has the write transaction, and would wait for itself.
    #[error("this thread already has the write transaction: commit or drop that one first")]
    OwnTransaction,
    /// No write transaction could be begun in time. A later attempt may succeed.
    #[error("no write transaction in time: another one is open, or the journal is full")]
    WriteTimeout,
    /// A setting that no store can work with.
    #[error("{what} of {given}: {wanted}")]
    Setting {
        /// Its name.
        what: &'static str,
        /// The given value.
        given: u64,
        /// The values that it may have.
        wanted: &'static str,
    },
    /// Committed data cannot be read any more: parts of the journal are missing or invalid.
    #[error(
        "{}: {what}, so that commits are lost: restore the last backup, or save what can be saved by `pagekeeper store repair`",
        escaped(path)
    )]
    Corrupt {
        /// The file or directory.
        path: PathBuf,
        /// The finding, in words.
        what: String,
    },
    /// The journal relies on atomic writes of pages, and this file system has none, or no longer:
    /// the store was moved before everything was applied.
    #[error(
        "{}: its last commits can only be applied where pages are written atomically: open it on such a file system, and close it with a sync",
        escaped(path)
    )]
    NotAtomic {
        /// The directory.
        path: PathBuf,
    },
    /// A page of the data file is not the one that was written there: it is corrupt, or another
    /// page.
    #[error("{}: page {page} is damaged: {reason}", escaped(path))]
    Damaged {
        /// The data file.
        path: PathBuf,
        /// The page.
        page: PageNo,
        /// The fault, in words.
        reason: String,
    },
    /// The page is behind the last one.
    #[error("page {page} is out of range: the store has {pages} pages")]
    OutOfRange {
        /// The given page.
        page: PageNo,
        /// The store's number of pages.
        pages: u64,
    },
    /// The page is free: it was never allocated, or was freed.
    #[error("page {page} is not allocated")]
    NotAllocated {
        /// The given page.
        page: PageNo,
    },
    /// The page belongs to a run, and was not written yet.
    #[error("page {page} was never written: write it as a whole first")]
    NeverWritten {
        /// The given page.
        page: PageNo,
    },
    /// A payload of the wrong length.
    #[error("{given} bytes for a page that holds {wanted}")]
    PayloadSize {
        /// The given length, in bytes.
        given: usize,
        /// Bytes of a page's payload.
        wanted: usize,
    },
    /// More metadata than fits into a superblock.
    #[error("metadata of {given} bytes: at most {max} fit")]
    MetadataTooLong {
        /// The given length, in bytes.
        given: usize,
        /// The maximum, in bytes.
        max: usize,
    },
    /// A transaction that the journal cannot take. Nothing of it was committed.
    #[error(
        "a transaction of {bytes} bytes in the journal: at most {max} fit: commit more often, or make a store with a larger journal"
    )]
    TransactionTooLarge {
        /// The bytes that it would take in the journal.
        bytes: u64,
        /// The maximum, in bytes.
        max: u64,
    },
    /// A read transaction was ended, because the versions that it needed took more than
    /// [`snapshot_bytes`](crate::StoreOptions::snapshot_bytes), or could not be kept on disk.
    #[error(
        "the snapshot is too old: pages that it needs were given up, since more did not fit into `snapshot_bytes` or on the disk"
    )]
    SnapshotTooOld,
    /// A write or sync failed before, so the store takes no more commits: the disk's content is
    /// unknown. Open it again.
    #[error("the store takes no more commits since: {cause}; open it again")]
    Poisoned {
        /// The failure.
        cause: Box<Error>,
    },
}

impl Error {
    /// Turns "no such file" into [`Error::LostFile`], for files that every store has.
    pub(crate) fn or_lost(self) -> Self {
        let missing = match &self {
            Self::Io(error) | Self::Journal(pagekeeper_wal::Error::Io(error))
                if error.errno() == Some(libc::ENOENT) =>
            {
                error.path()
            }
            Self::Journal(
                pagekeeper_wal::Error::NoLog { path } | pagekeeper_wal::Error::MissingFile { path },
            ) => Some(path.as_path()),
            _ => None,
        };
        missing.map(|path| Self::LostFile { path: path.to_path_buf() }).unwrap_or(self)
    }

    /// Returns the system's error number, if the system reported one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io(error) | Self::Journal(pagekeeper_wal::Error::Io(error)) => error.errno(),
            _ => None,
        }
    }

    /// Whether a request was refused because the device is full or the file would be too large: the
    /// only disk failure that is not final. A sync that fails for this reason does not count, since
    /// earlier writes may be lost.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Self::Io(pagekeeper_io::Error::Write { .. } | pagekeeper_io::Error::Call { .. }))
            && lacks_space(self.errno())
    }
}

/// Whether an error means that the device is full, a quota is exhausted or a file is too large.
pub(crate) const fn lacks_space(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

//! What can go wrong, in one type. An error is `Clone`, so that one failed sync can be told to all who waited for it.

use std::path::PathBuf;

/// What went wrong with a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk failed, or a file can't be opened; the message names the call, the path and the system's error.
    #[error(transparent)]
    Io(#[from] pagekeeper_io::Error),
    /// What was known to be durable can't be read any more, so that records which were acknowledged are lost.
    #[error("{}: corrupt at byte {offset} (LSN {lsn}): what stands there is no record, but a later one says that it was durable", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// The same place in the log.
        lsn: u64,
    },
}

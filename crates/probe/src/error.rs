//! The one error of this crate: a plain sentence about what can't be measured, and why.

use std::io;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::text::escaped;

use rustix::io::Errno;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path names something else than a directory.
    #[error("{}: not a directory: name the directory that a database's files are to lie in", escaped(path))]
    NotADirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The page cache is the file itself there, or there is no data at all.
    #[error("{}: {reason}: there is no disk to measure", escaped(path))]
    NoDisk {
        /// The directory.
        path: PathBuf,
        /// What it is instead.
        reason: &'static str,
    },
    /// The file system is mounted read-only.
    #[error("{}: the file system is read-only, and measuring takes a file of its own", escaped(path))]
    ReadOnly {
        /// The directory.
        path: PathBuf,
    },
    /// No file may be made in the directory.
    #[error("{}: no permission to make a file there", escaped(path))]
    Denied {
        /// The directory.
        path: PathBuf,
    },
    /// There is no room for the files, in bytes.
    #[error(
        "{}: {} MiB are free and {} MiB are needed: make room, or measure with a smaller file",
        escaped(path), free >> 20, needed >> 20
    )]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// What is free, less what only root may take.
        free: u64,
        /// What is needed.
        needed: u64,
    },
    /// The machine is short of memory, in bytes.
    #[error(
        "{} MiB of memory are available and {} MiB are needed: measuring would take it from others; measure with a \
         smaller file",
        available >> 20, needed >> 20
    )]
    NoMemory {
        /// What the kernel estimates to be available.
        available: u64,
        /// What is needed.
        needed: u64,
    },
    /// The wanted to stop came.
    #[error("interrupted")]
    Cancelled,
    /// What was read is not what was written there.
    #[error("{}: bytes {offset}.. are not what was written there", escaped(path))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// A system call failed.
    #[error("{call} {}: {source}", escaped(path))]
    Call {
        /// The call.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Reading, writing or syncing failed.
    #[error(transparent)]
    Io(#[from] pagekeeper_io::Error),
    /// The kernel could not be asked.
    #[error(transparent)]
    Kernel(#[from] pagekeeper_kernel::Error),
    /// Bulk output failed.
    #[error(transparent)]
    Log(#[from] pagekeeper_log::Error),
}

/// The result of measuring.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Call`].
    pub(crate) fn call(call: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Call { call, path: path.to_path_buf(), source: source.into() }
    }

    /// A file could not be made in the directory.
    pub(crate) fn making(directory: &Path, error: io::Error) -> Self {
        let path = directory.to_path_buf();
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => Self::Denied { path },
            Some(Errno::ROFS) => Self::ReadOnly { path },
            _ => Self::Call { call: "make a file in", path, source: error },
        }
    }
}

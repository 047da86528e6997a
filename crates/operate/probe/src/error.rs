//! The error type of this crate: each error is a plain sentence about what cannot be measured, and
//! why.

use std::io;
use std::path::{Path, PathBuf};

use pagekeeper_text::escaped;
use rustix::io::Errno;

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path does not name a directory.
    #[error("{}: not a directory: name the directory that a database's files are to lie in", escaped(path))]
    NotADirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The file system keeps its data in memory, or has no data at all.
    #[error("{}: {reason}: there is no disk to measure", escaped(path))]
    NoDisk {
        /// The directory.
        path: PathBuf,
        /// The reason why it can not be measured.
        reason: &'static str,
    },
    /// The file system is mounted read-only.
    #[error("{}: the file system is read-only, and measuring takes a file of its own", escaped(path))]
    ReadOnly {
        /// The directory.
        path: PathBuf,
    },
    /// No permission to create a file in the directory.
    #[error("{}: no permission to make a file there", escaped(path))]
    Denied {
        /// The directory.
        path: PathBuf,
    },
    /// Not enough space for the files; sizes in bytes.
    #[error(
        "{}: {} MiB are free and {} MiB are needed: make room, or measure with a smaller file",
        escaped(path), free >> 20, needed >> 20
    )]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Free space, without the part reserved for root.
        free: u64,
        /// The space that is needed.
        needed: u64,
    },
    /// Not enough memory; sizes in bytes.
    #[error(
        "{} MiB of memory are available and {} MiB are needed: measuring would take it from others; measure with a \
         smaller file",
        available >> 20, needed >> 20
    )]
    NoMemory {
        /// The kernel's estimate of available memory.
        available: u64,
        /// The memory that is needed.
        needed: u64,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Cancelled,
    /// The data that was read is not the data that was written there.
    #[error("{}: bytes {offset}.. are not what was written there", escaped(path))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The offset in bytes.
        offset: u64,
    },
    /// A system call failed.
    #[error("{call} {}: {source}", escaped(path))]
    Call {
        /// The call.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Reading, writing or syncing failed.
    #[error(transparent)]
    Io(#[from] pagekeeper_io::Error),
    /// A query of the kernel failed.
    #[error(transparent)]
    Kernel(#[from] pagekeeper_kernel::Error),
}

/// The result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an [`Error::Call`].
    pub(crate) fn call(call: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Call { call, path: path.to_path_buf(), source: source.into() }
    }

    /// Creates the error for a file that could not be created in the directory.
    pub(crate) fn making(directory: &Path, error: io::Error) -> Self {
        let path = directory.to_path_buf();
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => Self::Denied { path },
            Some(Errno::ROFS) => Self::ReadOnly { path },
            _ => Self::Call { call: "make a file in", path, source: error },
        }
    }
}

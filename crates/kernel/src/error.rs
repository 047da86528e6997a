//! The one error of this crate: which call failed, on which path, and what the system said.

use std::io;
use std::path::{Path, PathBuf};

use crate::text::escaped;

/// A failed call to the kernel, or a file that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{call} {}: {source}", escaped(path))]
    Call {
        /// The system call or library function.
        call: &'static str,
        /// The file it was meant for.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The path names something else than a regular file or directory: a FIFO, socket or device.
    #[error("{}: {found}, not a regular file", escaped(path))]
    NotRegular {
        /// The path as given.
        path: PathBuf,
        /// What is there, with its article: "a FIFO".
        found: &'static str,
    },
    /// The path ends in a symbolic link that was not to be followed.
    #[error("{}: a symbolic link, not followed", escaped(path))]
    SymbolicLink {
        /// The path as given.
        path: PathBuf,
    },
    /// Something is mounted over a name inside a directory: what is meant lies hidden beneath it.
    #[error("{}: something is mounted over it, not opened", escaped(path))]
    MountPoint {
        /// The path as given.
        path: PathBuf,
    },
    /// The path leads to another file than the one that was meant.
    #[error("{}: another file has its name now, not opened", escaped(path))]
    OtherFile {
        /// The path as given.
        path: PathBuf,
    },
    /// What was asked can't be done, by the file system or where this process runs.
    #[error("{}: {reason}", escaped(path))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Why not, in plain words.
        reason: &'static str,
    },
    /// The file is longer than what it is read for can be.
    #[error("{}: longer than {limit} bytes", escaped(path))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most that is read, in bytes.
        limit: u64,
    },
    /// Its file system did not answer, neither this call nor one before ([`hang`](crate::hang)).
    #[error("{}: its file system does not answer", escaped(path))]
    NoAnswer {
        /// The file.
        path: PathBuf,
    },
    /// A file of `/proc` or `/sys` holds something this crate does not understand.
    #[error("{}: can't read {what}", escaped(path))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field or line.
        what: String,
    },
}

/// The result of a call to the kernel.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Call`].
    pub fn call(call: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Call { call, path: path.into(), source: source.into() }
    }

    /// The file the error is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Call { path, .. }
            | Self::NotRegular { path, .. }
            | Self::SymbolicLink { path }
            | Self::MountPoint { path }
            | Self::OtherFile { path }
            | Self::NoAnswer { path }
            | Self::TooLong { path, .. }
            | Self::Unsupported { path, .. }
            | Self::Malformed { path, .. } => path,
        }
    }

    /// The system's error number, if a call failed with one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the file or process is simply gone (ENOENT, ESRCH, ESTALE).
    pub fn is_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ESRCH | libc::ESTALE))
    }

    /// Whether permission was missing (EPERM, EACCES).
    pub fn is_denied(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }
}

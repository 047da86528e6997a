//! The error type of this crate: which call failed, on which path, and the system's error.

use std::io;
use std::path::{Path, PathBuf};

use pagekeeper_text::escaped;

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
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The path is not a regular file or directory, but a FIFO, socket or device.
    #[error("{}: {found}, not a regular file", escaped(path))]
    NotRegular {
        /// The path as given.
        path: PathBuf,
        /// The kind of object there, with its article: "a FIFO".
        found: &'static str,
    },
    /// The path ends in a symbolic link, and links were not to be followed.
    #[error("{}: a symbolic link, not followed", escaped(path))]
    SymbolicLink {
        /// The path as given.
        path: PathBuf,
    },
    /// Something is mounted over a name inside a directory and hides the intended object.
    #[error("{}: something is mounted over it, not opened", escaped(path))]
    MountPoint {
        /// The path as given.
        path: PathBuf,
    },
    /// The path now leads to another file than the intended one.
    #[error("{}: another file has its name now, not opened", escaped(path))]
    OtherFile {
        /// The path as given.
        path: PathBuf,
    },
    /// The operation is not supported by the file system or in this environment.
    #[error("{}: {reason}", escaped(path))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The reason, in plain words.
        reason: &'static str,
    },
    /// The file is longer than the limit for its purpose.
    #[error("{}: longer than {limit} bytes", escaped(path))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The maximum read, in bytes.
        limit: u64,
    },
    /// The file system did not answer this call or an earlier one ([`hang`](crate::hang)).
    #[error("{}: its file system does not answer", escaped(path))]
    NoAnswer {
        /// The file.
        path: PathBuf,
    },
    /// A file of `/proc` or `/sys` has unexpected content.
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
    /// Creates an [`Error::Call`].
    pub fn call(call: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Call { call, path: path.into(), source: source.into() }
    }

    /// Returns the file that the error is about.
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

    /// Returns the system's error number, if a call failed with one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the file or process no longer exists (ENOENT, ESRCH, ESTALE).
    pub fn is_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ESRCH | libc::ESTALE))
    }

    /// Whether permission was denied (EPERM, EACCES).
    pub fn is_denied(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }
}

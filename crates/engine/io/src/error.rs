//! The only error type of this crate. It is `Clone`, so that one failed read can be reported to all
//! waiters.

use pagekeeper_text::escaped;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The kind of file at a path that is not a regular file.
///
/// ```
/// use pagekeeper_io::{Access, Error, FileKind, Io, Threads};
/// let error = Threads::new().open("/".as_ref(), Access::Direct).err().unwrap();
/// assert_eq!(error, Error::NotARegularFile { path: "/".into(), kind: FileKind::Directory });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A FIFO or pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A file of proc, sysfs or the like, whose size says nothing about its content.
    Pseudo,
    /// A kind that stat(2) has no type for: an eventfd, an epoll descriptor.
    Other,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory => "a directory",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::CharacterDevice => "a character device",
            Self::BlockDevice => "a block device",
            Self::Pseudo => "a file that the kernel makes as it is read",
            Self::Other => "of unknown type",
        })
    }
}

/// An error on the data path.
///
/// After an error of a write or a sync, the state of the bytes concerned is unknown: some may be on
/// the device, some only in the page cache. A retry is useless in both cases.
///
/// ```
/// use pagekeeper_io::{Error, FileKind};
/// let error = Error::NotARegularFile { path: "/dev/null".into(), kind: FileKind::CharacterDevice };
/// assert_eq!(error.to_string(), "/dev/null: a character device, not a regular file");
/// assert_eq!(error.errno(), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call other than a read failed.
    #[error("{call} {}: {}", escaped(path), io::Error::from_raw_os_error(*errno))]
    Call {
        /// The system call.
        call: &'static str,
        /// The file or directory of the call.
        path: PathBuf,
        /// The system's error number.
        errno: i32,
    },
    /// A read failed.
    #[error("read of bytes {}..{} of {}: {}", range.start, range.end, escaped(path), io::Error::from_raw_os_error(*errno))]
    Read {
        /// The file.
        path: PathBuf,
        /// The requested bytes.
        range: Range<u64>,
        /// The system's error number.
        errno: i32,
    },
    /// A write failed; some of its bytes may have been written.
    #[error("write of bytes {}..{} of {}: {}", range.start, range.end, escaped(path), io::Error::from_raw_os_error(*errno))]
    Write {
        /// The file.
        path: PathBuf,
        /// The bytes to write.
        range: Range<u64>,
        /// The system's error number.
        errno: i32,
    },
    /// A sync or a wait for writeback failed: data written before may be lost. The kernel reports
    /// this once and then marks the pages clean, so no later sync can be trusted for them.
    #[error("sync of {}: {}", escaped(path), io::Error::from_raw_os_error(*errno))]
    Sync {
        /// The file or directory.
        path: PathBuf,
        /// The system's error number.
        errno: i32,
    },
    /// Another holder has the lock, in this process or another.
    #[error("{}: locked, in use by another", escaped(path))]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// A direct read or write with an offset, length or memory that is not aligned as the file
    /// requires (usually to 512 or 4096 bytes; [`crate::DirectSupport`] reports it). Also an atomic
    /// write whose length is not a power of two, or whose offset is not a multiple of its length.
    #[error("direct I/O on bytes {}..{} of {}: offset, length or memory is not aligned", range.start, range.end, escaped(path))]
    Unaligned {
        /// The file.
        path: PathBuf,
        /// The requested bytes.
        range: Range<u64>,
    },
    /// The path names a file without pages: a directory, FIFO, socket or device.
    #[error("{}: {kind}, not a regular file", escaped(path))]
    NotARegularFile {
        /// The path as given.
        path: PathBuf,
        /// The kind of file.
        kind: FileKind,
    },
    /// The file system refuses `O_DIRECT` on this file (tmpfs before Linux 6.6, some FUSE).
    #[error("{}: no direct I/O here ({})", escaped(path), io::Error::from_raw_os_error(*errno))]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// The system's error number.
        errno: i32,
    },
    /// The file was opened by a back-end that this one cannot read for (a simulated disk's file
    /// given to `io_uring`).
    #[error("{}: opened by another kind of disk than it is to be read by", escaped(path))]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The value belongs to the process that this one was forked from. It can be opened again after
    /// the fork, unless a lock of the parent prevents that.
    #[error("opened before this process was forked: only the process that opened it can use it")]
    Forked,
    /// A back-end is not available here: the kernel lacks or forbids it, or a resource ran out.
    #[error("{what} can't be used: {call}: {}", io::Error::from_raw_os_error(*errno))]
    Unavailable {
        /// The back-end, or a part of it.
        what: &'static str,
        /// The call that failed.
        call: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl Error {
    /// Returns the system's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { errno, .. }
            | Self::Read { errno, .. }
            | Self::Write { errno, .. }
            | Self::Sync { errno, .. }
            | Self::NoDirect { errno, .. }
            | Self::Unavailable { errno, .. } => Some(*errno),
            Self::Unaligned { .. }
            | Self::NotARegularFile { .. }
            | Self::Foreign { .. }
            | Self::Locked { .. }
            | Self::Forked => None,
        }
    }

    /// Returns the file that the error is about, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Call { path, .. }
            | Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Sync { path, .. }
            | Self::Locked { path }
            | Self::Unaligned { path, .. }
            | Self::NotARegularFile { path, .. }
            | Self::NoDirect { path, .. }
            | Self::Foreign { path } => Some(path),
            Self::Unavailable { .. } | Self::Forked => None,
        }
    }

    /// Returns the kind of error in the standard library's classification.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NotARegularFile { kind: FileKind::Directory, .. } => io::ErrorKind::IsADirectory,
            Self::NotARegularFile { .. } | Self::Unaligned { .. } | Self::Foreign { .. } => {
                io::ErrorKind::InvalidInput
            }
            Self::NoDirect { .. } | Self::Unavailable { .. } | Self::Forked => io::ErrorKind::Unsupported,
            Self::Locked { .. } => io::ErrorKind::WouldBlock,
            Self::Call { errno, .. }
            | Self::Read { errno, .. }
            | Self::Write { errno, .. }
            | Self::Sync { errno, .. } => io::Error::from_raw_os_error(*errno).kind(),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_call_the_path_and_the_cause() {
        let error = Error::Read { path: "/data/000012.sst".into(), range: 4096..8192, errno: libc::EIO };
        assert_eq!(
            error.to_string(),
            "read of bytes 4096..8192 of /data/000012.sst: Input/output error (os error 5)"
        );
        assert_eq!(error.errno(), Some(libc::EIO));
        assert_eq!(error.path(), Some(Path::new("/data/000012.sst")));
    }

    #[test]
    fn a_lock_names_its_file() {
        let error = Error::Locked { path: "/data/lock".into() };
        assert_eq!(error.to_string(), "/data/lock: locked, in use by another");
        assert_eq!((error.errno(), error.kind()), (None, io::ErrorKind::WouldBlock));
    }

    #[test]
    fn an_io_error_keeps_the_kind_and_the_message() {
        let error = Error::Call { call: "open", path: "/nowhere".into(), errno: libc::ENOENT };
        let io = io::Error::from(error.clone());
        assert_eq!(io.kind(), io::ErrorKind::NotFound);
        assert_eq!(io.to_string(), error.to_string());
    }
}

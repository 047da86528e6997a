//! The common parts of system calls on real files: their errors, and the check of a path's file
//! type.

use std::path::Path;

use pagekeeper_kernel::FileSystem;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::{Error, FileKind};

/// Creates the error of a system call on a path.
pub(crate) fn call(call: &'static str, path: &Path, errno: Errno) -> Error {
    Error::Call { call, path: path.to_path_buf(), errno: errno.raw_os_error() }
}

/// Fails with [`Error::NotARegularFile`] for any other kind of file.
pub(crate) fn require_regular(stat: &Stat, path: &Path) -> Result<(), Error> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => FileKind::Directory,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Symlink | FileType::Unknown => FileKind::Other,
    };
    Err(Error::NotARegularFile { path: path.to_path_buf(), kind })
}

/// Fails with [`Error::NotARegularFile`] for a file of a pseudo file system, whose size says
/// nothing.
pub(crate) fn require_stored(file: &OwnedFd, path: &Path) -> Result<(), Error> {
    match FileSystem::of(file, path) {
        Ok(FileSystem::Pseudo) => {
            Err(Error::NotARegularFile { path: path.to_path_buf(), kind: FileKind::Pseudo })
        }
        _ => Ok(()),
    }
}

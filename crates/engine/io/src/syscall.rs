//! The common parts of system calls on real files: their errors, and the check of a path's file type.

use std::path::Path;

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

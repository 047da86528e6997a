//! What system calls on real files have in common: their errors, and the check of what a path names.

use std::path::Path;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::{Error, FileKind};

/// The error of a system call on a path.
pub(crate) fn call(call: &'static str, path: &Path, errno: Errno) -> Error {
    Error::Call { call, path: path.to_path_buf(), errno: errno.raw_os_error() }
}

/// Anything else is [`Error::NotARegularFile`].
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

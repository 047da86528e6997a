//! Reading and replacing the snapshot file.
//!
//! Invariants: a new snapshot is written beside the old one, synced and renamed over it, so that
//! one complete file exists at every moment. A link is followed, so that it remains a link. A file
//! that is not a snapshot is replaced only when forced.

#![allow(clippy::disallowed_methods, reason = "snapshots are files that the caller names")]

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::format::{SNAPSHOT_MAGIC, SavedPages, SnapshotFormatError, decode, encode};

/// Larger files are not read: 4 GiB of snapshot would hold a hundred million extents.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// The reason why a snapshot file can't be read or written. The message does not name the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedPagesError {
    /// A directory, a FIFO or a device.
    #[error("not a regular file")]
    NotRegular,
    /// Larger than any snapshot that is read.
    #[error("too large for a snapshot")]
    TooLarge,
    /// Another kind of file would be replaced.
    #[error("not a snapshot of pagekeeper: it is left as it is; --force replaces it")]
    OtherFile,
    /// Somebody else could have written it.
    #[error("it belongs to another user, or others may write to it: nothing of it is used")]
    NotOwn,
    /// The contents are not a valid snapshot.
    #[error(transparent)]
    Format(#[from] SnapshotFormatError),
    /// The system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl SavedPages {
    /// Reads a snapshot file.
    ///
    /// # Errors
    ///
    /// If the file can't be read or is not a snapshot.
    pub fn read(path: &Path) -> Result<Self, SavedPagesError> {
        Self::read_from(&open(path, OFlags::empty())?)
    }

    /// Reads a snapshot file that only root or this process's user can have written, without
    /// following a link.
    ///
    /// # Errors
    ///
    /// If another user owns it or may write to it, and as [`Self::read`] does.
    pub fn read_own(path: &Path) -> Result<Self, SavedPagesError> {
        let file = open(path, OFlags::NOFOLLOW)?;
        if is_own(&file.metadata()?) { Self::read_from(&file) } else { Err(SavedPagesError::NotOwn) }
    }

    fn read_from(file: &File) -> Result<Self, SavedPagesError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(SavedPagesError::NotRegular);
        }
        let mut bytes = Vec::new();
        file.take(SNAPSHOT_MAGIC.len() as u64).read_to_end(&mut bytes)?;
        if bytes == SNAPSHOT_MAGIC {
            if metadata.len() > FILE_BYTES_MAX {
                return Err(SavedPagesError::TooLarge);
            }
            file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        }
        Ok(decode(&bytes)?)
    }
}

/// Opens a file for reading; a FIFO is not waited for.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | flags).bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

/// Whether nobody but root and this process's user can have written a file or a directory.
pub(super) fn is_own(metadata: &Metadata) -> bool {
    /// The bits that let the group or others write.
    const OTHERS_WRITE: u32 = 0o022;
    let user = rustix::process::geteuid().as_raw();
    [0, user].contains(&metadata.uid()) && metadata.mode() & OTHERS_WRITE == 0
}

/// The place for a new snapshot.
#[derive(Debug)]
pub struct SnapshotTarget {
    path: PathBuf,
    /// A file exists, and may be replaced.
    replace: bool,
}

impl SnapshotTarget {
    /// Checks that `path` can be written, before any work is done. `force` replaces any regular
    /// file.
    ///
    /// # Errors
    ///
    /// If another kind of file is there.
    pub fn new(path: &Path, force: bool) -> Result<Self, SavedPagesError> {
        let metadata = match std::fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { path: std::path::absolute(path)?, replace: false });
            }
            metadata => metadata?,
        };
        if !metadata.is_file() {
            return Err(SavedPagesError::NotRegular);
        }
        let mut start = Vec::new();
        if !force {
            File::open(path)?.take(SNAPSHOT_MAGIC.len() as u64).read_to_end(&mut start)?;
        }
        if start.is_empty() || start == SNAPSHOT_MAGIC {
            Ok(Self { path: std::fs::canonicalize(path)?, replace: true })
        } else {
            Err(SavedPagesError::OtherFile)
        }
    }

    /// Writes the snapshot durably; returns its size in bytes.
    ///
    /// # Errors
    ///
    /// If the file can't be written, or appeared meanwhile.
    pub fn write(&self, snapshot: &SavedPages) -> Result<u64, SavedPagesError> {
        let bytes = encode(snapshot);
        let directory = self.path.parent().ok_or(SavedPagesError::NotRegular)?;
        // Opened here, because tempfile's own errors show a path that the user did not name.
        let mut failure = None;
        let mut open = |path: &Path| {
            // Readable only by its owner: it holds names of files that others may not list.
            let opened = File::options().write(true).create_new(true).mode(0o600).open(path);
            opened.inspect_err(|error| failure = error.raw_os_error())
        };
        let made = tempfile::Builder::new().prefix(".pagekeeper-snapshot-").make_in(directory, &mut open);
        let mut file = made.map_err(|error| failure.map_or(error, io::Error::from_raw_os_error))?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        let persisted =
            if self.replace { file.persist(&self.path) } else { file.persist_noclobber(&self.path) };
        persisted.map_err(|error| error.error)?;
        // The rename itself is durable once the directory is.
        File::open(directory)?.sync_all()?;
        Ok(bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::saved_pages::SavedTime;

    fn some_snapshot(seconds: i64) -> SavedPages {
        SavedPages { created: SavedTime { seconds, nanos: 0 }, page_size: 4096, files: Vec::new() }
    }

    fn names(directory: &Path) -> Vec<std::ffi::OsString> {
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_snapshot_is_written_read_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for seconds in [1, 2] {
            let size = SnapshotTarget::new(&path, false).unwrap().write(&some_snapshot(seconds)).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
            assert_eq!(SavedPages::read(&path).unwrap(), some_snapshot(seconds));
        }
        assert_eq!(names(dir.path()), ["s"]);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_directory_that_is_not_there_is_reported_by_the_name_that_was_given() {
        let target = SnapshotTarget::new(Path::new("/no/such/directory/s"), false).unwrap();
        let error = target.write(&some_snapshot(1)).unwrap_err().to_string();
        assert_eq!(error, "No such file or directory (os error 2)");
    }

    #[test]
    fn a_file_that_is_not_a_snapshot_is_overwritten_only_if_forced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ibdata1");
        std::fs::write(&path, b"precious").unwrap();
        let error = SnapshotTarget::new(&path, false).unwrap_err();
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        SnapshotTarget::new(&path, true).unwrap().write(&some_snapshot(1)).unwrap();
        assert_eq!(SavedPages::read(&path).unwrap(), some_snapshot(1));
        for other in [dir.path().to_path_buf(), "/dev/null".into()] {
            let error = SnapshotTarget::new(&other, true).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
    }

    #[test]
    fn an_empty_file_may_be_filled() {
        let file = tempfile::NamedTempFile::new().unwrap();
        SnapshotTarget::new(file.path(), false).unwrap().write(&some_snapshot(1)).unwrap();
        assert_eq!(SavedPages::read(file.path()).unwrap(), some_snapshot(1));
    }

    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, encode(&some_snapshot(1))).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        SnapshotTarget::new(&link, false).unwrap().write(&some_snapshot(2)).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(SavedPages::read(&real).unwrap(), some_snapshot(2));
    }

    #[test]
    fn a_file_that_appeared_meanwhile_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let target = SnapshotTarget::new(&path, false).unwrap();
        std::fs::write(&path, b"precious").unwrap();
        assert!(target.write(&some_snapshot(1)).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert_eq!(names(dir.path()), ["s"]);
    }

    #[test]
    fn errors_in_a_file_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let said = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            SavedPages::read(&path).unwrap_err().to_string()
        };
        assert_eq!(said(b""), "not a snapshot of pagekeeper");
        assert_eq!(said(b"\x89PNG\r\n\x1a\n"), "not a snapshot of pagekeeper");
        let mut bytes = encode(&some_snapshot(1));
        bytes.pop();
        assert!(said(&bytes).contains("damaged"), "{}", said(&bytes));
        assert!(said(&bytes[..5]).contains("damaged"));
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for other in [dir.path(), &fifo] {
            assert_eq!(SavedPages::read(other).unwrap_err().to_string(), "not a regular file");
        }
    }
}

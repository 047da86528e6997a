//! Opens foreign files for inspection, without harm. All such opens go through this module.
//!
//! Invariants:
//! * Only regular files and directories are opened, whatever replaces a name meanwhile. Block
//!   devices are opened only on request, for a name that the user gave
//!   ([`PathHandle::open_file_or_device`]).
//! * If the expected file is known ([`ExpectedFile`]), no other one is opened: a name is resolved
//!   first, and the result is opened then (see [`PathHandle`]).
//! * Files are opened read-only and without blocking (`O_NONBLOCK`); never created, never
//!   truncated.
//! * A symbolic link is followed only if the caller asks for it.
//! * The access time is left alone if the kernel allows that (`O_NOATIME`, for owners and
//!   `CAP_FOWNER`: open(2)).
//!
//! Fails with [`Error::NotRegular`], [`Error::SymbolicLink`], [`Error::MountPoint`],
//! [`Error::OtherFile`] or the call's own error.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FileType, SeekFrom, Stat};
use rustix::path::Arg;

use crate::hang::{AnnouncedCall, announce_on_device};
use crate::{Error, FileSystem, Result};

mod by_number;
mod handle;
mod names;
#[cfg(test)]
mod tests;

pub use by_number::{InodeId, OpenMount};
pub(crate) use handle::{OwnDescriptors, cached_device_of, descend, device_of_open};
pub use handle::{PathHandle, stat_in, stat_of_name};
pub use names::first_names;

/// Device and inode number: the identity of a file while it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    /// The device, as `st_dev` encodes it.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
}

impl Inode {
    /// Returns the identity in a stat result.
    pub fn of(stat: &Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// The file that a name is expected to lead to.
///
/// A caller that has seen a file before knows its identity and passes it: the name may lead to
/// another file by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedFile {
    /// Any file: only its name is known.
    Any,
    /// This file. Another one is not opened: [`Error::OtherFile`].
    Inode(Inode),
}

/// Whether symbolic links in a path are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow them: the user named the path, or asked for links to be followed.
    Follow,
    /// Refuse one at the end with [`Error::SymbolicLink`]; follow those in the directories above.
    Refuse,
    /// Refuse them anywhere: for paths from the kernel or from a walk, which contain none. They may
    /// begin with a link of the kernel's own: `root`, `cwd`, `exe`, `fd/N` or `map_files/A-B` in
    /// `/proc/PID`.
    RefuseAll,
}

/// A regular file, or a block device, opened for inspection and advice.
#[derive(Debug)]
pub struct InspectedFile {
    file: File,
    path: PathBuf,
    inode: Inode,
    /// The device number, if it is a block device.
    device: Option<u64>,
    size: u64,
    modified: i128,
    status_changed: i128,
    file_system: OnceLock<FileSystem>,
}

impl InspectedFile {
    /// Opens a regular file that the user named, as the module describes. [`PathHandle::at`] opens
    /// one whose identity is known.
    ///
    /// ```
    /// use pagekeeper_kernel::{InspectedFile, Links};
    /// let file = InspectedFile::open("/etc/passwd", Links::Refuse)?;
    /// assert!(file.size() > 0);
    /// # Ok::<(), pagekeeper_kernel::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>, links: Links) -> Result<Self> {
        PathHandle::at(path, links)?.open(ExpectedFile::Any)
    }

    /// Opens the file with one name inside the directory `dir`, but no link, and nothing that is
    /// mounted over the name ([`Error::MountPoint`]).
    ///
    /// `path` is the whole path, for errors.
    pub fn open_in(
        dir: BorrowedFd<'_>,
        name: impl Arg,
        expected: ExpectedFile,
        path: PathBuf,
    ) -> Result<Self> {
        PathHandle::in_directory_on(dir, name, path, expected)?.open(expected)
    }

    /// Opens a file by its path beneath the directory `dir` without following any link; mounts are
    /// crossed.
    ///
    /// `path` is the whole path, for errors.
    pub fn open_below(
        dir: BorrowedFd<'_>,
        relative: impl Arg,
        expected: ExpectedFile,
        path: PathBuf,
    ) -> Result<Self> {
        PathHandle::below(dir, relative, path)?.open(expected)
    }

    /// Opens the very file behind a link of `/proc/PID/fd` or `/proc/PID/map_files`, even if it is
    /// deleted or in another mount namespace.
    ///
    /// `shown` is the name for errors and reports.
    pub fn open_magic_link(link: &Path, expected: ExpectedFile, shown: PathBuf) -> Result<Self> {
        PathHandle::of_magic_link(link, shown)?.open(expected)
    }

    /// Wraps a file that this process has already opened; `path` is its name for errors and
    /// reports.
    pub fn from_fd(fd: impl Into<OwnedFd>, path: PathBuf) -> Result<Self> {
        let file = File::from(fd.into());
        let stat = rustix::fs::fstat(&file).map_err(|e| Error::call("fstat", &path, e))?;
        require_regular(&stat, &path)?;
        Ok(Self::from_stat(file.into(), path, &stat))
    }

    fn from_stat(fd: OwnedFd, path: PathBuf, stat: &Stat) -> Self {
        Self {
            file: fd.into(),
            path,
            inode: Inode::of(stat),
            device: None,
            // Some file systems pass on an invalid size from a server: it counts as 0.
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            status_changed: status_changed(stat),
            file_system: OnceLock::new(),
        }
    }

    /// Wraps a block device, whose size stat(2) does not show.
    fn of_device(fd: OwnedFd, path: PathBuf, stat: &Stat) -> Result<Self> {
        let mut device = Self::from_stat(fd, path, stat);
        device.device = Some(stat.st_rdev);
        device.file_system = OnceLock::from(FileSystem::BlockDevice);
        device.size = device.size_now()?;
        Ok(device)
    }

    /// Returns the device number of a block device, as in the `st_dev` of files on it; `None` for a
    /// regular file.
    pub fn device(&self) -> Option<u64> {
        self.device
    }

    /// Sets the file system if the caller knows it from other files of the directory and device, so
    /// that it is not queried.
    #[must_use]
    pub fn on(self, file_system: Option<FileSystem>) -> Self {
        Self { file_system: file_system.map_or(self.file_system, OnceLock::from), ..self }
    }

    /// Returns the name it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its identity.
    pub fn inode(&self) -> Inode {
        self.inode
    }

    /// Returns its size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the time of its last content change, in nanoseconds since the epoch, as of its
    /// opening.
    pub fn modified(&self) -> i128 {
        self.modified
    }

    /// Returns the time of the last change of its contents, owner, mode or names (`st_ctime`, which
    /// no call sets back), in nanoseconds since the epoch, as of its opening.
    pub fn status_changed(&self) -> i128 {
        self.status_changed
    }

    /// Returns its current size in bytes.
    pub fn size_now(&self) -> Result<u64> {
        let _call = self.announce_call()?;
        if self.device.is_some() {
            return rustix::fs::seek(&self.file, SeekFrom::End(0))
                .map_err(|e| Error::call("lseek", &self.path, e));
        }
        Ok(self.file.metadata().map_err(|e| Error::call("fstat", &self.path, e))?.size())
    }

    /// Whether it still has a name. Without one it is deleted when its last descriptor is closed.
    pub fn has_name(&self) -> Result<bool> {
        let _call = self.announce_call()?;
        let stat = rustix::fs::fstat(&self.file).map_err(|e| Error::call("fstat", &self.path, e))?;
        Ok(stat.st_nlink > 0)
    }

    /// Returns its file system, which is queried once.
    pub fn file_system(&self) -> Result<FileSystem> {
        if let Some(known) = self.file_system.get() {
            return Ok(*known);
        }
        let found = FileSystem::of(&self.file, &self.path)?;
        Ok(*self.file_system.get_or_init(|| found))
    }

    /// Returns its file system if that was queried already.
    pub fn known_file_system(&self) -> Option<FileSystem> {
        self.file_system.get().copied()
    }

    /// Announces a call that contacts its file system ([`hang`](crate::hang)). Fails if that does
    /// not answer.
    pub fn announce_call(&self) -> Result<AnnouncedCall> {
        announce_on_device(self.device.unwrap_or(self.inode.dev), &self.path)
    }

    /// Returns a reader from its beginning; each read is announced as by [`Self::announce_call`].
    pub fn reader(&self) -> impl Read + '_ {
        AnnouncedReader(self)
    }

    /// Returns the file itself.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// A reader that announces each read.
struct AnnouncedReader<'a>(&'a InspectedFile);

impl Read for AnnouncedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let _call = self.0.announce_call().map_err(io::Error::other)?;
        (&self.0.file).read(buffer)
    }
}

impl AsFd for InspectedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Reads a regular file that the user named, of at most `limit` bytes, following links.
///
/// It does not wait for the other end of a FIFO and reads no device: [`Error::NotRegular`]. A
/// longer file is [`Error::TooLong`], even if it grows while it is read.
///
/// ```
/// use pagekeeper_kernel::{Error, read_named};
/// assert!(!read_named("/etc/passwd".as_ref(), 1 << 20)?.is_empty());
/// assert!(matches!(read_named("/dev/zero".as_ref(), 1 << 20), Err(Error::NotRegular { .. })));
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
pub fn read_named(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = InspectedFile::open(path, Links::Follow)?;
    let mut bytes = Vec::new();
    let read = file.reader().take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| Error::call("read", path, error))?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLong { path: path.to_path_buf(), limit });
    }
    Ok(bytes)
}

/// Opens a directory for listing, following links or not.
pub fn open_directory(path: &Path, links: Links) -> Result<OwnedFd> {
    PathHandle::at(path, links)?.open_directory(ExpectedFile::Any)
}

/// Opens the directory `name` inside `dir` without following links; a mounted file system there is
/// entered.
///
/// `path` is the whole path, for errors.
pub fn open_directory_in(dir: BorrowedFd<'_>, name: impl Arg, path: &Path) -> Result<OwnedFd> {
    PathHandle::below(dir, name, path.to_path_buf())?.open_directory(ExpectedFile::Any)
}

/// Returns `st_ctime` of a stat result, in nanoseconds since the epoch.
///
/// ```
/// use pagekeeper_kernel::{InspectedFile, Links, stat_of_name, status_changed};
/// let path = "/etc/passwd".as_ref();
/// assert_eq!(status_changed(&stat_of_name(path)?), InspectedFile::open(path, Links::Refuse)?.status_changed());
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
pub fn status_changed(stat: &Stat) -> i128 {
    nanoseconds(stat.st_ctime, stat.st_ctime_nsec)
}

fn nanoseconds(seconds: impl Into<i128>, nanoseconds: impl Into<i128>) -> i128 {
    seconds.into() * 1_000_000_000 + nanoseconds.into()
}

fn require_regular(stat: &Stat, path: &Path) -> Result<()> {
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => {
            return Err(Error::SymbolicLink { path: path.to_path_buf() });
        }
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "of unknown type",
    };
    Err(Error::NotRegular { path: path.to_path_buf(), found })
}

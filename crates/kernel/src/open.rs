//! Opening files to inspect them, without harm.
//!
//! Invariants: read-only; never created, never truncated; a FIFO or device never blocks the caller (`O_NONBLOCK`, and
//! only regular files are returned); a symbolic link is followed only where the caller says so; the access time is
//! left alone where the kernel allows it (`O_NOATIME`, for owners and `CAP_FOWNER`: open(2)).
//! Fails with [`Error::NotRegular`], [`Error::SymbolicLink`] or the call's own error.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::{Error, FileSystem, Result};

/// Device and inode number: the identity of a file while it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    /// The device, as `st_dev` encodes it.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
}

impl Inode {
    /// The identity in a stat result.
    pub fn of(stat: &Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow it: the user named it, or asked for links to be followed.
    Follow,
    /// Refuse it with [`Error::SymbolicLink`].
    Refuse,
}

/// A regular file opened for inspection and advice.
#[derive(Debug)]
pub struct InspectedFile {
    file: File,
    path: PathBuf,
    inode: Inode,
    size: u64,
    file_system: OnceLock<FileSystem>,
}

impl InspectedFile {
    /// Opens a regular file read-only, as the module says.
    ///
    /// ```
    /// use pagekeeper_kernel::{InspectedFile, Links};
    /// let file = InspectedFile::open("/etc/passwd", Links::Refuse)?;
    /// assert!(file.size() > 0);
    /// # Ok::<(), pagekeeper_kernel::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>, links: Links) -> Result<Self> {
        let path = path.as_ref();
        let nofollow = if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
        // Stat first: opening a device node can act on the device (rewind a tape, raise a modem line).
        let stat = if links == Links::Refuse { rustix::fs::lstat(path) } else { rustix::fs::stat(path) }
            .map_err(|e| Error::call("stat", path, e))?;
        require_regular(&stat, path)?;
        let fd = open_quietly(|flags| rustix::fs::open(path, flags | nofollow, Mode::empty()))
            .map_err(|e| link_error(e, path))?;
        Self::from_fd(fd, path.to_path_buf())
    }

    /// Opens `name` inside the directory `dir`, following no link whatever in between
    /// (openat2(2) `RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH`, or `O_NOFOLLOW` where a sandbox forbids openat2).
    ///
    /// `path` is the whole path, for errors.
    pub fn open_in(dir: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy, path: PathBuf) -> Result<Self> {
        let fd = open_beneath_quietly(dir, name).map_err(|e| link_error(e, &path))?;
        Self::from_fd(fd, path)
    }

    /// Opens the very file behind a link of `/proc/PID/fd` or `/proc/PID/map_files`, deleted or in another mount
    /// namespace though it may be.
    ///
    /// `shown` is the name for errors and reports.
    pub fn open_magic_link(link: &Path, shown: PathBuf) -> Result<Self> {
        let stat = rustix::fs::stat(link).map_err(|e| Error::call("stat", &shown, e))?;
        require_regular(&stat, &shown)?;
        let fd = open_quietly(|flags| rustix::fs::open(link, flags, Mode::empty()))
            .map_err(|e| Error::call("open", &shown, e))?;
        Self::from_fd(fd, shown)
    }

    /// Takes a file that is open already; `path` is its name for errors and reports.
    pub fn from_fd(fd: impl Into<OwnedFd>, path: PathBuf) -> Result<Self> {
        let file = File::from(fd.into());
        let stat = rustix::fs::fstat(&file).map_err(|e| Error::call("fstat", &path, e))?;
        require_regular(&stat, &path)?;
        Ok(Self::from_stat(file.into(), path, &stat, None))
    }

    /// As [`Self::from_fd`], for callers that have the file's stat already and may know its file system.
    pub(crate) fn from_stat(
        fd: OwnedFd,
        path: PathBuf,
        stat: &Stat,
        file_system: Option<FileSystem>,
    ) -> Self {
        Self {
            file: fd.into(),
            path,
            inode: Inode::of(stat),
            // Some file systems pass on what a server says, whatever that is: 0 for a size that none can be.
            size: u64::try_from(stat.st_size).unwrap_or(0),
            file_system: file_system.map_or_else(OnceLock::new, OnceLock::from),
        }
    }

    /// The name it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its identity.
    pub fn inode(&self) -> Inode {
        self.inode
    }

    /// Its size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its size in bytes now.
    pub fn size_now(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| Error::call("fstat", &self.path, e))?.size())
    }

    /// The file system it is on; asked once.
    pub fn file_system(&self) -> Result<FileSystem> {
        if let Some(known) = self.file_system.get() {
            return Ok(*known);
        }
        let found = FileSystem::of(&self.file, &self.path)?;
        Ok(*self.file_system.get_or_init(|| found))
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for InspectedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens a directory for listing, following a link at its end or not.
pub fn open_directory(path: &Path, links: Links) -> Result<OwnedFd> {
    let nofollow = if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
    open_quietly(|flags| rustix::fs::open(path, flags | OFlags::DIRECTORY | nofollow, Mode::empty()))
        .map_err(|e| link_error(e, path))
}

/// Opens the directory `name` inside `dir`, following no link.
///
/// `path` is the whole path, for errors.
pub fn open_directory_in(
    dir: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    path: &Path,
) -> Result<OwnedFd> {
    open_quietly(|flags| open_beneath(dir, name, flags | OFlags::DIRECTORY)).map_err(|e| link_error(e, path))
}

/// Opens `name` inside `dir` as [`InspectedFile::open_in`] does, whatever kind of file it is.
pub(crate) fn open_beneath_quietly(
    dir: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
) -> rustix::io::Result<OwnedFd> {
    open_quietly(|flags| open_beneath(dir, name, flags))
}

fn open_beneath(
    dir: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, and under seccomp filters that do not know openat2.
        Err(Errno::NOSYS | Errno::PERM) => {
            rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty())
        }
        other => other,
    }
}

/// Opens with the flags of the module's invariants; once more without `O_NOATIME` where that is refused.
fn open_quietly(open: impl Fn(OFlags) -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        other => other,
    }
}

fn link_error(errno: Errno, path: &Path) -> Error {
    if errno == Errno::LOOP && rustix::fs::readlinkat(CWD, path, Vec::new()).is_ok() {
        Error::SymbolicLink { path: path.to_path_buf() }
    } else {
        Error::call("open", path, errno)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_fifo_is_refused_at_once_without_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let error = InspectedFile::open(&path, Links::Follow).unwrap_err();
        assert!(error.to_string().contains("a FIFO, not a regular file"), "{error}");
        // Without the stat before the open, too: O_NONBLOCK opens the FIFO, fstat refuses it.
        let parent = open_directory(dir.path(), Links::Refuse).unwrap();
        let error = InspectedFile::open_in(parent.as_fd(), "pipe", path).unwrap_err();
        assert!(matches!(error, Error::NotRegular { .. }), "{error}");
    }

    #[test]
    fn a_device_is_refused() {
        let error = InspectedFile::open("/dev/null", Links::Follow).unwrap_err();
        assert!(error.to_string().contains("a character device"), "{error}");
    }

    #[test]
    fn links_are_followed_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("real"), b"x").unwrap();
        let link = dir.path().join("link");
        symlink("real", &link).unwrap();
        assert!(matches!(InspectedFile::open(&link, Links::Refuse).unwrap_err(), Error::SymbolicLink { .. }));
        assert_eq!(InspectedFile::open(&link, Links::Follow).unwrap().size(), 1);
        let parent = open_directory(dir.path(), Links::Refuse).unwrap();
        assert!(InspectedFile::open_in(parent.as_fd(), "link", link).is_err());
    }

    #[test]
    fn nothing_beneath_a_directory_leads_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::fs::write(dir.path().join("out"), b"x").unwrap();
        symlink("..", dir.path().join("in/up")).unwrap();
        let parent = open_directory(&dir.path().join("in"), Links::Refuse).unwrap();
        assert!(InspectedFile::open_in(parent.as_fd(), "up/out", dir.path().join("in/up/out")).is_err());
        assert!(InspectedFile::open_in(parent.as_fd(), "../out", dir.path().join("out")).is_err());
    }

    #[test]
    fn a_missing_file_is_gone() {
        let error = InspectedFile::open("/nonexistent/file", Links::Refuse).unwrap_err();
        assert!(error.is_gone());
        assert!(!error.is_denied());
    }

    #[test]
    fn the_access_time_is_left_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 8192]).unwrap();
        let before = std::fs::metadata(file.path()).unwrap();
        let opened = InspectedFile::open(file.path(), Links::Refuse).unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(opened.file(), &mut byte, 0).unwrap();
        let after = std::fs::metadata(file.path()).unwrap();
        assert_eq!((before.atime(), before.atime_nsec()), (after.atime(), after.atime_nsec()));
    }
}

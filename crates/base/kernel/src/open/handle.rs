//! A name that was resolved but not opened: its target can be inspected before anything is opened.
//!
//! Invariants:
//! 1. Resolving opens nothing: the descriptor is an `O_PATH` one, which calls no driver, FIFO or
//!    socket.
//! 2. The object that is opened is the one that was inspected, whatever name it has by then: a file
//!    is opened through its descriptor in `/proc/thread-self/fd`, a directory through its `.`. No
//!    race can replace it.
//! 3. Only regular files, directories and (by [`PathHandle::open_file_or_device`]) block devices
//!    are opened. If the expected one is known, no other is.
//!
//! Without a mounted `/proc` no file is opened, and the error says so: every other way would open a
//! file before it is inspected. Directories do not need `/proc`.

#![allow(clippy::disallowed_methods, reason = "this is the one way in")]

use std::ffi::{CStr, OsStr};
use std::io::Write as _;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::{ExpectedFile, Inode, InspectedFile, Links};
use crate::hang::{announce, announce_from, announce_on_device};
use crate::{Error, Result};

/// Flags for names that are only inspected: nothing is opened, and a link at the end is returned as
/// such.
const HANDLE_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Flags for resolving beneath a directory without following links.
const BENEATH_FLAGS: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The target of a name when it was resolved, not opened. Its identity and type can be queried, and
/// the same object can be opened afterwards, whatever has happened to the name meanwhile.
///
/// ```
/// use pagekeeper_kernel::{ExpectedFile, PathHandle, Links};
/// let handle = PathHandle::at("/etc/passwd", Links::Follow)?;
/// let inode = handle.inode();
/// let file = handle.open(ExpectedFile::Inode(inode))?;
/// assert_eq!(file.inode(), inode);
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
#[derive(Debug)]
pub struct PathHandle {
    fd: OwnedFd,
    stat: Stat,
    path: PathBuf,
}

impl PathHandle {
    /// Resolves a path. A refused link is an [`Error::SymbolicLink`].
    pub fn at(path: impl AsRef<Path>, links: Links) -> Result<Self> {
        let path = path.as_ref();
        let _call = announce(path)?;
        let found = match links {
            Links::Follow => rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()),
            Links::Refuse => rustix::fs::openat(CWD, path, HANDLE_FLAGS, Mode::empty()),
            Links::RefuseAll => without_links(path),
        };
        let found = found.map_err(|errno| match (links, errno) {
            (Links::RefuseAll, Errno::LOOP) => Error::SymbolicLink { path: path.to_path_buf() },
            _ => Error::call("open", path, errno),
        })?;
        let handle = Self::of(found, path.to_path_buf())?;
        match handle.kind() {
            FileType::Symlink => Err(Error::SymbolicLink { path: handle.path }),
            _ => Ok(handle),
        }
    }

    /// Resolves one name inside an open directory. No link is followed. If something is mounted
    /// over the name, that is an error, [`Error::MountPoint`].
    ///
    /// `path` is the whole path, for errors and reports.
    pub fn in_directory(dir: BorrowedFd<'_>, name: impl Arg, path: PathBuf) -> Result<Self> {
        Self::in_directory_on(dir, name, path, ExpectedFile::Any)
    }

    /// Resolves one name as [`Self::in_directory`] does. If the expected file is known, its device
    /// is announced.
    pub(super) fn in_directory_on(
        dir: BorrowedFd<'_>,
        name: impl Arg,
        path: PathBuf,
        expected: ExpectedFile,
    ) -> Result<Self> {
        let _call = match expected {
            ExpectedFile::Any => announce_from(dir, &path),
            ExpectedFile::Inode(inode) => announce_on_device(inode.dev, &path),
        }?;
        let found = name.into_with_c_str(|name| {
            if name.to_bytes().contains(&b'/') || name == c".." {
                return Err(Errno::INVAL);
            }
            match rustix::fs::openat2(
                dir,
                name,
                HANDLE_FLAGS,
                Mode::empty(),
                BENEATH_FLAGS | ResolveFlags::NO_XDEV,
            ) {
                Err(Errno::NOSYS | Errno::PERM) => {
                    let found = rustix::fs::openat(dir, name, HANDLE_FLAGS, Mode::empty())?;
                    if same_mount(dir, found.as_fd())? { Ok(found) } else { Err(Errno::XDEV) }
                }
                other => other,
            }
        });
        match found {
            Ok(found) => Self::of(found, path),
            Err(Errno::XDEV) => Err(Error::MountPoint { path }),
            Err(errno) => Err(Error::call("open", path, errno)),
        }
    }

    /// Resolves a relative path beneath an open directory, also across mounts. No link is followed,
    /// and no `..` leads out of the directory.
    ///
    /// `path` is the whole path, for errors and reports.
    pub fn below(dir: BorrowedFd<'_>, relative: impl Arg, path: PathBuf) -> Result<Self> {
        let _call = announce_from(dir, &path)?;
        match relative.into_with_c_str(|relative| beneath(dir, relative)) {
            Ok(found) => Self::of(found, path),
            Err(Errno::LOOP) => Err(Error::SymbolicLink { path }),
            Err(errno) => Err(Error::call("open", path, errno)),
        }
    }

    /// Resolves one name inside an open directory, following a link wherever it leads.
    pub(crate) fn following(dir: BorrowedFd<'_>, name: &CStr, path: PathBuf) -> Result<Self> {
        let _call = announce_from(dir, &path)?;
        match rustix::fs::openat(dir, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(found) => Self::of(found, path),
            Err(errno) => Err(Error::call("open", path, errno)),
        }
    }

    /// Resolves a link of `/proc/PID/fd`, `map_files`, `exe` or `cwd` to the very object behind it,
    /// even if that is deleted or in another mount namespace.
    ///
    /// `shown` is the name for errors and reports.
    pub fn of_magic_link(link: &Path, shown: PathBuf) -> Result<Self> {
        let _call = announce(link)?;
        match rustix::fs::openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(found) => Self::of(found, shown),
            Err(errno) => Err(Error::call("open", shown, errno)),
        }
    }

    /// Wraps an `O_PATH` descriptor.
    pub(crate) fn of(fd: OwnedFd, path: PathBuf) -> Result<Self> {
        match rustix::fs::fstat(&fd) {
            Ok(stat) => Ok(Self { fd, stat, path }),
            Err(errno) => Err(Error::call("fstat", path, errno)),
        }
    }

    /// Returns its identity.
    pub fn inode(&self) -> Inode {
        Inode::of(&self.stat)
    }

    /// Returns its file type.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Returns its stat(2) result.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns the name it was resolved by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it read-only if it is a regular file, and the expected one.
    ///
    /// Fails with [`Error::NotRegular`], [`Error::SymbolicLink`] or [`Error::OtherFile`] without
    /// opening anything; with [`Error::Unsupported`] if `/proc` is not mounted; else with the
    /// call's own error.
    pub fn open(self, expected: ExpectedFile) -> Result<InspectedFile> {
        self.open_by(expected, None)
    }

    /// Opens it as [`Self::open`] does, even if it is a block device. Only for a name that the user
    /// gave: opening a device calls its driver and keeps it from being detached for that moment. If
    /// nobody else has it open, the kernel drops its pages when it is closed.
    ///
    /// The device is opened read-only, without `O_EXCL`. No ioctl is issued; only its size is
    /// queried, by lseek(2).
    pub fn open_file_or_device(self, expected: ExpectedFile) -> Result<InspectedFile> {
        if self.kind() != FileType::BlockDevice {
            return self.open(expected);
        }
        self.require(expected)?;
        let fd = self.reopen(None)?;
        InspectedFile::of_device(fd, self.path, &self.stat)
    }

    /// Opens it as [`Self::open`] does, through this thread's descriptor directory if given.
    pub(crate) fn open_by(
        self,
        expected: ExpectedFile,
        descriptors: Option<&OwnDescriptors>,
    ) -> Result<InspectedFile> {
        super::require_regular(&self.stat, &self.path)?;
        self.require(expected)?;
        let fd = self.reopen(descriptors)?;
        Ok(InspectedFile::from_stat(fd, self.path, &self.stat))
    }

    /// Opens it for listing if it is a directory, and the expected one.
    ///
    /// Fails with [`Error::OtherFile`], or the call's own error (ENOTDIR).
    pub fn open_directory(self, expected: ExpectedFile) -> Result<OwnedFd> {
        self.require(expected)?;
        let _call = announce_on_device(self.stat.st_dev, &self.path)?;
        open_quietly(|flags| rustix::fs::openat(&self.fd, c".", flags | OFlags::DIRECTORY, Mode::empty()))
            .map_err(|errno| Error::call("open", self.path, errno))
    }

    fn require(&self, expected: ExpectedFile) -> Result<()> {
        match expected {
            ExpectedFile::Inode(inode) if inode != self.inode() => {
                Err(Error::OtherFile { path: self.path.clone() })
            }
            ExpectedFile::Inode(_) | ExpectedFile::Any => Ok(()),
        }
    }

    fn reopen(&self, descriptors: Option<&OwnDescriptors>) -> Result<OwnedFd> {
        require_proc(&self.path)?;
        let device = match self.kind() {
            FileType::BlockDevice => self.stat.st_rdev,
            _ => self.stat.st_dev,
        };
        let _call = announce_on_device(device, &self.path)?;
        let (at, directory) = match descriptors {
            Some(own) => (own.0.as_fd(), ""),
            None => (CWD, OWN_DESCRIPTORS),
        };
        let mut link = [0; 48];
        write!(&mut link[..], "{directory}{}\0", self.fd.as_raw_fd()).expect("48 bytes hold it");
        let link = CStr::from_bytes_until_nul(&link).expect("it ends in a nul");
        open_quietly(|flags| rustix::fs::openat(at, link, flags, Mode::empty()))
            .map_err(|errno| Error::call("open", &self.path, errno))
    }
}

/// The directory of this thread's descriptors: a thread may have its own table (unshare(2)
/// `CLONE_FILES`).
const OWN_DESCRIPTORS: &str = "/proc/thread-self/fd/";

/// The open directory of this thread's descriptors, for callers that open many files: resolving it
/// takes a sixth of the time per file (8.9 µs without it, 7.5 µs with it, of which the two opens
/// take 6.4 µs; Linux 6.18).
///
/// Invariant: it stays in the thread that created it. Another thread, or a forked process, may have
/// other descriptors with these numbers.
#[derive(Debug)]
pub(crate) struct OwnDescriptors(OwnedFd, PhantomData<*const ()>);

impl OwnDescriptors {
    /// Opens the directory of the calling thread; `None` if that fails: each file then reports the
    /// reason.
    pub(crate) fn of_this_thread() -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, OWN_DESCRIPTORS, flags, Mode::empty()).ok()?;
        let is_proc = rustix::fs::fstatfs(&directory).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC);
        is_proc.then_some(Self(directory, PhantomData))
    }
}

impl AsFd for PathHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens read-only and without blocking, and without updating the access time if that is permitted.
fn open_quietly(open: impl Fn(OFlags) -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        other => other,
    }
}

/// Fails unless `/proc` is the kernel's own: through anything else the reopened file could be
/// another one. Checked until it succeeds once.
fn require_proc(path: &Path) -> Result<()> {
    static PROC_FOUND: OnceLock<()> = OnceLock::new();
    if PROC_FOUND.get().is_none() {
        let is_proc =
            rustix::fs::statfs(c"/proc/thread-self/fd").is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC);
        if !is_proc {
            let reason = "files of others are opened through /proc, which is not mounted here";
            return Err(Error::Unsupported { path: path.to_path_buf(), reason });
        }
        // Another thread may have been first.
        let _ = PROC_FOUND.set(());
    }
    Ok(())
}

/// Resolves a path without links, except for a kernel link in `/proc/PID` at its start.
fn without_links(path: &Path) -> rustix::io::Result<OwnedFd> {
    let start = start_of(path);
    let base = rustix::fs::openat(CWD, &start, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match path.strip_prefix(&start).unwrap_or(path) {
        rest if rest.as_os_str().is_empty() => Ok(base),
        rest => rest.into_with_c_str(|rest| beneath(base.as_fd(), rest)),
    }
}

/// Returns the stat(2) result of a path, following links except one at the end.
pub fn stat_of_name(path: &Path) -> Result<Stat> {
    let _call = announce(path)?;
    rustix::fs::lstat(path).map_err(|errno| Error::call("stat", path, errno))
}

/// Returns the stat(2) result of one name inside an open directory, of a link itself. `inode` is
/// the name's earlier target and determines the device that is announced. The name may lead to
/// another inode by now, or to another file system mounted over it.
///
/// `path` is the whole path, for errors.
///
/// ```
/// use std::os::fd::AsFd;
/// use pagekeeper_kernel::{Inode, Links, open_directory, stat_in, stat_of_name};
/// let before = Inode::of(&stat_of_name("/etc/passwd".as_ref())?);
/// let directory = open_directory("/etc".as_ref(), Links::Refuse)?;
/// let stat = stat_in(directory.as_fd(), "passwd", before, "/etc/passwd".as_ref())?;
/// assert_eq!(Inode::of(&stat), before);
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
pub fn stat_in(dir: BorrowedFd<'_>, name: impl Arg, inode: Inode, path: &Path) -> Result<Stat> {
    let _call = announce_on_device(inode.dev, path)?;
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
        .map_err(|errno| Error::call("stat", path, errno))
}

/// Returns the device of a path, as far as the kernel knows it without contacting the file system:
/// that of the innermost parent directory whose name is in the kernel's cache.
pub(crate) fn cached_device_of(path: &Path) -> Option<u64> {
    let own = path
        .strip_prefix("/proc/self")
        .map(|rest| Path::new("/proc").join(std::process::id().to_string()).join(rest));
    let path = own.as_deref().unwrap_or(path);
    let start = start_of(path);
    let base = rustix::fs::openat(CWD, &start, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let rest = path.strip_prefix(&start).unwrap_or(path);
    // Inside the root of another process.
    let of_process = start.parent().is_some() && start.has_root();
    let within = if of_process { ResolveFlags::IN_ROOT } else { ResolveFlags::empty() };
    let above = rest.ancestors().filter(|above| !above.as_os_str().is_empty());
    let mut cached = above.filter_map(|above| {
        let resolve = ResolveFlags::CACHED | within;
        rustix::fs::openat2(&base, above, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok()
    });
    match cached.next() {
        Some(found) => device_of_open(found.as_fd()),
        None => device_of_open(base.as_fd()),
    }
}

/// Returns the device of an open file, as the kernel knows it without contacting the file system.
pub(crate) fn device_of_open(open: BorrowedFd<'_>) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(open, c"", flags, StatxFlags::empty()).ok()?;
    Some(rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor))
}

/// Returns the starting point of a path: `/`, `.`, or a process's root, working directory, program,
/// descriptor or mapping.
fn start_of(path: &Path) -> PathBuf {
    let names: Vec<Component<'_>> = path.components().take(5).collect();
    let is = |at: usize, wanted: &[&str]| {
        names.get(at).is_some_and(|name| wanted.iter().any(|wanted| name.as_os_str() == *wanted))
    };
    let of_process = |name: &Component<'_>| name.as_os_str().as_bytes().iter().all(u8::is_ascii_digit);
    match path.has_root() {
        false => PathBuf::from("."),
        true if is(1, &["proc"]) && names.get(2).is_some_and(of_process) => {
            if is(3, &["root", "cwd", "exe"]) {
                names[..4].iter().collect()
            } else if is(3, &["fd", "map_files"]) {
                names.iter().collect()
            } else {
                PathBuf::from("/")
            }
        }
        true => PathBuf::from("/"),
    }
}

/// Resolves a path beneath a directory without following links. Goes one name at a time if openat2
/// is missing (before Linux 5.6) or blocked by a filter that does not know it. With `O_PATH`,
/// openat2 returns EPERM for no other reason.
fn beneath(dir: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::openat2(dir, path, HANDLE_FLAGS, Mode::empty(), BENEATH_FLAGS) {
        Err(Errno::NOSYS | Errno::PERM) => {
            let start = rustix::fs::openat(dir, c".", HANDLE_FLAGS, Mode::empty())?;
            descend(start, Path::new(OsStr::from_bytes(path.to_bytes())))
        }
        other => other,
    }
}

/// Descends one name at a time, following no link and no `..`; an absolute path starts at `at`,
/// too.
pub(crate) fn descend(mut at: OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    for component in path.components() {
        match component {
            Component::Normal(name) => at = rustix::fs::openat(&at, name, HANDLE_FLAGS, Mode::empty())?,
            Component::ParentDir => return Err(Errno::XDEV),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(at)
}

/// Whether two descriptors lead into the same mount: by its ID, or before Linux 5.8 by the device
/// alone.
fn same_mount(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let mount = |fd| {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted)?;
        let id = (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id);
        Ok((id, found.stx_dev_major, found.stx_dev_minor))
    };
    Ok(mount(one)? == mount(other)?)
}

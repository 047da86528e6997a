//! The files that a process holds open, and how: from `/proc/PID/fd` and `/proc/PID/fdinfo`
//! (`proc_pid_fdinfo(5)`).
//!
//! [`ProcRoot::open_files`] lists one process; [`OpenFilesScan`](super::OpenFilesScan) lists
//! several, or a selection. [`ProcRoot::fd_links`] and [`ProcRoot::fd_info`] are the cheap halves:
//! all names, and the position of one descriptor.
//!
//! Invariants: no file is opened; a descriptor that is closed meanwhile is left out.

use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_text::unescaped_bytes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};

use super::fd_rounds::FdPieces;
use super::{FileSelection, ProcRoot, deleted, malformed};
use crate::{Error, Inode, Result};

/// The access that a descriptor permits: the access mode of open(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// `O_RDONLY`: a reader.
    ReadOnly,
    /// `O_WRONLY`: a writer.
    WriteOnly,
    /// `O_RDWR`: either.
    ReadWrite,
    /// Neither: an `O_PATH` descriptor, or access mode 3 (ioctl only).
    Neither,
}

impl AccessMode {
    /// Returns whether it permits writing.
    pub const fn writes(self) -> bool {
        matches!(self, Self::WriteOnly | Self::ReadWrite)
    }
}

/// The contents of `/proc/PID/fdinfo/FD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdInfo {
    /// The file position in bytes. It follows read, write and lseek, but not pread and pwrite.
    pub position: u64,
    /// The open flags of open(2), in this architecture's numbering.
    pub flags: u32,
    /// The mount's ID, as in `/proc/PID/mountinfo` (since Linux 3.15).
    pub mount_id: Option<u64>,
    /// The inode number (since Linux 5.14).
    pub inode_number: Option<u64>,
}

impl FdInfo {
    /// Returns the access that the descriptor permits.
    pub fn access(&self) -> AccessMode {
        let flags = self.open_flags();
        if flags.contains(OFlags::PATH) {
            return AccessMode::Neither;
        }
        match flags & OFlags::RWMODE {
            OFlags::RDONLY => AccessMode::ReadOnly,
            OFlags::WRONLY => AccessMode::WriteOnly,
            OFlags::RDWR => AccessMode::ReadWrite,
            _ => AccessMode::Neither,
        }
    }

    /// Whether it bypasses the page cache (`O_DIRECT`).
    pub fn direct(&self) -> bool {
        self.open_flags().contains(OFlags::DIRECT)
    }

    /// Whether every write goes to the end of the file (`O_APPEND`).
    pub fn append(&self) -> bool {
        self.open_flags().contains(OFlags::APPEND)
    }

    fn open_flags(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags)
    }
}

/// A regular file that a process holds open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFile {
    /// The descriptor's number in that process.
    pub fd: RawFd,
    /// The name as the process's mount namespace shows it, without the kernel's ` (deleted)`. A
    /// name longer than a page is replaced by that of the link, `/proc/PID/fd/FD`.
    pub path: PathBuf,
    /// Whether that name no longer leads to the file: it was removed after the file was opened.
    pub deleted: bool,
    /// The file's identity.
    pub inode: Inode,
    /// Its size in bytes; on a network file system, as last known to this machine.
    pub size: u64,
    /// The access that the descriptor permits.
    pub access: AccessMode,
    /// Whether it bypasses the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Whether every write goes to the end of the file (`O_APPEND`).
    pub append: bool,
    /// The file position in bytes; see [`FdInfo::position`].
    pub position: u64,
    /// The ID of its mount; see [`FdInfo::mount_id`].
    pub mount_id: Option<u64>,
    /// The inode number in fdinfo ([`FdInfo::inode_number`]), which may differ from stat's on
    /// overlayfs. It identifies the descriptor by its [`FdInfo`] alone.
    pub shown_inode: Option<u64>,
}

impl ProcRoot {
    /// Returns the path of a descriptor's link.
    /// [`InspectedFile::open_magic_link`](crate::InspectedFile::open_magic_link) opens the very
    /// file behind it, even if it is deleted or in another mount namespace.
    pub fn fd_path(&self, pid: u32, fd: RawFd) -> PathBuf {
        self.of(pid, &format!("fd/{fd}"))
    }

    /// Calls `each` with every descriptor and its link target: a path, which may end in the
    /// kernel's ` (deleted)`, or a text such as `socket:[12]`.
    ///
    /// It costs one readdir in total and one readlink per descriptor; nothing is allocated per
    /// descriptor.
    ///
    /// ```
    /// # use pagekeeper_kernel::process::ProcRoot;
    /// let proc = ProcRoot::default();
    /// let mut logs = Vec::new();
    /// proc.fd_links(std::process::id(), |fd, target| {
    ///     if target.starts_with("/var/lib/mysql") {
    ///         logs.push((fd, target.to_path_buf()));
    ///     }
    /// })?;
    /// # Ok::<(), pagekeeper_kernel::Error>(())
    /// ```
    #[allow(clippy::disallowed_methods, reason = "the list is the kernel's own, in /proc")]
    pub fn fd_links(&self, pid: u32, mut each: impl FnMut(RawFd, &Path)) -> Result<()> {
        let mut pieces = FdPieces::of(self, pid);
        while pieces.next(self, &mut each)? {}
        Ok(())
    }

    /// Calls `each` as [`ProcRoot::fd_links`] does, but stops soon after `max` descriptors: it
    /// reads at most a few hundred more.
    ///
    /// ```
    /// # use pagekeeper_kernel::process::ProcRoot;
    /// let mut count = 0;
    /// ProcRoot::default().first_fd_links(std::process::id(), 1, |_, _| count += 1)?;
    /// assert!((1..1000).contains(&count));
    /// # Ok::<(), pagekeeper_kernel::Error>(())
    /// ```
    pub fn first_fd_links(&self, pid: u32, max: usize, mut each: impl FnMut(RawFd, &Path)) -> Result<()> {
        let mut pieces = FdPieces::of(self, pid);
        let mut seen = 0;
        loop {
            let mut count = |fd, target: &Path| {
                seen += 1;
                each(fd, target);
            };
            let has_more = pieces.next(self, &mut count)?;
            if !has_more || seen >= max {
                return Ok(());
            }
        }
    }

    /// Returns the number of open descriptors by one stat, without reading any: since Linux 6.2 it
    /// is the size of `/proc/PID/fd`. Returns `None` on older kernels, and if it is unknown.
    ///
    /// ```
    /// use pagekeeper_kernel::process::ProcRoot;
    ///
    /// let count = ProcRoot::default().fd_count(std::process::id());
    /// assert_ne!(count, Some(0));
    /// ```
    pub fn fd_count(&self, pid: u32) -> Option<u64> {
        let stat = stat_quietly(&self.of(pid, "fd")).ok()?;
        (stat.stx_size > 0).then_some(stat.stx_size)
    }

    /// Returns the selected regular file behind one descriptor; `None` if it is closed, or as in
    /// [`Self::open_file_at`].
    pub fn selected_file_at(&self, pid: u32, fd: RawFd, selection: &FileSelection<'_>) -> Option<OpenFile> {
        let link = rustix::fs::readlink(self.fd_path(pid, fd), Vec::new()).ok()?;
        let target = Path::new(std::ffi::OsStr::from_bytes(link.as_bytes()));
        self.open_file(pid, fd, target, &self.root(pid), selection)
    }

    /// Whether a process has this block device open by one of its first `max` descriptors. The
    /// device is not accessed.
    pub fn has_device_open(&self, pid: u32, device: u64, max: usize) -> bool {
        let mut has = false;
        let mut look = |fd, target: &Path| {
            if !has && target.starts_with("/dev/") {
                let stat = rustix::fs::stat(self.fd_path(pid, fd));
                let is_it = |stat: rustix::fs::Stat| {
                    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice && stat.st_rdev == device
                };
                has = stat.is_ok_and(is_it);
            }
        };
        // A process that has ended has nothing open.
        let _ = self.first_fd_links(pid, max, &mut look);
        has
    }

    /// Returns the position and flags of one descriptor, in one read.
    #[allow(clippy::disallowed_methods, reason = "of /proc")]
    pub fn fd_info(&self, pid: u32, fd: RawFd) -> Result<FdInfo> {
        let path = self.of(pid, &format!("fdinfo/{fd}"));
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::call("open", &path, e))?;
        // The needed lines come first; any number of locks and watches may follow.
        let mut buffer = [0; 256];
        let length = rustix::io::read(&file, &mut buffer).map_err(|e| Error::call("read", &path, e))?;
        parse_fd_info(&buffer[..length]).ok_or_else(|| malformed(&path, &buffer[..length]))
    }

    /// Returns the inode behind a descriptor; `None` if it is closed, the process has ended, or
    /// stat is refused. Never waits for a network file system's server.
    pub fn inode_behind(&self, pid: u32, fd: RawFd) -> Option<Inode> {
        stat_quietly(&self.fd_path(pid, fd)).ok().map(|stat| inode_of(&stat))
    }

    /// Returns the regular files that the process holds open, by ascending descriptor.
    ///
    /// Descriptors closed or reused meanwhile are left out, and so are files whose stat is refused
    /// (another user's FUSE file system). A file opened twice is listed twice.
    pub fn open_files(&self, pid: u32) -> Result<Vec<OpenFile>> {
        let mut files = Vec::new();
        self.each_selected_file(pid, &FileSelection::default(), |file| files.push(file))?;
        files.sort_unstable_by_key(|file| file.fd);
        Ok(files)
    }

    /// Passes the selected files among [`Self::open_files`] to `each`. Filters are applied first:
    /// rejected files are not read any further.
    pub(super) fn each_selected_file(
        &self,
        pid: u32,
        selection: &FileSelection<'_>,
        mut each: impl FnMut(OpenFile),
    ) -> Result<()> {
        let root = self.root(pid);
        self.fd_links(pid, |fd, target| {
            if let Some(file) = self.open_file(pid, fd, target, &root, selection) {
                each(file);
            }
        })
    }

    /// Returns the regular file behind a descriptor whose link target is `target`; `None` if it is
    /// not a regular file, was closed or reused meanwhile, or its stat is refused.
    pub fn open_file_at(&self, pid: u32, fd: RawFd, target: &Path) -> Option<OpenFile> {
        self.open_file(pid, fd, target, &self.root(pid), &FileSelection::default())
    }

    fn open_file(
        &self,
        pid: u32,
        fd: RawFd,
        target: &Path,
        root: &Path,
        selection: &FileSelection<'_>,
    ) -> Option<OpenFile> {
        let text = target.as_os_str().as_bytes();
        if deleted::is_no_file(text) || !selection.has_name(target) {
            return None;
        }
        let stat = stat_quietly(&self.fd_path(pid, fd)).ok()?;
        let inode = inode_of(&stat);
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile
            || !selection.has_inode(inode)
        {
            return None;
        }
        let info = self.fd_info(pid, fd).ok()?;
        // Either the descriptor was reused between the two reads, or overlayfs shows two inode
        // numbers.
        let differs = info.inode_number.is_some_and(|ino| ino != inode.ino);
        if differs && self.inode_behind(pid, fd) != Some(inode) {
            return None;
        }
        let (path, deleted) = deleted::resolve_name(text, inode, Some(stat.stx_nlink), root);
        Some(OpenFile {
            fd,
            path,
            deleted,
            inode,
            size: stat.stx_size,
            access: info.access(),
            direct: info.direct(),
            append: info.append(),
            position: info.position,
            mount_id: info.mount_id,
            shown_inode: info.inode_number,
        })
    }
}

/// Stats the file behind a link without contacting a network file system's server, which might
/// never answer.
pub(super) fn stat_quietly(link: &Path) -> rustix::io::Result<Statx> {
    rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)
}

pub(super) fn inode_of(stat: &Statx) -> Inode {
    Inode { dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), ino: stat.stx_ino }
}

fn parse_fd_info(content: &[u8]) -> Option<FdInfo> {
    let (mut position, mut flags, mut mount_id, mut inode_number) = (None, None, None, None);
    for line in content.split(|byte| *byte == b'\n') {
        let line = unescaped_bytes(line);
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            // The kernel's own lines come first; lines of drivers or locks may have the same keys.
            "pos" if position.is_none() => position = value.parse().ok(),
            "flags" if flags.is_none() => flags = u32::from_str_radix(value, 8).ok(),
            "mnt_id" if mount_id.is_none() => mount_id = value.parse().ok(),
            "ino" if inode_number.is_none() => inode_number = value.parse().ok(),
            _ => {}
        }
    }
    Some(FdInfo { position: position?, flags: flags?, mount_id, inode_number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::io::{Seek, SeekFrom, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};

    fn own_file(fd: &impl AsRawFd) -> OpenFile {
        let files = ProcRoot::default().open_files(std::process::id()).unwrap();
        files.into_iter().find(|file| file.fd == fd.as_raw_fd()).expect("the file is listed")
    }

    #[test]
    fn a_writer_at_its_position() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("binlog.000001");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        file.write_all(&[1; 5000]).unwrap();
        let found = own_file(&file);
        let meta = file.metadata().unwrap();
        assert_eq!(found.path, path);
        assert_eq!(found.inode, Inode { dev: meta.dev(), ino: meta.ino() });
        let behind = |fd: RawFd| ProcRoot::default().inode_behind(std::process::id(), fd);
        assert_eq!((behind(file.as_raw_fd()), behind(RawFd::MAX)), (Some(found.inode), None));
        assert_eq!((found.size, found.position), (5000, 5000));
        assert_eq!(found.access, AccessMode::WriteOnly);
        assert!(found.append && !found.direct && !found.deleted);
    }

    #[test]
    fn a_reader_half_way() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[1; 8192]).unwrap();
        let mut reader = File::open(file.path()).unwrap();
        reader.seek(SeekFrom::Start(4096)).unwrap();
        let found = own_file(&reader);
        assert_eq!((found.access, found.position), (AccessMode::ReadOnly, 4096));
        assert_eq!(own_file(&file).access, AccessMode::ReadWrite);
    }

    #[test]
    fn a_direct_opener_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file.path()) {
            Ok(direct) => assert!(own_file(&direct).direct),
            Err(error) => crate::testing::skip(format_args!(
                "a_direct_opener_is_seen: no direct I/O on this file system: {error}"
            )),
        }
        assert!(!own_file(&file).direct);
    }

    #[test]
    fn a_path_descriptor_neither_reads_nor_writes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let handle = rustix::fs::open(file.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(own_file(&handle).access, AccessMode::Neither);
    }

    #[test]
    fn deleted_files_keep_their_name_without_the_mark() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone");
        let gone = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let found = own_file(&gone);
        assert_eq!((found.path, found.deleted), (path, true));

        let odd = dir.path().join("odd (deleted)");
        let there = File::create(&odd).unwrap();
        let found = own_file(&there);
        assert_eq!((&found.path, found.deleted), (&odd, false));
        std::fs::remove_file(&odd).unwrap();
        let found = own_file(&there);
        assert_eq!((found.path, found.deleted), (odd, true));
    }

    #[test]
    fn a_removed_name_of_a_file_with_another_link() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let file = File::create(&first).unwrap();
        std::fs::hard_link(&first, &second).unwrap();
        std::fs::remove_file(&first).unwrap();
        let found = own_file(&file);
        assert_eq!((found.path, found.deleted), (first, true));
    }

    #[test]
    fn only_regular_files_are_listed() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let directory = File::open("/").unwrap();
        let files = ProcRoot::default().open_files(std::process::id()).unwrap();
        for fd in [socket.as_raw_fd(), pipe.as_raw_fd(), null.as_raw_fd(), directory.as_raw_fd()] {
            assert!(files.iter().all(|file| file.fd != fd));
        }
        let mut texts = Vec::new();
        let own = std::process::id();
        ProcRoot::default().fd_links(own, |fd, target| texts.push((fd, target.to_path_buf()))).unwrap();
        let of = |fd: RawFd| texts.iter().find(|(number, _)| *number == fd).unwrap().1.to_str().unwrap();
        assert!(of(socket.as_raw_fd()).starts_with("socket:["));
        assert_eq!(of(null.as_raw_fd()), "/dev/null");
    }

    #[test]
    fn one_descriptor_is_read_without_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("binlog.000001");
        let file = File::create(&path).unwrap();
        let (proc, own) = (ProcRoot::default(), std::process::id());
        let at = |fd: RawFd, name: &'static str| {
            let wanted = |path: &Path| path.ends_with(name);
            proc.selected_file_at(own, fd, &FileSelection { name: Some(&wanted), ..FileSelection::default() })
        };
        assert_eq!(at(file.as_raw_fd(), "binlog.000001"), Some(own_file(&file)));
        assert_eq!((at(file.as_raw_fd(), "binlog.000002"), at(RawFd::MAX, "binlog.000001")), (None, None));
        let null = File::open("/dev/null").unwrap();
        assert_eq!(at(null.as_raw_fd(), "null"), None);
    }

    #[test]
    fn descriptors_are_counted_without_reading_them() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (proc, pid) = (ProcRoot::default(), child.id());
        let counted = || {
            let mut count = 0;
            proc.fd_links(pid, |_, _| count += 1).unwrap();
            count
        };
        // The child may still have files of its loader open.
        let began = std::time::Instant::now();
        while proc.fd_count(pid).is_some_and(|count| count != counted()) {
            assert!(began.elapsed() < std::time::Duration::from_secs(60));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(proc.fd_count(pid), None);
    }

    #[test]
    fn a_fake_tree_of_an_older_kernel() {
        let tree = tempfile::tempdir().unwrap();
        let real = tree.path().join("real");
        std::fs::write(&real, [0; 100]).unwrap();
        for dir in ["9/fd", "9/fdinfo", "9/root"] {
            std::fs::create_dir_all(tree.path().join(dir)).unwrap();
        }
        symlink(&real, tree.path().join("9/fd/12")).unwrap();
        symlink("/nonexistent/file", tree.path().join("9/fd/13")).unwrap();
        symlink("socket:[4]", tree.path().join("9/fd/3")).unwrap();
        std::fs::write(tree.path().join("9/fdinfo/12"), "pos:\t77\nflags:\t0102001\n").unwrap();
        let proc = ProcRoot::at(tree.path());
        let files = proc.open_files(9).unwrap();
        assert_eq!(files.len(), 1);
        assert_eq!((files[0].fd, files[0].position, files[0].size), (12, 77, 100));
        assert_eq!(files[0].access, AccessMode::WriteOnly);
        assert_eq!(proc.fd_info(9, 12).unwrap().mount_id, None);
    }

    #[test]
    fn fdinfo_with_and_without_the_newer_lines() {
        let info =
            parse_fd_info(b"pos:\t5\nflags:\t02100002\nmnt_id:\t27\nino:\t99\nlock:\t1: POSIX x\n").unwrap();
        assert_eq!((info.position, info.mount_id, info.inode_number), (5, Some(27), Some(99)));
        assert_eq!(info.access(), AccessMode::ReadWrite);
        assert!(parse_fd_info(b"pos:\t5\n").is_none());
        assert!(parse_fd_info(b"pos:\tx\nflags:\t0\n").is_none());
        assert!(parse_fd_info(b"pos:\t5\nflags:\t9\n").is_none());
        assert!(parse_fd_info(b"").is_none());
    }
}

//! Opens regular files, and adopts open ones: shared by the back-ends for real files.
//!
//! Invariants: descriptors are close-on-exec, and read-only unless writing is requested. Nothing is
//! created unless requested, and nothing is truncated. A FIFO or device is not opened; one that
//! appears between the check and the open does not block (`O_NONBLOCK`, cleared afterwards, since
//! `io_uring` returns `EAGAIN` for it on some file systems). The access time is not updated if the
//! kernel allows that (`O_NOATIME`, for owners and `CAP_FOWNER`: open(2)). With [`Access::Direct`]
//! the file is direct from its first open on.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pagekeeper_kernel::InspectedFile;
use rustix::fs::{CWD, Mode, OFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags};

use crate::files::syscall::{call, require_regular, require_stored};
use crate::files::{atomic_limits, directory, pages};
use crate::transfers::{pread, pwrite};
use crate::{Access, Create, Error, FileStat, IoFile, ResidentBytes, WriteMode};

/// A real file.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: File,
    path: PathBuf,
    access: Access,
    /// The same open file for queries about its pages; created at the first query.
    inspected: OnceLock<InspectedFile>,
    /// Whether the file system refused to read without waiting.
    must_wait: AtomicBool,
}

impl DiskFile {
    fn shared(file: File, path: PathBuf, access: Access) -> Arc<dyn IoFile> {
        Arc::new(Self { file, path, access, inspected: OnceLock::new(), must_wait: AtomicBool::new(false) })
    }

    /// Opens by name for reading and writing. Follows links unless the file is new.
    pub(crate) fn open_writable(
        path: &Path,
        access: Access,
        create: Create,
    ) -> Result<Arc<dyn IoFile>, Error> {
        let flags = match create {
            Create::Never => {
                let stat = rustix::fs::stat(path).map_err(|errno| call("stat", path, errno))?;
                require_regular(&stat, path)?;
                OFlags::RDWR
            }
            Create::New => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let opened = open_with(path, path, flags, access);
        if create == Create::New && matches!(opened, Err(Error::NoDirect { .. })) {
            // The file is created before `O_DIRECT` is checked: open(2).
            let _ = rustix::fs::unlink(path);
        }
        let fd = opened?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| call("fstat", path, errno))?;
        require_regular(&stat, path)?;
        Ok(Self::shared(fd.into(), path.to_path_buf(), access))
    }

    fn inspected(&self) -> Result<&InspectedFile, Error> {
        if let Some(inspected) = self.inspected.get() {
            return Ok(inspected);
        }
        let again = self.file.try_clone().map_err(|error| Error::Call {
            call: "dup",
            path: self.path.clone(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })?;
        let inspected =
            InspectedFile::from_fd(again, self.path.clone()).map_err(|error| pages::other_error(&error))?;
        Ok(self.inspected.get_or_init(|| inspected))
    }

    /// Opens by name, following links.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        // Checked first: opening a device node can act on the device (rewind a tape, raise a modem
        // line).
        let stat = rustix::fs::stat(path).map_err(|errno| call("stat", path, errno))?;
        require_regular(&stat, path)?;
        let fd = open_quietly(path, path, access)?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| call("fstat", path, errno))?;
        require_regular(&stat, path)?;
        // Files of proc have no size; those of sysfs have a page.
        if stat.st_blocks == 0 {
            require_stored(&fd, path)?;
        }
        Ok(Self::shared(fd.into(), path.to_path_buf(), access))
    }

    /// Takes over an open file. It is opened again if its flags do not fit and if that is
    /// permitted; its access shows the result.
    pub(crate) fn adopt(file: File, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = std::fs::read_link(&link).unwrap_or_else(|_| link.clone());
        let stat = rustix::fs::fstat(&file).map_err(|errno| call("fstat", &path, errno))?;
        require_regular(&stat, &path)?;
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| call("fcntl", &path, errno))?;
        if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
            return Err(call("read", &path, Errno::BADF));
        }
        let direct = flags.contains(OFlags::DIRECT);
        if direct == (access == Access::Direct) && !flags.contains(OFlags::NONBLOCK) {
            return Ok(Self::shared(file, path, access));
        }
        match open_quietly(&link, &path, access) {
            Ok(fd) => Ok(Self::shared(fd.into(), path, access)),
            // No permission to open it, or no /proc: the file is used as given.
            Err(Error::Call { errno: libc::EACCES | libc::EPERM | libc::ENOENT, .. })
                if access == Access::Direct && !flags.contains(OFlags::NONBLOCK) =>
            {
                Ok(Self::shared(file, path, Access::Buffered))
            }
            Err(error) => Err(error),
        }
    }
}

impl IoFile for DiskFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        pread::read_slice(self, offset, buf)
    }

    fn read_resident(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        if self.access == Access::Direct || self.must_wait.load(Ordering::Relaxed) {
            return None;
        }
        let mut bufs = [IoSliceMut::new(buf)];
        match rustix::io::preadv2(&self.file, &mut bufs, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => (read > 0).then_some(read),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.must_wait.store(true, Ordering::Relaxed);
                None
            }
            // Not resident. The blocking read reports any other error.
            Err(_) => None,
        }
    }

    fn stat(&self) -> Result<FileStat, Error> {
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| call("fstat", &self.path, errno))?;
        file_stat(&stat).ok_or_else(|| call("fstat", &self.path, Errno::OVERFLOW))
    }

    fn access(&self) -> Access {
        self.access
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn write_at(&self, offset: u64, buf: &[u8], mode: WriteMode) -> Result<(), Error> {
        pwrite::write(self, offset, buf, mode)
    }

    fn sync_data(&self) -> Result<(), Error> {
        pages::sync_data(&self.file, &self.path)
    }

    fn sync_all(&self) -> Result<(), Error> {
        pages::sync_all(&self.file, &self.path)
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        pages::allocate(&self.file, &self.path, &range)
    }

    fn punch(&self, range: Range<u64>) -> Result<(), Error> {
        pages::punch(&self.file, &self.path, &range)
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        pages::set_len(&self.file, &self.path, len)
    }

    fn start_writeback(&self, range: Range<u64>) -> Result<(), Error> {
        pages::start_writeback(self.inspected()?, range)
    }

    fn wait_writeback(&self, range: Range<u64>) -> Result<(), Error> {
        pages::wait_writeback(self.inspected()?, range)
    }

    fn release(&self, range: Range<u64>) -> Result<(), Error> {
        pages::release(&self.file, &self.path, range)
    }

    fn atomic_write_bytes(&self) -> Option<RangeInclusive<u64>> {
        // statx(2) describes the file, however it was opened.
        if self.access == Access::Direct { atomic_limits::reported(&self.file) } else { None }
    }

    fn residency(&self, range: Range<u64>) -> Result<Option<ResidentBytes>, Error> {
        pages::resident(self.inspected()?, range)
    }
}

/// Opens `path` for reading with the flags of the module's invariants. Errors name it `shown`.
pub(crate) fn open_quietly(path: &Path, shown: &Path, access: Access) -> Result<OwnedFd, Error> {
    open_with(path, shown, OFlags::RDONLY, access)
}

/// Opens with these flags and those of the invariants. Retries without `O_NOATIME` if that is
/// refused.
fn open_with(path: &Path, shown: &Path, how: OFlags, access: Access) -> Result<OwnedFd, Error> {
    let direct = if access == Access::Direct { OFlags::DIRECT } else { OFlags::empty() };
    let flags = how | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | direct;
    let mode = if how.contains(OFlags::CREATE) { directory::FILE_MODE } else { 0 };
    let open = |flags| rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(mode));
    let opened = match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        other => other,
    };
    let fd = opened.map_err(|errno| match errno {
        Errno::INVAL if access == Access::Direct => {
            Error::NoDirect { path: shown.to_path_buf(), errno: errno.raw_os_error() }
        }
        errno => call("open", shown, errno),
    })?;
    // This file description is not shared.
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(|errno| call("fcntl", shown, errno))?;
    rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK).map_err(|errno| call("fcntl", shown, errno))?;
    Ok(fd)
}

/// Returns `None` if a file system reports a size below 0, or more nanoseconds than 32 bits hold.
fn file_stat(stat: &Stat) -> Option<FileStat> {
    Some(FileStat {
        size: u64::try_from(stat.st_size).ok()?,
        device: stat.st_dev,
        inode: stat.st_ino,
        modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).ok()?),
        changed: (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).ok()?),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::FileType;

    use super::*;
    use crate::FileKind;
    use pagekeeper_testing::disk_dir;

    fn flags_of(file: &Arc<dyn IoFile>) -> OFlags {
        rustix::fs::fcntl_getfl(file.fd().unwrap()).unwrap()
    }

    #[test]
    fn a_file_that_is_not_regular_is_refused_with_its_kind() {
        let dir = disk_dir();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for access in [Access::Direct, Access::Buffered] {
            for (path, kind) in [
                (dir.path(), FileKind::Directory),
                (&fifo, FileKind::Fifo),
                (&socket, FileKind::Socket),
                (Path::new("/dev/null"), FileKind::CharacterDevice),
                (Path::new("/proc/self/status"), FileKind::Pseudo),
                (Path::new("/sys/kernel/mm/transparent_hugepage/enabled"), FileKind::Pseudo),
            ] {
                // Such a file refuses direct I/O before it can be examined.
                if kind == FileKind::Pseudo && access == Access::Direct {
                    continue;
                }
                let error = DiskFile::open(path, access).err().unwrap();
                assert_eq!(error, Error::NotARegularFile { path: path.to_path_buf(), kind });
            }
            let (reader, _writer) = std::io::pipe().unwrap();
            let error = DiskFile::adopt(OwnedFd::from(reader).into(), access).err().unwrap();
            assert!(matches!(error, Error::NotARegularFile { kind: FileKind::Fifo, .. }), "{error}");
        }
        let error = DiskFile::open(&dir.path().join("missing"), Access::Direct).err().unwrap();
        assert_eq!(error.errno(), Some(libc::ENOENT));
    }

    #[test]
    fn a_file_is_direct_from_its_first_open_on() {
        let dir = disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, [1; 4096]).unwrap();
        let direct = flags_of(&DiskFile::open(&path, Access::Direct).unwrap());
        assert!(direct.contains(OFlags::DIRECT) && !direct.contains(OFlags::NONBLOCK), "{direct:?}");
        let buffered = flags_of(&DiskFile::open(&path, Access::Buffered).unwrap());
        assert!(!buffered.intersects(OFlags::DIRECT | OFlags::NONBLOCK), "{buffered:?}");
    }

    #[test]
    fn an_adopted_file_does_not_change_the_flags_of_others() {
        let dir = disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, [1; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        let shared = file.try_clone().unwrap();
        let adopted = DiskFile::adopt(file, Access::Direct).unwrap();
        assert_eq!(adopted.path(), path.canonicalize().unwrap());
        assert!(flags_of(&adopted).contains(OFlags::DIRECT));
        assert!(!rustix::fs::fcntl_getfl(&shared).unwrap().contains(OFlags::DIRECT));
        // The other direction as well; a file whose flags fit stays as it is.
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let adopted = DiskFile::adopt(direct.try_clone().unwrap(), Access::Buffered).unwrap();
        assert!(!flags_of(&adopted).contains(OFlags::DIRECT));
        let number = direct.as_raw_fd();
        assert_eq!(DiskFile::adopt(direct, Access::Direct).unwrap().fd().unwrap().as_raw_fd(), number);
    }

    #[test]
    fn a_file_that_may_not_be_opened_again_is_read_as_it_was_given() {
        if !rustix::process::geteuid().is_root() {
            return pagekeeper_testing::skip("handing a file to another user takes root");
        }
        let dir = disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 100]).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let [file, direct] = [0, libc::O_DIRECT]
            .map(|flags| File::options().read(true).custom_flags(flags).open(&path).unwrap());
        let (adopted, refused) = pagekeeper_testing::as_nobody(|| {
            (DiskFile::adopt(file, Access::Direct), DiskFile::adopt(direct, Access::Buffered))
        });
        let adopted = adopted.unwrap();
        assert_eq!((adopted.access(), adopted.read_at(90, &mut [0; 20])), (Access::Buffered, Ok(10)));
        assert_eq!(refused.err().unwrap().errno(), Some(libc::EACCES));
    }

    #[test]
    fn a_deleted_file_can_still_be_adopted() {
        let dir = disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let adopted = DiskFile::adopt(file, Access::Direct).unwrap();
        assert_eq!(adopted.stat().unwrap().size, 4096);
        assert!(adopted.path().to_string_lossy().ends_with("(deleted)"));
    }

    #[test]
    fn a_file_that_is_open_for_writing_only_is_refused() {
        let dir = disk_dir();
        let file = File::create(dir.path().join("file")).unwrap();
        assert_eq!(DiskFile::adopt(file, Access::Buffered).err().unwrap().errno(), Some(libc::EBADF));
    }

    #[test]
    fn nowait_reads_return_only_resident_bytes() {
        let dir = disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 64 << 10]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let file = DiskFile::open(&path, Access::Buffered).unwrap();
        let mut buf = [0; 100];
        assert_eq!(file.read_resident((64 << 10) - 40, &mut buf), Some(40));
        assert!(buf[..40].iter().all(|byte| *byte == 7));
        assert_eq!(file.read_resident(1 << 20, &mut buf), None);
        // A refused read starts a read from the device, and a fast device may finish before the
        // call returns: so it is not refused each time.
        let mut is_refused = || {
            file.release(0..u64::MAX).unwrap();
            let is_gone = file.residency(0..64 << 10).unwrap().is_none_or(|found| found.resident == 0);
            is_gone && file.read_resident(0, &mut buf).is_none()
        };
        assert!((0..100).any(|_| is_refused()));
        if let Ok(direct) = DiskFile::open(&path, Access::Direct) {
            assert_eq!(direct.read_resident(0, &mut buf), None);
        }
    }
}

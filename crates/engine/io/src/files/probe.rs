//! Tests what works here: direct reads of a file, and the best back-end.
//!
//! Neither the kernel's version nor a flag alone is trusted. If the test has no answer (residency
//! may be reported only to the file's owner), a successful read counts as working.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_kernel::{FileSystem, InspectedFile, residency};
use rustix::fs::{Advice, AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::files::open::open_quietly;
use crate::files::syscall::{call, require_regular};
use crate::{Access, Error, Io, Threads, Uring};

/// The alignment of direct reads in bytes.
///
/// ```
/// use pagekeeper_io::Alignment;
/// let disk = Alignment { memory: 512, offset: 4096 };
/// assert!(16384_usize.is_multiple_of(disk.offset.max(disk.memory)), "pages of 16 KiB fit");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Alignment {
    /// Alignment of the memory's address.
    pub memory: usize,
    /// Alignment of offset and length.
    pub offset: usize,
}

/// The support of direct reads of a file.
///
/// ```
/// use pagekeeper_io::{Access, DirectSupport};
///
/// let access = match DirectSupport::probe("/etc/passwd")? {
///     DirectSupport::Direct(alignment) if alignment.offset <= 4096 => Access::Direct,
///     _ => Access::Buffered,
/// };
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DirectSupport {
    /// Supported; direct reads leave nothing in the page cache.
    Direct(Alignment),
    /// Accepted, but through the page cache: tmpfs, or a file system that ignores `O_DIRECT`.
    Cached,
    /// Refused with this error number.
    Refused {
        /// The system's error number.
        errno: i32,
    },
}

/// The alignment if the kernel does not report it: enough for all devices and file systems with
/// blocks up to this size.
const DEFAULT_ALIGNMENT: usize = 4096;

impl DirectSupport {
    /// Tests direct reads on a file; in a directory, on an unnamed file of two pages that is freed
    /// afterwards.
    ///
    /// If the first page of the file is resident, it is dropped first. It is clean, so no data is
    /// lost.
    pub fn probe(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            let failed = |error: &std::io::Error| Error::Call {
                call: "create a file in",
                path: path.to_path_buf(),
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            };
            let mut file = tempfile::tempfile_in(path).map_err(|error| failed(&error))?;
            file.write_all(&[1; 2 * DEFAULT_ALIGNMENT])
                .and_then(|()| file.sync_all())
                .map_err(|error| failed(&error))?;
            return Self::of(file.into(), path);
        }
        let stat = rustix::fs::stat(path).map_err(|errno| call("stat", path, errno))?;
        require_regular(&stat, path)?;
        Self::of(open_quietly(path, path, Access::Buffered)?, path)
    }

    /// Tests direct reads of an open file. It is opened again for the test, and keeps its own
    /// flags.
    pub fn probe_direct(file: &File) -> Result<Self, Error> {
        let link = link_of(file.as_raw_fd());
        let path = std::fs::read_link(&link).unwrap_or(link);
        let stat = rustix::fs::fstat(file).map_err(|errno| call("fstat", &path, errno))?;
        require_regular(&stat, &path)?;
        let file = file.try_clone().map_err(|error| Error::Call {
            call: "dup",
            path: path.clone(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })?;
        Self::of(file.into(), &path)
    }

    /// Returns the kernel's report about direct reads of an open file, without a test
    /// (`STATX_DIOALIGN` of statx(2), Linux 6.1). For example, ext4 accepts `O_DIRECT` for files
    /// whose data it journals, but reads them through the page cache. Returns `None` if nothing is
    /// reported: on older kernels, and on btrfs and others.
    pub fn reported(file: impl AsFd) -> Option<Self> {
        Some(match reported_alignment(file.as_fd())? {
            Alignment { offset: 0, .. } => Self::Refused { errno: libc::EOPNOTSUPP },
            alignment => Self::Direct(alignment),
        })
    }

    fn of(file: OwnedFd, path: &Path) -> Result<Self, Error> {
        let direct = match open_quietly(&link_of(file.as_raw_fd()), path, Access::Direct) {
            Err(Error::NoDirect { errno, .. }) => return Ok(Self::Refused { errno }),
            other => other?,
        };
        let alignment = match Self::reported(&direct) {
            Some(Self::Direct(alignment)) => alignment,
            Some(refused) => return Ok(refused),
            None => Alignment { memory: DEFAULT_ALIGNMENT, offset: DEFAULT_ALIGNMENT },
        };
        let len = alignment.offset.max(DEFAULT_ALIGNMENT);
        let cached = ProbedPages::new(file, path, len as u64);
        let align = alignment.memory.max(DEFAULT_ALIGNMENT);
        let mut memory = vec![0_u8; len + align];
        let skip = memory.as_ptr().align_offset(align);
        match rustix::io::pread(&direct, &mut memory[skip..skip + len], 0) {
            Ok(_) if cached.is_some_and(|cached| cached.is_filled()) => Ok(Self::Cached),
            Ok(_) => Ok(Self::Direct(alignment)),
            Err(errno @ (Errno::INVAL | Errno::OPNOTSUPP)) => {
                Ok(Self::Refused { errno: errno.raw_os_error() })
            }
            Err(errno) => Err(Error::Read {
                path: path.to_path_buf(),
                range: 0..len as u64,
                errno: errno.raw_os_error(),
            }),
        }
    }
}

fn link_of(fd: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{fd}"))
}

/// Returns the report of statx(2) (`STATX_DIOALIGN`, Linux 6.1; not on every file system): zeros
/// mean "no direct reads".
fn reported_alignment(file: BorrowedFd<'_>) -> Option<Alignment> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
        return None;
    }
    let bytes = |reported| usize::try_from(reported).ok();
    Some(Alignment { memory: bytes(stat.stx_dio_mem_align)?, offset: bytes(stat.stx_dio_offset_align)? })
}

/// The first bytes of a file whose residency can be queried before and after a read.
struct ProbedPages {
    file: InspectedFile,
    len: u64,
}

impl ProbedPages {
    /// Returns `None` if residency cannot be queried.
    fn new(file: OwnedFd, path: &Path, len: u64) -> Option<Self> {
        let cached = Self { file: InspectedFile::from_fd(file, path.to_path_buf()).ok()?, len };
        if FileSystem::of(&cached.file, path).is_ok_and(|file_system| file_system.release_refusal().is_some())
        {
            // The page cache is the file itself, so it is always filled.
            return Some(cached);
        }
        if cached.is_filled() {
            rustix::fs::fadvise(&cached.file, 0, std::num::NonZeroU64::new(len), Advice::DontNeed).ok()?;
        }
        (!cached.is_filled()).then_some(cached)
    }

    fn is_filled(&self) -> bool {
        residency(&self.file, 0..self.len).is_ok_and(|found| found.resident > 0)
    }
}

/// The best back-end that works here, and why no better one was chosen.
///
/// ```
/// let choice = pagekeeper_io::BackendChoice::new();
/// if let Some(why) = &choice.not_uring {
///     eprintln!("reading by {}: {why}", choice.io.name());
/// }
/// ```
#[derive(Clone)]
pub struct BackendChoice {
    /// The back-end.
    pub io: Arc<dyn Io>,
    /// The reason why `io_uring` was not chosen, if so.
    pub not_uring: Option<Error>,
}

impl std::fmt::Debug for BackendChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendChoice")
            .field("io", &self.io.name())
            .field("not_uring", &self.not_uring)
            .finish()
    }
}

impl BackendChoice {
    /// Chooses [`Uring`] if it works, otherwise [`Threads`].
    pub fn new() -> Self {
        match Uring::new() {
            Ok(uring) => Self { io: Arc::new(uring), not_uring: None },
            Err(why) => Self { io: Arc::new(Threads::new()), not_uring: Some(why) },
        }
    }
}

impl Default for BackendChoice {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the best back-end that works here. [`BackendChoice`] also says why.
///
/// ```
/// use pagekeeper_io::Access;
/// let file = pagekeeper_io::best().open("/etc/passwd".as_ref(), Access::Buffered)?;
/// assert!(file.stat()?.size > 0);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub fn best() -> Arc<dyn Io> {
    BackendChoice::new().io
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileKind;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn a_resident_file_is_probed_as_well_as_any() {
        let dir = disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![3; 20_000]).unwrap();
        let before = DirectSupport::probe(dir.path()).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        std::fs::read(&path).unwrap();
        assert_eq!(DirectSupport::probe(&path).unwrap(), before);
        let file = File::open(&path).unwrap();
        assert_eq!(DirectSupport::probe_direct(&file).unwrap(), before);
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::DIRECT), "the file keeps its flags");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn memory_is_not_direct() {
        let support = DirectSupport::probe("/dev/shm").unwrap();
        assert!(
            matches!(support, DirectSupport::Cached | DirectSupport::Refused { errno: libc::EINVAL }),
            "{support:?}"
        );
    }

    #[test]
    fn a_file_without_pages_is_refused() {
        let error = DirectSupport::probe("/dev/null").unwrap_err();
        assert!(matches!(error, Error::NotARegularFile { kind: FileKind::CharacterDevice, .. }), "{error}");
        assert_eq!(DirectSupport::probe("/nowhere").unwrap_err().errno(), Some(libc::ENOENT));
    }

    #[test]
    fn the_choice_has_a_reason() {
        let choice = BackendChoice::new();
        assert_eq!(choice.io.name() == "threads", choice.not_uring.is_some());
    }
}

//! An open file, as all back-ends show it.

use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::{Error, Resident, WriteMode};

/// Whether reads and writes go past the kernel's page cache.
///
/// ```
/// use pagekeeper_io::{Access, Io, Threads};
/// let file = Threads::new().open("/etc/passwd".as_ref(), Access::Buffered)?;
/// assert_eq!(file.access(), Access::Buffered);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// `O_DIRECT`: between the device and the caller's memory; no page becomes resident. Offset, length and memory must be
    /// aligned, mostly to 512 bytes; 4096 fits nearly everywhere; [`crate::Support`] reports.
    Direct,
    /// Through the kernel's page cache, at any offset and length.
    Buffered,
}

/// What is known of a file without reading it.
///
/// ```
/// use pagekeeper_io::{Access, Io, Threads};
/// let file = Threads::new().open("/etc/passwd".as_ref(), Access::Buffered)?;
/// let then = file.stat()?;
/// // … later: was it cut, lengthened or written to?
/// assert_eq!(file.stat()?, then);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileStat {
    /// Bytes.
    pub size: u64,
    /// The device, as `st_dev` encodes it.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// When the content was last changed: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// When content or inode were last changed: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
}

/// An open file: to read from, and where it was opened by [`crate::Io::open_writable`] to write to.
///
/// The methods from [`Self::write_at`] on are provided for files that are only read: they fail with `EOPNOTSUPP`.
///
/// ```
/// use pagekeeper_io::{Error, IoFile};
///
/// /// The last eight bytes: where a table's footer begins.
/// fn footer(file: &dyn IoFile) -> Result<u64, Error> {
///     let mut bytes = [0; 8];
///     file.read_at(file.stat()?.size.saturating_sub(8), &mut bytes)?;
///     Ok(u64::from_le_bytes(bytes))
/// }
/// ```
pub trait IoFile: Send + Sync {
    /// Fills `buf` from `offset`; fewer bytes only at end of file, and then what is behind them in `buf` may have been
    /// written too (a device reads whole sectors). Blocks the caller.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;

    /// Fills `buf` from `offset` with what the kernel's page cache holds, without waiting for storage: preadv2(2) with
    /// `RWF_NOWAIT`. How many bytes; `None` where the first of them is not resident, the file is direct, or this can't be
    /// asked. What is not there the kernel may begin to read.
    fn read_resident(&self, _offset: u64, _buf: &mut [u8]) -> Option<usize> {
        None
    }

    /// Size, identity and times, as they are now.
    fn stat(&self) -> Result<FileStat, Error>;

    /// How it was opened.
    fn access(&self) -> Access;

    /// The name that it was opened by, for messages.
    fn path(&self) -> &Path;

    /// Its descriptor; `None` on a simulated disk.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Writes all of `buf` at `offset`, and lengthens the file where that ends behind it. Short writes and `EINTR` are gone on
    /// with. On an error ([`Error::Write`]) some of it may be written. Blocks the caller.
    fn write_at(&self, offset: u64, buf: &[u8], _mode: WriteMode) -> Result<(), Error> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        Err(Error::Write { path: self.path().to_path_buf(), range, errno: libc::EOPNOTSUPP })
    }

    /// Makes durable what was written to the file, and its size: fdatasync(2). Not its name: [`crate::Io::sync_dir`]. An error
    /// ([`Error::Sync`]) is final: the kernel takes the pages for clean from then on, and a later sync that succeeds says
    /// nothing of them.
    fn sync_data(&self) -> Result<(), Error> {
        Err(Error::Sync { path: self.path().to_path_buf(), errno: libc::EOPNOTSUPP })
    }

    /// As [`Self::sync_data`], and the times as well: fsync(2).
    fn sync_all(&self) -> Result<(), Error> {
        self.sync_data()
    }

    /// Sees to it that there is room on the device for the range, in bytes: fallocate(2). The file is lengthened to the
    /// range's end, by zeros; what is there already stays. `EOPNOTSUPP` where the file system can't. Durable after a sync.
    fn allocate(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("fallocate", self.path()))
    }

    /// Gives the room of the range, in bytes, back to the file system: fallocate(2) with `FALLOC_FL_PUNCH_HOLE`. It reads as zeros from
    /// then on, and the file stays as long as it is. Blocks that are only in part within the range are written with zeros there. `EOPNOTSUPP` where the file
    /// system can't. Durable after [`Self::sync_all`].
    fn punch(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("fallocate", self.path()))
    }

    /// Cuts or lengthens (by zeros) the file to `len` bytes: ftruncate(2). Durable after a sync.
    fn set_len(&self, _len: u64) -> Result<(), Error> {
        Err(unsupported("ftruncate", self.path()))
    }

    /// Asks for writeback of the range, in bytes, without waiting for it (`sync_file_range(2)` with WRITE; it can take as long
    /// as the queue of the device is full). An end of `u64::MAX` is the end of the file. For files of one's own.
    fn start_writeback(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("sync_file_range", self.path()))
    }

    /// Writes the range back and waits for it (`sync_file_range(2)` with `WAIT_BEFORE | WRITE | WAIT_AFTER`): its pages are clean
    /// then, and can be released. Makes nothing durable: no cache of a device is flushed, no size written. An error is a
    /// sync's ([`Error::Sync`]), and as final: a later sync may not report it again.
    fn wait_writeback(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("sync_file_range", self.path()))
    }

    /// Drops the clean pages of the range from the kernel's cache (`POSIX_FADV_DONTNEED`); of dirty ones it only starts
    /// writeback. Pages wholly in the range, and the last page where the range ends behind it.
    fn release(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("posix_fadvise", self.path()))
    }

    /// The smallest and the largest atomic write ([`WriteMode::Atomic`]) that the file takes, in bytes, both powers of two:
    /// statx(2) with `STATX_WRITE_ATOMIC` (Linux 6.11). `None` where it takes none, is not direct, or the kernel does not
    /// report. It is the kernel's word and no more, and can be far more than the device does by itself:
    /// [`crate::AtomicWrites`] reports which, and tries.
    fn atomic_write_bytes(&self) -> Option<RangeInclusive<u64>> {
        None
    }

    /// Whether a file could be made beside this one, as far as a simulated disk has room; other back-ends try such things.
    fn has_room(&self) -> Result<(), Error> {
        Ok(())
    }

    /// What the kernel's cache holds of the range (`cachestat(2)`, Linux 6.5); `None` where that can't be known.
    fn residency(&self, _range: Range<u64>) -> Result<Option<Resident>, Error> {
        Ok(None)
    }
}

/// What a back-end that only reads says of all else.
pub(crate) fn unsupported(call: &'static str, path: &Path) -> Error {
    Error::Call { call, path: path.to_path_buf(), errno: libc::EOPNOTSUPP }
}

//! An open file, in the common form of all back-ends.

use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::{Error, ResidentBytes, WriteMode};

/// Whether reads and writes bypass the kernel's page cache.
///
/// ```
/// use pagekeeper_io::{Access, Io, Threads};
/// let file = Threads::new().open("/etc/passwd".as_ref(), Access::Buffered)?;
/// assert_eq!(file.access(), Access::Buffered);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// `O_DIRECT`: transfers between the device and the caller's memory; no page becomes resident.
    /// Offset, length and memory must be aligned, usually to 512 bytes. 4096 fits nearly
    /// everywhere; [`crate::DirectSupport`] reports the requirement.
    Direct,
    /// Through the kernel's page cache, at any offset and length.
    Buffered,
}

/// Properties of a file that are known without reading it.
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
    /// Size in bytes.
    pub size: u64,
    /// The device, as `st_dev` encodes it.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// Time of the last change of the content: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// Time of the last change of content or inode: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
}

/// An open file for reading. If [`crate::Io::open_writable`] opened it, also for writing.
///
/// The methods from [`Self::write_at`] on are provided for read-only implementations: they fail
/// with `EOPNOTSUPP`.
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
    /// Fills `buf` from `offset` and blocks the caller. Returns fewer bytes only at end of file;
    /// then the rest of `buf` may have been overwritten as well (a device reads whole sectors).
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;

    /// Fills `buf` from `offset` with resident bytes of the kernel's page cache, without waiting
    /// for storage: preadv2(2) with `RWF_NOWAIT`. Returns the number of bytes. Returns `None` if
    /// the first byte is not resident, the file is direct, or the call is not supported. The kernel
    /// may start to read missing pages.
    fn read_resident(&self, _offset: u64, _buf: &mut [u8]) -> Option<usize> {
        None
    }

    /// Returns the current size, identity and times.
    fn stat(&self) -> Result<FileStat, Error>;

    /// Returns how the file was opened.
    fn access(&self) -> Access;

    /// Returns the name with which the file was opened, for messages.
    fn path(&self) -> &Path;

    /// Returns the descriptor; `None` on a simulated disk.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Writes all of `buf` at `offset`, and extends the file if needed. Retries short writes and
    /// `EINTR`. After an error ([`Error::Write`]) a part may have been written. Blocks the caller.
    fn write_at(&self, offset: u64, buf: &[u8], _mode: WriteMode) -> Result<(), Error> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        Err(Error::Write { path: self.path().to_path_buf(), range, errno: libc::EOPNOTSUPP })
    }

    /// Makes the file's data and size durable: fdatasync(2). Its name needs
    /// [`crate::Io::sync_dir`]. An error ([`Error::Sync`]) is final: the kernel then marks the
    /// pages clean, and a later successful sync says nothing about them.
    fn sync_data(&self) -> Result<(), Error> {
        Err(Error::Sync { path: self.path().to_path_buf(), errno: libc::EOPNOTSUPP })
    }

    /// As [`Self::sync_data`], and also makes the times durable: fsync(2).
    fn sync_all(&self) -> Result<(), Error> {
        self.sync_data()
    }

    /// Allocates space on the device for the range, in bytes: fallocate(2). The file is extended
    /// with zeros to the end of the range; existing data stays. Fails with `EOPNOTSUPP` if the file
    /// system does not support it. Durable after a sync.
    fn allocate(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("fallocate", self.path()))
    }

    /// Frees the space of the range, in bytes: fallocate(2) with `FALLOC_FL_PUNCH_HOLE`. The range
    /// then reads as zeros; the size of the file does not change. In blocks that are only partly in
    /// the range, zeros are written. Fails with `EOPNOTSUPP` if the file system does not support
    /// it. Durable after [`Self::sync_all`].
    fn punch(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("fallocate", self.path()))
    }

    /// Truncates the file to `len` bytes, or extends it with zeros: ftruncate(2). Durable after a
    /// sync.
    fn set_len(&self, _len: u64) -> Result<(), Error> {
        Err(unsupported("ftruncate", self.path()))
    }

    /// Starts writeback of the range, in bytes, without waiting for it (`sync_file_range(2)` with
    /// WRITE). The call blocks while the device's queue is full. An end of `u64::MAX` means the end
    /// of the file. Only for the caller's own files.
    fn start_writeback(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("sync_file_range", self.path()))
    }

    /// Writes the range back and waits for it (`sync_file_range(2)` with
    /// `WAIT_BEFORE | WRITE | WAIT_AFTER`). Afterwards its pages are clean and can be released.
    /// Nothing becomes durable: neither the device's cache is flushed nor the size written. An
    /// error ([`Error::Sync`]) is as final as a sync's, and a later sync may not report it again.
    fn wait_writeback(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("sync_file_range", self.path()))
    }

    /// Drops the clean pages of the range from the kernel's cache (`POSIX_FADV_DONTNEED`). For
    /// dirty pages it only starts writeback. It covers pages entirely in the range, and the last
    /// page if the range ends behind it.
    fn release(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(unsupported("posix_fadvise", self.path()))
    }

    /// Returns the smallest and the largest atomic write ([`WriteMode::Atomic`]) that the file
    /// accepts, in bytes, both powers of two: statx(2) with `STATX_WRITE_ATOMIC` (Linux 6.11).
    /// Returns `None` if the file accepts none, is not direct, or the kernel does not report it.
    /// The reported limit can be far more than the device does by itself, and is not tested:
    /// [`crate::AtomicWrites`] does that.
    fn atomic_write_bytes(&self) -> Option<RangeInclusive<u64>> {
        None
    }

    /// Checks whether a simulated disk has space for another file. Other back-ends always succeed.
    fn has_room(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the resident bytes of the range (`cachestat(2)`, Linux 6.5); `None` if unknown.
    fn residency(&self, _range: Range<u64>) -> Result<Option<ResidentBytes>, Error> {
        Ok(None)
    }
}

/// Returns the error of back-ends that only read for all other operations.
pub(crate) fn unsupported(call: &'static str, path: &Path) -> Error {
    Error::Call { call, path: path.to_path_buf(), errno: libc::EOPNOTSUPP }
}

//! Modes of opening files for writing and of writes, and the state of written pages.

/// Whether a file that is opened for writing exists.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io};
/// use pagekeeper_simdisk::SimDisk;
/// let disk = SimDisk::new();
/// let path = "/log".as_ref();
/// assert!(disk.open_writable(path, Access::Buffered, Create::Never).is_err());
/// disk.open_writable(path, Access::Buffered, Create::New)?;
/// let again = disk.open_writable(path, Access::Buffered, Create::New);
/// assert_eq!(again.err().unwrap().errno(), Some(libc::EEXIST));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Create {
    /// It exists.
    Never,
    /// It does not exist and is created (`O_EXCL`). Its name is durable only after
    /// [`crate::Io::sync_dir`].
    New,
}

/// The mode of a write.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, WriteMode};
/// use pagekeeper_simdisk::SimDisk;
/// let disk = SimDisk::new();
/// let file = disk.open_writable("/log".as_ref(), Access::Buffered, Create::New)?;
/// file.write_at(0, b"first", WriteMode::Durable)?;
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WriteMode {
    /// As the file's access determines.
    #[default]
    Plain,
    /// Writeback starts at once, and the pages are dropped as soon as they are written
    /// (`RWF_DONTCACHE`, Linux 6.14). Fails with `EOPNOTSUPP` if the kernel or the file system does
    /// not support it (btrfs, tmpfs). Pages that were resident before stay; ext4 keeps those of all
    /// overwritten extents (Linux 6.18). For buffered files: a direct write has no pages.
    Uncached,
    /// Returns when the bytes are durable (`RWF_DSYNC`): like the write and fdatasync(2), in one
    /// request if the device can write through its cache. An error may also be one of the sync.
    Durable,
    /// After a crash or a power cut, the write is there completely or not at all (`RWF_ATOMIC`,
    /// Linux 6.11; pwritev2(2)). It is not durable by itself: a sync makes it durable. For direct
    /// files. The length is a power of two that [`crate::IoFile::atomic_write_bytes`] allows, and
    /// the offset a multiple of it.
    ///
    /// Fails without writing anything:
    ///
    /// * with `EOPNOTSUPP` if the kernel or the file does not support such writes, or the file is
    ///   not direct;
    /// * with [`crate::Error::Unaligned`] if the length is not a power of two or the offset not a
    ///   multiple of it;
    /// * with `EINVAL` if the length is too short or too long.
    Atomic,
}

/// The residency of a range of a file, in bytes of whole pages.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, WriteMode};
/// use pagekeeper_simdisk::SimDisk;
/// let disk = SimDisk::new();
/// let file = disk.open_writable("/log".as_ref(), Access::Buffered, Create::New)?;
/// file.write_at(0, &[1; 8192], WriteMode::Plain)?;
/// assert_eq!(file.residency(0..4096)?.map(|found| (found.resident, found.unwritten)), Some((4096, 4096)));
/// file.sync_data()?;
/// file.release(0..8192)?;
/// assert_eq!(file.residency(0..8192)?.map(|found| found.resident), Some(0));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ResidentBytes {
    /// Bytes in the page cache.
    pub resident: u64,
    /// The part of those that is dirty or under writeback.
    pub unwritten: u64,
}

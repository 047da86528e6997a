//! How files are opened for writing and written, and the state of written pages.

/// How a file comes to be when it is opened for writing.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, SimDisk};
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
    /// It is there already.
    Never,
    /// It is not there yet (`O_EXCL`). Its name is durable only after [`crate::Io::sync_dir`].
    New,
}

/// What a write does besides writing.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, SimDisk, WriteMode};
/// let disk = SimDisk::new();
/// let file = disk.open_writable("/log".as_ref(), Access::Buffered, Create::New)?;
/// file.write_at(0, b"first", WriteMode::Durable)?;
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WriteMode {
    /// As the file's access says.
    #[default]
    Plain,
    /// Pages are dropped as soon as they are written (`RWF_DONTCACHE`, Linux 6.14), which is started at once. Fails with
    /// `EOPNOTSUPP` where the kernel or the file system has no such thing (btrfs, tmpfs). Pages that are resident already
    /// stay; ext4 keeps those of all overwritten extents (Linux 6.18). For buffered files: a direct write has no pages.
    Uncached,
    /// Returns when the bytes are durable (`RWF_DSYNC`): as the write and fdatasync(2), in one request where the device can
    /// write through its cache. An error may be the sync's as well.
    Durable,
    /// After a crash, a power cut included, all of the write is there or nothing of it (`RWF_ATOMIC`, Linux 6.11). It is not
    /// durable by itself: a sync makes it so. For direct files; as many bytes as [`crate::IoFile::atomic_write_bytes`] allows, a
    /// power of two, at a multiple of that: pwritev2(2).
    ///
    /// Fails, with nothing written, with `EOPNOTSUPP` where the kernel or the file takes no such writes or the file is not
    /// direct, with [`crate::Error::Unaligned`] where the length is no power of two or the offset no multiple of it, and with
    /// `EINVAL` where it is too short or too long.
    Atomic,
}

/// What the kernel's page cache holds of a range of a file, in bytes of whole pages.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, SimDisk, WriteMode};
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
pub struct Resident {
    /// In the page cache.
    pub resident: u64,
    /// The part of it that is dirty or under writeback.
    pub unwritten: u64,
}

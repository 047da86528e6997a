//! The traits that all back-ends implement, and their requests.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::{Create, Error, Lock, OwnedWrite, ReadStream, Resident, Target, WriteMode};

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

/// One read of a batch: one file, one place, scattered over one or more buffers in turn.
///
/// ```
/// use std::io::IoSliceMut;
/// use pagekeeper_io::{Access, BatchRead, Io, SimDisk};
///
/// let disk = SimDisk::new();
/// disk.create("/file", (0..100).collect::<Vec<u8>>())?;
/// let file = disk.open("/file".as_ref(), Access::Buffered)?;
/// let (mut head, mut tail) = ([0; 4], [0; 16]);
/// let (front, back) = head.split_at_mut(1);
/// let mut reads = [
///     BatchRead { file: &*file, offset: 10, bufs: vec![IoSliceMut::new(back), IoSliceMut::new(front)] },
///     BatchRead { file: &*file, offset: 90, bufs: vec![IoSliceMut::new(&mut tail)] },
/// ];
/// let mut counts = [0; 2];
/// disk.read_batch(&mut reads, &mut |index, result| counts[index] = result.unwrap());
/// assert_eq!(counts, [4, 10]); // the file ends at 100
/// assert_eq!(head, [13, 10, 11, 12]);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub struct BatchRead<'a> {
    /// The file.
    pub file: &'a dyn IoFile,
    /// The first byte to read.
    pub offset: u64,
    /// Where the bytes go, the first buffer first. Neighbouring pages with frames far apart are one read.
    pub bufs: Vec<IoSliceMut<'a>>,
}

/// One read in the background: it owns what it needs until its `done` has been called.
///
/// ```
/// use std::{ptr::NonNull, sync::mpsc};
/// use pagekeeper_io::{Access, Io, OwnedRead, Target, Threads};
///
/// let io = Threads::new();
/// let file = io.open("/etc/passwd".as_ref(), Access::Buffered)?;
/// let frame: &'static mut [u8] = vec![0; 64].leak();
/// let start = NonNull::from(&mut *frame).cast();
/// let (sender, ended) = mpsc::channel();
/// io.submit(vec![OwnedRead {
///     file,
///     offset: 0,
///     // SAFETY: leaked, and no one's until `done` passes it on.
///     targets: vec![unsafe { Target::new(start, 64) }],
///     done: Box::new(move |result| sender.send((result, frame)).unwrap()),
/// }]);
/// let (result, frame) = ended.recv().unwrap();
/// assert!(frame[..result?].contains(&b':'));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub struct OwnedRead {
    /// The file.
    pub file: Arc<dyn IoFile>,
    /// The first byte to read.
    pub offset: u64,
    /// Where the bytes go, the first target first.
    pub targets: Vec<Target>,
    /// Called once, from any thread, when the targets are filled or the read failed: with the number of bytes, fewer
    /// than the targets hold only at end of file. It should be short: other reads' completions wait behind it. A panic
    /// in it is reported by the panic hook and goes no further.
    pub done: Box<dyn FnOnce(Result<usize, Error>) + Send>,
}

/// An open file: to read from, and where it was opened by [`Io::open_writable`] to write to.
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

    /// Makes durable what was written to the file, and its size: fdatasync(2). Not its name: [`Io::sync_dir`]. An error
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

    /// What the kernel's cache holds of the range (`cachestat(2)`, Linux 6.5); `None` where that can't be known.
    fn residency(&self, _range: Range<u64>) -> Result<Option<Resident>, Error> {
        Ok(None)
    }
}

/// What a back-end that only reads says of all else.
fn unsupported(call: &'static str, path: &Path) -> Error {
    Error::Call { call, path: path.to_path_buf(), errno: libc::EOPNOTSUPP }
}

/// A way to read and write files.
///
/// The methods from [`Self::open_writable`] on are provided for back-ends that only read: they fail with `EOPNOTSUPP`.
///
/// Implementations may be shared by any number of threads. Dropping the last handle never waits: what was submitted is
/// still done, and its `done` called.
///
/// ```
/// use std::path::Path;
/// use pagekeeper_io::{Access, Error, Io, SimDisk, Threads};
///
/// /// Code that reads takes whatever disk it is given: a real one, or in tests a simulated one.
/// fn magic(io: &dyn Io, path: &Path) -> Result<[u8; 4], Error> {
///     let mut bytes = [0; 4];
///     io.open(path, Access::Buffered)?.read_at(0, &mut bytes)?;
///     Ok(bytes)
/// }
/// assert_eq!(magic(&Threads::new(), "/proc/self/exe".as_ref())?, *b"\x7fELF");
/// let disk = SimDisk::new();
/// disk.create("/table", *b"SST1...")?;
/// assert_eq!(magic(&disk, "/table".as_ref())?, *b"SST1");
/// # Ok::<(), Error>(())
/// ```
pub trait Io: Send + Sync + 'static {
    /// Opens a regular file for reading. Anything else is [`Error::NotARegularFile`], at once, also a FIFO.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn IoFile>, Error>;

    /// Takes over a file that is open for reading.
    ///
    /// Where it is direct and should not be, or should be and is not, it is opened anew through `/proc/self/fd`: its flags
    /// may be shared with other descriptors, and `fcntl(F_SETFL)` would change them for all. That takes the permission to
    /// read the file, and `/proc`; without them one that should be direct is read as it is, buffered, and says so
    /// ([`IoFile::access`]).
    fn adopt(&self, file: File, access: Access) -> Result<Arc<dyn IoFile>, Error>;

    /// Reads all at once, wide, and waits for all. Calls `completed(index, result)` on this thread as each read ends, in
    /// any order, once for each read.
    ///
    /// When `completed` panics, the reads in flight are waited for, the others are not begun, and the panic goes on.
    fn read_batch(&self, reads: &mut [BatchRead<'_>], completed: &mut dyn FnMut(usize, Result<usize, Error>));

    /// Reads what the stream asks for, one after another, with as many in flight as the back-end serves at once, until the
    /// stream has no more and all have ended.
    ///
    /// When the stream panics, the reads in flight are waited for, no others are begun, and the panic goes on.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use pagekeeper_io::{Access, Error, Io, IoFile, ReadStream, SimDisk, StreamRead, Target};
    ///
    /// /// The first byte of each page.
    /// struct Heads<'a> { file: &'a dyn IoFile, next: usize, pages: Vec<[u8; 512]>, heads: Vec<u8> }
    /// impl<'a> ReadStream<'a> for Heads<'a> {
    ///     fn next(&mut self) -> Option<StreamRead<'a>> {
    ///         let page = self.pages.get_mut(self.next)?;
    ///         // SAFETY: the page is not touched before `ended`, and the list of pages not changed.
    ///         let target = unsafe { Target::new(NonNull::from(page).cast(), 512) };
    ///         self.next += 1;
    ///         let offset = (self.next as u64 - 1) * 4096;
    ///         Some(StreamRead { file: self.file, offset, targets: vec![target], token: self.next - 1 })
    ///     }
    ///     fn ended(&mut self, token: usize, result: Result<usize, Error>) {
    ///         assert_eq!(result, Ok(512));
    ///         self.heads.push(self.pages[token][0]);
    ///     }
    /// }
    /// let disk = SimDisk::new();
    /// disk.create("/pages", vec![7; 8 * 4096])?;
    /// let file = disk.open("/pages".as_ref(), Access::Buffered)?;
    /// let mut heads = Heads { file: &*file, next: 0, pages: vec![[0; 512]; 8], heads: Vec::new() };
    /// disk.read_stream(&mut heads);
    /// assert_eq!(heads.heads, [7; 8]);
    /// # Ok::<(), Error>(())
    /// ```
    fn read_stream(&self, stream: &mut dyn ReadStream<'_>) {
        crate::stream::in_batches(self, stream);
    }

    /// Starts reads and returns without waiting for any; each read's `done` is called once, from any thread.
    fn submit(&self, reads: Vec<OwnedRead>);

    /// What it is, for messages: "`io_uring`", "threads", "simulated disk".
    fn name(&self) -> &'static str;

    /// Opens a regular file for reading and writing. A new one is readable by its group and writable by its owner (mode
    /// 0640 less the umask). Neither its name ([`Self::sync_dir`]) nor anything written is durable before a sync.
    fn open_writable(&self, path: &Path, _access: Access, _create: Create) -> Result<Arc<dyn IoFile>, Error> {
        Err(unsupported("open", path))
    }

    /// Takes a file's name away; who has it open keeps it. Durable after [`Self::sync_dir`], as all that follows.
    fn remove(&self, path: &Path) -> Result<(), Error> {
        Err(unsupported("unlink", path))
    }

    /// Gives a file another name on the same file system, in the place of whatever file had that: at once, or after a crash
    /// not at all. An error names `from`.
    fn rename(&self, from: &Path, _to: &Path) -> Result<(), Error> {
        Err(unsupported("rename", from))
    }

    /// Makes a directory (mode 0750 less the umask). `EEXIST` where the name is taken.
    fn create_dir(&self, path: &Path) -> Result<(), Error> {
        Err(unsupported("mkdir", path))
    }

    /// The names in a directory, sorted by their bytes; not `.` and `..`.
    fn list(&self, dir: &Path) -> Result<Vec<OsString>, Error> {
        Err(unsupported("readdir", dir))
    }

    /// Makes durable what names were given and taken in the directory: fsync(2) of it. Fails with [`Error::Sync`], finally.
    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        Err(unsupported("fsync", dir))
    }

    /// Takes an exclusive lock (flock(2)) on a file, which is made if it is missing and stays when the lock goes.
    /// [`Error::Locked`] at once if another has it, also within this process.
    fn lock(&self, path: &Path) -> Result<Lock, Error> {
        Err(unsupported("flock", path))
    }

    /// Starts writes and returns without waiting for any; each write's `done` is called once, from any thread. They are done
    /// in any order.
    fn submit_writes(&self, writes: Vec<OwnedWrite>) {
        for write in writes {
            let path = write.file.path().to_path_buf();
            let error = Error::Write { path, range: write.range(), errno: libc::EOPNOTSUPP };
            write.finish(Err(error));
        }
    }
}

impl OwnedRead {
    /// Reports the result. A panic of `done` goes no further than the panic hook: it must not end the thread that other
    /// reads depend on.
    pub(crate) fn finish(self, result: Result<usize, Error>) {
        let Self { file, done, .. } = self;
        let _ = catch_unwind(AssertUnwindSafe(|| {
            done(result);
            drop(file);
        }));
    }
}

impl fmt::Debug for BatchRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchRead")
            .field("file", &self.file.path())
            .field("offset", &self.offset)
            .field("lengths", &self.bufs.iter().map(|buf| buf.len()).collect::<Vec<_>>())
            .finish()
    }
}

impl fmt::Debug for OwnedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRead")
            .field("file", &self.file.path())
            .field("offset", &self.offset)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

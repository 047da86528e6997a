//! The trait that all back-ends implement.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::file::unsupported;
use crate::{Access, BatchRead, Create, Error, FileLock, IoFile, OwnedRead, OwnedWrite, ReadStream};

/// A way to read and write files.
///
/// The methods from [`Self::open_writable`] on are provided for read-only back-ends: they fail with
/// `EOPNOTSUPP`.
///
/// Implementations may be shared by any number of threads. Dropping the last handle never waits:
/// submitted requests are still completed, and their `done` is called.
///
/// ```
/// use std::path::Path;
/// use pagekeeper_io::{Access, Error, Io, Threads};
/// use pagekeeper_simdisk::SimDisk;
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
    /// Opens a regular file for reading. Any other kind of file, even a FIFO, fails at once with
    /// [`Error::NotARegularFile`].
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn IoFile>, Error>;

    /// Takes over a file that is open for reading.
    ///
    /// If the file's `O_DIRECT` flag does not fit `access`, the file is opened again through
    /// `/proc/self/fd`: its flags may be shared with other descriptors, and `fcntl(F_SETFL)` would
    /// change them for all. This needs `/proc` and permission to read the file. Without them, a
    /// file that should be direct stays buffered, and [`IoFile::access`] reports that.
    fn adopt(&self, file: File, access: Access) -> Result<Arc<dyn IoFile>, Error>;

    /// Reads all at once, in parallel, and waits for all. Calls `completed(index, result)` on this
    /// thread as each read ends, in any order, once per read.
    ///
    /// If `completed` panics, the reads in flight are waited for, the others are not started, and
    /// the panic continues.
    fn read_batch(&self, reads: &mut [BatchRead<'_>], completed: &mut dyn FnMut(usize, Result<usize, Error>));

    /// Reads what the stream asks for, with as many reads in flight as the back-end serves at once.
    /// Returns when the stream has no more reads and all have ended.
    ///
    /// If the stream panics, the reads in flight are waited for, no others are started, and the
    /// panic continues.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use pagekeeper_io::{Access, Error, Io, IoFile, ReadStream, StreamRead, ReadTarget};
    /// use pagekeeper_simdisk::SimDisk;
    ///
    /// /// The first byte of each page.
    /// struct Heads<'a> { file: &'a dyn IoFile, next: usize, pages: Vec<[u8; 512]>, heads: Vec<u8> }
    /// impl<'a> ReadStream<'a> for Heads<'a> {
    ///     fn next(&mut self) -> Option<StreamRead<'a>> {
    ///         let page = self.pages.get_mut(self.next)?;
    ///         // SAFETY: the page is not touched before `ended`, and the list of pages not changed.
    ///         let target = unsafe { ReadTarget::new(NonNull::from(page).cast(), 512) };
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
        crate::transfers::stream::read_in_batches(
            |reads, completed| self.read_batch(reads, completed),
            stream,
        );
    }

    /// Starts reads and returns without waiting for any; each read's `done` is called once, from
    /// any thread.
    fn submit(&self, reads: Vec<OwnedRead>);

    /// Returns the name of the back-end, for messages: "`io_uring`", "threads", "simulated disk".
    fn name(&self) -> &'static str;

    /// Opens a regular file for reading and writing. A new file has mode 0640 minus the umask.
    /// Neither its name ([`Self::sync_dir`]) nor any written data is durable before a sync.
    fn open_writable(&self, path: &Path, _access: Access, _create: Create) -> Result<Arc<dyn IoFile>, Error> {
        Err(unsupported("open", path))
    }

    /// Removes a file's name; whoever has the file open keeps it. Durable after [`Self::sync_dir`],
    /// as are all methods that follow.
    fn remove(&self, path: &Path) -> Result<(), Error> {
        Err(unsupported("unlink", path))
    }

    /// Renames a file within one file system and replaces any file at the new name. The change is
    /// atomic, also across a crash. An error names `from`.
    fn rename(&self, from: &Path, _to: &Path) -> Result<(), Error> {
        Err(unsupported("rename", from))
    }

    /// Exchanges the names of two files within one directory, which takes no space. The change is
    /// atomic, also across a crash. An error names `one`; where a file system has no such call it
    /// is `EINVAL` or the like.
    fn exchange(&self, one: &Path, _other: &Path) -> Result<(), Error> {
        Err(unsupported("rename", one))
    }

    /// Creates a directory (mode 0750 minus the umask). Fails with `EEXIST` if the name is taken.
    fn create_dir(&self, path: &Path) -> Result<(), Error> {
        Err(unsupported("mkdir", path))
    }

    /// Removes an empty directory. Fails with `ENOTEMPTY` if it is not empty, and with `ENOTDIR`
    /// for anything else, even a link to a directory.
    fn remove_dir(&self, path: &Path) -> Result<(), Error> {
        Err(unsupported("rmdir", path))
    }

    /// Returns the names in a directory, sorted by their bytes, without `.` and `..`.
    fn list(&self, dir: &Path) -> Result<Vec<OsString>, Error> {
        Err(unsupported("readdir", dir))
    }

    /// Makes all changes of names in the directory durable: fsync(2) of the directory. An error
    /// ([`Error::Sync`]) is final.
    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        Err(unsupported("fsync", dir))
    }

    /// Takes an exclusive lock (flock(2)) on a file. The file is created if it is missing, and
    /// stays when the lock is released. Fails at once with [`Error::Locked`] if the lock is taken,
    /// even by this process.
    fn lock(&self, path: &Path) -> Result<FileLock, Error> {
        Err(unsupported("flock", path))
    }

    /// Takes a shared lock (flock(2)) on a file, together with others that only read; `None` if
    /// there is no such file. Writes nothing, so it also works on a read-only file system. Fails at
    /// once with [`Error::Locked`] if another has an exclusive lock.
    fn lock_shared(&self, path: &Path) -> Result<Option<FileLock>, Error> {
        Err(unsupported("flock", path))
    }

    /// Starts writes and returns without waiting for any. Each write's `done` is called once, from
    /// any thread. The writes take place in any order.
    fn submit_writes(&self, writes: Vec<OwnedWrite>) {
        for write in writes {
            let path = write.file.path().to_path_buf();
            let error = Error::Write { path, range: write.range(), errno: libc::EOPNOTSUPP };
            write.finish(Err(error));
        }
    }
}

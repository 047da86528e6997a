//! The trait that all back-ends implement.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::file::unsupported;
use crate::{Access, BatchRead, Create, Error, IoFile, Lock, OwnedRead, OwnedWrite, ReadStream};

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
        crate::stream::in_batches(|reads, completed| self.read_batch(reads, completed), stream);
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

    /// Takes a directory away that is empty. `ENOTEMPTY` where it is not, `ENOTDIR` for all else, links to directories among it.
    fn remove_dir(&self, path: &Path) -> Result<(), Error> {
        Err(unsupported("rmdir", path))
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

    /// Shares a lock (flock(2)) on a file that is there, with others that only read; `None` where there is no such file. Writes
    /// nothing, so that it works on a read-only file system, too. [`Error::Locked`] at once if another has it for itself.
    fn lock_shared(&self, path: &Path) -> Result<Option<Lock>, Error> {
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

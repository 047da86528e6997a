//! Reads and writes by a pool of threads, each in a blocking preadv(2) or pwrite(2), for kernels
//! without `io_uring`.
//!
//! A thread starts when there is work and no thread is idle, up to a limit. The threads end when
//! the [`Threads`] is dropped and all work is done. A batch is spread over the pool. Its caller
//! helps, so it also completes if no thread can be started.

mod batch;
mod pool;

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use pool::{PoolJob, ThreadPool};

use crate::files::directory;
use crate::files::open::DiskFile;
use crate::transfers::job::IoRequest;
use crate::transfers::pread;
use crate::{Access, BatchRead, Create, Error, FileLock, Io, IoFile, OwnedRead, OwnedWrite};

/// The default number of threads.
const DEFAULT_THREADS: usize = 32;
const THREADS_MAX: usize = 1024;

/// Reads and writes by a pool of threads.
///
/// ```
/// use pagekeeper_io::{Access, Io, Threads};
///
/// let io = Threads::new();
/// let file = io.open("/etc/passwd".as_ref(), Access::Buffered)?;
/// let mut buf = [0; 64];
/// assert!(file.read_at(0, &mut buf)? > 0);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug)]
pub struct Threads {
    pool: ThreadPool,
}

impl Threads {
    /// Creates a back-end with up to 32 threads, each started when there is work for it.
    pub fn new() -> Self {
        Self::with_threads(DEFAULT_THREADS)
    }

    /// Creates a back-end with up to `threads` threads, clamped to 1 to 1024.
    pub fn with_threads(threads: usize) -> Self {
        Self { pool: ThreadPool::new(threads.clamp(1, THREADS_MAX)) }
    }

    /// Starts background requests.
    pub(crate) fn request(&self, requests: Vec<IoRequest>) {
        for job in self.pool.add(requests.into_iter().map(PoolJob::Request).collect()) {
            job.refuse(self.pool.refusal());
        }
    }
}

impl Default for Threads {
    fn default() -> Self {
        Self::new()
    }
}

impl Io for Threads {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        DiskFile::open(path, access)
    }

    fn adopt(&self, file: File, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        DiskFile::adopt(file, access)
    }

    fn read_batch(
        &self,
        reads: &mut [BatchRead<'_>],
        completed: &mut dyn FnMut(usize, Result<usize, Error>),
    ) {
        match reads {
            [] => {}
            [read] => completed(0, pread::read_alone(read)),
            reads => batch::run(&self.pool, reads, completed),
        }
    }

    fn submit(&self, reads: Vec<OwnedRead>) {
        self.request(reads.into_iter().map(IoRequest::from).collect());
    }

    fn submit_writes(&self, writes: Vec<OwnedWrite>) {
        self.request(writes.into_iter().map(IoRequest::from).collect());
    }

    fn name(&self) -> &'static str {
        "threads"
    }

    fn open_writable(&self, path: &Path, access: Access, create: Create) -> Result<Arc<dyn IoFile>, Error> {
        DiskFile::open_writable(path, access, create)
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        directory::remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        directory::rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> Result<(), Error> {
        directory::exchange(one, other)
    }

    fn create_dir(&self, path: &Path) -> Result<(), Error> {
        directory::create(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<(), Error> {
        directory::remove_directory(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, Error> {
        directory::list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        directory::sync(dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock, Error> {
        directory::lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<FileLock>, Error> {
        directory::lock_shared(path)
    }
}

//! Reads by a pool of threads, each in a blocking preadv(2): where there is no `io_uring`.
//!
//! The threads start when there is work for them and none is idle, up to a bound, and end when the [`Threads`] is gone
//! and all work is done. A batch is spread over the pool, and its caller helps: it ends also when no thread can be had.

mod batch;
mod pool;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use pool::{Job, Pool};

use crate::open::DiskFile;
use crate::{Access, BatchRead, Error, Io, IoFile, OwnedRead, pread};

/// Threads, if nothing else is said.
const THREADS: usize = 32;
const THREADS_MAX: usize = 1024;

/// Reads by a pool of threads.
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
    pool: Pool,
}

impl Threads {
    /// With up to 32 threads, none of which is started before there is work for it.
    pub fn new() -> Self {
        Self::with_threads(THREADS)
    }

    /// With up to `threads` threads: 1 to 1024, taken to the nearest of these.
    pub fn with_threads(threads: usize) -> Self {
        Self { pool: Pool::new(threads.clamp(1, THREADS_MAX)) }
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
        let jobs = reads.into_iter().map(Job::Read).collect();
        for job in self.pool.add(jobs) {
            job.refused();
        }
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

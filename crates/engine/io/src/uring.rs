//! Reads and writes through `io_uring`: many in flight from one thread.
//!
//! A batch runs on its own ring, taken from a pool: the calling thread itself submits reads and
//! reaps completions. Background reads and writes go through one more ring, served by its own
//! thread. Single blocking reads and writes are plain pread(2) and pwrite(2), and all other
//! operations plain system calls.
//!
//! In a child of fork(2), reads and writes bypass the rings, which are its parent's, and background
//! reads fail ([`Process`]).
//!
//! [`Uring::new`] tests by reading, and fails if `io_uring` is missing, forbidden or does not work.

mod background;
mod batch;
mod ring;
mod ring_transfers;
mod stream;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use pagekeeper_kernel::mutex::lock;

use background::BackgroundRing;
use ring::Ring;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::files::directory;
use crate::files::open::DiskFile;
use crate::transfers::job::IoRequest;
use crate::transfers::pread;
use crate::{
    Access, BatchRead, Create, Error, FileLock, Io, IoFile, OwnedRead, OwnedWrite, Process, ReadStream,
};

/// The default number of reads in flight per ring.
const DEFAULT_DEPTH: u32 = 128;
/// Maximum depth of a ring, to limit its memory; the kernel allows 32768 (`IORING_MAX_ENTRIES`).
const DEPTH_MAX: u32 = 4096;
/// Rings kept for later batches: more than the threads that run at once on most machines.
const IDLE_RINGS_MAX: usize = 64;

/// Reads and writes through `io_uring`.
///
/// ```
/// use pagekeeper_io::{Access, Io, Threads, Uring};
/// use std::sync::Arc;
///
/// let io: Arc<dyn Io> = match Uring::new() {
///     Ok(uring) => Arc::new(uring),
///     Err(why) => {
///         eprintln!("{why}");
///         Arc::new(Threads::new())
///     }
/// };
/// let file = io.open("/etc/passwd".as_ref(), Access::Buffered)?;
/// let mut buf = [0; 64];
/// assert!(file.read_at(0, &mut buf)? > 0);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug)]
pub struct Uring {
    depth: u32,
    idle: Mutex<Vec<Ring>>,
    background: BackgroundRing,
    process: Process,
}

impl Uring {
    /// Creates a back-end with up to 128 reads in flight in each batch, and as many in the
    /// background.
    ///
    /// Fails with [`Error::Unavailable`] if the kernel lacks `io_uring` or forbids it (the sysctl
    /// `kernel.io_uring_disabled`, seccomp in containers), or if reading through it does not work.
    pub fn new() -> Result<Self, Error> {
        Self::with_depth(DEFAULT_DEPTH)
    }

    /// Creates a back-end with up to `depth` reads in flight in each batch, and as many in the
    /// background, clamped to 1 to 4096.
    pub fn with_depth(depth: u32) -> Result<Self, Error> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let mut ring = Ring::new(depth)?;
        probe(&mut ring)?;
        let process = Process::current();
        Ok(Self { depth, idle: Mutex::new(vec![ring]), background: BackgroundRing::new(depth), process })
    }

    /// Returns the number of reads in flight in each batch.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    fn check_out(&self) -> Result<Ring, Error> {
        self.process.require()?;
        let idle = lock(&self.idle).pop();
        idle.map_or_else(|| Ring::new(self.depth), Ok)
    }

    fn check_in(&self, ring: Ring) {
        if ring.broken().is_some() || ring.in_flight() > 0 {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_RINGS_MAX {
            idle.push(ring);
        } else {
            drop(idle);
            drop(ring);
        }
    }
}

impl Io for Uring {
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
        if let [read] = reads {
            // A single read is not worth a ring.
            return completed(0, pread::read_alone(read));
        }
        match self.check_out() {
            Ok(ring) => {
                // Returned even if `completed` panics: `batch::run` leaves the ring empty.
                let mut lease = RingLease { uring: self, ring: Some(ring) };
                if let Some(ring) = &mut lease.ring {
                    batch::run(ring, reads, completed);
                }
            }
            // No ring is available now, for lack of memory or descriptors, or in a forked child.
            Err(_) => self.background.threads().read_batch(reads, completed),
        }
    }

    fn read_stream(&self, stream: &mut dyn ReadStream<'_>) {
        match self.check_out() {
            Ok(ring) => {
                // As in `read_batch`.
                let mut lease = RingLease { uring: self, ring: Some(ring) };
                if let Some(ring) = &mut lease.ring {
                    stream::run(ring, stream);
                }
            }
            Err(_) => self.background.threads().read_stream(stream),
        }
    }

    fn submit(&self, reads: Vec<OwnedRead>) {
        self.background.submit(reads.into_iter().map(IoRequest::from).collect());
    }

    fn submit_writes(&self, writes: Vec<OwnedWrite>) {
        self.background.submit(writes.into_iter().map(IoRequest::from).collect());
    }

    fn name(&self) -> &'static str {
        "io_uring"
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

/// A borrowed ring.
struct RingLease<'u> {
    uring: &'u Uring,
    ring: Option<Ring>,
}

impl Drop for RingLease<'_> {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.uring.check_in(ring);
        }
    }
}

/// Tests whether reads through the ring work: set-up alone can succeed where operations are
/// refused.
fn probe(ring: &mut Ring) -> Result<(), Error> {
    const PROBE_BYTES: [u8; 8] = *b"io_uring";
    let unavailable = |call, errno| Error::Unavailable { what: "io_uring", call, errno };
    let file = memfd_create("pagekeeper-probe", MemfdFlags::CLOEXEC)
        .map_err(|errno| unavailable("memfd_create", errno.raw_os_error()))?;
    let mut file = File::from(file);
    file.write_all(&PROBE_BYTES).map_err(|e| unavailable("write", e.raw_os_error().unwrap_or(libc::EIO)))?;
    let file = DiskFile::adopt(file, Access::Buffered)?;
    let mut bytes = [0; PROBE_BYTES.len()];
    let mut result = Ok(0);
    let mut reads = [BatchRead { file: &*file, offset: 0, bufs: vec![IoSliceMut::new(&mut bytes)] }];
    batch::run(ring, &mut reads, &mut |_, got| result = got);
    match result {
        Err(error) => Err(unavailable("IORING_OP_READ", error.errno().unwrap_or(libc::EIO))),
        Ok(_) if bytes != PROBE_BYTES => Err(unavailable("IORING_OP_READ", libc::EIO)),
        Ok(_) => Ok(()),
    }
}

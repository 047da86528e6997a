//! A simulated disk on virtual time: deterministic, with faults on demand, for tests.
//!
//! No clock is read and no time passes: a read returns as soon as the disk's own clock has been put forward to when it
//! would have ended. One thread's reads repeat exactly. With several threads each request gets its time when it comes;
//! contents and faults repeat all the same.

mod content;
mod faults;
mod hold;
mod request;
mod schedule;
mod state;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use content::pattern;
pub use faults::{Fault, RandomFaults, Times};
pub use hold::Hold;

use content::Content;
use request::{Handle, Shared};

use crate::{Access, BatchRead, Error, FileStat, Io, IoFile, OwnedRead};

/// A simulated disk: files in memory or computed, latency and width on virtual time, faults.
///
/// A handle; clones are the same disk. Usable from any number of threads.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_io::{Access, BatchRead, Fault, Io, SimDisk, Times};
/// use std::io::IoSliceMut;
///
/// let disk = SimDisk::builder().latency(Duration::from_micros(100)).width(4).seed(7).build();
/// disk.create_patterned("/big", 1 << 40, 42)?; // a TiB that takes no memory
/// let file = disk.open("/big".as_ref(), Access::Buffered)?;
///
/// // Eight reads, four at a time.
/// let mut pages = vec![[0_u8; 4096]; 8];
/// let mut reads: Vec<_> = (0..)
///     .zip(&mut pages)
///     .map(|(n, page)| BatchRead { file: &*file, offset: n << 30, bufs: vec![IoSliceMut::new(page)] })
///     .collect();
/// disk.read_batch(&mut reads, &mut |_, result| assert_eq!(result, Ok(4096)));
/// assert_eq!(disk.now(), Duration::from_micros(200));
/// assert_eq!(disk.stats().peak_width, 4);
///
/// let mut expected = [0; 4096];
/// pagekeeper_io::pattern(42, 3 << 30, &mut expected);
/// assert_eq!(pages[3], expected);
///
/// disk.inject("/big", 0..4096, Fault::EIO, Times::Once)?;
/// assert!(file.read_at(0, &mut pages[0]).is_err());
/// assert_eq!(file.read_at(0, &mut pages[0])?, 4096);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SimDisk {
    handle: Arc<Handle>,
}

/// What a simulated disk is to be like.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_io::SimDisk;
/// // Slow, but wide: a network disk.
/// let disk = SimDisk::builder().latency(Duration::from_millis(1)).width(256).build();
/// ```
#[derive(Debug, Clone)]
pub struct SimDiskBuilder {
    latency: Duration,
    jitter: Duration,
    width: usize,
    seed: u64,
    alignment: usize,
    direct: bool,
    random: RandomFaults,
    by_steps: bool,
}

/// What a simulated disk has done.
///
/// ```
/// use pagekeeper_io::{Access, Io, SimDisk};
/// let disk = SimDisk::new();
/// disk.create("/file", [7; 100])?;
/// disk.open("/file".as_ref(), Access::Buffered)?.read_at(90, &mut [0; 50])?;
/// let stats = disk.stats();
/// assert_eq!((stats.reads, stats.bytes), (1, 10));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SimStats {
    /// Reads that were asked for, of any number of bytes.
    pub reads: u64,
    /// Requests that they took: more than reads where counts were short or calls interrupted.
    pub requests: u64,
    /// Bytes that were brought.
    pub bytes: u64,
    /// Requests that suffered a fault.
    pub faults: u64,
    /// The most requests that were being served at the same (virtual) time.
    pub peak_width: usize,
    /// Requests that have come and not yet ended.
    pub in_flight: usize,
}

impl SimDiskBuilder {
    /// How long a request takes once there is a place for it; 100 µs if not said, at least 1 ns.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Adds between nothing and so much to each request's latency, by the seed; nothing if not said.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// How many requests are served at once, at least 1; 32 if not said.
    #[must_use]
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// What all chance comes from.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// To how many bytes direct reads must be aligned, memory and offset; 512 if not said.
    #[must_use]
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes.max(1);
        self
    }

    /// Refuses [`Access::Direct`], as some file systems do.
    #[must_use]
    pub fn without_direct(mut self) -> Self {
        self.direct = false;
        self
    }

    /// Faults by chance.
    #[must_use]
    pub fn random_faults(mut self, faults: RandomFaults) -> Self {
        self.random = faults;
        self
    }

    /// Leaves submitted reads alone until [`SimDisk::step`] does them: then also they repeat exactly. Without this a
    /// thread does them, as soon as it comes to it.
    #[must_use]
    pub fn by_steps(mut self) -> Self {
        self.by_steps = true;
        self
    }

    /// The disk, empty.
    pub fn build(self) -> SimDisk {
        // Unlike any disk of the machine: its major number would be 0xFFF.
        static DISKS: AtomicU64 = AtomicU64::new(0xfff << 32);
        let device = DISKS.fetch_add(1, Ordering::Relaxed);
        SimDisk { handle: Arc::new(Handle::new(&self, device)) }
    }
}

impl SimDisk {
    /// A disk with all as [`Self::builder`] says it if nothing else is said.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Says what the disk is to be like.
    pub fn builder() -> SimDiskBuilder {
        SimDiskBuilder {
            latency: Duration::from_micros(100),
            jitter: Duration::ZERO,
            width: 32,
            seed: 0,
            alignment: 512,
            direct: true,
            random: RandomFaults::default(),
            by_steps: false,
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Makes a file. Fails with `EEXIST` where there is one.
    pub fn create(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.create_with(path.as_ref(), Content::Bytes(bytes.into()))
    }

    /// Makes a file of `len` bytes that take no memory: [`pattern`] of `seed` says what they are.
    pub fn create_patterned(&self, path: impl AsRef<Path>, len: u64, seed: u64) -> Result<(), Error> {
        self.create_with(path.as_ref(), Content::Pattern { seed, len })
    }

    fn create_with(&self, path: &Path, content: Content) -> Result<(), Error> {
        let mut state = self.shared().lock();
        if state.find(path).is_some() {
            return Err(call("create", path, libc::EEXIST));
        }
        state.link(path, content);
        Ok(())
    }

    /// Puts a new file in the place of one, or of none, as rename(2) does: who has the old one open keeps it.
    pub fn replace(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) {
        self.shared().lock().link(path.as_ref(), Content::Bytes(bytes.into()));
    }

    /// Removes a name; who has the file open keeps it.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let removed = self.shared().lock().unlink(path);
        removed.then_some(()).ok_or_else(|| call("remove", path, libc::ENOENT))
    }

    /// Cuts a file to `len` bytes; one that is shorter stays as it is.
    pub fn truncate(&self, path: impl AsRef<Path>, len: u64) -> Result<(), Error> {
        self.resize(path.as_ref(), |now| now.min(len))
    }

    /// Lengthens a file to `len` bytes, by zeros or by its pattern; one that is longer stays as it is.
    pub fn grow(&self, path: impl AsRef<Path>, len: u64) -> Result<(), Error> {
        self.resize(path.as_ref(), |now| now.max(len))
    }

    fn resize(&self, path: &Path, to: impl FnOnce(u64) -> u64) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let inode = state.find(path).ok_or_else(|| call("truncate", path, libc::ENOENT))?;
        let now = state.inode(inode).map_or(0, |inode| inode.content.len());
        state.set_len(inode, to(now));
        Ok(())
    }

    /// Plans a fault for raw reads that touch `range` (bytes) of the file that has this name now. The first planned that
    /// fits is the one that strikes.
    pub fn inject(
        &self,
        path: impl AsRef<Path>,
        range: Range<u64>,
        fault: Fault,
        times: Times,
    ) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let inode = state.find(path.as_ref()).ok_or_else(|| call("inject", path.as_ref(), libc::ENOENT))?;
        state.faults.plan(inode, range, fault, times);
        Ok(())
    }

    /// Takes all planned faults back from the file that has this name now.
    pub fn heal(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let inode = state.find(path.as_ref()).ok_or_else(|| call("heal", path.as_ref(), libc::ENOENT))?;
        state.faults.heal(inode);
        Ok(())
    }

    /// Stops reads that touch `range` (bytes) of the file that has this name now, until the [`Hold`] is dropped.
    pub fn hold(&self, path: impl AsRef<Path>, range: Range<u64>) -> Result<Hold, Error> {
        let mut state = self.shared().lock();
        let inode = state.find(path.as_ref()).ok_or_else(|| call("hold", path.as_ref(), libc::ENOENT))?;
        let number = state.hold(inode, range);
        Ok(Hold::new(Arc::clone(self.shared()), number))
    }

    /// What has been done so far.
    pub fn stats(&self) -> SimStats {
        self.shared().lock().stats()
    }

    /// The virtual time since the disk was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared().lock().now())
    }

    /// Does the submitted request that ends next, on this thread, `done` included. False if there is none, or none that
    /// is not held. Only for a disk that goes by steps ([`SimDiskBuilder::by_steps`]).
    pub fn step(&self) -> bool {
        self.handle.step()
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl Io for SimDisk {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        let mut state = self.shared().lock();
        let inode = state.find(path).ok_or_else(|| call("open", path, libc::ENOENT))?;
        if access == Access::Direct && !self.handle.direct() {
            return Err(Error::NoDirect { path: path.to_path_buf(), errno: libc::EINVAL });
        }
        state.opened(inode);
        drop(state);
        Ok(Arc::new(SimFile { shared: Arc::clone(self.shared()), path: path.to_path_buf(), inode, access }))
    }

    /// Fails: a real file is on no simulated disk.
    fn adopt(&self, _: File, _: Access) -> Result<Arc<dyn IoFile>, Error> {
        Err(Error::Foreign { path: "an open file".into() })
    }

    fn read_batch(
        &self,
        reads: &mut [BatchRead<'_>],
        completed: &mut dyn FnMut(usize, Result<usize, Error>),
    ) {
        self.shared().read_batch(reads, completed);
    }

    fn submit(&self, reads: Vec<OwnedRead>) {
        self.handle.submit(reads.into_iter().map(Into::into).collect());
    }

    fn name(&self) -> &'static str {
        "simulated disk"
    }
}

/// An open file of a simulated disk.
#[derive(Debug)]
struct SimFile {
    shared: Arc<Shared>,
    path: PathBuf,
    inode: u64,
    access: Access,
}

impl IoFile for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let mut got = Ok(0);
        let bufs = vec![std::io::IoSliceMut::new(buf)];
        self.shared.read_batch(&mut [BatchRead { file: self, offset, bufs }], &mut |_, result| got = result);
        got
    }

    /// Its times are no times: they count the changes of the disk, so that no two changes look the same.
    fn stat(&self) -> Result<FileStat, Error> {
        let state = self.shared.lock();
        let inode = state.inode(self.inode).ok_or_else(|| call("fstat", &self.path, libc::ESTALE))?;
        let time = |change| (i64::try_from(change).unwrap_or(i64::MAX), 0);
        Ok(FileStat {
            size: inode.content.len(),
            device: self.shared.device,
            inode: self.inode,
            modified: time(inode.modified),
            changed: time(inode.changed),
        })
    }

    fn access(&self) -> Access {
        self.access
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().closed(self.inode);
    }
}

fn call(call: &'static str, path: &Path, errno: i32) -> Error {
    Error::Call { call, path: path.to_path_buf(), errno }
}

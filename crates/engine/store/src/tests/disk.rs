//! A simulated disk that performs submitted operations at once, on the submitter's thread. No
//! thread decides on the order, so a life is repeatable. A hook can act in the middle of a
//! checkpoint.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pagekeeper_io::{Access, BatchRead, Create, Error, FileLock, Io, IoFile, OwnedRead, OwnedWrite};
use pagekeeper_simdisk::SimDisk;

use pagekeeper_kernel::mutex::lock;

type Done = Box<dyn FnMut() + Send>;

/// An action before the next writes of a checkpoint reach the disk.
#[derive(Clone, Default)]
pub(crate) struct Meanwhile(Arc<Mutex<Option<Done>>>);

impl Meanwhile {
    /// Sets the action, which runs with each batch of writes.
    pub(crate) fn set(&self, what: impl FnMut() + Send + 'static) {
        *lock(&self.0) = Some(Box::new(what));
    }

    pub(crate) fn clear(&self) {
        *lock(&self.0) = None;
    }

    fn now(&self) {
        let what = lock(&self.0).take();
        if let Some(mut what) = what {
            what();
            lock(&self.0).get_or_insert(what);
        }
    }
}

/// The disk, which must go by steps.
pub(crate) struct Prompt {
    disk: SimDisk,
    meanwhile: Meanwhile,
    /// Writes still to come. Until then, some stay in flight for the next ones to join.
    left: AtomicU64,
}

/// Writes that stay in flight. A checkpoint waits with at least as many.
const LAG: usize = 48;

impl Prompt {
    pub(crate) fn new(disk: SimDisk, meanwhile: Meanwhile) -> Self {
        Self::lagging(disk, meanwhile, 0)
    }

    /// Creates a disk that is as wide as the submitter wants, for this many writes.
    pub(crate) fn lagging(disk: SimDisk, meanwhile: Meanwhile, writes: u64) -> Self {
        Self { disk, meanwhile, left: AtomicU64::new(writes) }
    }

    fn run(&self, down_to: usize) {
        while (down_to == 0 || self.disk.stats().in_flight > down_to) && self.disk.step() {}
    }
}

impl Io for Prompt {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        self.disk.open(path, access)
    }

    fn adopt(&self, file: File, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        self.disk.adopt(file, access)
    }

    fn read_batch(
        &self,
        reads: &mut [BatchRead<'_>],
        completed: &mut dyn FnMut(usize, Result<usize, Error>),
    ) {
        self.disk.read_batch(reads, completed);
    }

    fn submit(&self, reads: Vec<OwnedRead>) {
        self.disk.submit(reads);
        self.run(0);
    }

    fn name(&self) -> &'static str {
        self.disk.name()
    }

    fn open_writable(&self, path: &Path, access: Access, create: Create) -> Result<Arc<dyn IoFile>, Error> {
        self.disk.open_writable(path, access, create)
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        Io::remove(&self.disk, path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.disk.rename(from, to)
    }

    fn create_dir(&self, path: &Path) -> Result<(), Error> {
        self.disk.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<(), Error> {
        self.disk.remove_dir(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, Error> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<FileLock, Error> {
        self.disk.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<FileLock>, Error> {
        self.disk.lock_shared(path)
    }

    fn submit_writes(&self, writes: Vec<OwnedWrite>) {
        self.meanwhile.now();
        let left = self.left.load(Ordering::Relaxed).saturating_sub(writes.len() as u64);
        self.left.store(left, Ordering::Relaxed);
        self.disk.submit_writes(writes);
        self.run(if left == 0 { 0 } else { LAG });
    }
}

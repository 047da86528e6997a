//! The disk: its handle with its own methods, and as a back-end of [`Io`].

#[cfg(test)]
mod atomic_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_tests;

use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagekeeper_io::{
    Access, BatchRead, Create, Error, FileKind, FileLock, Io, IoFile, OwnedRead, OwnedWrite,
};

use crate::builder::{SimDiskBuilder, SimStats};
use crate::content::FileContent;
use crate::crash::Persistence;
use crate::damage::Damage;
use crate::faults::{AnyFault, RandomFaults, RandomWriteFaults, Times};
use crate::hold::Hold;
use crate::inode::Inode;
use crate::names::NamedNode;
use crate::open_file::{HeldSimLock, SimFile, call};
use crate::request::{DiskHandle, SharedDisk};
use crate::state::{DiskState, WHOLE_FILE};

/// A simulated disk: files in memory or computed, latency and concurrency on virtual time, faults,
/// power cuts.
///
/// The value is a handle; clones refer to the same disk. Any number of threads may use it.
///
/// Its own methods that create, replace, remove and resize files act as another process: their
/// changes are durable at once, together with all earlier changes of the directory or file. Changes
/// through [`Io`] and [`IoFile`] are not durable before a sync.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_io::{Access, BatchRead, Io};
/// use pagekeeper_simdisk::{Fault, SimDisk, Times};
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
/// pagekeeper_simdisk::pattern(42, 3 << 30, &mut expected);
/// assert_eq!(pages[3], expected);
///
/// disk.inject("/big", 0..4096, Fault::EIO, Times::Once)?;
/// assert!(file.read_at(0, &mut pages[0]).is_err());
/// assert_eq!(file.read_at(0, &mut pages[0])?, 4096);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
///
/// A test can cut the power at each point of a program:
///
/// ```
/// use std::path::Path;
/// use pagekeeper_io::{Access, Create, Error, Io, WriteMode};
/// use pagekeeper_simdisk::{Persistence, SimDisk};
///
/// /// Replaces a file as a whole, or not at all.
/// fn publish(io: &dyn Io, content: &[u8]) -> Result<(), Error> {
///     let (new, name) = (Path::new("/new"), Path::new("/name"));
///     let file = io.open_writable(new, Access::Buffered, Create::New)?;
///     file.write_at(0, content, WriteMode::Plain)?;
///     file.sync_data()?;
///     io.rename(new, name)?;
///     io.sync_dir("/".as_ref())
/// }
///
/// for (cut, persistence) in (0..6).flat_map(|cut| Persistence::ALL.map(|persistence| (cut, persistence))) {
///     let disk = SimDisk::new();
///     disk.create("/name", *b"old")?;
///     disk.cut_power_at(cut);
///     let published = publish(&disk, b"new");
///     assert_eq!(published.is_ok(), cut == 5);
///
///     let disk = disk.after_power_cut(persistence, cut);
///     let mut found = [0; 3];
///     disk.open("/name".as_ref(), Access::Buffered)?.read_at(0, &mut found)?;
///     assert!(found == *b"new" || published.is_err() && found == *b"old");
/// }
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SimDisk {
    handle: Arc<DiskHandle>,
}

impl SimDiskBuilder {
    /// Creates the disk, empty.
    pub fn build(self) -> SimDisk {
        let state = DiskState::new(&self);
        SimDisk::with(self, state)
    }
}

impl SimDisk {
    /// Creates a disk with these options and this state.
    fn with(builder: SimDiskBuilder, state: DiskState) -> Self {
        // Unlike any disk of the machine: its major number would be 0xFFF.
        static NEXT_DEVICE: AtomicU64 = AtomicU64::new(0xfff << 32);
        let device = NEXT_DEVICE.fetch_add(1, Ordering::Relaxed);
        Self { handle: Arc::new(DiskHandle::new(builder, state, device)) }
    }

    /// Creates a disk with the defaults of [`Self::builder`].
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder for a disk with other options.
    pub fn builder() -> SimDiskBuilder {
        SimDiskBuilder::default()
    }

    fn shared(&self) -> &Arc<SharedDisk> {
        &self.handle.shared
    }

    /// Creates a file, and the directories above it. Fails with `EEXIST` if the file exists.
    pub fn create(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.create_with(path.as_ref(), FileContent::from_bytes(&bytes.into()))
    }

    /// Creates a file of `len` bytes that take no memory: they are the [`pattern`](crate::pattern)
    /// of `seed`.
    pub fn create_patterned(&self, path: impl AsRef<Path>, len: u64, seed: u64) -> Result<(), Error> {
        self.create_with(path.as_ref(), FileContent::patterned(seed, len))
    }

    fn create_with(&self, path: &Path, content: FileContent) -> Result<(), Error> {
        let mut state = self.shared().lock();
        if state.names.find(path).is_some() {
            return Err(call("create", path, libc::EEXIST));
        }
        state.put(path, content);
        Ok(())
    }

    /// Replaces or creates a file as rename(2) does: whoever has the old one open keeps it.
    pub fn replace(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) {
        self.shared().lock().put(path.as_ref(), FileContent::from_bytes(&bytes.into()));
    }

    /// Removes a name durably; whoever has the file open keeps it. [`Io::remove`] in contrast needs
    /// a sync.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let removed = self.shared().lock().take_away(path);
        removed.then_some(()).ok_or_else(|| call("remove", path, libc::ENOENT))
    }

    /// Truncates a file to `len` bytes, unless it is shorter.
    pub fn truncate(&self, path: impl AsRef<Path>, len: u64) -> Result<(), Error> {
        self.resize(path.as_ref(), |now| now.min(len))
    }

    /// Extends a file to `len` bytes, with zeros or its pattern, unless it is longer.
    pub fn grow(&self, path: impl AsRef<Path>, len: u64) -> Result<(), Error> {
        self.resize(path.as_ref(), |now| now.max(len))
    }

    fn resize(&self, path: &Path, to: impl FnOnce(u64) -> u64) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let inode = state.find(path).ok_or_else(|| call("truncate", path, libc::ENOENT))?;
        let now = state.inode(inode).map_or(0, Inode::len);
        state.put_len(inode, to(now));
        Ok(())
    }

    /// Plans a fault for requests that touch `range` (bytes) of the file or directory that has this
    /// name now: a [`Fault`](crate::Fault) for raw reads, a [`WriteFault`](crate::WriteFault) for
    /// raw writes, syncs (which touch every range) and allocations. The first planned fault that
    /// matches occurs.
    pub fn inject(
        &self,
        path: impl AsRef<Path>,
        range: Range<u64>,
        fault: impl Into<AnyFault>,
        times: Times,
    ) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let number = number_of(&state, path.as_ref(), "inject")?;
        state.faults.plan(Some(number), range, fault.into(), times);
        Ok(())
    }

    /// Plans a fault for all files and directories, including future ones.
    pub fn inject_all(&self, fault: impl Into<AnyFault>, times: Times) {
        self.shared().lock().faults.plan(None, WHOLE_FILE, fault.into(), times);
    }

    /// Cancels all planned faults of the file or directory that has this name now.
    pub fn heal(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let number = number_of(&state, path.as_ref(), "heal")?;
        state.faults.heal(Some(number));
        Ok(())
    }

    /// Cancels the faults that were planned for all files ([`Self::inject_all`]).
    pub fn heal_all(&self) {
        self.shared().lock().faults.heal(None);
    }

    /// Sets the random faults from now on.
    pub fn set_random_faults(&self, of_reads: RandomFaults, of_writes: RandomWriteFaults) {
        self.shared().lock().faults.set_random(of_reads, of_writes);
    }

    /// Damages the medium under the file that has this name now, at once. Unsynced data and cached
    /// pages are lost. The damage remains after a crash.
    pub fn damage(&self, path: impl AsRef<Path>, damage: &Damage) -> Result<(), Error> {
        let path = path.as_ref();
        let mut state = self.shared().lock();
        let file = state.find(path).ok_or_else(|| call("damage", path, libc::ENOENT))?;
        state.damage(file, damage);
        Ok(())
    }

    /// Makes the operation of this number (as counted by [`Self::cut_power_at`]) fail with this
    /// error number, without any change. A sync loses its data, as with
    /// [`WriteFault::Sync`](crate::WriteFault::Sync).
    pub fn fail_operation_at(&self, op: u64, errno: i32) {
        self.shared().lock().fail_operation(op, errno);
    }

    /// Makes the disk full from the operation of this number on: operations that need more space
    /// fail with `ENOSPC`. Those are new files and directories, allocations, and writes behind the
    /// highest offset ever written or allocated in a file.
    pub fn fill_up_at(&self, op: u64) {
        self.shared().lock().set_full_from(Some(op));
    }

    /// Ends the effect of [`Self::fill_up_at`].
    pub fn make_room(&self) {
        self.shared().lock().set_full_from(None);
    }

    /// Stops reads and writes that touch `range` (bytes) of the file or directory that has this
    /// name now, and its syncs, until the [`Hold`] is dropped.
    pub fn hold(&self, path: impl AsRef<Path>, range: Range<u64>) -> Result<Hold, Error> {
        let mut state = self.shared().lock();
        let number = number_of(&state, path.as_ref(), "hold")?;
        let hold = state.hold(number, range);
        Ok(Hold::new(Arc::clone(self.shared()), hold))
    }

    /// Returns the number of operations so far that change or sync something: raw writes, syncs,
    /// changes of sizes and names. Refused ones (no such file) do not count; those that failed by a
    /// fault do.
    pub fn ops(&self) -> u64 {
        self.shared().lock().operations()
    }

    /// Cuts the power at the operation of this number: the first is 0, the next one is
    /// [`Self::ops`]. This operation may still be done in part, like all unsynced ones. It and all
    /// later calls fail with `EIO`.
    pub fn cut_power_at(&self, op: u64) {
        self.shared().lock().cut_power_at(op);
    }

    /// Returns the disk as found after a power cut: now, or when the power was cut. It is another
    /// disk of the same kind, with empty caches and without planned faults; all of its content is
    /// durable. The result depends only on the seed.
    #[must_use]
    pub fn after_power_cut(&self, persistence: Persistence, seed: u64) -> Self {
        self.restarted(|state, new| state.after_power_cut(new, persistence, seed))
    }

    /// Returns the disk as found if all programs were killed now. It is another disk with the same
    /// visible content, which is as durable as before. No file is open or locked.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        self.restarted(DiskState::after_kill)
    }

    fn restarted(&self, how: impl FnOnce(&DiskState, DiskState) -> DiskState) -> Self {
        let of = self.handle.of.clone();
        let state = how(&self.shared().lock(), DiskState::new(&of));
        Self::with(of, state)
    }

    /// Returns the counters.
    pub fn stats(&self) -> SimStats {
        self.shared().lock().stats()
    }

    /// Returns the virtual time since the disk was created.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared().lock().now())
    }

    /// Performs the submitted request that ends next, on this thread, including its `done`. Returns
    /// false if there is none, or if all are held. Only for disks built with
    /// [`SimDiskBuilder::by_steps`].
    pub fn step(&self) -> bool {
        self.handle.step()
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the number of a file or directory.
fn number_of(state: &DiskState, path: &Path, for_what: &'static str) -> Result<u64, Error> {
    match state.names.find(path) {
        Some(NamedNode::File(number) | NamedNode::Directory(number)) => Ok(number),
        None => Err(call(for_what, path, libc::ENOENT)),
    }
}

impl SimDisk {
    fn open_as(
        &self,
        state: &mut DiskState,
        path: &Path,
        access: Access,
        writable: bool,
    ) -> Result<Arc<dyn IoFile>, Error> {
        let file = match state.names.find(path) {
            Some(NamedNode::File(file)) => file,
            Some(NamedNode::Directory(_)) => {
                return Err(Error::NotARegularFile { path: path.to_path_buf(), kind: FileKind::Directory });
            }
            None => return Err(call("open", path, libc::ENOENT)),
        };
        self.check_access(path, access)?;
        state.opened(file, writable);
        Ok(Arc::new(SimFile::new(self.shared(), path, file, access, writable)))
    }

    fn check_access(&self, path: &Path, access: Access) -> Result<(), Error> {
        if access == Access::Direct && !self.handle.of.direct {
            return Err(Error::NoDirect { path: path.to_path_buf(), errno: libc::EINVAL });
        }
        Ok(())
    }
}

/// Creates a file if there is none. Fails if the power is cut during the operation.
fn make(state: &mut DiskState, path: &Path) -> Result<u64, i32> {
    state.names.parent(path)?;
    let number = state.operation_with_room()?;
    let file = state.new_file(FileContent::default());
    state.names.link(number, path, NamedNode::File(file));
    state.power()?;
    Ok(file)
}

impl Io for SimDisk {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn IoFile>, Error> {
        let mut state = self.shared().lock();
        state.power().map_err(|errno| call("open", path, errno))?;
        self.open_as(&mut state, path, access, false)
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

    fn open_writable(&self, path: &Path, access: Access, create: Create) -> Result<Arc<dyn IoFile>, Error> {
        let mut state = self.shared().lock();
        let failed = |errno| call("open", path, errno);
        state.power().map_err(failed)?;
        if create == Create::New {
            if state.names.find(path).is_some() {
                return Err(failed(libc::EEXIST));
            }
            self.check_access(path, access)?;
            make(&mut state, path).map_err(failed)?;
        }
        self.open_as(&mut state, path, access, true)
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let failed = |errno| call("unlink", path, errno);
        state.power().map_err(failed)?;
        let node = state.names.find(path).ok_or_else(|| failed(libc::ENOENT))?;
        if matches!(node, NamedNode::Directory(_)) {
            return Err(failed(libc::EISDIR));
        }
        let number = state.operation().map_err(failed)?;
        state.names.unlink(number, path);
        state.lost_name(Some(node), number);
        state.power().map_err(failed)
    }

    /// Renames a file; directories are not supported.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let failed = |errno| call("rename", from, errno);
        state.power().map_err(failed)?;
        let node = state.names.find(from).ok_or_else(|| failed(libc::ENOENT))?;
        state.names.parent(to).map_err(failed)?;
        let old = state.names.find(to);
        if matches!((node, old), (NamedNode::Directory(_), _) | (_, Some(NamedNode::Directory(_)))) {
            return Err(failed(libc::EISDIR));
        }
        let number = state.operation().map_err(failed)?;
        state.names.rename(number, from, to);
        state.lost_name(old.filter(|old| *old != node), number);
        state.power().map_err(failed)
    }

    fn exchange(&self, one: &Path, other: &Path) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let failed = |errno| call("rename", one, errno);
        state.power().map_err(failed)?;
        let nodes = [one, other].map(|path| state.names.find(path));
        let [Some(NamedNode::File(_)), Some(NamedNode::File(_))] = nodes else {
            return Err(failed(if nodes.contains(&None) { libc::ENOENT } else { libc::EISDIR }));
        };
        let number = state.operation().map_err(failed)?;
        state.names.exchange(number, one, other);
        state.power().map_err(failed)
    }

    fn create_dir(&self, path: &Path) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let failed = |errno| call("mkdir", path, errno);
        state.power().map_err(failed)?;
        if state.names.find(path).is_some() {
            return Err(failed(libc::EEXIST));
        }
        state.names.parent(path).map_err(failed)?;
        let number = state.operation_with_room().map_err(failed)?;
        let directory = state.new_directory();
        state.names.link(number, path, NamedNode::Directory(directory));
        state.power().map_err(failed)
    }

    fn remove_dir(&self, path: &Path) -> Result<(), Error> {
        let mut state = self.shared().lock();
        let failed = |errno| call("rmdir", path, errno);
        state.power().map_err(failed)?;
        state.names.directory(path).map_err(failed)?;
        if !state.names.list(path).is_empty() {
            return Err(failed(libc::ENOTEMPTY));
        }
        let number = state.operation().map_err(failed)?;
        state.names.unlink(number, path);
        state.power().map_err(failed)
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, Error> {
        let state = self.shared().lock();
        let found = state.power().and_then(|()| state.names.directory(dir));
        found.map_err(|errno| call("readdir", dir, errno))?;
        Ok(state.names.list(dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), Error> {
        let directory = {
            let state = self.shared().lock();
            let found = state.power().and_then(|()| state.names.directory(dir));
            found.map_err(|errno| call("open", dir, errno))?
        };
        self.shared()
            .served(directory, WHOLE_FILE, |state| state.sync_directory(dir))
            .map_err(|errno| Error::Sync { path: dir.to_path_buf(), errno })
    }

    fn lock(&self, path: &Path) -> Result<FileLock, Error> {
        let mut state = self.shared().lock();
        let failed = |errno| call("open", path, errno);
        state.power().map_err(failed)?;
        let file = match state.names.find(path) {
            Some(NamedNode::File(file)) => file,
            Some(NamedNode::Directory(_)) => return Err(failed(libc::EISDIR)),
            None => make(&mut state, path).map_err(failed)?,
        };
        if !state.take_lock(file, false) {
            return Err(Error::Locked { path: path.to_path_buf() });
        }
        Ok(FileLock::new(path, HeldSimLock { shared: Arc::clone(self.shared()), file }))
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<FileLock>, Error> {
        let mut state = self.shared().lock();
        state.power().map_err(|errno| call("open", path, errno))?;
        let file = match state.names.find(path) {
            Some(NamedNode::File(file)) => file,
            Some(NamedNode::Directory(_)) => return Err(call("open", path, libc::EISDIR)),
            None => return Ok(None),
        };
        if !state.take_lock(file, true) {
            return Err(Error::Locked { path: path.to_path_buf() });
        }
        Ok(Some(FileLock::new(path, HeldSimLock { shared: Arc::clone(self.shared()), file })))
    }

    fn submit_writes(&self, writes: Vec<OwnedWrite>) {
        self.handle.submit(writes.into_iter().map(Into::into).collect());
    }
}

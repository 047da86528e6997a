//! An open file of a simulated disk, and a held lock.

use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::request::SharedDisk;
use crate::state::{DiskState, WHOLE_FILE};
use pagekeeper_io::{Access, BatchRead, Error, FileStat, IoFile, ResidentBytes, WriteMode};

#[derive(Debug)]
pub(crate) struct SimFile {
    shared: Arc<SharedDisk>,
    path: PathBuf,
    inode: u64,
    access: Access,
    writable: bool,
}

impl SimFile {
    /// Creates an open file. It was counted as open before, and is uncounted when dropped.
    pub(crate) fn new(
        shared: &Arc<SharedDisk>,
        path: &Path,
        inode: u64,
        access: Access,
        writable: bool,
    ) -> Self {
        Self { shared: Arc::clone(shared), path: path.to_path_buf(), inode, access, writable }
    }

    fn sync(&self, what: impl FnOnce(&mut DiskState) -> Result<(), i32>) -> Result<(), Error> {
        self.shared
            .served(self.inode, WHOLE_FILE, what)
            .map_err(|errno| Error::Sync { path: self.path.clone(), errno })
    }

    /// Performs an operation that needs no device.
    fn change(
        &self,
        name: &'static str,
        what: impl FnOnce(&mut DiskState) -> Result<(), i32>,
    ) -> Result<(), Error> {
        what(&mut self.shared.lock()).map_err(|errno| call(name, &self.path, errno))
    }

    fn for_writing(&self, name: &'static str, errno: i32) -> Result<(), Error> {
        if self.writable { Ok(()) } else { Err(call(name, &self.path, errno)) }
    }
}

impl IoFile for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let mut got = Ok(0);
        let bufs = vec![std::io::IoSliceMut::new(buf)];
        self.shared.read_batch(&mut [BatchRead { file: self, offset, bufs }], &mut |_, result| got = result);
        got
    }

    /// Returns times that count the changes of the disk, so that no two changes look alike.
    fn stat(&self) -> Result<FileStat, Error> {
        let state = self.shared.lock();
        let failed = |errno| call("fstat", &self.path, errno);
        state.power().map_err(failed)?;
        let inode = state.inode(self.inode).ok_or_else(|| failed(libc::ESTALE))?;
        let time = |change| (i64::try_from(change).unwrap_or(i64::MAX), 0);
        Ok(FileStat {
            size: inode.len(),
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

    fn write_at(&self, offset: u64, buf: &[u8], mode: WriteMode) -> Result<(), Error> {
        if !self.writable {
            let range = offset..offset.saturating_add(buf.len() as u64);
            return Err(Error::Write { path: self.path.clone(), range, errno: libc::EBADF });
        }
        self.shared.write(self, self.inode, offset, buf, mode)
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.sync(|state| state.sync(self.inode))
    }

    /// Allocates space; without a fault it always succeeds, since the disk is as large as the
    /// memory.
    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        self.for_writing("fallocate", libc::EBADF)?;
        if range.is_empty() {
            return Ok(());
        }
        self.change("fallocate", |state| state.allocate(self.inode, &range))
    }

    /// Punches a hole. After a crash each block is a hole or unchanged.
    fn punch(&self, range: Range<u64>) -> Result<(), Error> {
        self.for_writing("fallocate", libc::EBADF)?;
        self.change("fallocate", |state| state.punch(self.inode, &range))
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.for_writing("ftruncate", libc::EINVAL)?;
        self.change("ftruncate", |state| state.set_len(self.inode, len))
    }

    /// Has no visible effect: pages are dirty until they are waited for or synced.
    fn start_writeback(&self, _: Range<u64>) -> Result<(), Error> {
        self.change("sync_file_range", |state| state.power())
    }

    fn wait_writeback(&self, range: Range<u64>) -> Result<(), Error> {
        self.sync(|state| state.write_back(self.inode, &range))
    }

    fn release(&self, range: Range<u64>) -> Result<(), Error> {
        self.change("posix_fadvise", |state| {
            state.power()?;
            state.inode_mut(self.inode)?.release(&range);
            Ok(())
        })
    }

    fn atomic_write_bytes(&self) -> Option<RangeInclusive<u64>> {
        if self.access == Access::Direct { self.shared.lock().atomic.clone() } else { None }
    }

    fn has_room(&self) -> Result<(), Error> {
        self.change("create a file beside", DiskState::has_room)
    }

    fn residency(&self, range: Range<u64>) -> Result<Option<ResidentBytes>, Error> {
        let mut found = None;
        self.change("cachestat", |state| {
            state.power()?;
            found = Some(state.inode_mut(self.inode)?.residency(&range));
            Ok(())
        })?;
        Ok(found)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().closed(self.inode, self.writable);
    }
}

/// Releases a lock when dropped.
#[derive(Debug)]
pub(crate) struct HeldSimLock {
    pub(crate) shared: Arc<SharedDisk>,
    pub(crate) file: u64,
}

impl Drop for HeldSimLock {
    fn drop(&mut self) {
        self.shared.lock().let_lock_go(self.file);
    }
}

/// Creates the error of a call.
pub(crate) fn call(call: &'static str, path: &Path, errno: i32) -> Error {
    Error::Call { call, path: path.to_path_buf(), errno }
}

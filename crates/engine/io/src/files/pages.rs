//! Pages of real files: sync, allocation, writeback and release, each by plain system calls of the
//! calling thread.
//!
//! The kernel reports an error of a sync or of writeback once, to whoever asks first
//! (`lib/errseq.c`), and then marks the pages clean. So an error is final, and nothing here retries
//! except after a signal.

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use pagekeeper_kernel::{Advice, FileSystem, FlushMode, InspectedFile, advise, flush, residency};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::files::directory::uninterrupted;
use crate::files::syscall::call;
use crate::{Error, ResidentBytes};

pub(crate) fn sync_data(file: impl AsFd, path: &Path) -> Result<(), Error> {
    uninterrupted(|| rustix::fs::fdatasync(&file)).map_err(|errno| sync_error(path, errno))
}

pub(crate) fn sync_all(file: impl AsFd, path: &Path) -> Result<(), Error> {
    uninterrupted(|| rustix::fs::fsync(&file)).map_err(|errno| sync_error(path, errno))
}

fn sync_error(path: &Path, errno: Errno) -> Error {
    Error::Sync { path: path.to_path_buf(), errno: errno.raw_os_error() }
}

pub(crate) fn allocate(file: impl AsFd, path: &Path, range: &Range<u64>) -> Result<(), Error> {
    if range.is_empty() {
        return Ok(());
    }
    let len = range.end - range.start;
    uninterrupted(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), range.start, len))
        .map_err(|errno| call("fallocate", path, errno))
}

pub(crate) fn punch(file: impl AsFd, path: &Path, range: &Range<u64>) -> Result<(), Error> {
    if range.is_empty() {
        return Ok(());
    }
    let (how, len) = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range.end - range.start);
    uninterrupted(|| rustix::fs::fallocate(&file, how, range.start, len))
        .map_err(|errno| call("fallocate", path, errno))
}

pub(crate) fn set_len(file: impl AsFd, path: &Path, len: u64) -> Result<(), Error> {
    uninterrupted(|| rustix::fs::ftruncate(&file, len)).map_err(|errno| call("ftruncate", path, errno))
}

pub(crate) fn start_writeback(file: &InspectedFile, range: Range<u64>) -> Result<(), Error> {
    pagekeeper_kernel::start_writeback(file, range).map_err(|error| writeback_error(&error))
}

pub(crate) fn wait_writeback(file: &InspectedFile, range: Range<u64>) -> Result<(), Error> {
    // On an overlay, `sync_file_range` succeeds without any effect.
    let overlay = file.file_system().is_ok_and(|file_system| file_system == FileSystem::Overlay);
    let how = if overlay { FlushMode::Fdatasync } else { FlushMode::SyncFileRange };
    flush(file, range, how, Duration::MAX).map(|_| ()).map_err(|error| writeback_error(&error))
}

/// A wait for writeback reports failed writes in place of a sync.
fn writeback_error(error: &pagekeeper_kernel::Error) -> Error {
    Error::Sync { path: error.path().to_path_buf(), errno: error.errno().unwrap_or(libc::EIO) }
}

pub(crate) fn release(file: impl AsFd, path: &Path, range: Range<u64>) -> Result<(), Error> {
    advise(file, Advice::DontNeed, range, path).map_err(|error| other_error(&error.into()))
}

/// Returns `None` if the kernel lacks cachestat(2) or does not permit it.
pub(crate) fn resident(file: &InspectedFile, range: Range<u64>) -> Result<Option<ResidentBytes>, Error> {
    match residency(file, range) {
        Ok(found) => {
            let (dirty, writeback) = (found.dirty, found.writeback);
            let unwritten = dirty.and_then(|dirty| Some(dirty + writeback?));
            Ok(unwritten.map(|unwritten| ResidentBytes { resident: found.resident, unwritten }))
        }
        Err(error) if error.is_denied() => Ok(None),
        Err(error) => Err(other_error(&error)),
    }
}

pub(crate) fn other_error(error: &pagekeeper_kernel::Error) -> Error {
    let call = match error {
        pagekeeper_kernel::Error::Call { call, .. } => call,
        _ => "look at",
    };
    Error::Call { call, path: error.path().to_path_buf(), errno: error.errno().unwrap_or(libc::EIO) }
}

//! Lock: keeps pages of a file in memory, by mlock(2) on a mapping that is never touched.
//!
//! Invariant: the pages stay resident while the [`PageLock`] lives; the kernel does not evict them.
//! Holes are not locked, since locking would fill them with zero pages. Failures are complete:
//! everything locked before the failure is unlocked.

use std::ops::Range;
use std::path::PathBuf;

use pagekeeper_text::escaped;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::call_error;
use super::plan::next_data;
use crate::sys::mapping::FileMapping;
use crate::{Error, InspectedFile, Result, page_size};

/// Gap in bytes below which two stretches of data are locked as one, to save mappings: a process
/// may have 65,530 (`vm.max_map_count`).
const JOINED_GAP_BYTES: u64 = 1 << 20;

/// The reason why pages could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The limit on locked memory is too low.
    #[error(
        "{}: can't lock {wanted} bytes: a process of this user may lock {limit} bytes in all (RLIMIT_MEMLOCK). Raise it with \
         `ulimit -l`, or LimitMEMLOCK= in a systemd unit, or run with CAP_IPC_LOCK",
        escaped(path)
    )]
    Limit {
        /// The file.
        path: PathBuf,
        /// Bytes to lock at the moment of the failure.
        wanted: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// There is not enough memory for the pages, or the process has too many mappings.
    #[error(
        "{}: can't lock {wanted} bytes: there is not enough memory free for them, or this process has too many mappings \
         (`vm.max_map_count`). Lock less, or a range at a time",
        escaped(path)
    )]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// Bytes to lock at the moment of the failure.
        wanted: u64,
    },
    /// Another failure.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// Locked pages; unlocked when dropped.
#[derive(Debug)]
#[must_use = "the pages are unlocked when this is dropped"]
pub struct PageLock {
    mappings: Vec<FileMapping>,
    bytes: u64,
}

impl PageLock {
    /// Returns the locked bytes, in whole pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of mappings that hold them.
    pub fn mappings(&self) -> usize {
        self.mappings.len()
    }
}

/// Locks the pages of `range`, reading missing ones; an end of `u64::MAX` means the end of the
/// file.
///
/// They are read by page faults of this thread: it is faster to [`warm`](super::warm()) the range
/// first.
pub fn lock(file: &InspectedFile, range: Range<u64>) -> std::result::Result<PageLock, LockError> {
    let mut locked = PageLock { mappings: Vec::new(), bytes: 0 };
    for part in data_ranges(file, range)? {
        let len = part.end - part.start;
        let mapping = usize::try_from(len)
            .map_err(|_| Errno::NOMEM)
            .and_then(|len| FileMapping::new(file, part.start, len));
        match mapping.and_then(|mapping| mapping.lock().map(|()| mapping)) {
            Ok(mapping) => locked.mappings.push(mapping),
            Err(errno) => return Err(explain(file, len, errno)),
        }
        locked.bytes += len;
    }
    Ok(locked)
}

/// Returns the stretches of data in the range, in whole pages, with near ones joined.
fn data_ranges(file: &InspectedFile, range: Range<u64>) -> Result<Vec<Range<u64>>> {
    let page = page_size();
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut rest = range.start..range.end.min(file.size_now()?);
    while !rest.is_empty() {
        let found = next_data(file, &rest)?;
        rest.start = found.end;
        if found.is_empty() {
            break;
        }
        let part = found.start / page * page..found.end.next_multiple_of(page);
        match parts.last_mut() {
            Some(last) if part.start < last.end.saturating_add(JOINED_GAP_BYTES) => last.end = part.end,
            _ => parts.push(part),
        }
    }
    Ok(parts)
}

/// Interprets the error of mlock(2): ENOMEM stands for both the limit and a lack of memory, EPERM
/// for a limit of 0, and EAGAIN for either again.
fn explain(file: &InspectedFile, wanted: u64, errno: Errno) -> LockError {
    let path = file.path().to_path_buf();
    if !matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN) {
        return call_error("mlock", file, errno).into();
    }
    match getrlimit(Resource::Memlock).current {
        Some(limit) if !may_lock_without_limit() => LockError::Limit { path, wanted, limit },
        _ => LockError::NoMemory { path, wanted },
    }
}

/// Whether this thread has `CAP_IPC_LOCK`.
fn may_lock_without_limit() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

//! Drops pages that others left in the kernel's page cache, before the first direct read.
//!
//! While a page of a file is resident, XFS takes the inode's lock and flushes and invalidates on
//! every direct read. Dropping the pages changes no byte of the file. Pages that can't be dropped
//! (mapped, or dirty on a busy disk) stay, and so does their cost. An inspection that fails counts
//! as nothing found.

use std::fs::File;
use std::time::Duration;

use pagekeeper_io::{DirectSupport, IoFile};
use pagekeeper_kernel::{FileSystem, FlushMode, InspectedFile, ReleaseOptions, release, residency};

/// The maximum wait for dirty pages at an open.
const WRITEBACK_WAIT_MAX: Duration = Duration::from_secs(2);

/// Drops the resident pages of a file. Returns their bytes.
pub(crate) fn drop_leftovers(file: &dyn IoFile) -> u64 {
    let Some(fd) = file.fd() else { return 0 };
    let Ok(fd) = fd.try_clone_to_owned() else { return 0 };
    let Ok(inspected) = InspectedFile::from_fd(fd, file.path().to_owned()) else { return 0 };
    let Ok(found) = residency(&inspected, 0..u64::MAX) else { return 0 };
    if found.resident == 0 {
        return 0;
    }
    let options = ReleaseOptions {
        flush: FlushMode::Watch,
        patience: WRITEBACK_WAIT_MAX,
        retry_pause: Duration::from_millis(1),
        explain: false,
    };
    // The next inspection shows the rest; nothing depends on the result.
    let _ = release(&inspected, 0..u64::MAX, &options);
    found.resident
}

/// Whether direct reads of pages of `page_size` bytes bypass the kernel's page cache, for a file
/// that was opened for them. Direct reads are allowed, but go through the kernel's page cache, on
/// tmpfs (Linux 6.6), for files whose data ext4 journals, and for compressed files on btrfs.
/// Devices with large blocks need larger pages. Uses the kernel's report, and a trial read if there
/// is none.
pub(crate) fn is_direct(file: &dyn IoFile, page_size: usize) -> bool {
    let Some(fd) = file.fd() else { return true };
    if FileSystem::of(fd, file.path()).is_ok_and(|on| matches!(on, FileSystem::Tmpfs | FileSystem::Ramfs)) {
        return false;
    }
    let tried = || DirectSupport::probe_direct(&File::from(fd.try_clone_to_owned().ok()?)).ok();
    match DirectSupport::reported(fd).or_else(tried) {
        Some(DirectSupport::Direct(alignment)) => alignment.offset <= page_size,
        Some(_) => false,
        None => true,
    }
}

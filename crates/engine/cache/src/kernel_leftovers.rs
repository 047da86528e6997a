//! Pages that others left in the kernel's page cache: dropped before the first direct read.
//!
//! Direct reads of a file with resident pages make XFS take the inode's lock and flush and invalidate on every read, for as
//! long as a page stays. Dropping them changes no byte of the file. What can't be dropped (pages that are mapped, or
//! dirty with a disk that is busy) stays, and costs what it costs; an inspection that fails counts as nothing found.

use std::fs::File;
use std::time::Duration;

use pagekeeper_io::{IoFile, Support};
use pagekeeper_kernel::{FileSystem, Flush, InspectedFile, ReleaseOptions, release, residency};

/// Waiting for dirty pages at an open has an end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Drops what is resident of a file; bytes that were.
pub(crate) fn drop_leftovers(file: &dyn IoFile) -> u64 {
    let Some(fd) = file.fd() else { return 0 };
    let Ok(fd) = fd.try_clone_to_owned() else { return 0 };
    let Ok(inspected) = InspectedFile::from_fd(fd, file.path().to_owned()) else { return 0 };
    let Ok(found) = residency(&inspected, 0..u64::MAX) else { return 0 };
    if found.resident == 0 {
        return 0;
    }
    let options = ReleaseOptions {
        flush: Flush::Watch,
        patience: PATIENCE,
        retry_pause: Duration::from_millis(1),
        explain: false,
    };
    // The next inspection shows what is left; nothing depends on it.
    let _ = release(&inspected, 0..u64::MAX, &options);
    found.resident
}

/// Whether direct reads of pages of so many bytes get what they are for from a file that was opened for them. They are allowed, and go through
/// the kernel's page cache, on tmpfs (Linux 6.6), of files whose data ext4 journals, and of compressed ones on btrfs; and need
/// larger pages on devices with large blocks. As the kernel reports it; tried where it reports nothing.
pub(crate) fn is_direct(file: &dyn IoFile, page_size: usize) -> bool {
    let Some(fd) = file.fd() else { return true };
    if FileSystem::of(fd, file.path()).is_ok_and(|on| matches!(on, FileSystem::Tmpfs | FileSystem::Ramfs)) {
        return false;
    }
    let tried = || Support::probe_direct(&File::from(fd.try_clone_to_owned().ok()?)).ok();
    match Support::reported(fd).or_else(tried) {
        Some(Support::Direct(alignment)) => alignment.offset <= page_size,
        Some(_) => false,
        None => true,
    }
}

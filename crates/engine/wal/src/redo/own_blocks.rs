//! Ensures that a log's files share blocks with no other file, so that overwriting them needs no
//! room.
//!
//! Btrfs copies on write, unless a file was exempted (`FS_NOCOW_FL`) before its first byte. It then
//! has no checksums for the file, but the log has its own. On XFS the files of a log share blocks
//! after `cp --reflink`, and fallocate(2) with `FALLOC_FL_UNSHARE_RANGE` gives each its own, which
//! needs room once. A simulated disk needs none of this.

use pagekeeper_io::{Error as IoError, IoFile};
use pagekeeper_kernel::{FileSystem, is_overwritten_in_place};
use rustix::fs::{FallocateFlags, IFlags};
use rustix::io::Errno;

/// Exempts an empty file on btrfs from copying on write. Best effort: [`has_own_blocks`] tells
/// whether it worked.
pub(super) fn exempt_from_copies(file: &dyn IoFile) {
    let Some(fd) = file.fd() else { return };
    if FileSystem::of(fd, file.path()).is_ok_and(|found| found == FileSystem::Btrfs)
        && let Ok(flags) = rustix::fs::ioctl_getflags(fd)
    {
        let _ = rustix::fs::ioctl_setflags(fd, flags | IFlags::NOCOW);
    }
}

/// Gives a file its own blocks in place of shared ones, if the file system can. Fails if there is
/// no room for them.
pub(super) fn unshare(file: &dyn IoFile, bytes: u64) -> Result<(), IoError> {
    let Some(fd) = file.fd() else { return Ok(()) };
    // On XFS the call below can fail on a full disk even if no block is shared.
    if has_own_blocks(file) {
        return Ok(());
    }
    let how = FallocateFlags::UNSHARE_RANGE | FallocateFlags::KEEP_SIZE;
    let unshared = loop {
        match rustix::fs::fallocate(fd, how, 0, bytes) {
            Err(Errno::INTR) => {}
            unshared => break unshared,
        }
    };
    match unshared {
        // The blocks were copied through the page cache. Pages that can't be released stay.
        Ok(()) => {
            let _ = file.release(0..bytes);
            Ok(())
        }
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(IoError::Call {
            call: "fallocate",
            path: file.path().to_path_buf(),
            errno: errno.raw_os_error(),
        }),
        // The file system has no such call.
        Err(_) => Ok(()),
    }
}

/// Whether writes over the file are known to need no room.
pub(super) fn has_own_blocks(file: &dyn IoFile) -> bool {
    file.fd().is_none_or(|fd| is_overwritten_in_place(fd, file.path()).unwrap_or(false))
}

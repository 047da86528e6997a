//! Ensures that a log's files share blocks with no other file, so that overwriting them needs no room.
//!
//! Btrfs copies on write, unless a file was exempted (`FS_NOCOW_FL`) before its first byte. It then
//! has no checksums for the file, but the log has its own. A file that is not exempt, or is in a
//! snapshot, is replaced by an exempt copy. On XFS the files of a log share blocks after `cp
//! --reflink`, and fallocate(2) with `FALLOC_FL_UNSHARE_RANGE` gives each its own. Either needs
//! room once. A simulated disk needs none of this.
//!
//! Invariant: a copy is durable before it gets the file's name, so a crash leaves the one or the
//! other.

use std::path::{Path, PathBuf};

use pagekeeper_io::{AlignedBuf, Create, Error as IoError, Io, IoFile, WriteMode, open_writable_past_cache};
use pagekeeper_kernel::{FileSystem, is_overwritten_in_place};
use rustix::fs::{FallocateFlags, IFlags};
use rustix::io::Errno;

use crate::convert::to_usize;

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Exempts an empty file on btrfs from copying on write. Best effort: [`has_own_blocks`] tells whether it worked.
pub(super) fn exempt_from_copies(file: &dyn IoFile) {
    let Some(fd) = file.fd() else { return };
    if is_on_btrfs(file)
        && let Ok(flags) = rustix::fs::ioctl_getflags(fd)
    {
        let _ = rustix::fs::ioctl_setflags(fd, flags | IFlags::NOCOW);
    }
}

/// Replaces a file on btrfs that is not known to be overwritten in place. Returns whether it did:
/// whoever has the file open has the old one. Fails if there is no room for a copy, or if its name
/// can't be made durable.
pub(super) fn replace(io: &dyn Io, file: &dyn IoFile, bytes: u64) -> Result<bool, IoError> {
    if has_own_blocks(file) || !is_on_btrfs(file) {
        return Ok(false);
    }
    let path = file.path();
    let mut copy = path.as_os_str().to_owned();
    copy.push(".copy");
    let copy = PathBuf::from(copy);
    let copied = copy_to(io, file, &copy, bytes);
    if let Ok(true) = copied {
        io.rename(&copy, path)?;
        path.parent().map_or(Ok(()), |directory| io.sync_dir(directory))?;
        return Ok(true);
    }
    // If it stays, the next attempt removes it.
    let _ = io.remove(&copy);
    match copied {
        Err(error) if is_full(error.errno()) => Err(error),
        // The log goes on in the old file.
        _ => Ok(false),
    }
}

/// Copies a file to a new one that is exempt from copying on write, durably except for its name.
/// Returns whether all of it was there.
fn copy_to(io: &dyn Io, file: &dyn IoFile, path: &Path, bytes: u64) -> Result<bool, IoError> {
    // It exists only after a crash.
    let _ = io.remove(path);
    let copy = open_writable_past_cache(io, path, Create::New)?;
    exempt_from_copies(&*copy);
    copy.allocate(0..bytes)?;
    let mut buffer = AlignedBuf::new(COPY_BYTES);
    for at in (0..bytes).step_by(COPY_BYTES) {
        let part = &mut buffer[..to_usize((bytes - at).min(COPY_BYTES as u64))];
        if file.read_at(at, part)? < part.len() {
            return Ok(false);
        }
        copy.write_at(at, part, WriteMode::Plain)?;
    }
    copy.sync_all()?;
    // Only useful without direct I/O. Pages that can't be released stay.
    let _ = copy.release(0..bytes);
    Ok(true)
}

fn is_on_btrfs(file: &dyn IoFile) -> bool {
    let found = file.fd().and_then(|fd| FileSystem::of(fd, file.path()).ok());
    found == Some(FileSystem::Btrfs)
}

fn is_full(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOSPC | libc::EDQUOT))
}

/// Gives a file its own blocks in place of shared ones, if the file system can. Fails if there is no room for them.
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
        Err(errno) if is_full(Some(errno.raw_os_error())) => Err(IoError::Call {
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

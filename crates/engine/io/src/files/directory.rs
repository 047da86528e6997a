//! Operations on directories and names, shared by the back-ends for real files.
//!
//! Names are durable only after [`sync`] of their directory. Nothing here retries after an error.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::files::syscall::{call, require_regular};
use crate::{Error, FileLock, Process};

/// Permissions of new files and directories, before the umask.
pub(crate) const FILE_MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;

pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    rustix::fs::unlink(path).map_err(|errno| call("unlink", path, errno))
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    rustix::fs::rename(from, to).map_err(|errno| call("rename", from, errno))
}

pub(crate) fn exchange(one: &Path, other: &Path) -> Result<(), Error> {
    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
        .map_err(|errno| call("rename", one, errno))
}

pub(crate) fn create(path: &Path) -> Result<(), Error> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(DIRECTORY_MODE)).map_err(|errno| call("mkdir", path, errno))
}

pub(crate) fn remove_directory(path: &Path) -> Result<(), Error> {
    rustix::fs::rmdir(path).map_err(|errno| call("rmdir", path, errno))
}

pub(crate) fn list(path: &Path) -> Result<Vec<OsString>, Error> {
    let failed = |error: &io::Error| Error::Call {
        call: "readdir",
        path: path.to_path_buf(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    };
    let entries = std::fs::read_dir(path).map_err(|error| failed(&error))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names: Vec<_> = names.collect::<io::Result<_>>().map_err(|error| failed(&error))?;
    names.sort_unstable();
    Ok(names)
}

pub(crate) fn sync(path: &Path) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| call("open", path, errno))?;
    uninterrupted(|| rustix::fs::fsync(&directory))
        .map_err(|errno| Error::Sync { path: path.to_path_buf(), errno: errno.raw_os_error() })
}

/// Repeats a call that a signal interrupted.
pub(crate) fn uninterrupted(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// A locked file. It is unlocked explicitly: after a mere close, the lock would last as long as a
/// program that another thread is just starting has a copy of the descriptor, which is until its
/// execve(2).
struct HeldFileLock {
    file: OwnedFd,
    /// A forked process has a copy as well, but must not release its parent's lock.
    process: Process,
}

impl Drop for HeldFileLock {
    fn drop(&mut self) {
        if self.process.is_current() {
            // If this fails, the close releases the lock.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Locks a file with flock(2). The lock belongs to the open file description, so that a second open
/// within the same process is locked out as well.
pub(crate) fn lock(path: &Path) -> Result<FileLock, Error> {
    Ok(FileLock::new(path, hold(path, LockSharing::Exclusive)?))
}

/// Takes a lock as [`lock`] does, but a shared one. Nothing is written.
pub(crate) fn lock_shared(path: &Path) -> Result<Option<FileLock>, Error> {
    match hold(path, LockSharing::Shared) {
        Ok(held) => Ok(Some(FileLock::new(path, held))),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Debug, Clone, Copy)]
enum LockSharing {
    Exclusive,
    Shared,
}

fn hold(path: &Path, sharing: LockSharing) -> Result<HeldFileLock, Error> {
    let (access, operation) = match sharing {
        LockSharing::Exclusive => (OFlags::RDWR | OFlags::CREATE, FlockOperation::NonBlockingLockExclusive),
        LockSharing::Shared => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
    };
    loop {
        let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(FILE_MODE))
            .map_err(|errno| call("open", path, errno))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| call("fstat", path, errno))?;
        require_regular(&stat, path)?;
        match uninterrupted(|| rustix::fs::flock(&file, operation)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Locked { path: path.to_path_buf() }),
            Err(errno) => return Err(call("flock", path, errno)),
        }
        let held = HeldFileLock { file, process: Process::current() };
        // The previous holder may have removed the name in between. Then this lock protects
        // nothing.
        match rustix::fs::stat(path) {
            Ok(now) if (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) => return Ok(held),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(call("stat", path, errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_a_starting_program_holds_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = hold(&path, LockSharing::Exclusive).unwrap();
        let copy = held.file.try_clone().unwrap();
        assert_eq!(lock(&path).err(), Some(Error::Locked { path: path.clone() }));
        drop(held);
        lock(&path).unwrap();
        drop(copy);
    }

    #[test]
    fn readers_share_a_lock_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert!(lock_shared(&path).unwrap().is_none());
        let held = lock(&path).unwrap();
        assert_eq!(lock_shared(&path).err(), Some(Error::Locked { path: path.clone() }));
        drop(held);
        let readers = [lock_shared(&path).unwrap().unwrap(), lock_shared(&path).unwrap().unwrap()];
        assert_eq!(lock(&path).err(), Some(Error::Locked { path: path.clone() }));
        drop(readers);
        lock(&path).unwrap();
    }
}

//! A file lock, held until its value is dropped.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};

/// A lock on a file. It is released when the value is dropped, or by the system when the process
/// ends.
///
/// ```
/// use pagekeeper_io::{Error, Io};
/// use pagekeeper_simdisk::SimDisk;
/// let disk = SimDisk::new();
/// let held = disk.lock("/lock".as_ref())?;
/// assert_eq!(disk.lock("/lock".as_ref()).err(), Some(Error::Locked { path: "/lock".into() }));
/// drop(held);
/// disk.lock("/lock".as_ref())?;
/// # Ok::<(), Error>(())
/// ```
pub struct FileLock {
    path: PathBuf,
    _held: Box<dyn Any + Send + Sync>,
}

impl FileLock {
    /// Creates a lock that lasts until `held` is dropped; for implementations of back-ends.
    pub fn new(path: impl Into<PathBuf>, held: impl Any + Send + Sync) -> Self {
        Self { path: path.into(), _held: Box::new(held) }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for FileLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLock").field("path", &self.path).finish_non_exhaustive()
    }
}

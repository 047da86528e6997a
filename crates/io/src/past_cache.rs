//! Opening files for direct I/O where the file system has it, and for buffered I/O otherwise.

use std::path::Path;
use std::sync::Arc;

use crate::{Access, Create, Error, Io, IoFile};

/// Opens a file to read as a crash left it on its device: past the kernel's cache, which can show what the device never got
/// (after a sync that failed). On a file system without direct I/O ([`IoFile::access`] reports): through the cache, from which what
/// is clean is dropped before.
///
/// ```
/// use pagekeeper_io::{Access, SimDisk, open_past_cache};
/// let disk = SimDisk::builder().without_direct().build();
/// disk.create("/file", [7; 100])?;
/// assert_eq!(open_past_cache(&disk, "/file".as_ref())?.access(), Access::Buffered);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub fn open_past_cache(io: &dyn Io, path: &Path) -> Result<Arc<dyn IoFile>, Error> {
    match io.open(path, Access::Direct) {
        Err(Error::NoDirect { .. }) => {
            let file = io.open(path, Access::Buffered)?;
            file.release(0..u64::MAX)?;
            Ok(file)
        }
        opened => opened,
    }
}

/// Opens a file to write, directly where that can be had, and makes it first if it is to be.
pub fn open_writable_past_cache(io: &dyn Io, path: &Path, create: Create) -> Result<Arc<dyn IoFile>, Error> {
    if create == Create::New {
        // Without the flag: some file systems make the file and then refuse it.
        io.open_writable(path, Access::Buffered, create)?;
    }
    match io.open_writable(path, Access::Direct, Create::Never) {
        Err(Error::NoDirect { .. }) => io.open_writable(path, Access::Buffered, Create::Never),
        opened => opened,
    }
}

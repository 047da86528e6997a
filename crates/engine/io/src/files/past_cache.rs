//! Opening files for direct I/O where the file system has it, and for buffered I/O otherwise.

use std::path::Path;
use std::sync::Arc;

use crate::{Access, Create, Error, Io, IoFile};

/// Opens a file to read what a crash left on its device: past the kernel's cache, which may have
/// data that the device never received (after a failed sync). On a file system without direct I/O
/// ([`IoFile::access`] reports that), the file is read through the cache, after its clean pages are
/// dropped.
///
/// ```
/// use pagekeeper_io::{Access, open_past_cache};
/// use pagekeeper_simdisk::SimDisk;
/// let disk = SimDisk::builder().without_direct().build();
/// disk.create("/file", [7; 100])?;
/// assert_eq!(open_past_cache(&disk, "/file")?.access(), Access::Buffered);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub fn open_past_cache(io: &dyn Io, path: impl AsRef<Path>) -> Result<Arc<dyn IoFile>, Error> {
    let path = path.as_ref();
    match io.open(path, Access::Direct) {
        Err(Error::NoDirect { .. }) => {
            let file = io.open(path, Access::Buffered)?;
            file.release(0..u64::MAX)?;
            Ok(file)
        }
        opened => opened,
    }
}

/// Opens a file for writing, for direct I/O if available. Creates it first if requested.
pub fn open_writable_past_cache(
    io: &dyn Io,
    path: impl AsRef<Path>,
    create: Create,
) -> Result<Arc<dyn IoFile>, Error> {
    let path = path.as_ref();
    if create == Create::New {
        // Without the flag: some file systems create the file and then refuse the flag.
        io.open_writable(path, Access::Buffered, create)?;
    }
    match io.open_writable(path, Access::Direct, Create::Never) {
        Err(Error::NoDirect { .. }) => io.open_writable(path, Access::Buffered, Create::Never),
        opened => opened,
    }
}

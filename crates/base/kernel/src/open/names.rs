//! Lists the names in an open directory, up to a limit: its owner may have created any number of
//! them.
//!
//! Fails with the call's error; the file system is announced before each call
//! ([`hang`](crate::hang)).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::RawDir;

use crate::hang::announce_from;
use crate::{Error, Result};

/// Returns the first `most` names in a directory opened for listing, in its own order, without `.`
/// and `..`.
///
/// `path` is the whole path, for errors. It does not matter if another directory has that name by
/// now.
///
/// ```
/// use pagekeeper_kernel::{Links, first_names, open_directory};
/// use std::os::fd::AsFd;
/// let path = std::path::Path::new("/etc");
/// let directory = open_directory(path, Links::Refuse)?;
/// assert_eq!(first_names(directory.as_fd(), path, 2)?.len(), 2);
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
pub fn first_names(directory: BorrowedFd<'_>, path: &Path, most: usize) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
    while names.len() < most {
        let call = announce_from(directory, path)?;
        let Some(entry) = entries.next() else { break };
        drop(call);
        let entry = entry.map_err(|errno| Error::call("getdents64", path, errno))?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name => names.push(OsStr::from_bytes(name).to_os_string()),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Links, open_directory};

    #[test]
    fn no_more_names_are_read_than_were_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..100 {
            std::fs::write(dir.path().join(number.to_string()), b"").unwrap();
        }
        for (most, read) in [(0, 0), (7, 7), (100, 100), (1000, 100)] {
            let opened = open_directory(dir.path(), Links::Refuse).unwrap();
            let names = first_names(opened.as_fd(), dir.path(), most).unwrap();
            assert_eq!(names.len(), read);
            assert!(names.iter().all(|name| dir.path().join(name).is_file()));
        }
    }
}

//! The file in which a command's processes count, beside the library.
//!
//! It is removed when this process ends. A process that is killed leaves it behind, so its creator
//! holds a lock on it, and the next run removes unlocked files. Invariant: no file is removed while
//! its launcher lives. Removing never fails: a file that can't be inspected stays.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pagekeeper_preload::counters::{self, MappedReport};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::library::{self, PlacementError};

/// The common prefix of the files' names.
const REPORT_PREFIX: &str = "report-";
/// Maximum number of attempts: others may remove a file as left behind before it is locked.
const LOCK_ATTEMPTS_MAX: usize = 16;

/// A report that is being counted.
pub(crate) struct CounterFile {
    file: tempfile::NamedTempFile,
}

impl CounterFile {
    /// Creates the file beside the library, or where there is room for it.
    pub(crate) fn begin(library: &Path) -> Result<Self, PlacementError> {
        library::create_beside(library, |directory| {
            remove_left(directory);
            let file = create_locked(directory)?;
            counters::begin_report(file.as_file())?;
            Ok(Self { file })
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.file.path().to_path_buf()
    }

    /// Reads the counts; fails if a process has truncated the file.
    pub(crate) fn report(&self) -> io::Result<Box<MappedReport>> {
        counters::read_report(self.file.as_file())
    }
}

/// Creates a file that is locked for as long as this process has it open.
fn create_locked(directory: &Path) -> io::Result<tempfile::NamedTempFile> {
    for _ in 0..LOCK_ATTEMPTS_MAX {
        let file = tempfile::Builder::new().prefix(REPORT_PREFIX).tempfile_in(directory)?;
        // Without lock support nobody else gets one, and nothing is removed.
        let _ = flock(file.as_file(), FlockOperation::NonBlockingLockExclusive);
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
    Err(io::Error::other("the file for the counts is removed again and again"))
}

/// Removes the files of killed launchers.
pub(crate) fn remove_left(directory: &Path) {
    let Ok(entries) = directory.read_dir() else { return };
    let is_report = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(REPORT_PREFIX.as_bytes()))
    };
    for path in entries.flatten().map(|entry| entry.path()).filter(is_report) {
        if is_left(&path) {
            // Somebody else may have been faster.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Whether nobody holds the lock.
fn is_left(path: &Path) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let open = || -> io::Result<File> { OpenOptions::new().read(true).custom_flags(flags).open(path) };
    open().is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unused_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let held = create_locked(dir.path()).unwrap();
        std::fs::write(dir.path().join("report-left"), "").unwrap();
        std::fs::write(dir.path().join("other"), "").unwrap();
        remove_left(dir.path());
        let mut names: Vec<_> = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert_eq!(names, [dir.path().join("other"), held.path().to_path_buf()]);
    }

    #[test]
    fn a_truncated_report_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let counting = CounterFile::begin(&dir.path().join("library")).unwrap();
        assert!(counting.report().unwrap().claimed().is_empty());
        File::options().write(true).open(counting.path()).unwrap().set_len(64).unwrap();
        let error = counting.report().err().expect("it is too short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}

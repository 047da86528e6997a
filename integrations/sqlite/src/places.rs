//! The location of a database's log, and whether it can be trusted.
//!
//! Invariant: nothing in the directory is opened before the check that this user owns the
//! directory, and that nobody else may write there. So nobody else has put a link or a log there
//! for this user's process to follow.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::session::Failure;
use pagekeeper_text::escaped;

/// Write permission of the group and of all.
const OTHERS_WRITE: u32 = 0o022;

#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// `NAME-pagekeeper`, beside the database.
    pub(crate) directory: PathBuf,
}

impl Places {
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    pub(crate) fn spill(&self) -> PathBuf {
        self.directory.join("spill")
    }

    /// Creates the directory, or checks that it can be trusted.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        match fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.check()?;
                // Left by a crash during its removal.
                let _ = fs::remove_dir_all(self.old_log());
            }
            Err(error) => return Err(error.into()),
        }
        // The log, and the database's own name, must exist after a power cut.
        let beside = self.directory.parent().unwrap_or(Path::new("/"));
        Ok(File::open(beside)?.sync_all()?)
    }

    /// Returns the name that a log has while it is removed.
    fn old_log(&self) -> PathBuf {
        self.directory.join("old")
    }

    /// Removes the log of a plain and locked database. The log loses its name first, so that a
    /// crash leaves all of it or none.
    pub(crate) fn remove_log(&self) -> io::Result<()> {
        fs::rename(self.log(), self.old_log())?;
        File::open(&self.directory)?.sync_all()?;
        fs::remove_dir_all(self.old_log())
    }

    /// Fails unless the directory belongs to this user alone.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let place = escaped(&self.directory);
        let found = fs::symlink_metadata(&self.directory)
            .map_err(|error| Failure::cant_open(format!("{place}: {error}")))?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(Failure::cant_open(format!(
                "{place}: not a directory of this user's: open the database as its owner"
            )));
        }
        if found.mode() & OTHERS_WRITE != 0 {
            return Err(Failure::cant_open(format!("{place}: others may write in it: chmod 700 it")));
        }
        Ok(())
    }
}

//! The location of a database's log, and whether it can be trusted.
//!
//! Invariant: nothing in the directory is opened before the check that this user owns the
//! directory, and that nobody else may write there. So nobody else has put a link or a log there
//! for this user's process to follow.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use pagekeeper_text::escaped;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::session::Failure;

/// Write permission of the group and of all.
const OTHERS_WRITE: u32 = 0o022;
const LOG_NAME: &str = "log";
const SPILL_NAME: &str = "spill";
/// The name that a log has while it is removed.
const OLD_LOG_NAME: &str = "old";

#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// `NAME-pagekeeper`, beside the database.
    pub(crate) directory: PathBuf,
}

impl Places {
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join(LOG_NAME)
    }

    pub(crate) fn spill(&self) -> PathBuf {
        self.directory.join(SPILL_NAME)
    }

    /// Creates the directory, or checks that it can be trusted. Returns it open.
    pub(crate) fn prepare(&self) -> Result<File, Failure> {
        if let Err(error) = fs::DirBuilder::new().mode(0o700).create(&self.directory)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error.into());
        }
        let directory = self.check()?;
        // Left by a crash during its removal.
        let _ = remove_old(&directory);
        // The log, and the database's own name, must exist after a power cut.
        let beside = self.directory.parent().unwrap_or(Path::new("/"));
        File::open(beside)?.sync_all()?;
        Ok(directory)
    }

    /// Removes the log of a plain database, and the directory if it is empty then. The caller has
    /// the database locked, and the log and its directory open: if their database was moved, and
    /// another got its name, the other's log stays. The log loses its name first, so that a crash
    /// leaves all of it or none.
    pub(crate) fn remove_log(&self, directory: &File) -> io::Result<()> {
        // Obsolete, and possibly large.
        let _ = unlinkat(directory, SPILL_NAME, AtFlags::empty());
        remove_old(directory)?;
        renameat(directory, LOG_NAME, directory, OLD_LOG_NAME)?;
        remove_old(directory)?;
        let _ = fs::remove_dir(&self.directory);
        Ok(())
    }

    /// Opens the directory. Fails unless it belongs to this user alone.
    pub(crate) fn check(&self) -> Result<File, Failure> {
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
        Ok(File::open(&self.directory)?)
    }
}

/// Removes a log that has lost its name, once that is durable. It has files alone.
fn remove_old(directory: &File) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let old = match openat(directory, OLD_LOG_NAME, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    directory.sync_all()?;
    for entry in Dir::read_from(&old)? {
        match entry?.file_name() {
            name if [c".", c".."].contains(&name) => {}
            name => unlinkat(&old, name, AtFlags::empty())?,
        }
    }
    Ok(unlinkat(directory, OLD_LOG_NAME, AtFlags::REMOVEDIR)?)
}

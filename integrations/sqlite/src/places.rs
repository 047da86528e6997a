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
use rustix::fs::{AtFlags, Dir, Mode, OFlags, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::session::Failure;

/// Write permission of the group and of all.
const OTHERS_WRITE: u32 = 0o022;
const LOG_NAME: &str = "log";
pub(crate) const SPILL_NAME: &str = "spill";
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
        if self.is_at_its_name(directory) {
            let _ = fs::remove_dir(&self.directory);
        }
        Ok(())
    }

    /// Whether the open directory still has its name: it may have been moved, and another may have
    /// got the name.
    pub(crate) fn is_at_its_name(&self, directory: &File) -> bool {
        let (named, open) = (fs::symlink_metadata(&self.directory), directory.metadata());
        matches!((named, open), (Ok(named), Ok(open)) if (named.dev(), named.ino()) == (open.dev(), open.ino()))
    }

    /// Opens the directory. Fails unless it belongs to this user alone.
    pub(crate) fn check(&self) -> Result<File, Failure> {
        let place = escaped(&self.directory);
        let not_ours = || {
            Failure::cant_open(format!(
                "{place}: not a directory of this user's: open the database as its owner"
            ))
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match open(&self.directory, flags, Mode::empty()) {
            Ok(directory) => File::from(directory),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Err(not_ours()),
            Err(error) => return Err(Failure::cant_open(format!("{place}: {error}"))),
        };
        let found = directory.metadata()?;
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(not_ours());
        }
        if found.mode() & OTHERS_WRITE != 0 {
            return Err(Failure::cant_open(format!("{place}: others may write in it: chmod 700 it")));
        }
        Ok(directory)
    }
}

/// Removes a log that has lost its name, once that is durable. It contains only files. Another
/// process may be removing it, too.
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
            name => gone(unlinkat(&old, name, AtFlags::empty()))?,
        }
    }
    Ok(gone(unlinkat(directory, OLD_LOG_NAME, AtFlags::REMOVEDIR))?)
}

/// Accepts that a file to be removed does not exist any more.
fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    if removed == Err(Errno::NOENT) { Ok(()) } else { removed }
}

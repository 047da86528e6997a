//! The evidence that a process shows for its claims to directories: the logs that it has open
//! there, and the names that its profile gives below its working directory.
//!
//! Any process can name or open whatever it may read, and paths may lead elsewhere by the time of a
//! claim. So a file counts only while it is in the directory, and a name only in a working
//! directory that nobody else can have made. Whether the claim counts is decided by
//! [`ClaimStrength`](crate::ClaimStrength).

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::{OpenFile, ProcRoot};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use crate::directories::ownership::{self, DirectoryAttributes, ProcessOwnership};
use crate::profile::Profile;

/// The evidence for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The directory is named, below a working directory that nobody else can have made.
    Named,
    /// A log file there is open.
    Reads,
    /// A log file there is open for writing.
    Writes,
}

/// The evidence that one process shows.
pub struct ClaimEvidence {
    pid: u32,
    ownership: Arc<ProcessOwnership>,
    /// The logs that it has open, by directory as it sees it: their names, their inodes, and
    /// whether it writes.
    held: HashMap<PathBuf, Vec<(PathBuf, Inode, bool)>>,
    /// The directories that its profile names below its working directory: as named, and as it sees
    /// them.
    named: Vec<(PathBuf, PathBuf)>,
}

impl ClaimEvidence {
    /// Records the files that a process and its loggers have `open`. `ownership` says which of them
    /// it writes.
    pub fn of<'a>(
        proc: &ProcRoot,
        pid: u32,
        profile: &Profile,
        ownership: Arc<ProcessOwnership>,
        open: impl Iterator<Item = &'a OpenFile>,
    ) -> Self {
        let view = proc.view_of(pid);
        let mut held: HashMap<PathBuf, Vec<(PathBuf, Inode, bool)>> = HashMap::new();
        for file in open {
            let (Some(parent), Some(name)) = (file.path.parent(), file.path.file_name()) else { continue };
            let (name, writes) = (PathBuf::from(name), ownership.writes.contains(&file.inode));
            held.entry(view.path(parent)).or_default().push((name, file.inode, writes));
        }
        Self { pid, ownership, held, named: named_directories(proc, pid, profile) }
    }

    /// Returns the best evidence for its claim to this directory. The path may lead elsewhere by
    /// now than when the process showed it, so the files that it holds must be in the directory.
    pub fn best(&self, proc: &ProcRoot, directory: BorrowedFd<'_>, path: &Path) -> Option<Evidence> {
        let is_there = |(name, inode, _): &&(PathBuf, Inode, bool)| {
            rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
                .is_ok_and(|stat| ownership::inode(&stat) == *inode)
        };
        let mut held: Vec<_> = self.held.get(path).into_iter().flatten().collect();
        held.sort_by_key(|(_, _, writes)| !writes);
        if let Some((_, _, writes)) = held.into_iter().find(is_there) {
            return Some(if *writes { Evidence::Writes } else { Evidence::Reads });
        }
        self.is_named(proc, directory, path).unwrap_or(false).then_some(Evidence::Named)
    }

    /// Returns whether its profile names this path.
    pub fn names(&self, path: &Path) -> bool {
        self.named.iter().any(|(_, named)| named == path)
    }

    /// Returns whether the directory is the target of a named entry in the trusted working
    /// directory itself.
    fn is_named(&self, proc: &ProcRoot, directory: BorrowedFd<'_>, path: &Path) -> Option<bool> {
        let (name, _) = self.named.iter().find(|(_, named)| named == path)?;
        let base = trusted_base(proc, self.pid, &self.ownership)?;
        let stat = rustix::fs::statx(&base, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS).ok()?;
        let is_link = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink;
        Some(is_link || ownership::inode(&stat) == DirectoryAttributes::of(directory).ok()?.pin.inode)
    }
}

/// Returns the working directory of a process, if it belongs to the process's user or to root and
/// is not writable by everybody. Whoever starts a setuid program chooses its working directory, and
/// a link in it leads anywhere.
#[allow(clippy::disallowed_methods, reason = "only a reference to it, and it is judged at once")]
fn trusted_base(proc: &ProcRoot, pid: u32, ownership: &ProcessOwnership) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(proc.path().join(format!("{pid}/cwd")), flags, Mode::empty()).ok()?;
    let identity = DirectoryAttributes::of(&base).ok()?;
    (!identity.open_to_all && (identity.user == 0 || ownership.runs_as(identity.user))).then_some(base)
}

/// Returns the directories that a database's profile names below its working directory: as named,
/// and as the database sees them.
pub fn named_directories(proc: &ProcRoot, pid: u32, profile: &Profile) -> Vec<(PathBuf, PathBuf)> {
    let named = &profile.directories;
    if named.is_empty() {
        return Vec::new();
    }
    // If the process may not be inspected, that is reported when its descriptors are listed.
    let Ok(base) = proc.working_directory(pid) else { return Vec::new() };
    let seen = |directory: &PathBuf| proc.as_seen_by(pid, &base.join(directory));
    named.iter().map(|directory| (directory.clone(), seen(directory))).collect()
}

//! The evidence of a database's process for its claims to directories, and the outcomes of these.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pagekeeper_catalog::{ClaimStrength, Party, Profile};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::{OpenFile, ProcRoot};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use crate::server_settings::ServerSettings;
use crate::targets::{ProcessTraits, Targets};
use pagekeeper_catalog::ownership::{self, DirectoryAttributes, ProcessOwnership};

/// The outcome of a claim.
#[derive(Debug)]
pub(super) enum Claim {
    /// The directory is watched for it.
    Held(ClaimStrength),
    /// The directory is watched for another database of the same kind, or because the operator
    /// named it.
    Shared,
    /// The directory is not watched for this database. The claim is examined again at this time.
    Refused(Instant),
}

impl Claim {
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    pub(super) fn is_due(&self, changed: bool, now: Instant) -> bool {
        match self {
            Self::Held(_) => false,
            Self::Shared => changed,
            Self::Refused(due) => changed || now >= *due,
        }
    }
}

/// The evidence that a database's process shows for its claims.
#[derive(Default)]
pub(super) struct Claimant {
    pub(super) right: Arc<ProcessOwnership>,
    /// The properties by which selectors match it.
    pub(super) traits: ProcessTraits,
    /// The descriptors from its last listing, until those of watched files are known.
    pub(super) listed: Vec<OpenFile>,
    /// Text logs that its loggers write: a server may have a process for that alone.
    logged: BTreeMap<u32, Vec<OpenFile>>,
    /// Directories whose claims are to be examined, as the process sees them, and the basis for
    /// that.
    pub(super) waiting: Option<(Arc<ExaminedDatabase>, BTreeSet<PathBuf>)>,
}

impl Claimant {
    /// Returns a process that has shown nothing yet but its user.
    pub(super) fn of(proc: &ProcRoot, pid: u32) -> Self {
        let right = ProcessOwnership::new(proc.users(pid).ok(), Party::of(proc, pid), HashSet::new());
        Self { right: Arc::new(right), ..Self::default() }
    }

    pub(super) fn right(&self) -> Arc<ProcessOwnership> {
        Arc::clone(&self.right)
    }

    /// Takes in the text logs that one of its loggers writes. Returns whether they have changed.
    pub(super) fn note_logged(&mut self, logger: u32, files: Vec<OpenFile>) -> bool {
        let inodes = |files: &[OpenFile]| files.iter().map(|file| file.inode).collect::<BTreeSet<_>>();
        let known = self.logged.insert(logger, files);
        known.is_none_or(|known| inodes(&known) != inodes(&self.logged[&logger]))
    }

    /// Forgets its loggers, which have changed.
    pub(super) fn forget_loggers(&mut self) {
        self.logged.clear();
    }

    /// Returns the files that it or one of its loggers has open.
    pub(super) fn open(&self) -> impl Iterator<Item = &OpenFile> {
        self.listed.iter().chain(self.logged.values().flatten())
    }

    /// Returns whether it is never to be touched, as a whole or in one of these directories, or
    /// that can't be ruled out.
    pub(super) fn is_never<'a>(&self, targets: &Targets, claims: impl Iterator<Item = &'a PathBuf>) -> bool {
        let mut places = claims.map(PathBuf::as_path).chain([Path::new("")]);
        !targets.never.is_empty() && places.any(|place| targets.never(Some(&self.traits), place))
    }

    /// Returns whether its last listing was fully taken in.
    pub(super) fn is_settled(&self) -> bool {
        !self.waits() && self.listed.is_empty()
    }

    /// Returns whether claims of it wait to be examined.
    pub(super) fn waits(&self) -> bool {
        self.waiting.is_some()
    }
}

/// A snapshot of a database, on the basis of which its claims are examined.
pub(super) struct ExaminedDatabase {
    pub(super) pid: u32,
    pub(super) profile: Arc<Profile>,
    pub(super) certain: bool,
    pub(super) right: Arc<ProcessOwnership>,
    pub(super) traits: ProcessTraits,
    pub(super) through: Option<u32>,
    pub(super) server: Arc<ServerSettings>,
    /// The logs that it has open, by directory as it sees it: their names, their inodes, and
    /// whether it writes.
    held: HashMap<PathBuf, Vec<(PathBuf, Inode, bool)>>,
    /// The directories that its profile names below its working directory: as named, and as it sees
    /// them.
    named: Vec<(PathBuf, PathBuf)>,
}

/// The evidence for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The directory is named, below a working directory that nobody else can have made.
    Named,
    /// A log file there is open.
    Reads,
    /// A log file there is open for writing.
    Writes,
}

impl ExaminedDatabase {
    pub(super) fn of(
        proc: &ProcRoot,
        (pid, certain): (u32, bool),
        profile: &Arc<Profile>,
        server: &Arc<ServerSettings>,
        claimant: &Claimant,
    ) -> Self {
        let (right, view) = (claimant.right(), proc.view_of(pid));
        let mut held: HashMap<PathBuf, Vec<(PathBuf, Inode, bool)>> = HashMap::new();
        for file in claimant.open() {
            let (Some(parent), Some(name)) = (file.path.parent(), file.path.file_name()) else { continue };
            let (name, writes) = (PathBuf::from(name), right.writes.contains(&file.inode));
            held.entry(view.path(parent)).or_default().push((name, file.inode, writes));
        }
        Self {
            pid,
            profile: Arc::clone(profile),
            certain,
            traits: claimant.traits.clone(),
            through: proc.through(pid),
            server: Arc::clone(server),
            named: named_directories(proc, pid, profile),
            right,
            held,
        }
    }

    /// Returns the best evidence for its claim to this directory. The path may lead elsewhere by
    /// now than when the process showed it, so the files that it holds must be in the directory.
    pub(super) fn evidence(
        &self,
        proc: &ProcRoot,
        directory: BorrowedFd<'_>,
        path: &Path,
    ) -> Option<Evidence> {
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
    pub(super) fn names(&self, path: &Path) -> bool {
        self.named.iter().any(|(_, named)| named == path)
    }

    /// Returns whether the directory is the target of a named entry in the trusted working
    /// directory itself.
    fn is_named(&self, proc: &ProcRoot, directory: BorrowedFd<'_>, path: &Path) -> Option<bool> {
        let (name, _) = self.named.iter().find(|(_, named)| named == path)?;
        let base = trusted_base(proc, self.pid, &self.right)?;
        let stat = rustix::fs::statx(&base, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS).ok()?;
        let is_link = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink;
        Some(is_link || ownership::inode(&stat) == DirectoryAttributes::of(directory).ok()?.pin.inode)
    }
}

/// Returns the working directory of a process, if it belongs to the process's user or to root and
/// is not writable by everybody. Whoever starts a setuid program chooses its working directory, and
/// a link in it leads anywhere.
#[allow(clippy::disallowed_methods, reason = "only a reference to it, and it is judged at once")]
fn trusted_base(proc: &ProcRoot, pid: u32, right: &ProcessOwnership) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(proc.path().join(format!("{pid}/cwd")), flags, Mode::empty()).ok()?;
    let identity = DirectoryAttributes::of(&base).ok()?;
    (!identity.open_to_all && (identity.user == 0 || right.runs_as(identity.user))).then_some(base)
}

/// Returns the directories that a database's profile names below its working directory: as named,
/// and as the database sees them.
pub(super) fn named_directories(proc: &ProcRoot, pid: u32, profile: &Profile) -> Vec<(PathBuf, PathBuf)> {
    let named = &profile.directories;
    if named.is_empty() {
        return Vec::new();
    }
    // If the process may not be inspected, that is reported when its descriptors are listed.
    let Ok(base) = proc.working_directory(pid) else { return Vec::new() };
    let seen = |directory: &PathBuf| proc.as_seen_by(pid, &base.join(directory));
    named.iter().map(|directory| (directory.clone(), seen(directory))).collect()
}

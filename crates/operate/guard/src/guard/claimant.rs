//! The evidence of a database's process for its claims to directories, and the outcomes of these.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pagekeeper_catalog::ownership::ProcessOwnership;
use pagekeeper_catalog::settings::ServerSettings;
use pagekeeper_catalog::{ClaimEvidence, ClaimStrength, Party, ProcessTraits, Profile, Targets};
use pagekeeper_kernel::process::{OpenFile, ProcRoot};

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
    pub(super) ownership: Arc<ProcessOwnership>,
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
        let ownership = ProcessOwnership::new(proc.users(pid).ok(), Party::of(proc, pid), HashSet::new());
        Self { ownership: Arc::new(ownership), ..Self::default() }
    }

    pub(super) fn ownership(&self) -> Arc<ProcessOwnership> {
        Arc::clone(&self.ownership)
    }

    /// Records the text logs that one of its loggers writes. Returns whether they have changed.
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
    pub(super) ownership: Arc<ProcessOwnership>,
    pub(super) traits: ProcessTraits,
    pub(super) through: Option<u32>,
    pub(super) server: Arc<ServerSettings>,
    pub(super) evidence: ClaimEvidence,
}

impl ExaminedDatabase {
    pub(super) fn of(
        proc: &ProcRoot,
        (pid, certain): (u32, bool),
        profile: &Arc<Profile>,
        server: &Arc<ServerSettings>,
        claimant: &Claimant,
    ) -> Self {
        let ownership = claimant.ownership();
        Self {
            pid,
            profile: Arc::clone(profile),
            certain,
            traits: claimant.traits.clone(),
            through: proc.through(pid),
            server: Arc::clone(server),
            evidence: ClaimEvidence::of(proc, pid, profile, Arc::clone(&ownership), claimant.open()),
            ownership,
        }
    }
}

//! One watched directory: its log files, and how they were last seen.
//!
//! Invariants:
//! 1. No descriptor is held between ticks: a file that the database purges gives its space back at
//!    once, and a file system can be unmounted.
//! 2. A name that leads to another file than before is a new file: it gets a new [`FileId`], and
//!    ids are never reused.
//! 3. It is one directory, identified by its [`DirectoryPin`], wherever its path leads later. Only
//!    those of its files are opened that count by its [`FileOwnership`].
//! 4. Results derived from its files (the policy's facts, for how long none is due) are kept until
//!    [`Directory::touch`] is called. Every change of a file, or of what is known about one, calls
//!    it.
//!
//! `listed`, below, takes up its files; `due` samples them.
//!
//! A file that can't be inspected is reported once and left out; a directory that is gone has no
//! files.
//!
//! The `tree` module of observe differs, see there: it samples all files of whole trees, within a
//! time budget and without watches.

mod due;
mod listed;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::ownership::{DirectoryAttributes, DirectoryPin, FileOwnership};
use pagekeeper_catalog::settings::ServerSettings;
use pagekeeper_catalog::{LogKey, LogSettings, LogSpec, NameListing, Profile};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, ExpectedFile, Inode, InspectedFile, Links, PathHandle, Result};
use pagekeeper_policy::names::SegmentSize;
use pagekeeper_policy::reported_once::WarningDedup;
use pagekeeper_policy::{LogId, RewriteKind, Rule, StepFacts};

use crate::config::WalReaderLimits;
use crate::entry::{Entry, NextDue, OfDatabase};
use crate::facts_cache::FactsCache;
use crate::ids::new_id;
pub(crate) use crate::ids::{DatabaseKey, DirectoryId};
use crate::sample::KnownFileSystem;
pub(crate) use listed::ListingResult;

/// Beyond this many changes between two ticks, a directory is listed at intervals instead.
pub(crate) const INOTIFY_STORM_CHANGES: usize = 1000;
/// That interval.
const STORM_LIST_INTERVAL: Duration = Duration::from_secs(10);

/// Watched directories, boxed: ticks move thousands of them from vector to vector.
#[allow(clippy::vec_box, reason = "moving them themselves was a tenth of what a tick takes")]
pub(crate) type Directories = Vec<Box<Directory>>;

/// A watched directory.
#[allow(clippy::struct_excessive_bools, reason = "each says one thing about it")]
pub(crate) struct Directory {
    pub(crate) id: DirectoryId,
    /// The path as the database sees it.
    pub(crate) path: PathBuf,
    /// The process through whose root it is reached, if that process has another mount namespace or
    /// root than the guard.
    pub(crate) through: Option<u32>,
    /// The process whose directory it is; `None` if the user named it.
    pub(crate) owner: Option<u32>,
    pub(crate) profile: Arc<Profile>,
    /// The directory's identity, once it could be opened. If its path leads elsewhere later, that
    /// is another's directory, or has to be examined again.
    pub(crate) pin: Option<DirectoryPin>,
    /// The files in it that count.
    pub(crate) ownership: FileOwnership,
    /// Whether a file in it was refused.
    pub(crate) refused: bool,
    /// The warnings given for it.
    pub(crate) warned: WarningDedup,
    /// The time since which nothing of it was released; `None` once something was, or the lack was
    /// reported.
    pub(crate) unreleased_since: Option<Instant>,
    /// Whether decisions for it are carried out, and not only reported.
    pub(crate) acts: bool,
    /// Whether its logs follow tighter rules: the memory cgroup has too much page cache.
    pub(crate) tight: bool,
    pub(crate) entries: BTreeMap<OsString, Entry>,
    pub(crate) logs: HashMap<LogId, Log>,
    by_stem: HashMap<LogKey, LogId>,
    /// The settings of its server.
    pub(crate) server: Arc<ServerSettings>,
    /// Whether it is to be listed again at the next tick.
    pub(crate) stale: bool,
    /// The listing in progress.
    listing: Option<NameListing>,
    /// Names of the last listing whose files were not taken up yet, the newest last.
    new_names: Vec<OsString>,
    /// Names of files that say whether logs are recycled.
    settings: Vec<OsString>,
    /// The number of log files beyond those that may be watched.
    pub(crate) left_out: u64,
    /// The processor time of the listing in progress so far.
    list_cost: Duration,
    /// No listing begins before this.
    list_earliest: Instant,
    /// Ticks in which its database had time for it.
    ticks: u64,
    database: OfDatabase,
    /// Changes each time that files come or go; never reused.
    version: u64,
    /// The name after which sampling continues, if there was no time for all.
    sampled_to: Option<OsString>,
    /// The facts that the policy was given for it, while nothing changes.
    pub(crate) facts_cache: FactsCache,
    next_due: NextDue,
    /// The file system of its files.
    file_system: KnownFileSystem,
    /// The reader of what its database's own files state about its logs.
    pub(crate) state_files: Option<Box<dyn StateFileReader>>,
}

/// Sums over the files of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Resident bytes.
    pub(crate) resident: u64,
    /// Bytes dirty or under writeback.
    pub(crate) unwritten: u64,
    /// Windows with resident pages that are kept.
    pub(crate) windows: usize,
}

/// One log in a directory.
pub(crate) struct Log {
    /// Its index among the profile's logs.
    pub(crate) spec: usize,
    /// The way in which its writer comes back to old bytes, as far as has been seen.
    pub(crate) rewrite: RewriteKind,
    /// The database's settings that concern it.
    pub(crate) settings: LogSettings,
    /// The size of its segments, if it is PostgreSQL's and a file of it has such a size.
    pub(crate) segment_size: Option<SegmentSize>,
}

/// Keeps the content of files that state something about a directory's logs. Made when it is first
/// needed, by `state_files`.
pub(crate) trait StateFileReader: Send {
    /// Reads the files that are due. Calls `begins` before each, and says whether it may be on
    /// another file system than the directory.
    fn read(
        &mut self,
        directory: &Directory,
        proc: &ProcRoot,
        limits: &WalReaderLimits,
        now: Instant,
        begins: &dyn Fn(bool),
    );

    /// Adds their content to the facts, among which the directory's files are already. `titles` are
    /// those of the server's processes. Calls `problem` for what could not be read.
    fn add(
        &mut self,
        directory: &Directory,
        titles: &[(u32, String)],
        limits: &WalReaderLimits,
        facts: &mut StepFacts,
        problem: &mut dyn FnMut(PathBuf, String),
    );
}

impl Directory {
    pub(crate) fn new(
        path: PathBuf,
        owner: Option<u32>,
        through: Option<u32>,
        profile: Arc<Profile>,
        ownership: FileOwnership,
    ) -> Self {
        Self {
            id: DirectoryId::new(),
            path,
            through,
            owner,
            profile,
            pin: None,
            ownership,
            refused: false,
            warned: WarningDedup::default(),
            unreleased_since: Some(Instant::now()),
            acts: true,
            tight: false,
            entries: BTreeMap::new(),
            logs: HashMap::new(),
            by_stem: HashMap::new(),
            server: Arc::default(),
            stale: true,
            listing: None,
            new_names: Vec::new(),
            settings: Vec::new(),
            left_out: 0,
            list_cost: Duration::ZERO,
            list_earliest: Instant::now(),
            ticks: 0,
            database: OfDatabase { files: 0, sees_openers: true },
            version: new_id(),
            sampled_to: None,
            facts_cache: FactsCache::default(),
            next_due: NextDue::default(),
            file_system: None,
            state_files: None,
        }
    }

    /// Invalidates everything derived from its files: they changed, or what is known of them.
    pub(crate) fn touch(&mut self) {
        self.facts_cache.forget();
        self.next_due.until_due = 0;
    }

    /// Makes those of its files due for a sample that are `wanted`.
    pub(crate) fn sample_now(&mut self, wanted: impl Fn(&Entry) -> bool) {
        self.next_due.until_due = 0;
        self.entries.values_mut().filter(|entry| wanted(entry)).for_each(|entry| entry.schedule.sample_now());
    }

    /// Returns the sums of its files.
    pub(crate) fn sums(&self) -> Sums {
        let sum = |sums: Sums, entry: &Entry| Sums {
            resident: sums.resident + entry.sample.resident,
            unwritten: sums.unwritten + entry.sample.unwritten,
            windows: sums.windows + entry.sample.windows.len(),
        };
        self.entries.values().fold(Sums::default(), sum)
    }

    /// Finds the directory for use in one tick: to open its files, not to list them. If its path
    /// leads to another directory than before, fails as if it were gone.
    pub(crate) fn find(&self, proc: &ProcRoot) -> Result<PathHandle> {
        let (directory, identity) = self.resolve(proc)?;
        let is_another = self.pin.is_some_and(|pin| !pin.is_same(&identity.pin));
        if is_another || !self.ownership.may_enter(identity.user) {
            return Err(Error::call("open", &self.path, rustix::io::Errno::STALE));
        }
        Ok(directory)
    }

    /// Returns the same directory without files, to be opened in another thread.
    pub(crate) fn without_files(&self) -> Self {
        let (profile, ownership) = (Arc::clone(&self.profile), self.ownership.clone());
        let path = self.path.clone();
        Self { pin: self.pin, ..Self::new(path, self.owner, self.through, profile, ownership) }
    }

    /// Finds the directory that its path leads to now. Opens nothing: it may be anybody's.
    pub(crate) fn resolve(&self, proc: &ProcRoot) -> Result<(PathHandle, DirectoryAttributes)> {
        let directory = match self.through {
            Some(pid) => proc.handle_in_namespace(pid, &self.path),
            None => PathHandle::at(&self.path, Links::Follow),
        }?;
        if directory.kind() != rustix::fs::FileType::Directory {
            return Err(Error::call("open", &self.path, rustix::io::Errno::NOTDIR));
        }
        let identity =
            DirectoryAttributes::of(&directory).map_err(|error| Error::call("statx", &self.path, error))?;
        Ok((directory, identity))
    }

    pub(crate) fn spec(&self, log: LogId) -> &LogSpec {
        &self.profile.logs[self.logs[&log].spec]
    }

    /// Returns the rule in force for a log.
    pub(crate) fn rule(&self, log: LogId) -> Rule {
        let rule = self.spec(log).rule;
        if self.tight { rule.tightened() } else { rule }
    }

    /// Returns the log that a file of this name would belong to, although it is no longer in the
    /// directory.
    pub(crate) fn log_like(&self, path: &Path) -> Option<LogId> {
        let (spec, matched) = self.profile.log_of(path)?;
        self.by_stem.get(&(spec, matched.log())).copied()
    }

    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the database that it belongs to.
    pub(crate) fn database(&self) -> DatabaseKey {
        match self.owner {
            Some(pid) => DatabaseKey::Process(pid),
            None => DatabaseKey::Named(self.path.clone()),
        }
    }

    /// Records that so many names come and go in it that its notifications were stopped.
    pub(crate) fn in_storm(&mut self, now: Instant) {
        self.stale = true;
        self.list_earliest = self.list_earliest.max(now + STORM_LIST_INTERVAL);
    }

    /// Records that its file system answers again. Anything may have happened meanwhile.
    pub(crate) fn came_back(&mut self) {
        self.stale = true;
        self.sample_now(|_| true);
    }

    /// Forgets its files: the directory is gone, or out of reach for now.
    pub(crate) fn forget_files(&mut self) {
        if !self.entries.is_empty() {
            self.entries.clear();
            self.version = new_id();
            self.touch();
        }
        self.listing = None;
        self.new_names.clear();
    }

    /// Returns a number for the set of its files. It changes each time that a file comes or goes,
    /// and is unique among all directories.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Opens a file of it for an act, if the path still leads to that file.
    pub(crate) fn open_file(
        &self,
        proc: &ProcRoot,
        path: &Path,
        inode: Inode,
    ) -> Result<Option<InspectedFile>> {
        let Some(name) = path.file_name() else { return Ok(None) };
        let directory = self.find(proc)?;
        match InspectedFile::open_in(directory.as_fd(), name, ExpectedFile::Inode(inode), path.to_path_buf())
        {
            Err(Error::OtherFile { .. }) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

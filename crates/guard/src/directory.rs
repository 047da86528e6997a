//! One watched directory: the log files in it, and what was seen of them last.
//!
//! Invariants:
//! 1. No descriptor is held between ticks: a file that the database purges gives its space back at once, and a
//!    file system can be unmounted.
//! 2. A name that leads to another file than before is a new file: it gets a new [`FileId`], and ids are never
//!    reused.
//! 3. It is one directory, by its [`Pin`], whatever its path leads to later; and of its files only those are opened that
//!    count by its [`Right`].
//! 4. What was made of its files (their [sums](Sums), what the policy was given, for how long none is due) is kept until
//!    [`Directory::touch`], which all that changes a file, or what is known of it, calls.
//!
//! Its files are taken up by `listed`, below, and sampled by `due`.
//!
//! A file that can't be inspected is reported once and left out; a directory that is gone has no files.
//!
//! What observe's `tree` does is another thing, see there: all files of whole trees, sampled within a time budget and
//! without watches.

mod due;
mod listed;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_catalog::{LogSpec, Profile};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, Expected, Handle, Inode, InspectedFile, Links, Result};
use pagekeeper_policy::names::SegmentSize;
use pagekeeper_policy::{LogId, Rewrite, Rule};

pub(crate) use self::due::SampledFiles;
use self::due::{OfDatabase, Rest};
pub(crate) use self::listed::Listed;
use crate::entry::Entry;
use crate::ids::IdMap;
use crate::listing::{Listing, LogSettings};
use crate::ownership::{Identity, Pin, Right};
use crate::remembered::Remembered;
use crate::sample::KnownFileSystem;
use crate::server_settings::ServerSettings;
use crate::warned::Warned;

/// Changes between two ticks from which on a directory is listed at intervals instead.
pub(crate) const STORM: usize = 1000;
/// That interval.
const AFTER_STORM: Duration = Duration::from_secs(10);

/// Gives out ids that are never used twice, in any thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ids(Arc<AtomicU64>);

impl Ids {
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A number that was never given before.
fn new_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Names a directory for as long as it is watched; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct DirectoryId(u64);

/// Which database a directory is of: the unit of budgets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum DatabaseKey {
    /// A process.
    Process(u32),
    /// A directory that was named.
    Named(PathBuf),
}

impl DatabaseKey {
    /// Its process, if it is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Named(_) => None,
        }
    }
}

/// Watched directories, each at a place of its own: ticks hand thousands of them from vector to vector.
#[allow(clippy::vec_box, reason = "moving them themselves was a tenth of what a tick takes")]
pub(crate) type Directories = Vec<Box<Directory>>;

/// A watched directory.
#[allow(clippy::struct_excessive_bools, reason = "each says one thing about it")]
pub(crate) struct Directory {
    pub(crate) id: DirectoryId,
    /// As the database sees it.
    pub(crate) path: PathBuf,
    /// The process through whose root it is reached, if it lives in another mount namespace or root than the
    /// guard.
    pub(crate) through: Option<u32>,
    /// The process whose directory it is; none if it was named by the user.
    pub(crate) owner: Option<u32>,
    pub(crate) profile: Arc<Profile>,
    /// Which directory it is, once it could be opened. What its path leads to later is another's, or has to be
    /// examined anew.
    pub(crate) pin: Option<Pin>,
    /// Which files in it count.
    pub(crate) right: Right,
    /// Whether a file in it was refused.
    pub(crate) refused: bool,
    /// What was warned of in it.
    pub(crate) warned: Warned,
    /// Since when nothing of it was released; none once something was, or that was said.
    pub(crate) unreleased_since: Option<Instant>,
    /// Whether what is decided for it is done, and not only reported.
    pub(crate) acts: bool,
    /// Whether its logs are kept tighter: the memory cgroup has too much page cache.
    pub(crate) tight: bool,
    pub(crate) entries: BTreeMap<OsString, Entry>,
    pub(crate) logs: IdMap<LogId, Log>,
    by_stem: HashMap<(usize, Vec<u8>), LogId>,
    /// The settings of its server.
    pub(crate) server: Arc<ServerSettings>,
    /// To be listed again at the next tick.
    pub(crate) stale: bool,
    /// The listing under way.
    listing: Option<Listing>,
    /// Names of the last listing whose files were not taken up yet, the newest last.
    new_names: Vec<OsString>,
    /// Names of files that say whether logs are recycled.
    settings: Vec<OsString>,
    /// How many more log files there are than may be watched.
    pub(crate) left_out: u64,
    /// What the listing under way took so far.
    list_cost: Duration,
    /// No listing begins before.
    list_earliest: Instant,
    /// Ticks in which its database had time for it.
    ticks: u64,
    database: OfDatabase,
    /// Another one each time that files come or go; never used twice.
    version: u64,
    /// Behind which name sampling goes on, where there was no time for all.
    sampled_to: Option<OsString>,
    /// What its files come to, while none of them changes.
    sums: Option<Sums>,
    /// What the policy was given of it, while nothing changes.
    pub(crate) remembered: Remembered,
    rest: Rest,
    /// Of its files.
    file_system: KnownFileSystem,
}

/// What the files of a directory come to.
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
    /// Which of the profile's logs it is.
    pub(crate) spec: usize,
    /// How its writer comes back to old bytes, as far as has been seen.
    pub(crate) rewrite: Rewrite,
    /// What the database's settings say of it.
    pub(crate) settings: LogSettings,
    /// The size of its segments, if it is PostgreSQL's and a file of it has such a size.
    pub(crate) segment_size: Option<SegmentSize>,
}

impl Directory {
    pub(crate) fn new(
        path: PathBuf,
        owner: Option<u32>,
        through: Option<u32>,
        profile: Arc<Profile>,
        right: Right,
    ) -> Self {
        Self {
            id: DirectoryId(new_version()),
            path,
            through,
            owner,
            profile,
            pin: None,
            right,
            refused: false,
            warned: Warned::default(),
            unreleased_since: Some(Instant::now()),
            acts: true,
            tight: false,
            entries: BTreeMap::new(),
            logs: IdMap::default(),
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
            version: new_version(),
            sampled_to: None,
            sums: None,
            remembered: Remembered::default(),
            rest: Rest::default(),
            file_system: None,
        }
    }

    /// Takes note that its files, or what is known of them, changed: what was made of them before holds no more.
    pub(crate) fn touch(&mut self) {
        self.sums = None;
        self.remembered.forget();
        self.rest.until_due = 0;
    }

    /// Asks for samples of those of its files that are wanted when files are next sampled.
    pub(crate) fn sample_now(&mut self, wanted: impl Fn(&Entry) -> bool) {
        self.rest.until_due = 0;
        self.entries.values_mut().filter(|entry| wanted(entry)).for_each(Entry::sample_now);
    }

    /// What its files come to.
    pub(crate) fn sums(&mut self) -> Sums {
        let sum = |sums: Sums, entry: &Entry| Sums {
            resident: sums.resident + entry.sample.resident,
            unwritten: sums.unwritten + entry.sample.unwritten,
            windows: sums.windows + entry.sample.windows.len(),
        };
        let sums = || self.entries.values().fold(Sums::default(), sum);
        debug_assert!(self.sums.is_none_or(|known| known == sums()), "they changed since: {:?}", self.sums);
        *self.sums.get_or_insert_with(sums)
    }

    /// Finds it for one tick's use: to open its files in, not to list them. Fails as if it were gone where its path leads to another
    /// directory than before.
    pub(crate) fn find(&self, proc: &ProcRoot) -> Result<Handle> {
        let (directory, identity) = self.resolve(proc)?;
        let is_another = self.pin.is_some_and(|pin| !pin.is(&identity.pin));
        if is_another || !self.right.may_enter(identity.user) {
            return Err(Error::call("open", &self.path, rustix::io::Errno::STALE));
        }
        Ok(directory)
    }

    /// The same directory, of which no file is known: to be opened elsewhere.
    pub(crate) fn without_files(&self) -> Self {
        let (profile, right) = (Arc::clone(&self.profile), self.right.clone());
        let path = self.path.clone();
        Self { pin: self.pin, ..Self::new(path, self.owner, self.through, profile, right) }
    }

    /// Finds the directory that its path leads to now, and opens nothing: it may be anybody's.
    pub(crate) fn resolve(&self, proc: &ProcRoot) -> Result<(Handle, Identity)> {
        let directory = match self.through {
            Some(pid) => proc.handle_in_namespace(pid, &self.path),
            None => Handle::at(&self.path, Links::Follow),
        }?;
        if directory.kind() != rustix::fs::FileType::Directory {
            return Err(Error::call("open", &self.path, rustix::io::Errno::NOTDIR));
        }
        let identity = Identity::of(&directory).map_err(|error| Error::call("statx", &self.path, error))?;
        Ok((directory, identity))
    }

    pub(crate) fn spec(&self, log: LogId) -> &LogSpec {
        &self.profile.logs[self.logs[&log].spec]
    }

    /// The rule for a log, as it is in force now.
    pub(crate) fn rule(&self, log: LogId) -> Rule {
        let rule = self.spec(log).rule;
        if self.tight { rule.tightened() } else { rule }
    }

    /// The log that a file of this name, which is in it no more, would be one of.
    pub(crate) fn log_like(&self, path: &Path) -> Option<LogId> {
        let (spec, matched) = self.profile.log_of(path)?;
        self.by_stem.get(&(spec, matched.log())).copied()
    }

    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Which database it is of.
    pub(crate) fn database(&self) -> DatabaseKey {
        match self.owner {
            Some(pid) => DatabaseKey::Process(pid),
            None => DatabaseKey::Named(self.path.clone()),
        }
    }

    /// What its notifications go by: a path alone may be that of another directory in another namespace.
    pub(crate) fn key(&self) -> (Option<u32>, PathBuf) {
        (self.owner, self.path.clone())
    }

    /// Takes note that so much comes and goes in it that its notifications were given up.
    pub(crate) fn in_storm(&mut self, now: Instant) {
        self.stale = true;
        self.list_earliest = self.list_earliest.max(now + AFTER_STORM);
    }

    /// Takes note that its file system answers again, after a while in which anything may have happened.
    pub(crate) fn came_back(&mut self) {
        self.stale = true;
        self.sample_now(|_| true);
    }

    /// Forgets its files: it is gone, or out of reach for now.
    pub(crate) fn forget_files(&mut self) {
        if !self.entries.is_empty() {
            self.entries.clear();
            self.version = new_version();
            self.touch();
        }
        self.listing = None;
        self.new_names.clear();
    }

    /// Which files it has: another number each time that one came or went, in any directory.
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
        match InspectedFile::open_in(directory.as_fd(), name, Expected::Inode(inode), path.to_path_buf()) {
            Err(Error::OtherFile { .. }) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

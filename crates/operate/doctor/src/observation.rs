//! The observation: the facts that findings are made from, all gathered in advance: two snapshots
//! and additional data.
//!
//! Invariants: a finder does no I/O, so that it can be tested on plain data. Databases are
//! identified by their index in the *second* snapshot, and files of the two snapshots are matched
//! by inode.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use pagekeeper_kernel::pressure::{MemoryCgroup, MemoryEvents, VmStat};
use pagekeeper_kernel::{Inode, page_size};
use pagekeeper_observe::saved_pages::{SavedFile, SavedPages};
use pagekeeper_observe::{Database, File, HostChange, Snapshot};
use pagekeeper_policy::DiskProfile;
use pagekeeper_text::escaped;
use pagekeeper_trace::{PauseCounts, TraceCounts};

use crate::phrases::process;
use crate::settings::Settings;
use crate::{Advised, AskedReads, DatabaseSwap, Goal, Journal, PoolPressure, Streamer, Subject, Syncs};

/// Everything known when findings are made.
#[derive(Debug)]
pub struct Observation<'a> {
    /// The state when the watch began.
    pub before: &'a Snapshot,
    /// The state at its end, and the changes in between.
    pub after: &'a Snapshot,
    /// The settings of each database of [`Self::after`], in its order; missing for databases beyond
    /// its end.
    pub settings: Vec<Settings>,
    /// Measurements of disks, by `st_dev` of the files on them.
    pub disks: Vec<(u64, DiskProfile)>,
    /// The pages that the guard's rules would release now, for each file that was checked, even if
    /// there are none.
    pub releasable: Vec<Releasable>,
    /// The reason why the guard's rules keep all resident pages of a log, by the path of one of its
    /// files.
    pub kept: Vec<(PathBuf, String)>,
    /// The positions of a file's resident pages: the first few stretches, for files used with
    /// direct I/O.
    pub stretches: Vec<(Inode, Vec<Range<u64>>)>,
    /// The processes that brought in the most pages during the watch; see
    /// [`streamers`](pagekeeper_observe::streamers()).
    pub streamers: Vec<Streamer>,
    /// The syncs seen during the watch; `None` if they were not observed.
    pub syncs: Option<Syncs>,
    /// The swap of each database of [`Self::after`], in its order; missing for databases beyond its
    /// end, and without swap space.
    pub swaps: Vec<Option<DatabaseSwap>>,
    /// The reads that each database of [`Self::after`] asked for, in its order; missing for
    /// databases beyond its end.
    pub asked: Vec<AskedReads>,
    /// Events of memory pressure of each database of [`Self::after`], in its order; missing for
    /// databases beyond its end.
    pub pool_pressure: Vec<Option<PoolPressure>>,
    /// The resident pages before a restart, if known.
    pub snapshot: Option<SavedSnapshot>,
    /// The amount that a recovery of each database of [`Self::after`] would read, in its order;
    /// missing for databases beyond its end.
    pub journals: Vec<Option<Journal>>,
    /// The operator's limit for the duration of a recovery; `None` if there is none.
    pub recovery_target: Option<Duration>,
}

/// Pages of a log that nobody will read again, by the guard's rules: they lie behind its writer and
/// behind all its followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Releasable {
    /// The file.
    pub file: Inode,
    /// Its resident bytes.
    pub resident: u64,
}

impl<'a> Observation<'a> {
    /// Creates an observation of two snapshots alone.
    pub fn new(before: &'a Snapshot, after: &'a Snapshot) -> Self {
        Self {
            before,
            after,
            settings: Vec::new(),
            disks: Vec::new(),
            releasable: Vec::new(),
            kept: Vec::new(),
            stretches: Vec::new(),
            streamers: Vec::new(),
            syncs: None,
            swaps: Vec::new(),
            asked: Vec::new(),
            pool_pressure: Vec::new(),
            snapshot: None,
            journals: Vec::new(),
            recovery_target: None,
        }
    }

    /// Returns the duration of the watch.
    pub fn period(&self) -> Duration {
        match &self.after.change {
            Some(change) => change.period,
            None => self.after.at.duration_since(self.before.at).unwrap_or_default(),
        }
    }

    /// Returns the changes during the watch.
    pub fn change(&self) -> Option<&'a HostChange> {
        self.after.change.as_ref()
    }

    /// Returns the counts of the trace during the watch; `None` without tracing.
    pub fn trace(&self) -> Option<&'a TraceCounts> {
        self.change()?.trace.as_ref()
    }

    /// Returns the throttling of tasks because of dirty pages during the watch; empty if that was
    /// not traced.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = &'a PauseCounts> + use<'a> {
        self.trace().and_then(|trace| trace.pauses.as_ref()).into_iter().flatten()
    }

    /// Returns the databases with their indices.
    pub fn databases(&self) -> impl Iterator<Item = (usize, &'a Database)> + use<'a> {
        self.after.databases.iter().enumerate()
    }

    /// Returns the databases in a memory cgroup.
    pub(crate) fn databases_in(
        &self,
        group: &MemoryCgroup,
    ) -> impl Iterator<Item = (usize, &'a Database)> + use<'a> {
        let directory = group.directory.clone();
        self.databases()
            .filter(move |(_, other)| other.cgroup.as_ref().is_some_and(|other| other.directory == directory))
    }

    /// Returns a database as the subject of a finding.
    pub(crate) fn subject(&self, index: usize) -> Subject {
        Subject { name: called(&self.after.databases[index]), index }
    }

    /// Returns the files of a database.
    pub fn files_of(&self, database: usize) -> impl Iterator<Item = &'a File> + use<'a> {
        self.after.files.iter().filter(move |file| file.database == Some(database))
    }

    /// Returns a database's settings; `None` if they were not read.
    pub fn settings_of(&self, database: usize) -> Option<&Settings> {
        self.settings.get(database)
    }

    /// Returns the advice on a database's settings for a goal; none if its settings were not read.
    pub fn advise(&self, goal: Goal, database: usize) -> Advised {
        self.settings_of(database).map(|settings| crate::advise(goal, settings)).unwrap_or_default()
    }

    /// Returns the swap of a database; `None` if it is unknown, or if there is no swap space.
    pub(crate) fn swap_of(&self, database: usize) -> Option<&DatabaseSwap> {
        self.swaps.get(database)?.as_ref()
    }

    /// Returns a file as it was when the watch began; `None` if it did not exist.
    pub fn before(&self, file: Inode) -> Option<&'a File> {
        self.before.files.iter().find(|other| other.inode == file)
    }

    /// Returns the memory cgroup of a database of [`Self::after`] as it was when the watch began;
    /// `None` if the database was in another one then.
    fn group_before(&self, database: &Database) -> Option<&'a MemoryCgroup> {
        let directory = &database.cgroup.as_ref()?.directory;
        let before = self.before.databases.iter().find(|before| before.pid == database.pid)?;
        before.cgroup.as_ref().filter(|group| group.directory == *directory)
    }

    /// Returns the memory cgroup of a database when the watch began, for the lists of its file
    /// pages; `None` if the database was in another one then.
    pub(crate) fn file_lists_before(&self, database: usize) -> Option<&'a MemoryCgroup> {
        self.group_before(self.after.databases.get(database)?)
    }

    /// Returns how often the limits of a database's memory cgroup took effect during the watch.
    /// Returns `None` if the database was in another group when the watch began, or if the
    /// effective limit belonged to another group.
    pub(crate) fn limits_hit(&self, database: &Database) -> Option<MemoryEvents> {
        let (now, before) = (database.cgroup.as_ref()?, self.group_before(database)?);
        (now.limited_by == before.limited_by).then(|| now.events.since(&before.events))
    }

    /// Returns the bytes of file pages read again after the kernel had reclaimed them, in the
    /// memory cgroup of a database of [`Self::after`]. Returns `None` if that was not counted, or
    /// if the database was in another group when the watch began.
    pub(crate) fn refaulted_in_group(&self, database: &Database) -> Option<u64> {
        let after = database.cgroup.as_ref()?.file_refaults?;
        let pages = after.saturating_sub(self.group_before(database)?.file_refaults?);
        Some(pages * page_size())
    }

    /// Returns the bytes that the host reclaimed for lack of memory, in the background or directly;
    /// `None` if it does not count that.
    pub(crate) fn reclaimed_by_host(&self) -> Option<u64> {
        let background = self.pages_counted(VmStat::reclaimed_in_background);
        let direct = self.change().and_then(|change| change.machine.reclaimed_directly);
        match (background, direct) {
            (None, None) => None,
            (background, direct) => Some(background.unwrap_or_default() + direct.unwrap_or_default()),
        }
    }

    /// Returns the increase of a counter of pages during the watch, in bytes.
    pub(crate) fn pages_counted(&self, of: impl Fn(&VmStat) -> Option<u64>) -> Option<u64> {
        let pages = of(&self.after.host.vmstat)?.saturating_sub(of(&self.before.host.vmstat)?);
        Some(pages.saturating_mul(page_size()))
    }

    /// Returns the measurements of a file's disk; `None` if it was not measured.
    pub fn disk(&self, file: &File) -> Option<&DiskProfile> {
        self.disks.iter().find(|(dev, _)| *dev == file.inode.dev).map(|(_, disk)| disk)
    }
}

/// The resident pages when a snapshot was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedSnapshot {
    /// The snapshot's file.
    pub path: PathBuf,
    /// Its contents.
    pub pages: SavedPages,
}

impl SavedSnapshot {
    /// Returns the bytes of a file that were resident, found by its path, or by its inode if that
    /// has another path.
    pub(crate) fn resident(&self, file: &File) -> Option<u64> {
        let files = &self.pages.files;
        let same_path = |known: &&SavedFile| known.path == file.reach || known.path == file.path;
        let found = files.iter().find(same_path);
        let found = found.or_else(|| files.iter().find(|known| known.inode == file.inode))?;
        Some(self.pages.resident(found))
    }
}

/// Returns the name of a database in findings: "mariadb (process 1234)". If the process name does
/// not show the database, it is "kafka (java, process 1234)". If only its directory was given, it
/// is "mariadb".
pub fn called(database: &Database) -> String {
    let profile = &database.profile;
    let name = if database.name.is_empty() { &profile.name } else { &database.name };
    let says_which = profile.name == "generic"
        || *name == profile.name
        || profile.processes.iter().any(|glob| glob.is_match(name));
    match database.pid {
        Some(pid) if says_which => process(name, pid),
        Some(pid) => format!("{} ({name}, process {pid})", profile.name),
        None => match database.directories.first() {
            Some(directory) => format!("{name} in {}", escaped(directory)),
            None => name.clone(),
        },
    }
}

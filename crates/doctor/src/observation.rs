//! What was observed: the facts that findings are made from, all gathered before: two snapshots and what was read beside them.
//!
//! Invariants: a function that finds does no I/O, so that it can be tried on plain data; databases are identified by the
//! index that they have in the *second* snapshot, and files of the two are brought together by their inode.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pagekeeper_kernel::pressure::{MemoryCgroup, MemoryEvents, VmStat};
use pagekeeper_kernel::text::escaped;
use pagekeeper_kernel::{Inode, page_size};
use pagekeeper_observe::{Database, File, HostChange, Snapshot};
use pagekeeper_policy::DiskProfile;
use pagekeeper_trace::{PauseCounts, TraceCounts};

use crate::settings::Settings;
use crate::{Advised, Goal, Journal, Streamer, Subject, Syncs};

/// What is known when findings are made.
#[derive(Debug)]
pub struct Observation<'a> {
    /// What was seen when the watch began.
    pub before: &'a Snapshot,
    /// What was seen at its end, and what changed in between.
    pub after: &'a Snapshot,
    /// The settings of each database of [`Self::after`], in its order; none for those past its end.
    pub settings: Vec<Settings>,
    /// What a disk was measured to do, by `st_dev` of the files on it.
    pub disks: Vec<(u64, DiskProfile)>,
    /// What the guard's rules would release now, of each file that they were asked about, be it nothing.
    pub releasable: Vec<Releasable>,
    /// Why the guard's rules keep all of a log that is resident, by the path of one of its files.
    pub kept: Vec<(PathBuf, String)>,
    /// Where the resident pages of a file lie: the first few stretches, for files that direct I/O is used on.
    pub stretches: Vec<(Inode, Vec<Range<u64>>)>,
    /// The processes that brought the most pages in while watching; see [`streamers`](crate::streamers()).
    pub streamers: Vec<Streamer>,
    /// The syncs that were seen while watching; `None` where they were not looked at.
    pub syncs: Option<Syncs>,
    /// What was resident before a restart, if that is known.
    pub snapshot: Option<SavedSnapshot>,
    /// What a recovery of each database of [`Self::after`] would read, in its order; none for those past its end.
    pub journals: Vec<Option<Journal>>,
    /// How long a recovery may take, as the operator wants it; `None`: any time.
    pub recovery_target: Option<Duration>,
}

/// Pages of a log that nobody will read again, as the guard's rules have it: they lie behind its writer and behind all
/// that follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Releasable {
    /// The file.
    pub file: Inode,
    /// How much of it is resident, in bytes.
    pub resident: u64,
}

impl<'a> Observation<'a> {
    /// An observation of two snapshots alone.
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
            snapshot: None,
            journals: Vec::new(),
            recovery_target: None,
        }
    }

    /// How long was watched.
    pub fn period(&self) -> Duration {
        match &self.after.change {
            Some(change) => change.period,
            None => self.after.at.duration_since(self.before.at).unwrap_or_default(),
        }
    }

    /// What changed while watching.
    pub fn change(&self) -> Option<&'a HostChange> {
        self.after.change.as_ref()
    }

    /// What tracing counted while watching; `None` without tracing.
    pub fn trace(&self) -> Option<&'a TraceCounts> {
        self.change()?.trace.as_ref()
    }

    /// The tasks that were throttled for dirty pages while watching; none where that was not traced.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = &'a PauseCounts> + use<'a> {
        self.trace().and_then(|trace| trace.pauses.as_ref()).into_iter().flatten()
    }

    /// The databases with their indices.
    pub fn databases(&self) -> impl Iterator<Item = (usize, &'a Database)> + use<'a> {
        self.after.databases.iter().enumerate()
    }

    /// A database as what a finding is about.
    pub(crate) fn subject(&self, index: usize) -> Subject {
        Subject { name: called(&self.after.databases[index]), index }
    }

    /// The files of a database.
    pub fn files_of(&self, database: usize) -> impl Iterator<Item = &'a File> + use<'a> {
        self.after.files.iter().filter(move |file| file.database == Some(database))
    }

    /// A database's settings; `None` if they were not read.
    pub fn settings_of(&self, database: usize) -> Option<&Settings> {
        self.settings.get(database)
    }

    /// The settings of a database that serve a goal; none if its settings were not read.
    pub fn advise(&self, goal: Goal, database: usize) -> Advised {
        self.settings_of(database).map(|settings| crate::advise(goal, settings)).unwrap_or_default()
    }

    /// A file as it was when the watch began; `None` if it was not there.
    pub fn before(&self, file: Inode) -> Option<&'a File> {
        self.before.files.iter().find(|other| other.inode == file)
    }

    /// The memory cgroup of a database of [`Self::after`] as it was when the watch began; `None` where it was in another then.
    fn group_before(&self, database: &Database) -> Option<&'a MemoryCgroup> {
        let directory = &database.cgroup.as_ref()?.directory;
        let before = self.before.databases.iter().find(|before| before.pid == database.pid)?;
        before.cgroup.as_ref().filter(|group| group.directory == *directory)
    }

    /// How often the limits of a database's memory cgroup took effect while watching; `None` where it was in another when the
    /// watch began, or another one's limit was the effective one.
    pub(crate) fn limits_hit(&self, database: &Database) -> Option<MemoryEvents> {
        let (now, before) = (database.cgroup.as_ref()?, self.group_before(database)?);
        (now.limited_by == before.limited_by).then(|| now.events.since(&before.events))
    }

    /// Bytes of files that were read in again after the kernel had reclaimed them, in the memory cgroup of a database of
    /// [`Self::after`]; `None` where that was not counted, or the database was in another when the watch began.
    pub(crate) fn refaulted_in_group(&self, database: &Database) -> Option<u64> {
        let after = database.cgroup.as_ref()?.file_refaults?;
        let pages = after.saturating_sub(self.group_before(database)?.file_refaults?);
        Some(pages * page_size())
    }

    /// Bytes that the host reclaimed for want of memory, in the background or directly; `None` where it does not count that.
    pub(crate) fn reclaimed_by_host(&self) -> Option<u64> {
        let background = self.pages_counted(VmStat::reclaimed_in_background);
        let direct = self.change().and_then(|change| change.machine.reclaimed_directly);
        match (background, direct) {
            (None, None) => None,
            (background, direct) => Some(background.unwrap_or_default() + direct.unwrap_or_default()),
        }
    }

    /// What a counter of pages grew by while watching, in bytes.
    pub(crate) fn pages_counted(&self, of: impl Fn(&VmStat) -> Option<u64>) -> Option<u64> {
        let pages = of(&self.after.host.vmstat)?.saturating_sub(of(&self.before.host.vmstat)?);
        Some(pages.saturating_mul(page_size()))
    }

    /// What the disk of a file was measured to do; `None` if it was not measured.
    pub fn disk(&self, file: &File) -> Option<&DiskProfile> {
        self.disks.iter().find(|(dev, _)| *dev == file.inode.dev).map(|(_, disk)| disk)
    }
}

/// What was resident when a snapshot was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedSnapshot {
    /// Its file.
    pub path: PathBuf,
    /// When it was taken.
    pub taken: SystemTime,
    /// The files that had resident pages.
    pub files: Vec<SavedFile>,
}

/// One file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedFile {
    /// Absolute.
    pub path: PathBuf,
    /// Which file it was.
    pub inode: Inode,
    /// How much of it was resident, in bytes.
    pub resident: u64,
}

impl SavedSnapshot {
    /// What it holds of a file, found by its path, or by its inode where that is seen under another path.
    pub(crate) fn of(&self, file: &File) -> Option<&SavedFile> {
        let same_path = |known: &&SavedFile| known.path == file.reach || known.path == file.path;
        self.files
            .iter()
            .find(same_path)
            .or_else(|| self.files.iter().find(|known| known.inode == file.inode))
    }
}

/// How findings call a database: "mariadb (process 1234)", "kafka (java, process 1234)" where its process's name says nothing of
/// it, or "mariadb" where only its directory was given.
pub fn called(database: &Database) -> String {
    let profile = &database.profile;
    let name = if database.name.is_empty() { &profile.name } else { &database.name };
    let says_which = profile.name == "generic"
        || *name == profile.name
        || profile.processes.iter().any(|glob| glob.is_match(name));
    match database.pid {
        Some(pid) if says_which => format!("{name} (process {pid})"),
        Some(pid) => format!("{} ({name}, process {pid})", profile.name),
        None => match database.directories.first() {
            Some(directory) => format!("{name} in {}", escaped(directory)),
            None => name.clone(),
        },
    }
}

//! Events: what the guard reports to its caller while it runs, and the summary at its end. As JSON, one object a
//! line, in which what is not UTF-8 in a path is replaced by `U+FFFD`.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use pagekeeper_kernel::text::unescaped;
use pagekeeper_policy::FileClass;
use pagekeeper_policy::group::GroupReason;
use serde::{Serialize, Serializer};

use crate::budget::Budget;
use crate::decision::Action;

/// One thing that happened. Sizes in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The guard begins.
    Start {
        /// Version of pagekeeper.
        version: &'static str,
        /// Time between ticks, in milliseconds.
        tick_ms: u64,
        /// Whether acts are only reported, not done.
        dry_run: bool,
    },
    /// Something that this kernel or the guard's permissions keep it from seeing; reported once.
    VisibilityGap {
        /// What can't be seen, why, and what would show it, in a sentence.
        gap: String,
    },
    /// A database was found.
    Found {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// The profile it goes by.
        profile: String,
        /// Other profiles that fit it, by which it goes as well: one at least of them all is the operator's own.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        also: Vec<String>,
        /// Directories of its logs, as it sees them.
        #[serde(serialize_with = "all_lossy")]
        directories: Vec<PathBuf>,
    },
    /// A database's process has ended.
    Lost {
        /// Its process.
        pid: u32,
        /// The profile it went by.
        profile: String,
    },
    /// A database has more files, or takes more time, than the guard gives to one: it is served in part; said once for each
    /// budget.
    InPart {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// The profile it goes by.
        profile: String,
        /// The directory where that was seen, as the database sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// What it has or takes too much of.
        budget: Budget,
    },
    /// Something that a database's process names or holds open is not watched, or no longer: it is not taken for its own, or
    /// the configuration leaves it out. Said once.
    Refused {
        /// The process; none for a directory that was named.
        pid: Option<u32>,
        /// The profile it goes by.
        profile: String,
        /// The directory or file, as it sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// Why.
        reason: Refusal,
    },
    /// A log is released since the settings of its database say that it is not overwritten in parts of pages. Said once for each
    /// log.
    Setting {
        /// The database's process; none for a directory that was named.
        pid: Option<u32>,
        /// The profile it goes by.
        profile: String,
        /// A file of the log.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The settings, with their values and where they are set: an option file and line, or the command line.
        setting: String,
    },
    /// Two databases of one kind hold files in one directory: it is watched once, for the first.
    Shared {
        /// The second one's process.
        pid: u32,
        /// The profile of both.
        profile: String,
        /// The directory, as the second one sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The process that it is watched for; none for a directory that was named.
        with: Option<u32>,
    },
    /// A directory is watched for another database than before, whose claim is better.
    TakenOver {
        /// The process that it is watched for now.
        pid: u32,
        /// The profile that goes by.
        profile: String,
        /// The directory, as that process sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The process that it was watched for.
        from: u32,
    },
    /// The file system of a database's logs does not answer: they are left alone until it does. Said after some seconds, and
    /// seldom again.
    Hung {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// The profile it goes by, if that is known.
        profile: Option<String>,
        /// A directory of its logs, as it sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// For how long.
        seconds: f64,
    },
    /// The file system of a database's logs answers again.
    Answers {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// The profile it goes by, if that is known.
        profile: Option<String>,
        /// What was reported.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// After how long.
        seconds: f64,
    },
    /// A streaming process has brought pages into the page cache, which are released behind it.
    Stream {
        /// The process.
        pid: u32,
        /// What it is called.
        program: String,
    },
    /// A streaming process has ended.
    StreamEnded {
        /// The process.
        pid: u32,
        /// What it was called.
        program: String,
        /// How long it ran.
        seconds: f64,
        /// Files that it brought in pages of.
        files: u64,
        /// Released behind it.
        released_bytes: u64,
        /// What stays.
        kept_bytes: u64,
    },
    /// Something about a memory cgroup that the configuration names.
    Cgroup {
        /// Its path in the hierarchy.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// Its page cache, without tmpfs and shared memory.
        file_bytes: u64,
        /// The least of its limits.
        limit_bytes: Option<u64>,
        /// What.
        #[serde(flatten)]
        news: GroupNews,
    },
    /// One sample of everything, and what was done.
    Tick(Tick),
    /// What would be done, in a dry run.
    Would {
        /// The file.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// What would be done.
        action: Action,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Something an operator should know about a file; said once for each directory of each database, and again if the
    /// database is started again.
    Warning {
        /// The file.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// What, in a sentence.
        warning: String,
    },
    /// Something that could not be seen or done; said once for each path.
    Problem {
        /// The file, directory or process.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// What, in a sentence.
        problem: String,
    },
    /// The end.
    Summary(Summary),
}

/// What there is to say of a memory cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum GroupNews {
    /// Its page cache takes more of its limit than it may: its databases' logs are kept tighter.
    Over,
    /// It takes less again.
    Within,
    /// File pages were reclaimed.
    Reclaimed {
        /// By how much its page cache shrank.
        bytes: u64,
    },
    /// Its limits took effect since it was looked at before.
    LimitsHit {
        /// How often its tasks were slowed down over `memory.high`.
        high: u64,
        /// How often it was about to pass its limit.
        max: u64,
        /// How often an allocation was about to fail.
        oom: u64,
        /// Processes that were killed for it.
        oom_kill: u64,
    },
    /// The kernel would be asked to reclaim file pages, in a dry run.
    WouldReclaim {
        /// In the first step.
        bytes: u64,
    },
    /// No more is reclaimed for the time being.
    Stopped {
        /// Why.
        reason: GroupReason,
    },
}

/// Why something of a database is not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// It belongs to another user, and the process has none of its logs open for writing, or it has other names: hard links.
    NotOwner,
    /// It is watched for a database of another kind, whose claim is as good or better.
    OtherDatabase,
    /// Its path leads to another directory than before.
    DirectoryChanged,
    /// The configuration lists what is watched, and this is not in it.
    NotSelected,
    /// The configuration lists it as never to be watched.
    Never,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::NotOwner, Self::OtherDatabase, Self::DirectoryChanged, Self::NotSelected, Self::Never];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotOwner => "not-owner",
            Self::OtherDatabase => "other-database",
            Self::DirectoryChanged => "directory-changed",
            Self::NotSelected => "not-selected",
            Self::Never => "never",
        }
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOwner => {
                "it belongs to another user, and the process has none of its logs open for writing, or it has other names (hard links)"
            }
            Self::OtherDatabase => {
                "it is watched for a database of another kind, whose claim is as good or better"
            }
            Self::DirectoryChanged => {
                "its path leads to another directory than before, which is examined anew"
            }
            Self::NotSelected => "it is not among those that \"only\" lists",
            Self::Never => "\"never\" lists it, or its process can't be seen well enough to rule that out",
        })
    }
}

/// What one tick saw and did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tick {
    /// Since the start.
    pub seconds: f64,
    /// Databases watched.
    pub databases: usize,
    /// Log files watched.
    pub files: usize,
    /// Resident in all of them.
    pub resident_bytes: u64,
    /// Of that, dirty or under writeback.
    pub unwritten_bytes: u64,
    /// Released in this tick.
    pub released_bytes: u64,
    /// Of what was released, read back by somebody since the tick before.
    pub read_back_bytes: u64,
    /// Logs that are kept since they are read back.
    pub kept_logs: usize,
    /// Acts decided in this tick: releases, and starts of writeback.
    pub acts: usize,
    /// Followers seen.
    pub followers: usize,
    /// Log files that are not watched, since their databases have too many.
    pub left_out_files: u64,
    /// Databases whose file systems do not answer; they are watched, and not sampled.
    pub hung: usize,
    /// For how long the first of them has not answered.
    pub hung_seconds: f64,
    /// Acts that a database's budget left no time for; they are decided anew.
    pub postponed_acts: usize,
}

/// What one tick did to the files of one class in one directory. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The database's process; none for a directory that was named.
    pub pid: Option<u32>,
    /// The profile it goes by.
    pub profile: String,
    /// The directory, as the database sees it.
    pub directory: PathBuf,
    /// The class.
    pub class: FileClass,
    /// How many acts: releases, and starts of writeback.
    pub acts: u64,
    /// Released.
    pub released_bytes: u64,
    /// What resisted at the time.
    pub kept_bytes: u64,
    /// Of what was released, read back by somebody.
    pub read_back_bytes: u64,
}

/// What a whole run did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How long it ran.
    pub seconds: f64,
    /// Ticks: samples of everything.
    pub ticks: u64,
    /// Released, by file class.
    pub released_bytes: BTreeMap<FileClass, u64>,
    /// Released behind streaming processes, by what they are called.
    pub released_behind_streams_bytes: BTreeMap<String, u64>,
    /// Released in all.
    pub released_total_bytes: u64,
    /// Of what was released, read back by somebody, by file class.
    pub read_back_bytes: BTreeMap<FileClass, u64>,
    /// Reclaimed in memory cgroups, by their paths.
    pub reclaimed_in_cgroups_bytes: BTreeMap<String, u64>,
    /// Pages of logs that resisted a release at the time, and pages of streams that stay.
    pub kept_bytes: u64,
    /// Resident in the log files at the first sample.
    pub resident_before_bytes: u64,
    /// Resident at the last sample.
    pub resident_after_bytes: u64,
    /// The most in any sample.
    pub resident_peak_bytes: u64,
    /// CPU time the guard used.
    pub cpu_seconds: f64,
    /// The same in percent of one core.
    pub cpu_percent: f64,
    /// The most memory the guard used, where the kernel says it.
    pub memory_peak_bytes: Option<u64>,
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&unescaped(path))
}

fn all_lossy<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| unescaped(path)))
}

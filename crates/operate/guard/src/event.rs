//! Events: what the guard reports to its caller while it runs, and the summary at its end. As JSON
//! they are one object per line, with `U+FFFD` for anything in a path that is not UTF-8.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use pagekeeper_catalog::Exclusion;
use pagekeeper_policy::FileClass;
use pagekeeper_policy::group::GroupReason;
use pagekeeper_text::unescaped;
use serde::{Serialize, Serializer};

use crate::budget::Budget;
use crate::decision::Action;

/// One thing that happened. Sizes in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The guard starts.
    Start {
        /// Version of pagekeeper.
        version: &'static str,
        /// Time between ticks, in milliseconds.
        tick_ms: u64,
        /// Whether acts are only reported, not done.
        dry_run: bool,
    },
    /// Something that the guard can't see because of this kernel or its own permissions; reported
    /// once.
    VisibilityGap {
        /// A sentence: what can't be seen, why, and what would help.
        gap: String,
    },
    /// A database was found.
    Found {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// Its profile.
        profile: String,
        /// Further profiles that fit and apply to it. At least one of all its profiles is the
        /// operator's own.
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
        /// Its profile.
        profile: String,
    },
    /// A database has more files, or takes more time, than the guard allots to one, and is served
    /// in part; reported once for each budget.
    InPart {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// Its profile.
        profile: String,
        /// The directory where that was seen, as the database sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The budget that it exceeds.
        budget: Budget,
    },
    /// Something that a database's process names or holds open is not watched, or no longer: it
    /// does not count as its own, or the configuration excludes it. Reported once.
    Refused {
        /// The process; none for a directory that was named.
        pid: Option<u32>,
        /// Its profile.
        profile: String,
        /// The directory or file, as it sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The reason.
        reason: Refusal,
    },
    /// A log is released because the settings of its database say that it is not overwritten in
    /// parts of pages. Reported once for each log.
    Setting {
        /// The database's process; none for a directory that was named.
        pid: Option<u32>,
        /// Its profile.
        profile: String,
        /// A file of the log.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The settings, with their values and where they are set: the option file and line, or the
        /// command line.
        setting: String,
    },
    /// Two databases of one kind hold files in one directory. It is watched once, for the first.
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
    /// A directory is now watched for another database, whose claim is better.
    TakenOver {
        /// The process that it is watched for now.
        pid: u32,
        /// The profile of that process.
        profile: String,
        /// The directory, as that process sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The process that it was watched for before.
        from: u32,
    },
    /// The file system of a database's logs does not answer. They are left alone until it does.
    /// Reported after some seconds, and then rarely.
    Hung {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// Its profile, if that is known.
        profile: Option<String>,
        /// A directory of its logs, as it sees it.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The time that it has not answered so far.
        seconds: f64,
    },
    /// The file system of a database's logs answers again.
    Answers {
        /// Its process; none for a directory that was named.
        pid: Option<u32>,
        /// Its profile, if that is known.
        profile: Option<String>,
        /// The path that was reported.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The time that it did not answer.
        seconds: f64,
    },
    /// A streaming process has brought pages into the page cache, which are released behind it.
    Stream {
        /// The process.
        pid: u32,
        /// The program's name.
        program: String,
    },
    /// A streaming process has ended.
    StreamEnded {
        /// The process.
        pid: u32,
        /// The program's name.
        program: String,
        /// The time that it ran.
        seconds: f64,
        /// Files of which it brought in pages.
        files: u64,
        /// Bytes released behind it.
        released_bytes: u64,
        /// Bytes that stay.
        kept_bytes: u64,
    },
    /// News about a memory cgroup that the configuration names.
    Cgroup {
        /// Its path in the hierarchy.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// Its page cache, without tmpfs and shared memory.
        file_bytes: u64,
        /// The lowest of its limits.
        limit_bytes: Option<u64>,
        /// The news.
        #[serde(flatten)]
        news: GroupNews,
    },
    /// One sample of everything, and the acts that followed.
    Tick(Tick),
    /// An act that would be done, in a dry run.
    Would {
        /// The file.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The act.
        action: Action,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Something that an operator should know about a file. Reported once for each directory of
    /// each database, and again if the database is started again.
    Warning {
        /// The file.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The warning, in a sentence.
        warning: String,
    },
    /// Something that could not be seen or done; reported once for each path.
    Problem {
        /// The file, directory or process.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The problem, in a sentence.
        problem: String,
    },
    /// The summary at the end.
    Summary(Summary),
}

/// News about a memory cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum GroupNews {
    /// Its page cache takes more of its limit than it may: its databases' logs follow tighter
    /// rules.
    Over,
    /// It takes less again.
    Within,
    /// File pages were reclaimed.
    Reclaimed {
        /// The decrease of its page cache.
        bytes: u64,
    },
    /// Its limits took effect since the last look.
    LimitsHit {
        /// Number of times that its tasks were throttled above `memory.high`.
        high: u64,
        /// Number of times that it was about to exceed its limit.
        max: u64,
        /// Number of times that an allocation was about to fail.
        oom: u64,
        /// Processes that were killed because of it.
        oom_kill: u64,
    },
    /// The kernel would be asked to reclaim file pages, in a dry run.
    WouldReclaim {
        /// The size of the first step.
        bytes: u64,
    },
    /// Reclaiming has stopped for now.
    Stopped {
        /// The reason.
        reason: GroupReason,
    },
}

/// The reason why something of a database is not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Refusal {
    /// It belongs to another user and the process has none of its logs open for writing, or it has
    /// other names (hard links).
    NotOwner,
    /// It is watched for a database of another kind, whose claim is as good or better.
    OtherDatabase,
    /// Its path leads to another directory than before.
    DirectoryChanged,
    /// The configuration lists what is watched, and this is not listed.
    NotSelected,
    /// The configuration lists it as never to be watched.
    Never,
}

impl From<Exclusion> for Refusal {
    fn from(by: Exclusion) -> Self {
        match by {
            Exclusion::NotSelected => Self::NotSelected,
            Exclusion::Never => Self::Never,
        }
    }
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::NotOwner, Self::OtherDatabase, Self::DirectoryChanged, Self::NotSelected, Self::Never];

    /// Returns the reason's name, as in JSON.
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
                "its path leads to another directory than before, which is examined again"
            }
            Self::NotSelected => "it is not among those that \"only\" lists",
            Self::Never => "\"never\" lists it, or its process can't be seen well enough to rule that out",
        })
    }
}

/// The observations and effects of one tick.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tick {
    /// Seconds since the start.
    pub seconds: f64,
    /// Databases watched.
    pub databases: usize,
    /// Log files watched.
    pub files: usize,
    /// Resident bytes in all of them.
    pub resident_bytes: u64,
    /// Bytes of these that are dirty or under writeback.
    pub unwritten_bytes: u64,
    /// Bytes released in this tick.
    pub released_bytes: u64,
    /// Released bytes that somebody read back since the tick before.
    pub read_back_bytes: u64,
    /// Logs that are kept because they are read back.
    pub kept_logs: usize,
    /// Acts decided in this tick: releases, and starts of writeback.
    pub acts: usize,
    /// Followers seen.
    pub followers: usize,
    /// Log files that are not watched because their databases have too many.
    pub left_out_files: u64,
    /// Databases whose file systems do not answer; they are watched, but not sampled.
    pub hung: usize,
    /// The longest time that one of them has not answered.
    pub hung_seconds: f64,
    /// Acts for which a database's budget left no time; they are decided again.
    pub postponed_acts: usize,
}

/// The effect of one tick on the files of one class in one directory. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The database's process; none for a directory that was named.
    pub pid: Option<u32>,
    /// Its profile.
    pub profile: String,
    /// The directory, as the database sees it.
    pub directory: PathBuf,
    /// The file class.
    pub class: FileClass,
    /// The number of acts: releases, and starts of writeback.
    pub acts: u64,
    /// Bytes released.
    pub released_bytes: u64,
    /// Bytes that stayed in the page cache at the time.
    pub kept_bytes: u64,
    /// Released bytes that somebody read back.
    pub read_back_bytes: u64,
}

/// The effect of a whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The time that it ran.
    pub seconds: f64,
    /// Ticks: samples of everything.
    pub ticks: u64,
    /// Bytes released, by file class.
    pub released_bytes: BTreeMap<FileClass, u64>,
    /// Bytes released behind streaming processes, by program.
    pub released_behind_streams_bytes: BTreeMap<String, u64>,
    /// Bytes released in all.
    pub released_total_bytes: u64,
    /// Released bytes that somebody read back, by file class.
    pub read_back_bytes: BTreeMap<FileClass, u64>,
    /// Bytes reclaimed in memory cgroups, by their paths.
    pub reclaimed_in_cgroups_bytes: BTreeMap<String, u64>,
    /// Bytes of logs that stayed in the page cache after a release, and of streams that stay.
    pub kept_bytes: u64,
    /// Bytes resident in the log files at the first sample.
    pub resident_before_bytes: u64,
    /// Bytes resident at the last sample.
    pub resident_after_bytes: u64,
    /// Maximum bytes resident in any sample.
    pub resident_peak_bytes: u64,
    /// CPU time that the guard used.
    pub cpu_seconds: f64,
    /// CPU time in percent of one core.
    pub cpu_percent: f64,
    /// Maximum memory that the guard used, where the kernel reports it.
    pub memory_peak_bytes: Option<u64>,
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&unescaped(path))
}

fn all_lossy<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| unescaped(path)))
}

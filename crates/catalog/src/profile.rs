//! Profiles: what the files of one kind of database are called, what they are to it, and what is to be done
//! with them.
//!
//! A profile is a TOML file; the ones in `profiles/` are built in, users add their own beside them. A profile
//! that can't be read is refused with the file, line and key ([`ProfileError`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{Glob, GlobMatcher};
use pagekeeper_kernel::text::escaped;
use pagekeeper_policy::names::{Matched, Pattern};
use pagekeeper_policy::{BulkPages, FileClass, Rewrite, RewriteSource, Rule};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::config_file::{parse_config, read_config};
use crate::rule::WithRule;
use crate::spelled::{all_spelled, spelled};
use crate::units::Size;

/// One kind of database. As a file: see `profiles/generic.toml` for each key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name, as `--profile` takes it.
    pub name: String,
    /// Names of its processes (`/proc/PID/comm`, at most 15 bytes), as globs.
    #[serde(default, deserialize_with = "globs")]
    pub processes: Vec<GlobMatcher>,
    /// Files that such a process, whatever its name, holds open: all of them must be there.
    #[serde(default, deserialize_with = "all_spelled")]
    pub markers: Vec<Pattern>,
    /// Names of which at least one stands in the directory of a marker, where others have markers of the same name. Empty
    /// where nobody has.
    #[serde(default, deserialize_with = "all_spelled")]
    pub beside: Vec<Pattern>,
    /// Whether one of these must stand in a directory that the user names, too, which else counts by its logs' names alone.
    #[serde(default)]
    pub beside_always: bool,
    /// Directories of logs, relative to the process's working directory, for databases that do not keep their
    /// logs open.
    #[serde(default)]
    pub directories: Vec<PathBuf>,
    /// Whether its processes show positions in their titles as PostgreSQL's do.
    #[serde(default)]
    pub postgresql_titles: bool,
    /// Its log files, the more particular first: the first pattern that matches counts.
    #[serde(default, rename = "log", deserialize_with = "logs")]
    pub logs: Vec<LogSpec>,
    /// Its other files, which nobody watches, the more particular first: the first pattern that matches counts, after
    /// those of the logs.
    #[serde(default, rename = "file")]
    pub files: Vec<FileSpec>,
    /// Names of other profiles that fit the same process, whose files are known by this one, too: one at least of those is the
    /// operator's.
    #[serde(skip)]
    pub also: Vec<String>,
    #[serde(skip)]
    is_built_in: bool,
}

/// Files of a database that are known by their names, and not watched.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// What they are to the database.
    pub class: FileClass,
    /// Their names.
    #[serde(deserialize_with = "spelled")]
    pub files: Pattern,
    /// For files that are written once, in order and in bulk: what becomes of their pages.
    pub bulk: Option<BulkPages>,
    /// Whether a database that opens them with `O_DIRECT` reads them by that alone: pages that are resident then are leftovers.
    #[serde(default)]
    pub direct_only: bool,
    /// For logs of a form that is not known yet: what they are, in words.
    pub unknown_log: Option<String>,
}

/// The files of one log of a database.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSpec {
    /// What they are to the database.
    pub class: FileClass,
    /// Their names.
    #[serde(deserialize_with = "log_files")]
    pub files: Pattern,
    /// Only where the stem with `index` as its last component stands beside them (`binlog.index`).
    #[serde(default)]
    pub indexed: bool,
    /// What is to be done with their pages.
    #[serde(skip, default = "keep")]
    pub rule: Rule,
    /// How their writer comes back to old bytes.
    #[serde(default)]
    pub rewrite: RewriteSource,
    /// The size of the aligned blocks that the writer overwrites, in bytes, where the profile says that it writes whole pages: whether
    /// it does is then up to the kernel's pages.
    #[serde(default, deserialize_with = "size")]
    pub block: Option<u64>,
    /// Where their writer is seen.
    #[serde(default)]
    pub position: PositionSpec,
    /// Which of them is the writer's.
    #[serde(default)]
    pub newest: NewestSpec,
    /// A setting of the server that makes the blocks of [`RewriteSource::DeviceBlocks`] larger, or takes the place of `block`.
    pub block_option: Option<String>,
    /// Settings of the server by which old bytes are overwritten: with all of them off it only appends.
    #[serde(default)]
    pub overwritten_if: Vec<String>,
    /// Where the database says that it recycles files of a log that is [`RewriteSource::Detect`].
    pub recycled_if: Option<RecycledIf>,
    /// Where the database says from where on crash recovery reads the log.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// What to do about a log that is kept because it is overwritten in parts of pages.
    pub hint: Option<String>,
    /// Whether a database that opens them with `O_DIRECT` reads them by that alone: pages that are resident then are leftovers.
    #[serde(default)]
    pub direct_only: bool,
}

/// What a profile says of a file that it knows by its name.
struct Known<'p> {
    class: FileClass,
    names: &'p Pattern,
    direct_only: bool,
}

/// A setting, in a file beside the log, that says its files are recycled.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecycledIf {
    /// The file; of several, the one with the highest number.
    #[serde(deserialize_with = "spelled")]
    pub file: Pattern,
    /// The key in it, whose value is then not 0 or false: a line `key = value`.
    pub key: String,
}

/// Where the position of a log's writer is seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionSpec {
    /// At the end of the file; where its writer overwrites old bytes, in `/proc/PID/fdinfo`.
    #[default]
    Descriptor,
    /// In `/proc/PID/fdinfo`: files are made at their full length, and then written from their start.
    Preallocated,
    /// Nowhere: it uses `pwrite` within a preallocated file.
    Hidden,
}

/// Where a database says from where on crash recovery reads a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointSpec {
    /// Nobody knows.
    #[default]
    Unknown,
    /// In PostgreSQL's `global/pg_control`.
    PgControl,
    /// In the headers of InnoDB's redo log files.
    Innodb,
    /// It removes files that recovery does not need: it reads all that are there.
    AllFiles,
    /// Recovery reads the writer's file from its start.
    LastFile,
    /// Recovery reads none of them: spare files.
    NoFile,
}

/// Which file of a log the writer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewestSpec {
    /// The one with the highest number; of names without one those that are open for writing, and the one changed last.
    #[default]
    Number,
    /// The one changed last: files for later have higher numbers already.
    Changed,
    /// Any that a process has open for writing: a ring.
    Open,
}

/// Why a profile was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file can't be read.
    #[error("{}: {source}", escaped(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The text is not a profile; the message shows line and key.
    #[error("{}: {message}", escaped(path))]
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        message: String,
    },
    /// There is no profile of that name.
    #[error("no profile is called \"{name}\"; there are {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// No database is found by it, and none was named.
    #[error(
        "the profile \"{name}\" finds no database by itself: name its process with --pid, or the directory of its logs with --dir"
    )]
    FindsNothing {
        /// The profile's name.
        name: String,
    },
}

fn globs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GlobMatcher>, D::Error> {
    let globs: Vec<Glob> = all_spelled(deserializer)?;
    Ok(globs.iter().map(Glob::compile_matcher).collect())
}

/// The names of a log's files: in one directory at most.
fn log_files<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pattern, D::Error> {
    let files: Pattern = spelled(deserializer)?;
    if files.is_for_logs() {
        Ok(files)
    } else {
        Err(D::Error::custom("before the / goes one plain directory name"))
    }
}

fn logs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LogSpec>, D::Error> {
    let logs = Vec::<WithRule<LogSpec>>::deserialize(deserializer)?;
    Ok(logs.into_iter().map(|WithRule { rule, table }| LogSpec { rule, ..table }).collect())
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let size: Size = spelled(deserializer)?;
    Ok(Some(size.0))
}

impl LogSpec {
    /// How its writer comes back to old bytes on a kernel whose pages have so many bytes.
    pub fn rewrite_on(&self, page: u64) -> RewriteSource {
        match (self.rewrite, self.block) {
            (RewriteSource::Known(Rewrite::WholePages), Some(block)) => {
                RewriteSource::Known(Rewrite::of_blocks(block, page))
            }
            (known, _) => known,
        }
    }
}

/// Until the rule beside the other keys is known, which is in all cases.
fn keep() -> Rule {
    Rule::Keep
}

impl Profile {
    /// Reads a profile from its text; `path` is used in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        let profile: Self = parse_config(text, path)?;
        if profile.logs.is_empty() {
            let message = "it has no [[log]], so there is nothing to watch".to_owned();
            return Err(ProfileError::Text { path: path.to_path_buf(), message });
        }
        Ok(profile)
    }

    /// Reads a profile from a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        Self::parse(&read_config(path)?, path)
    }

    /// The profiles that are built in.
    ///
    /// # Panics
    ///
    /// Never in a build that passed its tests: each is read there.
    pub fn built_in() -> Vec<Self> {
        BUILT_IN
            .iter()
            .map(|(name, text)| Self::parse(text, Path::new(name)).expect("built-in profiles are tested"))
            .map(|profile| Self { is_built_in: true, ..profile })
            .collect()
    }

    /// Whether it is a built-in profile, or stands in the place of one.
    fn has_built_in_name(&self) -> bool {
        self.is_built_in || BUILT_IN.iter().any(|(name, _)| *name == self.name)
    }

    /// Returns the profile of a process that several fit, and how well the database itself is known. It joins the best profile of a
    /// built-in name with all others of the operator before it, so that the files of each are known, and has the name of the best of
    /// them all. `fits` has how well each fits.
    pub(crate) fn of_those_that_fit(fits: &[(u32, &Arc<Self>)]) -> Option<(Arc<Self>, u32)> {
        let best_of = |wanted: &dyn Fn(&Self) -> bool| {
            let mut best: Option<(u32, &Arc<Self>)> = None;
            for (score, profile) in fits.iter().filter(|(_, profile)| wanted(profile)) {
                if best.is_none_or(|(other, _)| *score > other) {
                    best = Some((*score, profile));
                }
            }
            best
        };
        let (best_score, best) = best_of(&|_| true)?;
        let own = fits.iter().map(|(_, profile)| *profile).filter(|profile| !profile.has_built_in_name());
        let built_in = best_of(&Self::has_built_in_name);
        let score = built_in.map_or(best_score, |(score, _)| score);
        let parts: Vec<&Arc<Self>> = own.chain(built_in.map(|(_, profile)| profile)).collect();
        if parts.len() < 2 {
            return Some((Arc::clone(best), score));
        }
        let others = parts.iter().filter(|part| !Arc::ptr_eq(part, best));
        let mut directories: Vec<PathBuf> = Vec::new();
        for directory in parts.iter().flat_map(|part| &part.directories) {
            if !directories.contains(directory) {
                directories.push(directory.clone());
            }
        }
        let joined = Self {
            also: others.map(|other| other.name.clone()).collect(),
            processes: parts.iter().flat_map(|part| part.processes.iter().cloned()).collect(),
            directories,
            postgresql_titles: parts.iter().any(|part| part.postgresql_titles),
            logs: parts.iter().flat_map(|part| part.logs.iter().cloned()).collect(),
            files: parts.iter().flat_map(|part| part.files.iter().cloned()).collect(),
            ..Self::clone(best)
        };
        Some((Arc::new(joined), score))
    }

    /// Whether it knows the same files as another, by their names.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.name == other.name && self.also == other.also
    }

    /// Its name and those of the profiles that are in it, too.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name].into_iter().chain(&self.also).map(String::as_str)
    }

    /// Which of its other files is a log of a form that is not known, by its path.
    pub fn unknown_log(&self, path: &Path) -> Option<(usize, &FileSpec)> {
        let is_one = |file: &FileSpec| file.unknown_log.is_some() && file.files.matches(path).is_some();
        self.files.iter().enumerate().find(|(_, file)| is_one(file))
    }

    /// Whether a process can be known as such a database, by its name or by what it has open. Else it has to be named.
    pub fn can_be_found(&self) -> bool {
        !self.processes.is_empty() || !self.markers.is_empty()
    }

    /// The log that a file is of by this profile: the first whose pattern its path matches. `None` for a log
    /// [of a form that is not known](Self::unknown_log).
    pub fn log_of<'n>(&self, path: &'n Path) -> Option<(usize, Matched<'n>)> {
        if self.unknown_log(path).is_some() {
            return None;
        }
        self.logs.iter().enumerate().find_map(|(index, log)| Some((index, log.files.matches(path)?)))
    }

    /// What a file is to its database, by its path alone: of the logs and the other files, the first whose pattern it
    /// matches. `None` for a file that the profile does not know.
    ///
    /// A log that is [indexed](LogSpec::indexed) is taken for one whether its index is there or not; see
    /// [`Self::class_beside`].
    ///
    /// ```
    /// use pagekeeper_catalog::{Profile, find_profile};
    /// use pagekeeper_policy::FileClass;
    /// use std::path::Path;
    ///
    /// let profiles = Profile::built_in();
    /// let mariadb = find_profile(&profiles, "mariadb")?;
    /// assert_eq!(mariadb.class_of(Path::new("/var/lib/mysql/ib_logfile0")), Some(FileClass::Redo));
    /// assert_eq!(mariadb.class_of(Path::new("/var/lib/mysql/shop/orders.ibd")), Some(FileClass::Data));
    /// assert_eq!(mariadb.class_of(Path::new("/var/lib/mysql/server.cnf")), None);
    /// # Ok::<(), pagekeeper_catalog::ProfileError>(())
    /// ```
    pub fn class_of(&self, path: &Path) -> Option<FileClass> {
        self.class_beside(path, |_| true)
    }

    /// As [`Self::class_of`], for callers that know which files there are: one of an [indexed](LogSpec::indexed) log
    /// is of it only if `exists` says so of its index, beside it.
    pub fn class_beside(&self, path: &Path, exists: impl Fn(&Path) -> bool) -> Option<FileClass> {
        self.known(path, exists).map(|known| known.class)
    }

    /// Whether a database that opens this file with `O_DIRECT` reads it by that alone, so that pages that are resident are leftovers. Where
    /// no profile says so, an engine may read it through the page cache, too, on purpose.
    ///
    /// ```
    /// use pagekeeper_catalog::{Profile, find_profile};
    /// use std::path::Path;
    ///
    /// let profiles = Profile::built_in();
    /// assert!(find_profile(&profiles, "mariadb")?.is_direct_only(Path::new("/var/lib/mysql/shop/orders.ibd")));
    /// assert!(!find_profile(&profiles, "clickhouse")?.is_direct_only(Path::new("/d/all_1_1_0/value.bin")));
    /// # Ok::<(), pagekeeper_catalog::ProfileError>(())
    /// ```
    pub fn is_direct_only(&self, path: &Path) -> bool {
        self.known(path, |_| true).is_some_and(|known| known.direct_only)
    }

    /// Whether the profile says nothing of a file: it is neither of a class nor a marker.
    pub fn is_unnamed(&self, path: &Path) -> bool {
        self.class_of(path).is_none() && !self.markers.iter().any(|marker| marker.matches(path).is_some())
    }

    /// Whether a file that a process has open is a log by this profile; a text log only where it `writes` to it, since anybody may
    /// read files of such names.
    pub fn is_open_log(&self, path: &Path, writes: bool) -> bool {
        self.log_of(path).is_some_and(|(log, _)| writes || self.logs[log].class != FileClass::Text)
    }

    /// The directory that a file belongs to by this profile: above the directories that its pattern names (for
    /// PostgreSQL's `base/5/16384`, the one that `base` is in). `None` for a file that the profile does not know.
    pub fn base_of<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        self.known(path, |_| true)?.names.base_of(path)
    }

    /// The directory above those that a marker of this profile has any name for, for a file that is one (for Kafka's `*-*/{n}.log`, the one
    /// that its partitions are in). `None` for other files, and where the marker names no such directory.
    ///
    /// ```
    /// use pagekeeper_catalog::{Profile, find_profile};
    /// use std::path::Path;
    ///
    /// let profiles = Profile::built_in();
    /// let kafka = find_profile(&profiles, "kafka")?;
    /// assert_eq!(kafka.base_of_marker(Path::new("/srv/kafka/orders-0/00000000000000000000.log")), Some(Path::new("/srv/kafka")));
    /// # Ok::<(), pagekeeper_catalog::ProfileError>(())
    /// ```
    pub fn base_of_marker<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let is_of_many = |marker: &&Pattern| {
            marker.as_str().rsplit_once('/').is_some_and(|(above, _)| above.contains('*'))
        };
        self.markers.iter().filter(is_of_many).find_map(|marker| marker.base_of(path))
    }

    fn known(&self, path: &Path, exists: impl Fn(&Path) -> bool) -> Option<Known<'_>> {
        let is_log = |log: &&LogSpec| {
            log.files
                .matches(path)
                .is_some_and(|matched| !log.indexed || exists(&path.with_file_name(matched.index_name())))
        };
        let is_unknown = self.unknown_log(path).is_some();
        let log = self.logs.iter().filter(|_| !is_unknown).find(is_log).map(|log| Known {
            class: log.class,
            names: &log.files,
            direct_only: log.direct_only || log.rule == Rule::Direct,
        });
        log.or_else(|| {
            let file = self.files.iter().find(|file| file.files.matches(path).is_some())?;
            Some(Known { class: file.class, names: &file.files, direct_only: file.direct_only })
        })
    }
}

macro_rules! built_in {
    ($($name:literal,)*) => { &[$(($name, include_str!(concat!("../profiles/", $name, ".toml")))),*] };
}

/// Name and text of each built-in profile; of two that fit a process or directory equally well, the first is taken.
pub const BUILT_IN: &[(&str, &str)] = built_in![
    "mariadb",
    "mysql",
    "postgresql",
    "rocksdb",
    "mongodb",
    "etcd",
    "prometheus",
    "nats",
    "kafka",
    "rabbitmq",
    "cassandra",
    "scylladb",
    "opensearch",
    "clickhouse",
    "generic",
];

/// Finds a profile by name.
pub fn find_profile<'a>(profiles: &'a [Profile], name: &str) -> Result<&'a Profile, ProfileError> {
    profiles.iter().find(|profile| profile.name == name).ok_or_else(|| ProfileError::Unknown {
        name: name.to_owned(),
        known: profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        Profile::parse(text, Path::new("p.toml")).unwrap_err().to_string()
    }

    #[test]
    fn the_built_in_ones_are_whole() {
        let profiles = Profile::built_in();
        let names: Vec<_> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        let listed: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, listed, "a profile's file is called after it");
        assert_eq!(names.last(), Some(&"generic"), "one that is particular comes before it");
        let mut files: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/profiles"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let mut expected: Vec<String> = names.iter().map(|name| format!("{name}.toml")).collect();
        files.sort_unstable();
        expected.sort_unstable();
        assert_eq!(files, expected, "every profile is listed");
        for profile in &profiles {
            assert_eq!(
                profile.can_be_found(),
                profile.name != "generic",
                "{} is found by itself",
                profile.name
            );
        }
    }

    #[test]
    fn log_files_of_real_servers_are_distinguished() {
        let profiles = Profile::built_in();
        let class = |profile: &str, path: &str| {
            let profile = find_profile(&profiles, profile).unwrap();
            profile.log_of(Path::new(path)).map(|(index, _)| profile.logs[index].class)
        };
        assert_eq!(class("mysql", "/d/#innodb_redo/#ib_redo12"), Some(FileClass::Redo));
        assert_eq!(class("mysql", "/d/#innodb_redo/#ib_redo13_tmp"), Some(FileClass::Redo));
        assert_eq!(class("mysql", "/d/binlog.000003"), Some(FileClass::Binlog));
        assert_eq!(class("mysql", "/d/host-relay-bin.000003"), Some(FileClass::Relay));
        assert_eq!(class("mysql", "/d/t1.ibd"), None);
        assert_eq!(class("mysql", "/d/#ib_16384_0.dblwr"), None);
        assert_eq!(class("mariadb", "/d/ib_logfile0"), Some(FileClass::Redo));
        assert_eq!(class("mariadb", "/d/mysqld-bin.000001"), Some(FileClass::Binlog));
        assert_eq!(class("mariadb", "/d/mysqld-relay-bin.000001"), Some(FileClass::Relay));
        assert_eq!(class("postgresql", "/d/pg_wal/00000001000000000000000A"), Some(FileClass::Wal));
        assert_eq!(class("postgresql", "/d/pg_wal/00000001.history"), None);
        assert_eq!(class("rocksdb", "/d/000123.log"), Some(FileClass::Wal));
        assert_eq!(class("rocksdb", "/d/0000000000000007.raftlog"), Some(FileClass::Wal));
        assert_eq!(class("rocksdb", "/d/000124.sst"), None);
        assert_eq!(class("mongodb", "/d/journal/WiredTigerLog.0000000001"), Some(FileClass::Wal));
        let segment = "/d/wal/0000000000000001-0000000000002f4a.wal";
        assert_eq!(class("etcd", segment), Some(FileClass::Wal));
        assert_eq!(class("etcd", "/fast/raft/0000000000000001-0000000000002f4a.wal"), Some(FileClass::Wal));
        assert_eq!(class("etcd", "/d/wal/0000000000000001.wal"), None);
        assert_eq!(class("prometheus", "/d/wal/00000012"), Some(FileClass::Wal));
        assert_eq!(class("prometheus", "/d/wbl/00000012"), Some(FileClass::Wal));
        assert_eq!(class("prometheus", "/d/chunks_head/000012"), None);
        assert_eq!(class("nats", "/d/jetstream/$G/streams/S/msgs/12.blk"), Some(FileClass::Messages));
        assert_eq!(class("kafka", "/d/topic-0/00000000000000016382.log"), Some(FileClass::Messages));
        assert_eq!(class("kafka", "/d/topic-0/00000000000000016382.timeindex"), None);
        assert_eq!(class("kafka", "/d/topic-0/00000000000000016382.log.deleted"), None);
        assert_eq!(class("rabbitmq", "/d/quorum/rabbit@host/00000012.wal"), Some(FileClass::Wal));
        assert_eq!(
            class("rabbitmq", "/d/quorum/rabbit@host/2F_LOAD/00000003.segment"),
            Some(FileClass::Messages)
        );
        assert_eq!(
            class("rabbitmq", "/d/msg_stores/vhosts/X/msg_store_persistent/7.rdq"),
            Some(FileClass::Messages)
        );
        assert_eq!(class("rabbitmq", "/d/msg_stores/vhosts/X/queues/Q/7.qs"), Some(FileClass::Messages));
        assert_eq!(class("cassandra", "/d/commitlog/CommitLog-8-1732600000123.log"), Some(FileClass::Wal));
        assert_eq!(class("cassandra", "/d/commitlog/CommitLog-8-1732600000123_cdc.idx"), None);
        assert_eq!(class("scylladb", "/d/commitlog/CommitLog-4-1732600000123.log"), Some(FileClass::Wal));
        assert_eq!(class("opensearch", "/d/indices/U/0/translog/translog-12.tlog"), Some(FileClass::Wal));
        assert_eq!(class("opensearch", "/d/indices/U/0/translog/translog-12.ckp"), None);
        assert_eq!(
            class("clickhouse", "/d/coordination/log/changelog_1_100000.bin.zstd"),
            Some(FileClass::Wal)
        );
        assert_eq!(class("clickhouse", "/d/store/a/b/all_1_1_0/data.bin"), None);
        assert_eq!(class("generic", "/d/binlog.000007"), Some(FileClass::Binlog));
        assert_eq!(class("generic", "/d/redo.003"), Some(FileClass::Redo));
        assert_eq!(class("generic", "/d/redo.control"), None);
    }

    #[test]
    fn hexadecimal_numbers_order_the_segments_of_etcd() {
        let profiles = Profile::built_in();
        let etcd = find_profile(&profiles, "etcd").unwrap();
        let sequence = |name: &str| {
            let path = Path::new("/d/wal").join(name);
            let (log, matched) = etcd.log_of(&path).unwrap();
            (log, matched.stem().concat(), matched.number.sequence(None))
        };
        let first = sequence("000000000000000f-0000000000002f4a.wal");
        let next = sequence("0000000000000010-00000000000101c3.wal");
        assert_eq!((first.0, &first.1, first.2 + 1), (next.0, &next.1, next.2), "neighbours in one log");
    }

    #[test]
    fn all_files_of_real_servers_have_their_class() {
        use FileClass::{Binlog, Data, Redo, Temp, Text, Wal};
        let profiles = Profile::built_in();
        let class = |profile: &str, path: &str| {
            find_profile(&profiles, profile).unwrap().class_of(&Path::new("/d").join(path))
        };
        for (profile, path, expected) in [
            ("mariadb", "ibdata1", Some(Data)),
            ("mariadb", "undo001", Some(Data)),
            ("mariadb", "shop/orders#P#p1.ibd", Some(Data)),
            ("mariadb", "shop/orders.MAD", Some(Data)),
            ("mariadb", "ibtmp1", Some(Temp)),
            ("mariadb", "shop/#sql-alter-2a-5.ibd", Some(Temp)),
            ("mariadb", "ib_logfile101", Some(Redo)),
            ("mariadb", "#rocksdb/000012.log", Some(Wal)),
            ("mariadb", "#rocksdb/000013.sst", Some(Data)),
            ("mariadb", "galera.cache", Some(Data)),
            ("mariadb", "server.cnf", None),
            ("mariadb", "shop/orders.frm", None),
            ("mysql", "#innodb_redo/#ib_redo9_tmp", Some(Redo)),
            ("mysql", "ib_logfile1", Some(Redo)),
            ("mysql", "#ib_16384_0.dblwr", Some(Data)),
            ("mysql", "#ib_16384_1.bdblwr", Some(Data)),
            ("mysql", "undo_001", Some(Data)),
            ("mysql", "mysql.ibd", Some(Data)),
            ("mysql", "#innodb_temp/temp_3.ibt", Some(Temp)),
            ("mysql", "#rocksdb/000013.sst", Some(Data)),
            ("postgresql", "base/5/2619", Some(Data)),
            ("postgresql", "base/5/16384.1", Some(Data)),
            ("postgresql", "base/5/16384_vm", Some(Data)),
            ("postgresql", "base/5/t3_16390", Some(Temp)),
            ("postgresql", "base/pgsql_tmp/pgsql_tmp812.0", Some(Temp)),
            ("postgresql", "base/pgsql_tmp/pgsql_tmp812.0.fileset/i1of8.p0.0", Some(Temp)),
            ("postgresql", "global/1262", Some(Data)),
            ("postgresql", "global/pg_control", None),
            ("postgresql", "ts/PG_15_202209061/5/16384", Some(Data)),
            ("postgresql", "ts/PG_15_202209061/pgsql_tmp/pgsql_tmp9.1", Some(Temp)),
            ("postgresql", "pg_wal/000000010000000000000001", Some(Wal)),
            ("postgresql", "pg_wal/xlogtemp.77", Some(Wal)),
            ("postgresql", "pg_xact/0000", Some(Data)),
            ("postgresql", "postgresql.conf", None),
            ("rocksdb", "000012.sst", Some(Data)),
            ("rocksdb", "000014.blob", Some(Data)),
            ("rocksdb", "000015.ldb", Some(Data)),
            ("rocksdb", "000016.dbtmp", Some(Temp)),
            ("rocksdb", "0000000000000001.raftlog.reserved", Some(Wal)),
            ("rocksdb", "LOG", Some(Text)),
            ("rocksdb", "LOG.old.1764406800000000", Some(Text)),
            ("rocksdb", "LOCK", None),
            ("mongodb", "mongod.log.2026-11-29T09-05-11", Some(Text)),
            ("mongodb", "journal/WiredTigerLog.0000000002", Some(Wal)),
            ("postgresql", "log/postgresql-2026-11-29_090511.csv", Some(Text)),
            ("postgresql", "log/postgresql-Mon.log", Some(Text)),
            ("mariadb", "host-slow.log", Some(Text)),
            ("mariadb", "server_audit.log.1", Some(Text)),
            ("mariadb", "host.err", Some(Text)),
            ("mariadb", "aria_log.00000001", Some(Redo)),
            ("mysql", "#rocksdb/000012.log", Some(Wal)),
            ("mysql", "#rocksdb/LOG", Some(Text)),
            ("mongodb", "collection-0-77.wt", Some(Data)),
            ("mongodb", "journal/WiredTigerPreplog.0000000002", Some(Wal)),
            ("mongodb", "_tmp/extsort.1", Some(Temp)),
            ("etcd", "member/wal/1.tmp", Some(Wal)),
            ("etcd", "raft/1.tmp", Some(Wal)),
            ("etcd", "member/snap/db", Some(Data)),
            ("etcd", "member/snap/0000000000000002-0000000000002711.snap", Some(Data)),
            ("etcd", "member/snap/0000000000002711.snap.db", Some(Data)),
            ("etcd", "member/wal", None),
            ("prometheus", "wal/checkpoint.00000007/00000000", Some(Wal)),
            ("prometheus", "chunks_head/000003", Some(Data)),
            ("prometheus", "01BKGV7JBM69T2G1BGBGM6KB12/chunks/000001", Some(Data)),
            ("prometheus", "01BKGV7JBM69T2G1BGBGM6KB12/index", Some(Data)),
            ("prometheus", "queries.active", None),
            ("nats", "msgs/3.idx", Some(Data)),
            ("nats", "msgs/3.fss", Some(Data)),
            ("nats", "meta.inf", None),
            ("kafka", "topic-0/00000000000000000000.timeindex", Some(Data)),
            ("kafka", "topic-0/leader-epoch-checkpoint", None),
            ("rabbitmq", "quorum/rabbit@host/meta.dets", Some(Data)),
            ("rabbitmq", "msg_stores/vhosts/X/queues/Q/12.idx", Some(Data)),
            ("rabbitmq", "stream/S/00000000000000000000.index", Some(Data)),
            ("rabbitmq", "nodes_running_at_shutdown", None),
            ("cassandra", "data/load/load-5a1/nb-12-big-Data.db", Some(Data)),
            ("cassandra", "data/load/load-5a1/da-12-bti-Rows.db", Some(Data)),
            ("cassandra", "data/load/load-5a1/nb-12-big-TOC.txt", None),
            ("scylladb", "data/load/load-5a1/me-12-big-Data.db", Some(Data)),
            ("opensearch", "nodes/0/indices/U/0/index/_12.cfs", Some(Data)),
            ("opensearch", "nodes/0/indices/U/0/index/_12_Lucene90_0.dvd", Some(Data)),
            ("opensearch", "nodes/0/indices/U/0/index/segments_7", Some(Data)),
            ("opensearch", "nodes/0/indices/U/0/index/_4_bkd_0.tmp", Some(Temp)),
            ("opensearch", "nodes/0/indices/U/0/index/write.lock", None),
            ("clickhouse", "data/default/load/all_1_1_0/value.bin", Some(Data)),
            ("clickhouse", "store/5a1/5a1f/all_1_1_0/data.cmrk4", Some(Data)),
            ("clickhouse", "store/5a1/5a1f/all_1_1_0/primary.cidx", Some(Data)),
            ("clickhouse", "store/5a1/5a1f/tmp_merge_all_1_2_1/data.bin", Some(Temp)),
            ("clickhouse", "store/5a1/5a1f/all_1_1_0/checksums.txt", None),
            ("generic", "x/000012.sst", Some(Data)),
            ("generic", "binlog.000003", Some(Binlog)),
        ] {
            assert_eq!(class(profile, path), expected, "{profile}: {path}");
        }
    }

    #[test]
    fn relay_and_binary_logs_are_no_text_logs_whatever_the_host_is_called() {
        use FileClass::{Binlog, Relay, Text};
        let profiles = Profile::built_in();
        for profile in ["mariadb", "mysql"].map(|name| find_profile(&profiles, name).unwrap()) {
            for (name, expected) in [
                ("general.log", Text),
                ("slow.log", Text),
                ("host-slow.log", Text),
                ("server_audit.log", Text),
                ("slow.log.1", Text),
                ("slow.log-20261129", Text),
                ("host.err", Text),
                ("host.err.1", Text),
                ("db1.logistics.example-relay-bin.000002", Relay),
                ("db1.log.example-relay-bin-channel1.000002", Relay),
                ("received-relay.000001", Relay),
                ("a.logs-bin.000001", Binlog),
                ("db1.errands.example-bin.000001", Binlog),
                ("binlog.000001", Binlog),
            ] {
                let path = Path::new("/d").join(name);
                let (log, _) = profile.log_of(&path).unwrap();
                assert_eq!(profile.logs[log].class, expected, "{}: {name}", profile.name);
                assert_eq!(profile.class_of(&path), Some(expected), "{}: {name}", profile.name);
            }
        }
    }

    #[test]
    fn what_readers_come_back_to_stays_by_default() {
        let profiles = Profile::built_in();
        for name in ["nats", "rabbitmq"] {
            let profile = profiles.iter().find(|profile| profile.name == name).unwrap();
            let mut messages = profile.logs.iter().filter(|log| log.class == FileClass::Messages);
            assert!(messages.all(|log| log.rule == Rule::Keep), "{name}");
        }
        // Two or three that are full, of 32 MiB, for who copies them then.
        let cassandra = profiles.iter().find(|profile| profile.name == "cassandra").unwrap();
        assert!(matches!(cassandra.logs[0].rule, Rule::Budget { bytes, .. } if bytes == 128 << 20));
        // And all of what was not tried.
        for name in ["scylladb", "clickhouse"] {
            let profile = profiles.iter().find(|profile| profile.name == name).unwrap();
            assert!(profile.logs.iter().all(|log| log.rule == Rule::Keep), "{name}");
        }
    }

    #[test]
    fn what_compactions_write_is_bulk_output() {
        for profile in Profile::built_in() {
            let bulk: Vec<&str> = profile
                .files
                .iter()
                .filter(|file| file.bulk == Some(BulkPages::Keep))
                .map(|file| file.files.as_str())
                .collect();
            let expected: &[&str] = match profile.name.as_str() {
                "mariadb" | "mysql" => &["#rocksdb/*.sst"],
                "rocksdb" => &["*.sst", "*.ldb", "*.blob"],
                "generic" => &["*.sst"],
                "opensearch" => &["index/_*.*"],
                "cassandra" => {
                    assert_eq!(bulk.len(), profile.files.len(), "all parts of tables");
                    continue;
                }
                _ => &[],
            };
            assert_eq!(bulk, expected, "{}", profile.name);
        }
    }

    #[test]
    fn whole_pages_are_those_of_the_kernel() {
        for profile in Profile::built_in() {
            for log in &profile.logs {
                let name = format!("{}: {}", profile.name, log.files.as_str());
                let whole = RewriteSource::Known(Rewrite::WholePages);
                if log.rewrite == whole {
                    assert!(log.block.is_some(), "{name}: blocks of which size?");
                    assert_eq!(log.rewrite_on(4096), whole, "{name}");
                    assert_eq!(log.rewrite_on(65536), RewriteSource::Known(Rewrite::SubPages), "{name}");
                } else {
                    assert_eq!(log.rewrite_on(65536), log.rewrite, "{name}");
                }
            }
        }
    }

    #[test]
    fn an_indexed_log_needs_its_index() {
        let profiles = Profile::built_in();
        let mariadb = find_profile(&profiles, "mariadb").unwrap();
        let class = |path: &str, index: &str| {
            mariadb.class_beside(Path::new(path), |beside| beside == Path::new(index))
        };
        assert_eq!(class("/d/bin.000001", "/d/bin.index"), Some(FileClass::Binlog));
        assert_eq!(class("/d/slow.1", "/d/bin.index"), None);
    }

    #[test]
    fn a_file_leads_to_the_directory_of_its_database() {
        let profiles = Profile::built_in();
        let base = |profile: &str, path: &'static str| {
            find_profile(&profiles, profile).unwrap().base_of(Path::new(path))
        };
        assert_eq!(base("postgresql", "/d/base/5/2619"), Some(Path::new("/d")));
        assert_eq!(base("postgresql", "/ts/PG_15_1/5/7"), Some(Path::new("/ts")));
        assert_eq!(base("mariadb", "/d/#rocksdb/000012.sst"), Some(Path::new("/d")));
        assert_eq!(base("mariadb", "/d/shop/t.ibd"), Some(Path::new("/d/shop")));
        assert_eq!(base("mariadb", "/d/my.cnf"), None);
        assert_eq!(base("cassandra", "/d/data/shop/orders-5a1/nb-1-big-Data.db"), Some(Path::new("/d/data")));
    }

    #[test]
    fn errors_point_at_line_and_key() {
        let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiels = \"a\"\nrule = \"keep\"\n");
        assert!(error.contains("line 4") && error.contains("fiels"), "{error}");
        let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"{q}\"\nrule = \"keep\"\n");
        assert!(error.contains("line 4") && error.contains("in braces"), "{error}");
        let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a\"\nrule = \"burn\"\n");
        assert!(error.contains("line 5") && error.contains("release-behind-writer"), "{error}");
        let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a\"\nrule = \"budget\"\n");
        assert!(error.contains("needs the key \"budget\""), "{error}");
        let error = error_of(
            "name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a\"\nrule = \"keep\"\nslack = \"4M\"\n",
        );
        assert!(error.contains("\"slack\" has no meaning"), "{error}");
        let wide = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a/*/{n}\"\nrule = \"keep\"\n");
        assert!(wide.contains("one plain directory"), "{wide}");
        let rule = error_of("name = \"x\"\n[[file]]\nclass = \"data\"\nfiles = \"a\"\nrule = \"keep\"\n");
        assert!(rule.contains("line 5") && rule.contains("rule"), "{rule}");
        let bulk = error_of("name = \"x\"\n[[file]]\nclass = \"data\"\nfiles = \"a\"\nbulk = \"drop\"\n");
        assert!(bulk.contains("line 5") && bulk.contains("`keep` or `release`"), "{bulk}");
        assert!(error_of("name = \"x\"\n").contains("nothing to watch"));
    }

    #[test]
    fn an_unknown_name_lists_the_known() {
        let error = find_profile(&Profile::built_in(), "oracle").unwrap_err().to_string();
        assert!(error.contains("mariadb, mysql, postgresql"), "{error}");
    }
}

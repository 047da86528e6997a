//! Profiles: the files of one kind of database by name, their roles, and what to do with their
//! pages.
//!
//! A profile is a TOML file. Those in `profiles/` are built in; users add their own beside them. An
//! invalid profile is refused with the file, line and key ([`ProfileError`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{Glob, GlobMatcher};
use pagekeeper_policy::names::{NameMatch, NamePattern};
use pagekeeper_policy::{BulkPages, FileClass, RewriteKind, RewriteSource, Rule};
use pagekeeper_text::{ByteSize, escaped};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::config_file::{parse_config, read_config};
use crate::rule::WithRule;
use crate::text_value::{deserialize_text, deserialize_texts};

/// One kind of database. See `profiles/generic.toml` for each key of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name, as `--profile` takes it.
    pub name: String,
    /// Globs for the names of its processes (`/proc/PID/comm`, at most 15 bytes).
    #[serde(default, deserialize_with = "deserialize_globs")]
    pub processes: Vec<GlobMatcher>,
    /// Files that such a process holds open, whatever its name; all of them must be open.
    #[serde(default, deserialize_with = "deserialize_texts")]
    pub markers: Vec<NamePattern>,
    /// File names, at least one of which must be in the directory of a marker. They distinguish the
    /// database from others with the same marker names; empty if there are none.
    #[serde(default, deserialize_with = "deserialize_texts")]
    pub beside: Vec<NamePattern>,
    /// Whether a directory that the user names must also contain one of `beside`. Otherwise the
    /// names of its logs alone count.
    #[serde(default)]
    pub beside_always: bool,
    /// Directories of logs, relative to the process's working directory, for databases that do not
    /// keep their logs open.
    #[serde(default)]
    pub directories: Vec<PathBuf>,
    /// Whether its processes show positions in their titles as PostgreSQL's do.
    #[serde(default)]
    pub postgresql_titles: bool,
    /// Its log files, the most specific first: the first matching pattern counts.
    #[serde(default, rename = "log", deserialize_with = "deserialize_logs")]
    pub logs: Vec<LogSpec>,
    /// Its other files, which are not watched, the most specific first: the first matching pattern
    /// counts, after those of the logs.
    #[serde(default, rename = "file")]
    pub files: Vec<FileSpec>,
    /// Names of other profiles that fit the same process and whose files this profile includes. At
    /// least one of them all is the operator's.
    #[serde(skip)]
    pub also: Vec<String>,
    #[serde(skip)]
    is_built_in: bool,
}

/// Files of a database that are known by their names, and not watched.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Their role in the database.
    pub class: FileClass,
    /// Their names.
    #[serde(deserialize_with = "deserialize_text")]
    pub files: NamePattern,
    /// The treatment of their pages, for files that are written once, in order and in bulk.
    pub bulk: Option<BulkPages>,
    /// Whether a database that opens them with `O_DIRECT` reads them only that way: resident pages
    /// are then leftovers.
    #[serde(default)]
    pub direct_only: bool,
    /// A description, for logs of an unknown format.
    pub unknown_log: Option<String>,
}

/// The files of one log of a database.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSpec {
    /// Their role in the database.
    pub class: FileClass,
    /// Their names.
    #[serde(deserialize_with = "deserialize_log_pattern")]
    pub files: NamePattern,
    /// Whether they count only if the index file is beside them: the stem with `index` as its last
    /// component (`binlog.index`).
    #[serde(default)]
    pub indexed: bool,
    /// The treatment of their pages.
    #[serde(skip, default = "placeholder_rule")]
    pub rule: Rule,
    /// The way in which their writer overwrites old bytes.
    #[serde(default)]
    pub rewrite: RewriteSource,
    /// The size in bytes of the aligned blocks that the writer overwrites, for profiles that state
    /// whole pages. The kernel's page size decides whether these blocks are whole pages.
    #[serde(default, deserialize_with = "deserialize_size")]
    pub block: Option<u64>,
    /// The source of the writer's position.
    #[serde(default)]
    pub position: PositionSpec,
    /// The rule that determines the writer's file.
    #[serde(default)]
    pub newest: NewestSpec,
    /// A server setting that enlarges the blocks of [`RewriteSource::DeviceBlocks`], or replaces
    /// `block`.
    pub block_option: Option<String>,
    /// Server settings that cause old bytes to be overwritten: with all of them off, the server
    /// only appends.
    #[serde(default)]
    pub overwritten_if: Vec<String>,
    /// The file and key that state that the files of a log are recycled, with
    /// [`RewriteSource::Detect`].
    pub recycled_if: Option<RecycledIf>,
    /// The source of the position from which crash recovery reads the log.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// Advice on a log that is kept because parts of pages are overwritten.
    pub hint: Option<String>,
    /// Whether a database that opens them with `O_DIRECT` reads them only that way: resident pages
    /// are then leftovers.
    #[serde(default)]
    pub direct_only: bool,
}

/// A file that a profile knows by its name.
struct KnownFile<'p> {
    class: FileClass,
    names: &'p NamePattern,
    direct_only: bool,
}

/// A setting in a file beside the log that states that the log's files are recycled.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecycledIf {
    /// The file; if several match, the one with the highest number.
    #[serde(deserialize_with = "deserialize_text")]
    pub file: NamePattern,
    /// The key in it: a line `key = value` with a value other than 0 and false states recycling.
    pub key: String,
}

/// The source of a log writer's position, as seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionSpec {
    /// At the end of the file; if the writer overwrites old bytes, in `/proc/PID/fdinfo`.
    #[default]
    Descriptor,
    /// In `/proc/PID/fdinfo`: files are created at full length, and then written from their start.
    Preallocated,
    /// Nowhere: the writer uses `pwrite` in a preallocated file.
    Hidden,
}

/// The source of the position from which crash recovery reads a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointSpec {
    /// Unknown.
    #[default]
    Unknown,
    /// In PostgreSQL's `global/pg_control`.
    PgControl,
    /// In the headers of InnoDB's redo log files.
    Innodb,
    /// The database removes files that recovery does not need: recovery reads all that exist.
    AllFiles,
    /// Recovery reads the writer's file from its start.
    LastFile,
    /// Recovery reads none of them: they are spare files.
    NoFile,
}

/// The rule that determines which file of a log is the writer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewestSpec {
    /// The one with the highest number. Among names without a number: those open for writing, and
    /// the one changed last.
    #[default]
    Number,
    /// The one changed last: files for later use already have higher numbers.
    Changed,
    /// Any file that a process has open for writing: a ring.
    Open,
}

/// The reason for which a profile was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file can't be read.
    #[error("{}: {source}", escaped(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The text is not a profile; the message shows line and key.
    #[error("{}: {message}", escaped(path))]
    Text {
        /// The file.
        path: PathBuf,
        /// The problem and its location.
        message: String,
    },
    /// There is no profile with that name.
    #[error("no profile is called \"{name}\"; there are {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The profile finds no database by itself, and none was named.
    #[error(
        "the profile \"{name}\" finds no database by itself: name its process with --pid, or the directory of its logs with --dir"
    )]
    FindsNothing {
        /// The profile's name.
        name: String,
    },
}

fn deserialize_globs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GlobMatcher>, D::Error> {
    let globs: Vec<Glob> = deserialize_texts(deserializer)?;
    Ok(globs.iter().map(Glob::compile_matcher).collect())
}

/// Reads the pattern of a log's files, which may name one directory.
fn deserialize_log_pattern<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NamePattern, D::Error> {
    let files: NamePattern = deserialize_text(deserializer)?;
    if files.is_for_logs() {
        Ok(files)
    } else {
        Err(D::Error::custom("before the / goes one plain directory name"))
    }
}

fn deserialize_logs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LogSpec>, D::Error> {
    let logs = Vec::<WithRule<LogSpec>>::deserialize(deserializer)?;
    Ok(logs.into_iter().map(|WithRule { rule, table }| LogSpec { rule, ..table }).collect())
}

fn deserialize_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let size: ByteSize = deserialize_text(deserializer)?;
    Ok(Some(size.0))
}

impl LogSpec {
    /// Returns how the writer overwrites old bytes on a kernel with pages of `page` bytes.
    pub fn rewrite_on(&self, page: u64) -> RewriteSource {
        match (self.rewrite, self.block) {
            (RewriteSource::Known(RewriteKind::WholePages), Some(block)) => {
                RewriteSource::Known(RewriteKind::of_blocks(block, page))
            }
            (known, _) => known,
        }
    }
}

/// The placeholder until the rule is known, which is always read.
fn placeholder_rule() -> Rule {
    Rule::Keep
}

impl Profile {
    /// Parses a profile; `path` is used in errors.
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

    /// Returns the built-in profiles.
    ///
    /// # Panics
    ///
    /// Never in a build that passed its tests, which parse each of them.
    pub fn built_in() -> Vec<Self> {
        BUILT_IN_PROFILES
            .iter()
            .map(|(name, text)| Self::parse(text, Path::new(name)).expect("built-in profiles are tested"))
            .map(|profile| Self { is_built_in: true, ..profile })
            .collect()
    }

    /// Whether it is a built-in profile, or replaces one by its name.
    fn has_built_in_name(&self) -> bool {
        self.is_built_in || BUILT_IN_PROFILES.iter().any(|(name, _)| *name == self.name)
    }

    /// Returns the profile of a process that several profiles fit, and how well the database itself
    /// is known. It joins the best profile with a built-in name with all of the operator's other
    /// profiles, which come first, so that the files of each are known. Its name is that of the
    /// best profile overall. `fits` has each profile's score.
    pub(crate) fn join_fitting(fits: &[(u32, &Arc<Self>)]) -> Option<(Arc<Self>, u32)> {
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

    /// Whether it has the same names as another, and so knows the same files.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.name == other.name && self.also == other.also
    }

    /// Returns its name and those of the profiles joined to it.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name].into_iter().chain(&self.also).map(String::as_str)
    }

    /// Returns the file entry that describes this path as a log of an unknown format, if any, with
    /// its index.
    pub fn unknown_log(&self, path: &Path) -> Option<(usize, &FileSpec)> {
        let is_one = |file: &FileSpec| file.unknown_log.is_some() && file.files.matches(path).is_some();
        self.files.iter().enumerate().find(|(_, file)| is_one(file))
    }

    /// Whether a process can be recognised as such a database, by its name or its open files.
    /// Otherwise the user has to name it.
    pub fn can_be_found(&self) -> bool {
        !self.processes.is_empty() || !self.markers.is_empty()
    }

    /// Returns the log that a file belongs to: the first whose pattern matches its path. Returns
    /// `None` for a log [of an unknown format](Self::unknown_log).
    pub fn log_of<'n>(&self, path: &'n Path) -> Option<(usize, NameMatch<'n>)> {
        if self.unknown_log(path).is_some() {
            return None;
        }
        self.logs.iter().enumerate().find_map(|(index, log)| Some((index, log.files.matches(path)?)))
    }

    /// Returns the role of a file by its path alone: that of the first matching pattern among the
    /// logs, then the other files. Returns `None` for a file that the profile does not know.
    ///
    /// An [indexed](LogSpec::indexed) log counts as one whether its index exists or not; see
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

    /// Returns the same as [`Self::class_of`], for callers that know which files exist: a file of
    /// an [indexed](LogSpec::indexed) log counts only if `exists` is true for the index beside it.
    pub fn class_beside(&self, path: &Path, exists: impl Fn(&Path) -> bool) -> Option<FileClass> {
        self.known_file(path, exists).map(|known| known.class)
    }

    /// Whether a database that opens this file with `O_DIRECT` reads it only that way, so that
    /// resident pages are leftovers. If no profile says so, an engine may also read it through the
    /// page cache on purpose.
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
        self.known_file(path, |_| true).is_some_and(|known| known.direct_only)
    }

    /// Whether the profile does not know a file: it has no class and is not a marker.
    pub fn is_unnamed(&self, path: &Path) -> bool {
        self.class_of(path).is_none() && !self.markers.iter().any(|marker| marker.matches(path).is_some())
    }

    /// Whether an open file is a log of this profile. A text log counts only if the process
    /// `writes` to it, since anybody may read files with such names.
    pub fn is_open_log(&self, path: &Path, writes: bool) -> bool {
        self.log_of(path).is_some_and(|(log, _)| writes || self.logs[log].class != FileClass::Text)
    }

    /// Returns the base directory of a file: above the directories that its pattern names (for
    /// PostgreSQL's `base/5/16384`, the parent of `base`). Returns `None` for a file that the
    /// profile does not know.
    pub fn base_of<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        self.known_file(path, |_| true)?.names.base_of(path)
    }

    /// Returns, for a marker file, the directory above those that the marker matches with a
    /// wildcard (for Kafka's `*-*/{n}.log`, the parent of its partitions). Returns `None` for other
    /// files, and for markers without such a directory.
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
        let is_of_many = |marker: &&NamePattern| {
            marker.as_str().rsplit_once('/').is_some_and(|(above, _)| above.contains('*'))
        };
        self.markers.iter().filter(is_of_many).find_map(|marker| marker.base_of(path))
    }

    fn known_file(&self, path: &Path, exists: impl Fn(&Path) -> bool) -> Option<KnownFile<'_>> {
        let is_log = |log: &&LogSpec| {
            log.files
                .matches(path)
                .is_some_and(|matched| !log.indexed || exists(&path.with_file_name(matched.index_name())))
        };
        let is_unknown = self.unknown_log(path).is_some();
        let log = self.logs.iter().filter(|_| !is_unknown).find(is_log).map(|log| KnownFile {
            class: log.class,
            names: &log.files,
            direct_only: log.direct_only || log.rule == Rule::Direct,
        });
        log.or_else(|| {
            let file = self.files.iter().find(|file| file.files.matches(path).is_some())?;
            Some(KnownFile { class: file.class, names: &file.files, direct_only: file.direct_only })
        })
    }
}

macro_rules! built_in {
    ($($name:literal,)*) => { &[$(($name, include_str!(concat!("../profiles/", $name, ".toml")))),*] };
}

/// Name and text of each built-in profile. If two fit a process or directory equally well, the
/// first is used.
pub const BUILT_IN_PROFILES: &[(&str, &str)] = built_in![
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

/// Returns the profile with this name.
pub fn find_profile<'a>(profiles: &'a [Profile], name: &str) -> Result<&'a Profile, ProfileError> {
    profiles.iter().find(|profile| profile.name == name).ok_or_else(|| ProfileError::Unknown {
        name: name.to_owned(),
        known: profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests;

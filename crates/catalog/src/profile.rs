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
mod tests;

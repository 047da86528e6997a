//! Profiles: what the files of one kind of database are called, what they are to it, and what is to be done
//! with them.
//!
//! A profile is a TOML file; the ones in `profiles/` are built in, users add their own beside them. A profile
//! that can't be read is refused with the file, line and key ([`ProfileError`]).

use std::path::{Path, PathBuf};
use std::str::FromStr;

use globset::{Glob, GlobMatcher};
use pagekeeper_policy::{FileClass, Rule};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::pattern::{Matched, Pattern};
use crate::units::Size;

/// Bytes that stay resident behind a writer where a profile does not say: two release windows.
const DEFAULT_SLACK: u64 = 4 << 20;
/// Files behind the writer up to which a follower is near, where a profile does not say.
const DEFAULT_NEAR_FILES: u64 = 3;

/// One kind of database.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Its name, as `--profile` takes it.
    pub name: String,
    /// Names of its processes (`/proc/PID/comm`, at most 15 bytes), as globs.
    pub processes: Vec<GlobMatcher>,
    /// Files that such a process, whatever its name, holds open: all of them must be there.
    pub markers: Vec<Pattern>,
    /// Directories of logs, relative to the process's working directory, for databases that do not keep their
    /// logs open.
    pub directories: Vec<PathBuf>,
    /// Whether its processes show positions in their titles as PostgreSQL's do.
    pub postgresql_titles: bool,
    /// Its log files, the more particular first: the first pattern that matches counts.
    pub logs: Vec<LogSpec>,
}

/// The files of one log of a database.
#[derive(Debug, Clone)]
pub struct LogSpec {
    /// What they are to the database.
    pub class: FileClass,
    /// Their names.
    pub files: Pattern,
    /// Only where the stem with `index` as its last component stands beside them (`binlog.index`).
    pub indexed: bool,
    /// What is to be done with their pages.
    pub rule: Rule,
    /// How their writer comes back to old bytes.
    pub rewrite: RewriteSpec,
    /// Where their writer is seen.
    pub position: PositionSpec,
    /// Which of them is the writer's.
    pub newest: NewestSpec,
    /// An option of the database's command line that makes the blocks of [`RewriteSpec::DeviceBlocks`] larger.
    pub block_option: Option<String>,
    /// Where the database says that it recycles files of a log that is [`RewriteSpec::Detect`].
    pub recycled_if: Option<RecycledIf>,
    /// What to do about a log that is kept because it is overwritten in parts of pages.
    pub hint: Option<String>,
}

/// A setting, in a file beside the log, that says its files are recycled.
#[derive(Debug, Clone)]
pub struct RecycledIf {
    /// The file; of several, the one with the highest number.
    pub file: Pattern,
    /// The key in it, whose value is then not 0 or false: a line `key = value`.
    pub key: String,
}

/// How a log's writer comes back to bytes that are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RewriteSpec {
    /// It only appends, as far as can be seen; a recycled file is recognised and then taken for one written in
    /// parts of pages.
    #[default]
    Detect,
    /// It only appends, and never recycles files.
    Never,
    /// It overwrites whole aligned pages.
    WholePages,
    /// It overwrites parts of pages: such a log is kept.
    SubPages,
    /// It overwrites blocks of the device's physical block size: whole pages where that is a page or more.
    DeviceBlocks,
}

/// Where the position of a log's writer is seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionSpec {
    /// In `/proc/PID/fdinfo`; where that shows 0, at the end of the file.
    #[default]
    Descriptor,
    /// Nowhere: it uses `pwrite` within a preallocated file.
    Hidden,
}

/// Which file of a log the writer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewestSpec {
    /// The one with the highest number.
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
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The text is not a profile; the message shows line and key.
    #[error("{}: {message}", path.display())]
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
}

/// The file as it is written; see `profiles/generic.toml` for each key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileText {
    name: String,
    #[serde(default)]
    processes: Vec<Spelled<Glob>>,
    #[serde(default)]
    markers: Vec<Spelled<Pattern>>,
    #[serde(default)]
    directories: Vec<PathBuf>,
    #[serde(default)]
    postgresql_titles: bool,
    #[serde(default, rename = "log")]
    logs: Vec<LogText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogText {
    class: FileClass,
    files: Spelled<Pattern>,
    #[serde(default)]
    indexed: bool,
    rule: RuleName,
    near_files: Option<u64>,
    slack: Option<Spelled<Size>>,
    budget: Option<Spelled<Size>>,
    #[serde(default)]
    rewrite: RewriteSpec,
    #[serde(default)]
    position: PositionSpec,
    #[serde(default)]
    newest: NewestSpec,
    block_option: Option<String>,
    recycled_if: Option<RecycledText>,
    hint: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecycledText {
    file: Spelled<Pattern>,
    key: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RuleName {
    Keep,
    ReleaseBehindWriter,
    ReleaseOnRotation,
    ReleaseBehindFollowers,
    Budget,
    Direct,
}

/// A rule as it is written in a configuration: its name, and the figures that it takes.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleText {
    rule: RuleName,
    near_files: Option<u64>,
    slack: Option<Spelled<Size>>,
    budget: Option<Spelled<Size>>,
}

impl RuleText {
    /// The rule, or a sentence on the figure that is missing or out of place.
    pub(crate) fn rule(&self) -> Result<Rule, String> {
        let slack = self.slack.as_ref().map(|size| size.0.0);
        let budget = self.budget.as_ref().map(|size| size.0.0);
        let allowed: &[&str] = match self.rule {
            RuleName::Keep | RuleName::ReleaseOnRotation | RuleName::Direct => &[],
            RuleName::ReleaseBehindWriter => &["slack"],
            RuleName::ReleaseBehindFollowers => &["slack", "near_files"],
            RuleName::Budget => &["budget"],
        };
        for (key, given) in [
            ("slack", slack.is_some()),
            ("near_files", self.near_files.is_some()),
            ("budget", budget.is_some()),
        ] {
            if given && !allowed.contains(&key) {
                return Err(format!("the key \"{key}\" has no meaning for this rule"));
            }
        }
        let slack = slack.unwrap_or(DEFAULT_SLACK);
        Ok(match self.rule {
            RuleName::Keep => Rule::Keep,
            RuleName::Direct => Rule::Direct,
            RuleName::ReleaseOnRotation => Rule::ReleaseOnRotation,
            RuleName::ReleaseBehindWriter => Rule::ReleaseBehindWriter { slack },
            RuleName::ReleaseBehindFollowers => Rule::ReleaseBehindFollowers {
                near_files: self.near_files.unwrap_or(DEFAULT_NEAR_FILES),
                slack,
            },
            RuleName::Budget => Rule::Budget {
                bytes: budget.ok_or("the rule \"budget\" needs the key \"budget\", a size like 64M")?,
            },
        })
    }
}

/// A value written as text, such as a pattern or a size; what is wrong with it is said at its place in the
/// file.
#[derive(Clone)]
pub(crate) struct Spelled<T>(pub(crate) T);

impl<'de, T: FromStr<Err: std::fmt::Display>> Deserialize<'de> for Spelled<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

impl Profile {
    /// Reads a profile from its text; `path` is used in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        let refuse = |message: String| ProfileError::Text { path: path.to_path_buf(), message };
        let text: ProfileText = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
        let mut logs = Vec::with_capacity(text.logs.len());
        for log in text.logs {
            let rule =
                RuleText { rule: log.rule, near_files: log.near_files, slack: log.slack, budget: log.budget };
            logs.push(LogSpec {
                rule: rule
                    .rule()
                    .map_err(|message| refuse(format!("log \"{}\": {message}", log.files.0.as_str())))?,
                class: log.class,
                files: log.files.0,
                indexed: log.indexed,
                rewrite: log.rewrite,
                position: log.position,
                newest: log.newest,
                block_option: log.block_option,
                recycled_if: log.recycled_if.map(|text| RecycledIf { file: text.file.0, key: text.key }),
                hint: log.hint,
            });
        }
        if logs.is_empty() {
            return Err(refuse("it has no [[log]], so there is nothing to watch".to_owned()));
        }
        Ok(Self {
            name: text.name,
            processes: text.processes.iter().map(|glob| glob.0.compile_matcher()).collect(),
            markers: text.markers.into_iter().map(|marker| marker.0).collect(),
            directories: text.directories,
            postgresql_titles: text.postgresql_titles,
            logs,
        })
    }

    /// Reads a profile from a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ProfileError::Io { path: path.to_path_buf(), source })?;
        Self::parse(&text, path)
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
            .collect()
    }

    /// What a file is by this profile: the first log whose pattern its path matches.
    pub fn log_of(&self, path: &Path) -> Option<(usize, Matched)> {
        self.logs.iter().enumerate().find_map(|(index, log)| Some((index, log.files.matches(path)?)))
    }
}

/// Name and text of each built-in profile.
pub const BUILT_IN: [(&str, &str); 6] = [
    ("mariadb.toml", include_str!("../profiles/mariadb.toml")),
    ("mysql.toml", include_str!("../profiles/mysql.toml")),
    ("postgresql.toml", include_str!("../profiles/postgresql.toml")),
    ("rocksdb.toml", include_str!("../profiles/rocksdb.toml")),
    ("mongodb.toml", include_str!("../profiles/mongodb.toml")),
    ("generic.toml", include_str!("../profiles/generic.toml")),
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
        assert_eq!(names, ["mariadb", "mysql", "postgresql", "rocksdb", "mongodb", "generic"]);
        for profile in &profiles {
            let found = !profile.processes.is_empty() || !profile.markers.is_empty();
            assert_eq!(found, profile.name != "generic", "{} is found by itself", profile.name);
        }
    }

    #[test]
    fn files_of_real_servers_are_told_apart() {
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
        assert_eq!(class("generic", "/d/binlog.000007"), Some(FileClass::Binlog));
        assert_eq!(class("generic", "/d/redo.003"), Some(FileClass::Redo));
        assert_eq!(class("generic", "/d/redo.control"), None);
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
        assert!(error_of("name = \"x\"\n").contains("nothing to watch"));
    }

    #[test]
    fn an_unknown_name_lists_the_known() {
        let error = find_profile(&Profile::built_in(), "oracle").unwrap_err().to_string();
        assert!(error.contains("mariadb, mysql, postgresql"), "{error}");
    }
}

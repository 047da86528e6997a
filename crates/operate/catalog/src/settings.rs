//! The settings of a running database, read from its own files and command line. All callers share
//! this reader.
//!
//! Invariants:
//! 1. Nothing is guessed. A setting that was not found is absent, and a file that could not be read
//!    is in [`Settings::unread`] with the reason. An engine's default is given only if the server's
//!    version, and the default in that version, are known for certain.
//! 2. Files are read as the database's process sees them (`/proc/PID/root`), by
//!    [`InspectedFile`](pagekeeper_kernel::InspectedFile), which does no harm, and within limits
//!    (`limits.rs`).
//! 3. Observed facts about the process (a table file open with `O_DIRECT`) take precedence over its
//!    files.
//! 4. A later setting takes precedence over an earlier one, as in the engine itself.
//!
//! [`SettingsReader::read`] does not fail: problems are in [`Settings::unread`].

mod beside;
pub mod guc;
#[cfg(test)]
mod hostile_tests;
mod limits;
mod mysql;
pub mod option_file;
pub mod options;
mod postgresql;
mod program;
mod program_search;
mod rewrite_decision;
mod rocksdb;
mod server;
mod server_root;
mod server_settings;
#[cfg(test)]
mod testing;
mod version_groups;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::escaped;
use serde::Serialize;

use limits::{
    ALL_KEPT_BYTES_MAX, BRIEF_PROGRAM_BYTES_MAX, KEPT_BYTES_MAX, KEPT_BYTES_MIN, LimitHit,
    SETTING_NAME_BYTES_MAX, UNREAD_ENTRIES_MAX,
};
use program::ServerProgram;
use program_search::ProgramSearch;
use server_root::ReadFailure;
use version_groups::VersionGroups;

pub use beside::are_recycled;
pub use limits::SETTINGS_FILE_BYTES_MAX;
pub use mysql::BUFFERED_METHOD;
pub use rewrite_decision::{RewriteDecision, decide_rewrite};
pub use rocksdb::keys as toml_keys;
pub use server::{OpenMode, ServerFacts, ServerFile, uptime};
pub use server_root::ServerRoot;
pub use server_settings::ServerSettings;

/// The text for a server that may be either of two.
const ENGINE_DOUBT: &str = "whether this is MySQL or MariaDB is not certain: its program could not be read, or says \
                           neither";
/// The text for a file that was changed after the server started.
const CHANGED_DOUBT: &str = "changed after the server started: what it runs with may differ";
/// The text for settings beyond the limits.
const LIMIT_DOUBT: &str = "not all of its settings files were read";
/// The text for a file that the server's user may not read. A server that root started may have
/// read it before.
const HIDDEN_DOUBT: &str =
    "its mode keeps the server's user from reading it: whether the server did is not known";
/// The text for a setting from a file if another file that may override it was not read.
const PARTIAL_DOUBT: &str =
    "not all of its settings files could be read, or one was changed after the server started";
/// Memory of a setting besides its texts, in bytes.
const SETTING_BYTES: usize = size_of::<Setting>() + CHANGED_DOUBT.len();

/// The database engine whose settings they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// `MariaDB`; with `MyRocks` if [`Settings::myrocks`] says so.
    MariaDb,
    /// `MySQL`; with `MyRocks` if [`Settings::myrocks`] says so.
    MySql,
    /// `PostgreSQL`.
    PostgreSql,
    /// A program that embeds `RocksDB`.
    RocksDb,
    /// `TiKV`: `RocksDB` and raft-engine.
    TiKv,
    /// `MongoDB`.
    MongoDb,
    /// Another engine, whose settings are unknown.
    Other,
}

/// The settings of one database, as far as they could be read.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    /// The engine.
    pub engine: Engine,
    /// The reason for which the engine is uncertain, if it is: then no change of a setting is
    /// advised.
    pub engine_doubt: Option<String>,
    /// The server's version if it is certain: "15", "10.11.14", "7.8.3".
    pub version: Option<String>,
    /// Whether a `MariaDB` or `MySQL` server also holds a `MyRocks` database (`#rocksdb`).
    pub myrocks: bool,
    /// Whether a `MySQL` server has its redo log in `#innodb_redo` (8.0.30 and later), sized by
    /// `innodb_redo_log_capacity`.
    pub redo_directory: bool,
    /// The files that were read, as the database sees them, in reading order.
    pub read_from: Vec<PathBuf>,
    /// The files that could not be read, with the reasons; a long list is cut.
    pub unread: Vec<(PathBuf, String)>,
    /// The settings found; a later one takes precedence.
    found: Vec<Setting>,
    /// The file for settings that are not set anywhere yet, if known.
    home: Option<PathBuf>,
    /// Whether a file that may contain settings could not be read.
    #[serde(skip)]
    is_partial: bool,
    #[serde(skip)]
    usage: LimitUsage,
}

/// The used part of the limits.
#[derive(Debug, Clone)]
struct LimitUsage {
    /// Bytes used by settings from files, and the limit.
    kept: usize,
    max_kept: usize,
    /// The number of unread entries that are not listed.
    more_unread: u64,
    /// The limits that were hit, each with the first file.
    limits_hit: BTreeMap<LimitHit, PathBuf>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The full name in small letters with `_`.
    pub name: String,
    /// The value as written, without quotes.
    pub value: String,
    /// The place where it was found.
    pub from: SettingOrigin,
    /// The reason why it may not be in force: "changed after the server started". `None` if there
    /// is no known doubt.
    pub doubt: Option<String>,
}

/// The origin of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingOrigin {
    /// An argument of the process.
    CommandLine,
    /// A file.
    File {
        /// The path as the database sees it.
        path: PathBuf,
        /// The line number, from 1.
        line: u32,
    },
    /// The process's environment.
    Environment,
    /// Observed on the process: how it has its files open.
    Seen,
    /// Set nowhere although all places were read: this is the version's default.
    Default,
}

impl std::fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CommandLine => f.write_str("the command line"),
            Self::File { path, line } => write!(f, "{}, line {line}", escaped(path)),
            Self::Environment => f.write_str("the environment"),
            Self::Seen => f.write_str("how it has its files open"),
            Self::Default => f.write_str("the default"),
        }
    }
}

impl Setting {
    /// Whether its value means true; `None` if it means neither true nor false.
    pub fn is_on(&self) -> Option<bool> {
        match self.value.to_ascii_lowercase().as_str() {
            "on" | "true" | "1" | "yes" => Some(true),
            "off" | "false" | "0" | "no" => Some(false),
            _ => None,
        }
    }
}

impl Settings {
    /// Creates settings without any entry.
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            engine_doubt: None,
            version: None,
            myrocks: false,
            redo_directory: false,
            read_from: Vec::new(),
            unread: Vec::new(),
            found: Vec::new(),
            home: None,
            is_partial: false,
            usage: LimitUsage {
                kept: 0,
                max_kept: KEPT_BYTES_MAX,
                more_unread: 0,
                limits_hit: BTreeMap::new(),
            },
        }
    }

    /// Returns the effective setting; `name` may be written with `-` or `_`, in small or large
    /// letters.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        let name = normalized(name);
        self.found.iter().rev().find(|setting| setting.name == name)
    }

    /// Returns the setting as written, regardless of the process's observed state.
    pub fn written(&self, name: &str) -> Option<&Setting> {
        let name = normalized(name);
        self.found.iter().rev().find(|setting| setting.name == name && setting.from != SettingOrigin::Seen)
    }

    /// Whether it is set to a true value; `None` if unknown.
    pub fn is_on(&self, name: &str) -> Option<bool> {
        self.get(name)?.is_on()
    }

    /// Returns a size in bytes, in the engine's own units; `None` if it is unknown or not a size.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        let setting = self.get(name)?;
        match self.engine {
            Engine::PostgreSql => guc::size(&setting.name, &setting.value),
            Engine::TiKv => rocksdb::tikv_size(&setting.value),
            Engine::MariaDb | Engine::MySql | Engine::RocksDb | Engine::MongoDb | Engine::Other => {
                option_file::size(&setting.value)
            }
        }
    }

    /// Returns a duration in seconds; `None` if it is unknown or not a duration.
    pub fn seconds(&self, name: &str) -> Option<u64> {
        guc::seconds(&self.get(name)?.value)
    }

    /// Whether it has a `RocksDB` database, by itself or as `MyRocks`.
    pub fn holds_rocksdb(&self) -> bool {
        self.myrocks || matches!(self.engine, Engine::RocksDb | Engine::TiKv)
    }

    /// Returns everything found, in ascending precedence.
    pub fn all(&self) -> &[Setting] {
        &self.found
    }

    /// Returns the file for settings that are not set anywhere yet, as the database sees it; `None`
    /// if unknown.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Adds a setting that takes precedence over all earlier ones.
    pub fn add(&mut self, name: &str, value: impl Into<String>, from: SettingOrigin) {
        let setting = Setting { name: normalized(name), value: value.into(), from, doubt: None };
        if let SettingOrigin::File { path, .. } = &setting.from {
            let takes = SETTING_BYTES + setting.name.len() + setting.value.len() + path.as_os_str().len();
            let full = self.usage.kept.saturating_add(takes) > self.usage.max_kept;
            if full || setting.name.len() > SETTING_NAME_BYTES_MAX {
                return self.record_limit(&path.clone(), if full { LimitHit::Kept } else { LimitHit::Line });
            }
            self.usage.kept += takes;
        }
        self.found.push(setting);
    }

    /// Adds a setting from a file, with the doubt whether the server has read it so.
    fn add_doubted(
        &mut self,
        name: &str,
        value: impl Into<String>,
        from: SettingOrigin,
        doubt: Option<&str>,
    ) {
        let known = self.found.len();
        self.add(name, value, from);
        if let Some(setting) = self.found.get_mut(known) {
            setting.doubt = doubt.map(str::to_owned);
        }
    }

    /// Records a file that could not be read.
    fn record_unread(&mut self, path: impl Into<PathBuf>, why: impl Into<String>) {
        if self.unread.len() < UNREAD_ENTRIES_MAX {
            self.unread.push((path.into(), why.into()));
        } else {
            self.usage.more_unread += 1;
        }
    }

    /// Records a file or directory that is missing or could not be read.
    fn record_failure(&mut self, path: impl Into<PathBuf>, unread: ReadFailure) {
        match unread {
            ReadFailure::Missing => self.record_unread(path, "it is not there any more"),
            ReadFailure::Because(why) => {
                self.is_partial = true;
                self.record_unread(path, why);
            }
            ReadFailure::Limit(limit) => self.record_limit(&path.into(), limit),
        }
    }

    /// Records a limit that was hit at this file.
    fn record_limit(&mut self, path: &Path, limit: LimitHit) {
        self.usage.limits_hit.entry(limit).or_insert_with(|| path.to_path_buf());
    }

    /// Whether there may be more settings: more was found than is read and kept per database.
    pub fn is_cut(&self) -> bool {
        self.usage.limits_hit.keys().any(|limit| limit.hides())
    }

    /// Returns why a setting may not be in force, if so: its file was changed, or another file that
    /// may override it was not read.
    pub fn doubt_of<'a>(&self, setting: &'a Setting) -> Option<&'a str> {
        let may_be_hidden = match setting.from {
            SettingOrigin::File { .. } | SettingOrigin::Environment => self.is_partial || self.is_cut(),
            SettingOrigin::CommandLine | SettingOrigin::Seen | SettingOrigin::Default => false,
        };
        setting.doubt.as_deref().or(may_be_hidden.then_some(PARTIAL_DOUBT))
    }

    /// Forgets all other settings, and which files were read or not.
    pub fn keep_only(&mut self, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| normalized(name)).collect();
        self.found.retain(|setting| names.contains(&setting.name));
        self.found.shrink_to_fit();
        (self.read_from, self.unread) = (Vec::new(), Vec::new());
    }

    /// Records which limits were hit.
    fn finish(&mut self) {
        if self.is_cut() {
            let of_files = |setting: &&mut Setting| matches!(setting.from, SettingOrigin::File { .. });
            for setting in self.found.iter_mut().filter(of_files) {
                setting.doubt.get_or_insert_with(|| LIMIT_DOUBT.to_owned());
            }
        }
        self.unread
            .extend(self.usage.limits_hit.iter().map(|(limit, path)| (path.clone(), limit.to_string())));
        let more = self.usage.more_unread;
        if more > 0 {
            self.unread.push((
                "its other settings files".into(),
                format!("{more} more lines or files were not read"),
            ));
        }
    }
}

/// Returns a name in the form used here: small letters, `_` for `-`.
fn normalized(name: &str) -> String {
    name.replace('-', "_").to_ascii_lowercase()
}

/// Reads the settings of databases. Each of them is bounded, and so is their sum.
///
/// ```
/// use pagekeeper_catalog::settings::{ServerFacts, SettingsReader};
/// use pagekeeper_kernel::process::ProcRoot;
///
/// fn show(server: &ServerFacts, proc: &ProcRoot) {
///     let settings = SettingsReader::default().read(server, proc);
///     println!("{:?}", settings.get("sync_binlog"));
/// }
/// ```
#[derive(Debug, Default)]
pub struct SettingsReader {
    programs: ProgramSearch<Option<ServerProgram>>,
    groups: VersionGroups,
    /// Bytes used by the settings of all databases read.
    kept: usize,
}

impl SettingsReader {
    /// Reads the settings of a server.
    pub fn read(&mut self, server: &ServerFacts, proc: &ProcRoot) -> Settings {
        let mut settings = Settings::new(server.engine);
        settings.usage.max_kept =
            KEPT_BYTES_MAX.min(ALL_KEPT_BYTES_MAX.saturating_sub(self.kept).max(KEPT_BYTES_MIN));
        if server.is_brief {
            settings.usage.max_kept = KEPT_BYTES_MIN;
            self.programs.lower(BRIEF_PROGRAM_BYTES_MAX);
            self.groups.lower(BRIEF_PROGRAM_BYTES_MAX);
        }
        match settings.engine {
            Engine::MariaDb | Engine::MySql => {
                if !server.is_certain {
                    match program::detect(server, proc, &mut self.programs) {
                        Some(program) => {
                            (settings.engine, settings.version) = (program.engine, program.version);
                        }
                        None => settings.engine_doubt = Some(ENGINE_DOUBT.to_owned()),
                    }
                }
                mysql::read(server, proc, &mut self.groups, &mut settings);
                if settings.myrocks {
                    rocksdb::read(server, proc, &mut settings);
                }
            }
            Engine::PostgreSql => postgresql::read(server, proc, &mut settings),
            Engine::RocksDb | Engine::TiKv => rocksdb::read(server, proc, &mut settings),
            Engine::MongoDb => settings.record_unread("mongod.conf", "settings of MongoDB are not read"),
            Engine::Other => {}
        }
        settings.finish();
        self.kept += settings.usage.kept;
        settings
    }
}

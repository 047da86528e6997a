//! The settings of a running database, read from its own files and command line.
//!
//! Invariants:
//! 1. Nothing is guessed: a setting that could not be found is absent, and a file that could not be read is in
//!    [`Settings::unread`] with the reason. An engine's default is given only where its version is known for certain
//!    and that version's default is.
//! 2. Files are read as the database's process sees them (`/proc/PID/root`), without harm
//!    ([`InspectedFile`](pagekeeper_kernel::InspectedFile)), each at most [`LONGEST_FILE`] bytes.
//! 3. What the process shows (a table file open with `O_DIRECT`) counts more than what its files say.
//! 4. A later setting counts more than an earlier one, as the engine itself has it.
//!
//! [`read`] does not fail: what goes wrong is in [`Settings::unread`].

pub mod guc;
pub(crate) mod mysql;
pub mod option_file;
pub mod options;
mod postgresql;
mod program;
pub(crate) mod rocksdb;
pub(crate) mod server_root;

use std::path::{Path, PathBuf};

use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_observe::{Database, Snapshot};
use serde::Serialize;

pub use rocksdb::keys as toml_keys;

/// Longest settings file that is read, in bytes. Real ones are a few KiB.
pub const LONGEST_FILE: u64 = 1 << 20;

/// What is said of a server that is one of two.
const NOT_CERTAIN: &str = "whether this is MySQL or MariaDB is not certain: its program could not be read, or says \
                           neither";
/// What is said of a file that was changed after the server started.
const CHANGED_SINCE: &str = "changed after the server started: what it runs with may differ";
/// What is said of files past the limits.
const TOO_MANY: &str = "settings files include each other too deep, or are too many";

/// Whose settings they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
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
    /// Another: nothing is known of its settings.
    Other,
}

/// The settings of one database, as far as they could be read.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    /// Whose they are.
    pub engine: Engine,
    /// Why it is not certain whose they are: then no setting is offered.
    pub engine_doubt: Option<String>,
    /// The server's version where it is certain: "15", "10.11.14", "7.8.3".
    pub version: Option<String>,
    /// A `MariaDB` or `MySQL` server holds a `MyRocks` database (`#rocksdb`) too.
    pub myrocks: bool,
    /// A `MySQL` server has its redo log in `#innodb_redo` (8.0.30 and later), sized by `innodb_redo_log_capacity`.
    pub redo_directory: bool,
    /// The files that were read, as the database sees them, in the order of reading.
    pub read_from: Vec<PathBuf>,
    /// What could not be read, and why.
    pub unread: Vec<(PathBuf, String)>,
    /// What was found; a later one counts more.
    found: Vec<Setting>,
    /// The file that settings which are set nowhere yet go into, where that is known.
    home: Option<PathBuf>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its name, in small letters with `_`, in full.
    pub name: String,
    /// Its value as it is written there, quotes taken off.
    pub value: String,
    /// Where it was found.
    pub from: Origin,
    /// Why it may not be what is in force: "changed after the server started". `None`: no doubt is known.
    pub doubt: Option<String>,
}

/// Where a setting was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// An argument of the process.
    CommandLine,
    /// A file.
    File {
        /// As the database sees it.
        path: PathBuf,
        /// The line, from 1.
        line: u32,
    },
    /// The process's environment.
    Environment,
    /// What the process does: how it has its files open.
    Seen,
    /// Set nowhere, all places were read, and this is the default of this version.
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CommandLine => f.write_str("the command line"),
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Environment => f.write_str("the environment"),
            Self::Seen => f.write_str("how it has its files open"),
            Self::Default => f.write_str("the default"),
        }
    }
}

impl Setting {
    /// Whether its value is one of those that mean true or false; `None` for any other.
    pub fn is_on(&self) -> Option<bool> {
        match self.value.to_ascii_lowercase().as_str() {
            "on" | "true" | "1" | "yes" => Some(true),
            "off" | "false" | "0" | "no" => Some(false),
            _ => None,
        }
    }
}

impl Settings {
    /// None known yet.
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
        }
    }

    /// The setting that counts; `name` may be written with `-` or `_`, in small or large letters.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        let name = normal(name);
        self.found.iter().rev().find(|setting| setting.name == name)
    }

    /// The setting as it is written, whatever the process was seen to do.
    pub fn written(&self, name: &str) -> Option<&Setting> {
        let name = normal(name);
        self.found.iter().rev().find(|setting| setting.name == name && setting.from != Origin::Seen)
    }

    /// Whether it is set to something true; `None` where that is not known.
    pub fn is_on(&self, name: &str) -> Option<bool> {
        self.get(name)?.is_on()
    }

    /// A size in bytes, in the engine's own units; `None` where it is unknown, or no size.
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

    /// A length of time in seconds; `None` where it is unknown, or none.
    pub fn seconds(&self, name: &str) -> Option<u64> {
        guc::seconds(&self.get(name)?.value)
    }

    /// Whether it has a `RocksDB` database, by itself or as `MyRocks`.
    pub fn holds_rocksdb(&self) -> bool {
        self.myrocks || matches!(self.engine, Engine::RocksDb | Engine::TiKv)
    }

    /// All that was found, in the order in which it counts, the least first.
    pub fn all(&self) -> &[Setting] {
        &self.found
    }

    /// The file that a setting which is set nowhere yet goes into, as the database sees it; `None` if it is not known.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Adds one that counts more than those before.
    pub fn add(&mut self, name: &str, value: impl Into<String>, from: Origin) {
        self.found.push(Setting { name: normal(name), value: value.into(), from, doubt: None });
    }

    /// Adds one of a file that was changed after the server started, if `changed`.
    fn add_doubted(&mut self, name: &str, value: impl Into<String>, from: Origin, changed: bool) {
        self.add(name, value, from);
        if changed && let Some(setting) = self.found.last_mut() {
            setting.doubt = Some(CHANGED_SINCE.to_owned());
        }
    }

    /// Takes note of what could not be read.
    fn not_read(&mut self, path: impl Into<PathBuf>, why: impl Into<String>) {
        self.unread.push((path.into(), why.into()));
    }
}

/// A name as the settings have it: small letters, `_` for `-`.
fn normal(name: &str) -> String {
    name.replace('-', "_").to_ascii_lowercase()
}

/// Reads the settings of a database in `snapshot`.
pub fn read(database: &Database, snapshot: &Snapshot, roots: &SysRoots) -> Settings {
    let mut settings = Settings::new(engine_of(database));
    match settings.engine {
        Engine::MariaDb | Engine::MySql => {
            match program::of(database, snapshot, roots) {
                Some(program) => (settings.engine, settings.version) = (program.engine, program.version),
                None => settings.engine_doubt = Some(NOT_CERTAIN.to_owned()),
            }
            mysql::read(database, snapshot, roots, &mut settings);
            if settings.myrocks {
                rocksdb::read(database, snapshot, roots, &mut settings);
            }
        }
        Engine::PostgreSql => postgresql::read(database, snapshot, roots, &mut settings),
        Engine::RocksDb | Engine::TiKv => rocksdb::read(database, snapshot, roots, &mut settings),
        Engine::MongoDb => settings.not_read("mongod.conf", "settings of MongoDB are not read"),
        Engine::Other => {}
    }
    settings
}

/// Whose settings they are, by the profile and the name of the process.
fn engine_of(database: &Database) -> Engine {
    match database.profile.name.as_str() {
        "mariadb" => Engine::MariaDb,
        "mysql" => Engine::MySql,
        "postgresql" => Engine::PostgreSql,
        "rocksdb" if database.name.starts_with("tikv") => Engine::TiKv,
        "rocksdb" => Engine::RocksDb,
        "mongodb" => Engine::MongoDb,
        _ => Engine::Other,
    }
}

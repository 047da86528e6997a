//! The database's own settings against each kind of finding.
//!
//! Invariants: a fix names a setting in the syntax of that engine, the place it goes to and whether a restart is
//! needed; what is set so already is left out; what is not known to be set is offered. Figures in notes were measured:
//! `RocksDB` 7.8, 25 MB/s of puts, a disk held to 60 MB/s, `dirty_bytes` 128 MiB.

pub(crate) mod innodb;
mod log_device;
mod postgresql;
pub(crate) mod rocksdb;
mod statement;

use crate::Fix;
use crate::settings::{Engine, Origin, Setting, Settings};

pub(crate) use log_device::move_log;

/// What is said of a setting of `PostgreSQL` that a reload puts in force.
const RELOAD: &str = "SELECT pg_reload_conf() puts it in force";

/// When a setting takes effect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effect {
    /// When the server starts.
    Restart,
    /// `SET GLOBAL` changes it at once; the file keeps it.
    SetGlobal,
    /// The same from this version on; before it, when the server starts.
    SetGlobalSince(&'static str),
    /// When the configuration is loaded again.
    Reload,
}

/// What a setting of the database is to achieve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Its logs stay out of the page cache.
    LogsOutOfCache,
    /// It needs less of the page cache.
    LessPageCache,
    /// All I/O on a file is direct, or none is.
    NoMixedIo,
    /// Dirty pages go to storage as they come, and don't pile up.
    SteadyWriteback,
    /// After a restart its data is soon resident again.
    WarmStart,
    /// A recovery has little to read.
    ShortRecovery,
}

/// The settings of this database that serve this goal, the most effective first.
///
/// ```
/// use pagekeeper_doctor::settings::{Engine, Origin, Settings};
/// use pagekeeper_doctor::{Goal, fixes};
///
/// let mut settings = Settings::new(Engine::MariaDb);
/// settings.add("innodb_log_file_buffering", "ON", Origin::CommandLine);
/// assert_eq!(fixes(Goal::LogsOutOfCache, &settings)[0].act, "innodb_log_file_buffering=OFF");
/// ```
pub fn fixes(goal: Goal, settings: &Settings) -> Vec<Fix> {
    let mut fixes = Vec::new();
    match settings.engine {
        Engine::MariaDb | Engine::MySql => innodb::fixes(goal, settings, &mut fixes),
        Engine::PostgreSql => postgresql::fixes(goal, settings, &mut fixes),
        Engine::RocksDb | Engine::TiKv | Engine::MongoDb | Engine::Other => {}
    }
    if settings.holds_rocksdb() {
        rocksdb::fixes(goal, settings, &mut fixes);
    }
    fixes
}

/// Where a setting stands now.
fn now(setting: &Setting) -> String {
    match &setting.from {
        Origin::Seen => String::new(),
        from => format!(" (now {}: {from})", setting.value),
    }
}

/// A fix that sets a setting.
pub(crate) fn set(settings: &Settings, name: &str, value: &str, effect: Effect, why: &str) -> Fix {
    if let Some(setting) = statement::of(settings, name) {
        return statement::set(settings.engine, setting, value, effect, why);
    }
    let act = match settings.engine {
        Engine::PostgreSql => format!("{name} = '{value}'"),
        Engine::TiKv => {
            let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
            let bare = matches!(value, "true" | "false") || value.bytes().all(|byte| byte.is_ascii_digit());
            let value = if bare { value.to_owned() } else { format!("\"{value}\"") };
            format!("[{table}] {key} = {value}")
        }
        Engine::MariaDb | Engine::MySql | Engine::RocksDb | Engine::MongoDb | Engine::Other => {
            format!("{name}={value}")
        }
    };
    let effect = match effect {
        Effect::Restart => "needs a restart".to_owned(),
        Effect::SetGlobal => format!("SET GLOBAL {} changes it at once", name.replace('-', "_")),
        Effect::SetGlobalSince(version) => {
            format!("SET GLOBAL {name} changes it at once ({version} and later; before, it needs a restart)")
        }
        Effect::Reload => RELOAD.to_owned(),
    };
    Fix::setting(name, act, format!("{}; {effect}; {why}", place(settings, name)))
}

/// Where a setting goes: to the line that sets it now, else to the engine's own file.
fn place(settings: &Settings, name: &str) -> String {
    let written = settings.written(name).filter(|setting| match &setting.from {
        Origin::CommandLine => true,
        // What an engine writes itself is not to be edited.
        Origin::File { path, .. } => {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            !file.starts_with("OPTIONS-") && file != "last_tikv.toml"
        }
        Origin::Environment | Origin::Seen | Origin::Default => false,
    });
    if let Some(setting) = written {
        return format!("in {}, where it is {}", setting.from, setting.value);
    }
    let file = settings.home().map(|path| format!("in {}", path.display()));
    match settings.engine {
        Engine::MariaDb | Engine::MySql => {
            format!("{} under [mysqld]", file.as_deref().unwrap_or("in an option file"))
        }
        Engine::PostgreSql => file.unwrap_or_else(|| "in postgresql.conf".to_owned()),
        Engine::RocksDb | Engine::TiKv | Engine::MongoDb | Engine::Other => {
            file.unwrap_or_else(|| "in its configuration file".to_owned())
        }
    }
}

#[cfg(test)]
mod tests;

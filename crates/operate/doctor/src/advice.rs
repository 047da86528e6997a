//! Advice on the database's own settings for each kind of finding.
//!
//! Everything that can ever be advised is in one [table](TABLE); the modules here decide when which row applies.
//!
//! Invariants: a fix names a setting in the engine's syntax, where to put it, and whether a restart is needed.
//! Settings that already have the value are left out; settings not known to be set are advised. Nothing is advised
//! for a server that may lack the setting, or whose engine is uncertain. Recovery is shortened only for a target
//! that the operator gave.

pub(crate) mod innodb;
mod log_device;
pub(crate) mod postgresql;
mod recovery;
pub(crate) mod rocksdb;
pub(crate) mod rocksdb_options;
pub(crate) mod row;
mod statement;
mod table;

use crate::Fix;
use crate::settings::{Engine, Settings};

pub(crate) use log_device::move_log_of;
pub(crate) use recovery::shorten;
pub use row::{Advice, Against, Effect, Offer, Product};
pub use table::TABLE;
pub(crate) use table::postgresql as postgresql_rows;

/// The purpose of a database setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Its logs stay out of the page cache.
    LogsOutOfCache,
    /// The database needs less of the page cache.
    LessPageCache,
    /// Data that the database caches itself is not cached a second time.
    LessDoubleCaching,
    /// All I/O on a file is direct, or none is.
    NoMixedIo,
    /// Dirty pages go to storage continuously and do not pile up.
    SteadyWriteback,
    /// After a restart the database's data is soon resident again.
    WarmStart,
    /// A log does not share a disk with bulk output.
    LogOnItsOwnDisk,
    /// A recovery takes no longer than the operator's target.
    ShortRecovery,
}

/// The advice for a goal, and remarks where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advised {
    /// The settings, most effective first.
    pub fixes: Vec<Fix>,
    /// Limits of settings, and reasons why one is not advised.
    pub remarks: Vec<String>,
}

/// Returns the settings of this database that serve the goal, most effective first. Those that shorten a recovery
/// or move a log need more input: they are part of their findings.
///
/// ```
/// use pagekeeper_doctor::settings::{Engine, Origin, Settings};
/// use pagekeeper_doctor::{Goal, advise};
///
/// let mut settings = Settings::new(Engine::MariaDb);
/// settings.add("innodb_log_file_buffering", "ON", Origin::CommandLine);
/// let fix = &advise(Goal::LogsOutOfCache, &settings).fixes[0];
/// assert_eq!(fix.act, "innodb_log_file_buffering=OFF");
/// assert_eq!(fix.terms.undo, "innodb_log_file_buffering=ON, and restart");
/// ```
pub fn advise(goal: Goal, settings: &Settings) -> Advised {
    let mut advised = Advised::default();
    if let Some(remark) = uncertain(settings) {
        advised.remarks.push(remark);
        return advised;
    }
    match settings.engine {
        Engine::MariaDb | Engine::MySql => innodb::advise(goal, settings, &mut advised),
        Engine::PostgreSql => postgresql::advise(goal, settings, &mut advised),
        Engine::RocksDb | Engine::TiKv | Engine::MongoDb | Engine::Other => {}
    }
    if settings.holds_rocksdb() {
        rocksdb::advise(goal, settings, &mut advised);
    }
    advised
}

/// Returns a remark that no setting is advised, if the engine is uncertain.
pub(crate) fn uncertain(settings: &Settings) -> Option<String> {
    let why = settings.engine_doubt.as_ref()?;
    Some(format!("no setting is named: {why}"))
}

#[cfg(test)]
mod tests;

//! The database's own settings against each kind of finding.
//!
//! All that can ever be offered is in one [table](TABLE); the modules here say when which row applies.
//!
//! Invariants: a fix names a setting in the syntax of that engine, the place it goes to and whether a restart is
//! needed; what is set so already is left out; what is not known to be set is offered. Nothing is offered to a server
//! that may not have the setting, nor where it is not certain which engine it is. A recovery is shortened only for a
//! target that the operator gave.

pub(crate) mod innodb;
mod log_device;
pub(crate) mod postgresql;
mod recovery;
pub(crate) mod rocksdb;
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

/// What a setting of the database is to achieve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Its logs stay out of the page cache.
    LogsOutOfCache,
    /// It needs less of the page cache.
    LessPageCache,
    /// What it caches itself is not cached a second time.
    LessDoubleCaching,
    /// All I/O on a file is direct, or none is.
    NoMixedIo,
    /// Dirty pages go to storage as they come, and don't pile up.
    SteadyWriteback,
    /// After a restart its data is soon resident again.
    WarmStart,
    /// A log does not share a disk with bulk output.
    LogOnItsOwnDisk,
    /// A recovery takes no longer than the operator wants.
    ShortRecovery,
}

/// What is offered for a goal, and what there is to say where nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advised {
    /// The settings, the most effective first.
    pub fixes: Vec<Fix>,
    /// What no setting does, and what is not offered for good reason.
    pub remarks: Vec<String>,
}

/// The settings of this database that serve this goal, the most effective first. Those that shorten a recovery or move a
/// log need more than a goal: they come with their findings.
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

/// That no setting is named, because it is not certain whose they would be.
pub(crate) fn uncertain(settings: &Settings) -> Option<String> {
    let why = settings.engine_doubt.as_ref()?;
    Some(format!("no setting is named: {why}"))
}

#[cfg(test)]
mod tests;

//! Advice on the database's own settings for each kind of finding.
//!
//! Everything that can ever be advised is in one [table](TABLE). The modules here decide which of
//! its rows apply when.
//!
//! Invariants: a fix names a setting in the engine's syntax, where to put it, and whether a restart
//! is needed. Settings that already have the value are left out; settings not known to be set are
//! advised. Nothing is advised for a server that may lack the setting, or whose engine is
//! uncertain. Recovery is shortened only for a target that the operator gave.

mod advised;
mod apply;
pub(crate) mod innodb;
mod log_device;
pub(crate) mod postgresql;
mod recovery;
pub(crate) mod rocksdb;
pub(crate) mod rocksdb_options;
mod statement;
mod steps;
mod table;

use crate::settings::{Engine, Settings};

pub use advised::Advised;
pub(crate) use advised::uncertain;
pub(crate) use apply::fix;
pub(crate) use log_device::move_log_of;
pub(crate) use recovery::shorten;
pub(crate) use steps::step;
pub use table::{Advice, Effect, Goal, Offer, Product, TABLE};

/// Returns the settings of this database that serve the goal, most effective first. Those that
/// shorten a recovery or move a log need more input: they are part of their findings.
///
/// ```
/// use pagekeeper_doctor::settings::{Engine, SettingOrigin, Settings};
/// use pagekeeper_doctor::{Goal, advise};
///
/// let mut settings = Settings::new(Engine::MariaDb);
/// settings.add("innodb_log_file_buffering", "ON", SettingOrigin::CommandLine);
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

#[cfg(test)]
mod tests;

//! Moving a log to its own disk: the setting for the log that has to wait, and the other steps.

use std::path::Path;

use pagekeeper_policy::FileClass;
use pagekeeper_text::escaped;

use super::apply::fix_to;
use super::rocksdb;
use super::steps::step;
use super::table::Product;
use crate::Fix;
use crate::observation::Observation;
use crate::phrases::file_name;
use crate::settings::{Engine, Settings};

const ANOTHER_DISK: &str = "/ANOTHER/DISK";

/// Returns the fix that moves the log that a file belongs to; `None` if none is known, or if the
/// settings were not read.
pub(crate) fn move_log_of(
    observation: &Observation<'_>,
    database: usize,
    class: FileClass,
    log: &Path,
) -> Option<Fix> {
    if observation.after.databases[database].profile.name == "etcd" {
        // etcd takes the directory from its command line, environment or a file of the operator's.
        return (class == FileClass::Wal).then(|| step("etcd-wal-dir", &[("log", &file_name(log))]));
    }
    move_log(observation.settings_of(database)?, class, log)
}

/// Returns the fix that moves a log by the database's settings.
fn move_log(settings: &Settings, class: FileClass, log: &Path) -> Option<Fix> {
    if settings.engine_doubt.is_some() {
        return None;
    }
    let server = Product::with_innodb(settings.engine);
    match (settings.engine, class) {
        (Engine::MariaDb | Engine::MySql, FileClass::Redo) => {
            let is_aria = server == Product::MariaDb && file_name(log).starts_with("aria_log");
            let name = if is_aria { "aria_log_dir_path" } else { "innodb_log_group_home_dir" };
            fix_to(settings, server, name, ANOTHER_DISK)
        }
        (Engine::MariaDb | Engine::MySql, FileClass::Binlog | FileClass::Relay) => {
            let name = if class == FileClass::Binlog { "log_bin" } else { "relay_log" };
            let base = escaped(log.file_stem().unwrap_or_default());
            fix_to(settings, server, name, &format!("{ANOTHER_DISK}/{base}"))
        }
        (Engine::PostgreSql, FileClass::Wal) => Some(step("move-pg-wal", &[("log", &file_name(log))])),
        (Engine::TiKv, FileClass::Wal) if log.extension().is_none_or(|ending| ending != "log") => {
            fix_to(settings, Product::TiKv, "dir", ANOTHER_DISK)
        }
        (_, FileClass::Wal) if settings.holds_rocksdb() => rocksdb::move_wal(settings, ANOTHER_DISK),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(engine: Engine, class: FileClass, log: &str) -> Option<String> {
        let mut settings = Settings::new(engine);
        if engine == Engine::TiKv {
            settings.version = Some("8.1.0".to_owned());
        }
        move_log(&settings, class, Path::new(log)).map(|fix| fix.act)
    }

    #[test]
    fn the_fix_moves_the_log_that_waits() {
        for (engine, class, log, moved) in [
            (Engine::MariaDb, FileClass::Binlog, "/d/mysql-bin.000004", "log_bin=/ANOTHER/DISK/mysql-bin"),
            (Engine::MySql, FileClass::Relay, "/d/relay.000004", "relay_log=/ANOTHER/DISK/relay"),
            (Engine::MariaDb, FileClass::Redo, "/d/ib_logfile0", "innodb_log_group_home_dir=/ANOTHER/DISK"),
            (Engine::MariaDb, FileClass::Redo, "/d/aria_log.00000001", "aria_log_dir_path=/ANOTHER/DISK"),
            (Engine::RocksDb, FileClass::Wal, "/d/000004.log", "wal_dir=/ANOTHER/DISK"),
            (Engine::TiKv, FileClass::Wal, "/d/000004.log", "[rocksdb] wal-dir = \"/ANOTHER/DISK\""),
            (Engine::TiKv, FileClass::Wal, "/d/04.raftlog", "[raft-engine] dir = \"/ANOTHER/DISK\""),
        ] {
            assert_eq!(act(engine, class, log).as_deref(), Some(moved), "{engine:?}");
        }
        assert!(act(Engine::PostgreSql, FileClass::Wal, "/d/pg_wal/0").unwrap().starts_with("move pg_wal"));
        assert_eq!(act(Engine::Other, FileClass::Wal, "/d/000004.log"), None);
        let mut snapshot = crate::testing::sample();
        snapshot.databases = vec![crate::testing::database("etcd", 100, "/e")];
        let observation = Observation::new(&snapshot, &snapshot);
        let of_etcd = |class| move_log_of(&observation, 0, class, Path::new("/e/member/wal/0-0.wal"));
        assert!(of_etcd(FileClass::Wal).unwrap().act.starts_with("--wal-dir=/ANOTHER/DISK/wal"));
        assert_eq!(of_etcd(FileClass::Data), None);
        let mut myrocks = Settings::new(Engine::MariaDb);
        myrocks.myrocks = true;
        let fix = move_log(&myrocks, FileClass::Wal, Path::new("/d/#rocksdb/000004.log")).unwrap();
        assert_eq!(fix.act, "rocksdb_wal_dir=/ANOTHER/DISK");
    }
}

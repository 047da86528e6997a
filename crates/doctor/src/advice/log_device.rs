//! Moving a log to a disk of its own: the setting for the very log that has to wait, with what else is to be done.

use std::path::Path;

use pagekeeper_policy::FileClass;

use super::{Effect, rocksdb, set};
use crate::Fix;
use crate::phrases::file_name;
use crate::settings::{Engine, Settings};

const DISK: &str = "/ANOTHER/DISK";

/// What moves the log that a file is part of; `None` where nothing is known that does.
pub(crate) fn move_log(settings: &Settings, class: FileClass, log: &Path) -> Option<Fix> {
    let name = file_name(log);
    let put = |setting: &str, value: &str, why: &str| set(settings, setting, value, Effect::Restart, why);
    match (settings.engine, class) {
        (Engine::MariaDb | Engine::MySql, FileClass::Redo) => {
            let aria = name.starts_with("aria_log");
            let setting = if aria { "aria_log_dir_path" } else { "innodb_log_group_home_dir" };
            let why = "on a disk of its own; move the log's files there while the server is stopped";
            Some(put(setting, DISK, why))
        }
        (Engine::MariaDb | Engine::MySql, FileClass::Binlog | FileClass::Relay) => {
            let setting = if class == FileClass::Binlog { "log_bin" } else { "relay_log" };
            let base = log.file_stem().unwrap_or_default().to_string_lossy();
            let why = "on a disk of its own; move its files there while the server is stopped, and name their new places \
                in its .index file";
            Some(put(setting, &format!("{DISK}/{base}"), why))
        }
        (Engine::PostgreSql, FileClass::Wal) => Some(Fix::advice(
            "move pg_wal to a disk of its own while the server is stopped, and leave a symbolic link in its place \
             (initdb --waldir does so for a new cluster)",
            "",
        )),
        (Engine::TiKv, FileClass::Wal) if log.extension().is_none_or(|ending| ending != "log") => {
            let why = "on a disk of its own; move its files there while it is stopped";
            Some(put("raft-engine.dir", DISK, why))
        }
        (_, FileClass::Wal) if settings.holds_rocksdb() => Some(rocksdb::move_wal(settings, DISK)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(engine: Engine, class: FileClass, log: &str) -> Option<String> {
        move_log(&Settings::new(engine), class, Path::new(log)).map(|fix| fix.act)
    }

    #[test]
    fn the_log_that_waits_is_the_one_that_moves() {
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
        let mut myrocks = Settings::new(Engine::MariaDb);
        myrocks.myrocks = true;
        let fix = move_log(&myrocks, FileClass::Wal, Path::new("/d/#rocksdb/000004.log")).unwrap();
        assert_eq!(fix.act, "rocksdb_wal_dir=/ANOTHER/DISK");
    }
}

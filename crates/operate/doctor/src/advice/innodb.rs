//! Decides which settings of InnoDB in `MariaDB` and `MySQL` are advised.

use super::row::Advice;
use super::table::innodb::{
    MARIADB_DATA_FILE_BUFFERING, MARIADB_FLUSH_METHOD, MARIADB_LOG_FILE_BUFFERING, MARIADB_POOL_DUMP,
    MARIADB_POOL_LOAD, MYSQL_FLUSH_METHOD, MYSQL_POOL_DUMP, MYSQL_POOL_LOAD,
};
use super::{Advised, Goal};
use crate::Fix;
use crate::settings::BUFFERED;
use crate::settings::{Engine, Setting, Settings};

pub(super) fn advise(goal: Goal, settings: &Settings, advised: &mut Advised) {
    match goal {
        Goal::LessPageCache | Goal::NoMixedIo | Goal::SteadyWriteback => {
            advised.fixes.extend(tables(settings).and_then(|tables| tables.fix(settings)));
        }
        Goal::LogsOutOfCache => {
            advised.fixes.extend(redo(settings));
            let what = if settings.engine == Engine::MariaDb {
                advised.remarks.extend(by_commit(settings));
                "no setting keeps MariaDB's binary log out of the page cache; pagekeeper guard releases it"
            } else {
                "no setting keeps MySQL's redo log or binary log out of the page cache; pagekeeper guard releases them"
            };
            advised.remarks.push(what.to_owned());
        }
        Goal::WarmStart => {
            let rows = if settings.engine == Engine::MariaDb {
                [&MARIADB_POOL_DUMP, &MARIADB_POOL_LOAD]
            } else {
                [&MYSQL_POOL_DUMP, &MYSQL_POOL_LOAD]
            };
            for row in rows.into_iter().filter(|row| settings.is_on(row.setting) == Some(false)) {
                advised.fixes.extend(row.fix(settings));
            }
        }
        Goal::LessDoubleCaching | Goal::LogOnItsOwnDisk | Goal::ShortRecovery => {}
    }
}

/// Returns the fix that keeps `MariaDB`'s redo log out of the page cache, if a setting of its own put it there;
/// `MySQL` has none.
pub(crate) fn redo(settings: &Settings) -> Option<Fix> {
    let row = &MARIADB_LOG_FILE_BUFFERING;
    // If the redo log is only observed to be buffered, this setting is not the cause.
    let on = settings.written(row.setting).is_some_and(|setting| setting.is_on() == Some(true));
    (settings.engine == Engine::MariaDb && on && settings.engine_doubt.is_none())
        .then(|| row.fix(settings))
        .flatten()
}

/// Returns a remark if `MariaDB`'s redo log is in the page cache because of a durability setting, which is no
/// reason to change that setting.
pub(crate) fn by_commit(settings: &Settings) -> Option<String> {
    let setting = settings.get("innodb_flush_log_at_trx_commit").filter(|setting| setting.value == "2")?;
    (settings.engine == Engine::MariaDb).then(|| {
        format!(
            "its redo log goes through the page cache because innodb_flush_log_at_trx_commit is 2 ({}; MariaDB 10.8 and \
             later; as it was started: SET GLOBAL may have changed it since): that is a choice of durability against speed, and the page cache no reason to change it; pagekeeper \
             guard releases the log where it is written in whole pages",
            setting.from
        )
    })
}

/// Why InnoDB uses the page cache for its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tables {
    /// Because of `innodb_flush_method`, or its default.
    FlushMethod,
    /// Because of `innodb_data_file_buffering`, which overrides `innodb_flush_method` (`MariaDB` 11).
    DataFileBuffering,
    /// It is configured for `O_DIRECT` but has them open without it: the file system refused.
    Refused,
}

/// Returns why InnoDB uses the page cache for its tables, if it is known to.
pub(crate) fn tables(settings: &Settings) -> Option<Tables> {
    if settings.is_on("innodb_data_file_buffering") == Some(true) {
        return Some(Tables::DataFileBuffering);
    }
    let method = settings.get("innodb_flush_method").filter(|setting| !is_direct(setting))?;
    // A file changed after the start may state a future value.
    let configured = settings.written("innodb_flush_method").filter(|setting| setting.doubt.is_none());
    if method.value == BUFFERED && configured.is_some_and(is_direct) {
        return Some(Tables::Refused);
    }
    Some(Tables::FlushMethod)
}

fn is_direct(setting: &Setting) -> bool {
    setting.value.to_ascii_uppercase().starts_with("O_DIRECT")
}

impl Tables {
    /// Returns the setting that fixes it; `None` if none does.
    pub(crate) fn fix(self, settings: &Settings) -> Option<Fix> {
        let row: &Advice = match (self, settings.engine) {
            (Self::FlushMethod, Engine::MySql) => &MYSQL_FLUSH_METHOD,
            (Self::FlushMethod, _) => &MARIADB_FLUSH_METHOD,
            (Self::DataFileBuffering, _) => &MARIADB_DATA_FILE_BUFFERING,
            (Self::Refused, _) => return None,
        };
        if settings.engine_doubt.is_some() { None } else { row.fix(settings) }
    }
}

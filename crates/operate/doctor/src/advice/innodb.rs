//! Decides which settings of InnoDB in `MariaDB` and `MySQL` are advised.

use super::advised::Advised;
use super::apply::fix;
use super::table::{Goal, Product};
use crate::Fix;
use crate::settings::{BUFFERED_METHOD, Engine, Setting, Settings};
use crate::texts::text;

const LOG_FILE_BUFFERING: &str = "innodb_log_file_buffering";
const DUMP_AND_LOAD: [&str; 2] =
    ["innodb_buffer_pool_dump_at_shutdown", "innodb_buffer_pool_load_at_startup"];

pub(super) fn advise(goal: Goal, settings: &Settings, advised: &mut Advised) {
    match goal {
        Goal::LessPageCache | Goal::NoMixedIo | Goal::SteadyWriteback => {
            advised.fixes.extend(tables(settings).and_then(|tables| tables.fix(settings)));
        }
        Goal::LogsOutOfCache => {
            advised.fixes.extend(redo(settings));
            let id = if settings.engine == Engine::MariaDb {
                advised.remarks.extend(by_commit(settings));
                "innodb.binlog-stays"
            } else {
                "innodb.logs-stay"
            };
            advised.remarks.push(text(id, &[]));
        }
        Goal::WarmStart => {
            let product = Product::with_innodb(settings.engine);
            let off = DUMP_AND_LOAD.iter().filter(|name| settings.is_on(name) == Some(false));
            advised.fixes.extend(off.filter_map(|name| fix(settings, product, name)));
        }
        Goal::LessDoubleCaching | Goal::LogOnItsOwnDisk | Goal::ShortRecovery => {}
    }
}

/// Returns the fix that keeps `MariaDB`'s redo log out of the page cache, if a setting of its own
/// put it there; `MySQL` has none.
pub(crate) fn redo(settings: &Settings) -> Option<Fix> {
    // If the redo log is only observed to be buffered, this setting is not the cause.
    let on = settings.written(LOG_FILE_BUFFERING).is_some_and(|setting| setting.is_on() == Some(true));
    (settings.engine == Engine::MariaDb && on && settings.engine_doubt.is_none())
        .then(|| fix(settings, Product::MariaDb, LOG_FILE_BUFFERING))
        .flatten()
}

/// Returns a remark if `MariaDB`'s redo log is in the page cache because of a durability setting,
/// which is no reason to change that setting.
pub(crate) fn by_commit(settings: &Settings) -> Option<String> {
    let setting = settings.get("innodb_flush_log_at_trx_commit").filter(|setting| setting.value == "2")?;
    (settings.engine == Engine::MariaDb).then(|| text("innodb.by-commit", &[("from", &setting.from)]))
}

/// The reason why InnoDB uses the page cache for its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableBuffering {
    /// Because of `innodb_flush_method`, or its default.
    FlushMethod,
    /// Because of `innodb_data_file_buffering`, which overrides `innodb_flush_method` (`MariaDB`
    /// 11).
    DataFileBuffering,
    /// It is configured for `O_DIRECT` but has them open without it: the file system refused.
    Refused,
}

/// Returns why InnoDB uses the page cache for its tables, if it is known to.
pub(crate) fn tables(settings: &Settings) -> Option<TableBuffering> {
    if settings.is_on("innodb_data_file_buffering") == Some(true) {
        return Some(TableBuffering::DataFileBuffering);
    }
    let method = settings.get("innodb_flush_method").filter(|setting| !is_direct(setting))?;
    // A file changed after the start may state a future value.
    let configured = settings.written("innodb_flush_method").filter(|setting| setting.doubt.is_none());
    if method.value == BUFFERED_METHOD && configured.is_some_and(is_direct) {
        return Some(TableBuffering::Refused);
    }
    Some(TableBuffering::FlushMethod)
}

fn is_direct(setting: &Setting) -> bool {
    setting.value.to_ascii_uppercase().starts_with("O_DIRECT")
}

impl TableBuffering {
    /// Returns the setting that fixes it; `None` if none does.
    pub(crate) fn fix(self, settings: &Settings) -> Option<Fix> {
        let (product, name) = match self {
            Self::FlushMethod => (Product::with_innodb(settings.engine), "innodb_flush_method"),
            Self::DataFileBuffering => (Product::MariaDb, "innodb_data_file_buffering"),
            Self::Refused => return None,
        };
        if settings.engine_doubt.is_some() { None } else { fix(settings, product, name) }
    }
}

//! The settings of InnoDB in `MariaDB` and `MySQL` for each goal.
//!
//! Invariant: no setting is named that this version may not have, where the version is known: a server with a line
//! that it does not know does not start.

use super::{Effect, set};
use crate::settings::mysql::BUFFERED;
use crate::settings::{Engine, Setting, Settings};
use crate::{Fix, Goal};

/// The redo log that a recovery is bounded to, in MiB.
const REDO_MIB: u64 = 512;

const TABLES_DIRECT: &str =
    "tables then bypass the page cache, and size innodb_buffer_pool_size to hold what it held";
const SMALLER_REDO: &str = "a smaller redo log bounds a recovery; pages are written more often";

pub(crate) fn fixes(goal: Goal, settings: &Settings, fixes: &mut Vec<Fix>) {
    match goal {
        Goal::LessPageCache | Goal::NoMixedIo | Goal::SteadyWriteback => {
            fixes.extend(tables(settings).and_then(|tables| tables.fix(settings)));
        }
        Goal::LogsOutOfCache => {
            redo(settings, fixes);
            let what = if settings.engine == Engine::MariaDb {
                "no setting keeps MariaDB's binary log out of the page cache; pagekeeper guard releases it"
            } else {
                "no setting keeps MySQL's redo log or binary log out of the page cache; pagekeeper guard releases them"
            };
            fixes.push(Fix::advice(what, ""));
        }
        Goal::WarmStart => {
            for name in ["innodb_buffer_pool_dump_at_shutdown", "innodb_buffer_pool_load_at_startup"] {
                if settings.is_on(name) == Some(false) {
                    let why = "InnoDB then loads its buffer pool again by itself";
                    fixes.push(set(settings, name, "ON", Effect::Restart, why));
                }
            }
        }
        // How much of the redo log is before the last checkpoint can't be seen: what bounds it is its size.
        Goal::ShortRecovery => fixes.extend(smaller_redo(settings)),
    }
}

/// Bounds the redo log, by the setting that this server has for it.
fn smaller_redo(settings: &Settings) -> Option<Fix> {
    let (name, effect, files) = match settings.engine {
        Engine::MariaDb => ("innodb_log_file_size", Effect::SetGlobalSince("MariaDB 10.9"), 1),
        Engine::MySql
        | Engine::PostgreSql
        | Engine::RocksDb
        | Engine::TiKv
        | Engine::MongoDb
        | Engine::Other => {
            if settings.redo_directory {
                ("innodb_redo_log_capacity", Effect::SetGlobal, 1)
            } else {
                // It is the size of each of them.
                let files = settings.bytes("innodb_log_files_in_group").unwrap_or(2).max(1);
                ("innodb_log_file_size", Effect::Restart, files)
            }
        }
    };
    let max_mib = (REDO_MIB / files).max(4);
    let larger = settings.bytes(name).is_none_or(|bytes| bytes > max_mib << 20);
    larger.then(|| set(settings, name, &format!("{max_mib}M"), effect, SMALLER_REDO))
}

/// What keeps `MariaDB`'s redo log out of the page cache; `MySQL` has nothing.
pub(crate) fn redo(settings: &Settings, fixes: &mut Vec<Fix>) {
    if settings.engine != Engine::MariaDb {
        return;
    }
    if settings.get("innodb_flush_log_at_trx_commit").is_some_and(|setting| setting.value == "2") {
        let why = "with 2 the redo log goes through the page cache (MariaDB 10.8 and later); 1 syncs at each commit, \
            which is safer and slower";
        fixes.push(set(settings, "innodb_flush_log_at_trx_commit", "1", Effect::Restart, why));
    }
    // Where it is only seen to be so, it is not for this setting.
    if settings.written("innodb_log_file_buffering").is_some_and(|setting| setting.is_on() == Some(true)) {
        let why = "the redo log then uses direct I/O; a server that runs keeps its descriptor";
        fixes.push(set(settings, "innodb_log_file_buffering", "OFF", Effect::Restart, why));
    }
}

/// Why InnoDB reads and writes its tables through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tables {
    /// `innodb_flush_method` says so, or says nothing.
    FlushMethod,
    /// `innodb_data_file_buffering` says so, beside which `innodb_flush_method` has no effect (`MariaDB` 11).
    DataFileBuffering,
    /// It is configured for `O_DIRECT`, and has them open without: the file system refused.
    Refused,
}

/// Whether InnoDB is known to do so, and why.
pub(crate) fn tables(settings: &Settings) -> Option<Tables> {
    if settings.is_on("innodb_data_file_buffering") == Some(true) {
        return Some(Tables::DataFileBuffering);
    }
    let method = settings.get("innodb_flush_method").filter(|setting| !is_direct(setting))?;
    // A file that was changed since it started may say what will be.
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
    /// The setting that fixes it; `None` where none does.
    pub(crate) fn fix(self, settings: &Settings) -> Option<Fix> {
        match self {
            Self::FlushMethod => {
                Some(set(settings, "innodb_flush_method", "O_DIRECT", Effect::Restart, TABLES_DIRECT))
            }
            Self::DataFileBuffering => {
                Some(set(settings, "innodb_data_file_buffering", "OFF", Effect::Restart, TABLES_DIRECT))
            }
            Self::Refused => None,
        }
    }
}

//! `RocksDB`'s options for each goal, by the names that each program that embeds it has for them.
//!
//! Invariant: no option is named that the program does not have: a server with a line that it does not know does not
//! start.

use pagekeeper_observe::File;

use super::{Effect, now, set};
use crate::settings::{Engine, Setting, Settings};
use crate::{Fix, Goal};

pub(crate) fn fixes(goal: Goal, settings: &Settings, fixes: &mut Vec<Fix>) {
    let on = |option: &str| is_on(settings, option);
    match goal {
        Goal::SteadyWriteback => {
            let direct = on("use_direct_io_for_flush_and_compaction") == Some(true);
            if !direct {
                let why = "flushes and compactions then leave no dirty pages (measured: the longest put took 11 and \
                    16 ms, before 216 ms)";
                fixes.push(rocks(settings, "use_direct_io_for_flush_and_compaction", "true", why));
                if size(settings, "bytes_per_sync").is_none_or(|bytes| bytes == 0) {
                    let why = "tables are sent to the disk as they are written, not all at the end (measured, with \
                        wal_bytes_per_sync and without direct I/O: the longest put took 83 and 167 ms, before 216 ms)";
                    fixes.push(or(rocks(settings, "bytes_per_sync", "1048576", why)));
                }
            }
            if size(settings, "wal_bytes_per_sync").is_none_or(|bytes| bytes == 0) {
                let why = "the same for the WAL: it never has much to sync at once";
                let wal = rocks(settings, "wal_bytes_per_sync", "524288", why);
                fixes.push(if direct { wal } else { or(wal) });
            }
        }
        Goal::NoMixedIo => {
            let pair = ["use_direct_io_for_flush_and_compaction", "use_direct_reads"];
            // Both on or both off do not mix.
            if on(pair[0]) != on(pair[1]) {
                for option in pair.into_iter().filter(|option| on(option) == Some(false)) {
                    fixes.push(rocks(settings, option, "true", "then all I/O on its tables is direct"));
                }
            }
        }
        Goal::LogsOutOfCache => {
            if size(settings, "recycle_log_file_num").is_some_and(|number| number > 0) {
                let why = "a recycled log is written over in parts of pages and has to stay resident; one that is not \
                    can be released by pagekeeper guard, but each sync takes longer";
                fixes.extend(own_option(settings, "recycle_log_file_num", "0", why));
            }
            if settings.is_on("raft_engine.enable_log_recycle") == Some(true) {
                let why = "the same for raft-engine";
                fixes.push(set(settings, "raft-engine.enable-log-recycle", "false", Effect::Restart, why));
            }
        }
        Goal::ShortRecovery => {
            if size(settings, "max_total_wal_size").is_none_or(|bytes| bytes == 0 || bytes > 256 << 20) {
                let why = "column families whose data only an old log holds are flushed in time";
                fixes.push(rocks(settings, "max_total_wal_size", "268435456", why));
            }
            if size(settings, "default.write_buffer_size").is_some_and(|bytes| bytes > 256 << 20) {
                fixes.push(smaller_memtables(settings));
            }
            if on("avoid_flush_during_shutdown") == Some(true) {
                let why = "a clean shutdown then leaves no log to replay";
                fixes.extend(own_option(settings, "avoid_flush_during_shutdown", "false", why));
            }
        }
        Goal::LessPageCache | Goal::WarmStart => {}
    }
}

/// Whether a file is a table file of `RocksDB`, which it names so in every program.
pub(crate) fn is_rocksdb(file: &File) -> bool {
    file.path.extension().is_some_and(|ending| ending == "sst")
}

/// In the place of direct I/O, which comes before it.
fn or(fix: Fix) -> Fix {
    Fix { note: format!("or, if direct I/O can't be: {}", fix.note), ..fix }
}

/// An option that only programs have that open the database with options of their own: neither `MyRocks` nor `TiKV` has a
/// setting for it.
pub(crate) fn own_option(settings: &Settings, option: &str, value: &str, why: &str) -> Option<Fix> {
    (settings.engine == Engine::RocksDb).then(|| rocks(settings, option, value, why))
}

/// Options of column families have places of their own.
fn smaller_memtables(settings: &Settings) -> Fix {
    let why = "a memtable is flushed before its log is longer";
    match settings.engine {
        Engine::MariaDb | Engine::MySql => Fix::advice(
            "add write_buffer_size=64m to rocksdb_default_cf_options, whose options are separated by semicolons, and \
             restart the server: a memtable is then flushed before its log is longer",
            "",
        ),
        Engine::TiKv => set(settings, "rocksdb.defaultcf.write-buffer-size", "64MB", Effect::Restart, why),
        Engine::PostgreSql | Engine::RocksDb | Engine::MongoDb | Engine::Other => {
            rocks(settings, "write_buffer_size", "67108864", why)
        }
    }
}

/// What moves the WAL.
pub(crate) fn move_wal(settings: &Settings, disk: &str) -> Fix {
    let why = "on a disk of its own; move its .log files there while it is stopped (measured: the writer throttled 5 times \
        and once, before 65 and 144 times)";
    rocks(settings, "wal_dir", disk, why)
}

/// An option of `RocksDB` as it is in force, by whatever name this engine has for it.
pub(crate) fn rocks_setting<'a>(settings: &'a Settings, option: &str) -> Option<&'a Setting> {
    let found = match settings.engine {
        Engine::MariaDb | Engine::MySql => settings.get(&format!("rocksdb_{option}")),
        Engine::TiKv => settings.get(option).or_else(|| settings.get(&format!("rocksdb.{option}"))),
        Engine::PostgreSql | Engine::RocksDb | Engine::MongoDb | Engine::Other => settings.get(option),
    };
    // MyRocks names column families before the prefix.
    found.or_else(|| settings.get(&option.replacen('.', ".rocksdb_", 1)))
}

pub(crate) fn is_on(settings: &Settings, option: &str) -> Option<bool> {
    settings.is_on(&rocks_setting(settings, option)?.name)
}

pub(crate) fn size(settings: &Settings, option: &str) -> Option<u64> {
    settings.bytes(&rocks_setting(settings, option)?.name)
}

/// A fix that sets an option of `RocksDB`.
pub(crate) fn rocks(settings: &Settings, option: &str, value: &str, why: &str) -> Fix {
    let dynamic = ["bytes_per_sync", "wal_bytes_per_sync"].contains(&option);
    match settings.engine {
        Engine::MariaDb | Engine::MySql => {
            let value = match value {
                "true" => "ON",
                "false" => "OFF",
                other => other,
            };
            let effect = if dynamic { Effect::SetGlobal } else { Effect::Restart };
            set(settings, &format!("rocksdb_{option}"), value, effect, why)
        }
        Engine::TiKv => {
            let value = match value {
                "1048576" => "1MB",
                "524288" => "512KB",
                "268435456" => "256MB",
                other => other,
            };
            set(settings, &format!("rocksdb.{}", option.replace('_', "-")), value, Effect::Restart, why)
        }
        Engine::PostgreSql | Engine::RocksDb | Engine::MongoDb | Engine::Other => {
            let place = "among the options that the program opens the database with";
            let now = rocks_setting(settings, option).map(now).unwrap_or_default();
            let effect = if dynamic { "SetDBOptions changes it at once" } else { "needs a restart" };
            Fix::setting(option, format!("{option}={value}"), format!("{place}{now}; {effect}; {why}"))
        }
    }
}

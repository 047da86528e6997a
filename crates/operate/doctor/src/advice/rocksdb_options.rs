//! Options of `RocksDB` by whatever name the engine that embeds it uses.

use crate::settings::{Engine, Setting, Settings};

/// Returns an option of `RocksDB` as it is in force, by whatever name this engine uses.
pub(crate) fn rocks_setting<'a>(settings: &'a Settings, option: &str) -> Option<&'a Setting> {
    let found = match settings.engine {
        Engine::MariaDb | Engine::MySql => settings.get(&format!("rocksdb_{option}")),
        Engine::TiKv => settings.get(option).or_else(|| settings.get(&format!("rocksdb.{option}"))),
        Engine::PostgreSql | Engine::RocksDb | Engine::MongoDb | Engine::Other => settings.get(option),
    };
    // MyRocks puts the column family before the prefix.
    found.or_else(|| settings.get(&option.replacen('.', ".rocksdb_", 1)))
}

/// Returns whether an option is on; `None` if that is unknown.
pub(crate) fn is_on(settings: &Settings, option: &str) -> Option<bool> {
    settings.is_on(&rocks_setting(settings, option)?.name)
}

/// Returns an option's size in bytes; `None` if it is unknown.
pub(crate) fn size(settings: &Settings, option: &str) -> Option<u64> {
    settings.bytes(&rocks_setting(settings, option)?.name)
}

//! Settings in a file that the server writes itself: `postgresql.auto.conf`, `mysqld-auto.cnf`.
//!
//! Invariants: such a file must not be edited, and it takes precedence over the administrator's
//! files. So its settings are set by the server's own statement. A statement sets the intended
//! value, in SQL syntax.

use super::table::Effect;
use crate::settings::{Engine, Setting, SettingOrigin, Settings, option_file};

/// The text for a setting of `PostgreSQL` that a reload puts in force.
pub(super) const RELOAD_STATEMENT: &str = "SELECT pg_reload_conf() puts it in force";

/// Settings of `PostgreSQL` that are lists: a statement quotes each of their parts.
const LIST_SETTINGS: [&str; 1] = ["shared_preload_libraries"];

/// Returns the setting if it is in the server's own file now.
pub(super) fn of<'a>(settings: &'a Settings, name: &str) -> Option<&'a Setting> {
    let own = match settings.engine {
        Engine::PostgreSql => "postgresql.auto.conf",
        Engine::MySql => "mysqld-auto.cnf",
        Engine::MariaDb | Engine::RocksDb | Engine::TiKv | Engine::MongoDb | Engine::Other => return None,
    };
    let is_own = |setting: &&Setting| matches!(&setting.from, SettingOrigin::File { path, .. } if path.file_name().is_some_and(|file| file == own));
    settings.written(name).filter(is_own)
}

/// Returns the statement that sets it, where to execute it, and when it takes effect.
pub(super) fn set(
    engine: Engine,
    setting: &Setting,
    value: &str,
    effect: Effect,
) -> (String, String, String) {
    let name = &setting.name;
    let (act, effect) = match (engine, effect) {
        (Engine::PostgreSql, effect) => {
            let effect = if effect == Effect::Reload { RELOAD_STATEMENT } else { "needs a restart" };
            let value = if LIST_SETTINGS.contains(&name.as_str()) {
                value.split(',').map(|part| quoted(part.trim())).collect::<Vec<_>>().join(", ")
            } else {
                quoted(value)
            };
            (format!("ALTER SYSTEM SET {name} = {value}"), effect)
        }
        (_, Effect::SetGlobal) => {
            (format!("SET PERSIST {name} = {}", of_mysql(value)), "at once, and to stay")
        }
        (_, Effect::Restart | Effect::SetDbOptions | Effect::Reload) => {
            (format!("SET PERSIST_ONLY {name} = {}", of_mysql(value)), "needs a restart")
        }
    };
    let place = format!(
        "in SQL, by an administrator: it is {} in {}, which the server writes itself",
        setting.value, setting.from
    );
    (act, place, effect.to_owned())
}

/// Formats a value for `MySQL`, whose statements take sizes in bytes only.
fn of_mysql(value: &str) -> String {
    match option_file::size(value) {
        Some(bytes) => bytes.to_string(),
        None => quoted(value),
    }
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

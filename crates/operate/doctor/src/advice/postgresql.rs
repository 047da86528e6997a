//! Decides which settings of `PostgreSQL` are advised.

use super::advised::Advised;
use super::apply::{fix, fix_to};
use super::table::{Goal, Product, find};
use crate::Fix;
use crate::settings::Settings;
use crate::texts::text;

const PRELOAD_LIBRARIES: &str = "shared_preload_libraries";

pub(super) fn advise(goal: Goal, settings: &Settings, advised: &mut Advised) {
    match goal {
        Goal::SteadyWriteback => {
            let names = ["checkpoint_flush_after", "bgwriter_flush_after"];
            let off = names.iter().filter(|name| settings.bytes(name) == Some(0));
            advised.fixes.extend(off.filter_map(|name| fix(settings, Product::PostgreSql, name)));
        }
        Goal::LogsOutOfCache => advised.remarks.push(text("postgresql.wal-stays", &[])),
        Goal::WarmStart => {
            let libraries = settings.get(PRELOAD_LIBRARIES).map_or("", |setting| setting.value.as_str());
            if !libraries.contains("pg_prewarm") {
                let all = if libraries.trim().is_empty() {
                    "pg_prewarm".to_owned()
                } else {
                    format!("{libraries},pg_prewarm")
                };
                advised.fixes.extend(fix_to(settings, Product::PostgreSql, PRELOAD_LIBRARIES, &all));
            }
        }
        Goal::LessPageCache
        | Goal::LessDoubleCaching
        | Goal::NoMixedIo
        | Goal::LogOnItsOwnDisk
        | Goal::ShortRecovery => {}
    }
}

/// Returns `shared_buffers` for this much memory, in bytes.
pub(crate) fn shared_buffers(settings: &Settings, memory: u64) -> Option<Fix> {
    let row = find(settings, Product::PostgreSql, "shared_buffers")?;
    let bytes = (memory / 4).max(row.default_bytes().unwrap_or_default());
    Some(row.fix_to(settings, &format!("{}MB", bytes >> 20)))
}

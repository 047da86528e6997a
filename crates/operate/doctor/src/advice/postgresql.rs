//! Decides which settings of `PostgreSQL` are advised.

use super::table::postgresql::{BGWRITER_FLUSH_AFTER, CHECKPOINT_FLUSH_AFTER, PREWARM, SHARED_BUFFERS};
use super::{Advised, Goal};
use crate::Fix;
use crate::advice::row::bytes_of;
use crate::settings::Settings;

const WAL_STAYS: &str = "no setting makes PostgreSQL drop WAL from the page cache unless wal_level = minimal, which allows \
                         neither replicas nor archiving; pagekeeper guard releases it";

pub(super) fn advise(goal: Goal, settings: &Settings, advised: &mut Advised) {
    match goal {
        Goal::SteadyWriteback => {
            for row in [&CHECKPOINT_FLUSH_AFTER, &BGWRITER_FLUSH_AFTER] {
                if settings.bytes(row.setting) == Some(0) {
                    advised.fixes.extend(row.fix(settings));
                }
            }
        }
        Goal::LogsOutOfCache => advised.remarks.push(WAL_STAYS.to_owned()),
        Goal::WarmStart => {
            let libraries = settings.get(PREWARM.setting).map(|setting| setting.value.clone());
            let libraries = libraries.unwrap_or_default();
            if !libraries.contains("pg_prewarm") {
                let all = if libraries.trim().is_empty() {
                    "pg_prewarm".to_owned()
                } else {
                    format!("{libraries},pg_prewarm")
                };
                advised.fixes.extend(PREWARM.fix_to(settings, &all));
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
    let default = bytes_of(SHARED_BUFFERS.default).unwrap_or_default();
    SHARED_BUFFERS.fix_to(settings, &format!("{}MB", (memory / 4).max(default) >> 20))
}

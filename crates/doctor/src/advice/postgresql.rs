//! `PostgreSQL`'s own settings for each goal.

use super::{Effect, set};
use crate::settings::Settings;
use crate::{Fix, Goal};

pub(super) fn fixes(goal: Goal, settings: &Settings, fixes: &mut Vec<Fix>) {
    let bytes = |name: &str| settings.bytes(name);
    match goal {
        Goal::SteadyWriteback => {
            for (name, value) in [("checkpoint_flush_after", "256kB"), ("bgwriter_flush_after", "512kB")] {
                if bytes(name) == Some(0) {
                    let why = "what it writes is then sent to the disk as it goes, not all at the end";
                    fixes.push(set(settings, name, value, Effect::Reload, why));
                }
            }
            if bytes("backend_flush_after").is_none_or(|size| size == 0) {
                let why = "the same for what backends write themselves; slower where the data fits the page cache but \
                    not shared_buffers";
                fixes.push(set(settings, "backend_flush_after", "256kB", Effect::Reload, why));
            }
        }
        Goal::LogsOutOfCache => {
            if bytes("wal_keep_size").is_some_and(|size| size > 0) {
                let why = "replication slots keep what a standby needs, and no more";
                fixes.push(set(settings, "wal_keep_size", "0", Effect::Reload, why));
            }
            if bytes("max_wal_size").is_some_and(|size| size > 4 << 30) {
                let why = "fewer segments are kept for reuse; checkpoints come more often";
                fixes.push(set(settings, "max_wal_size", "4GB", Effect::Reload, why));
            }
            fixes.push(Fix::advice(
                "no setting makes PostgreSQL drop WAL from the page cache unless wal_level = minimal, which allows \
                 neither replicas nor archiving; pagekeeper guard releases it",
                "",
            ));
        }
        Goal::WarmStart => {
            let libraries = settings.get("shared_preload_libraries").map(|setting| setting.value.clone());
            let libraries = libraries.unwrap_or_default();
            if !libraries.contains("pg_prewarm") {
                let all = if libraries.trim().is_empty() {
                    "pg_prewarm".to_owned()
                } else {
                    format!("{libraries},pg_prewarm")
                };
                let why = "autoprewarm then loads after each start what was in shared_buffers (package \
                    postgresql-contrib)";
                fixes.push(set(settings, "shared_preload_libraries", &all, Effect::Restart, why));
            }
        }
        Goal::ShortRecovery => {
            if settings.seconds("checkpoint_timeout").is_some_and(|seconds| seconds > 300) {
                let why = "checkpoints come more often, so that a recovery has less to read; more is written in all";
                fixes.push(set(settings, "checkpoint_timeout", "5min", Effect::Reload, why));
            }
            if bytes("max_wal_size").is_none_or(|size| size > 512 << 20) {
                let why = "a checkpoint begins before this much WAL is written; more is written in all";
                fixes.push(set(settings, "max_wal_size", "512MB", Effect::Reload, why));
            }
            if settings.get("recovery_prefetch").is_some_and(|setting| setting.value == "off") {
                let why = "a recovery then reads ahead what it will need";
                fixes.push(set(settings, "recovery_prefetch", "try", Effect::Reload, why));
            }
        }
        Goal::LessPageCache | Goal::NoMixedIo => {}
    }
}

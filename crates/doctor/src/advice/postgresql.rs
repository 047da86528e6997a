//! `PostgreSQL`'s own settings against each kind of finding.

use super::{Effect, advice, set};
use crate::settings::Settings;
use crate::{Fix, Kind};

pub(super) fn fixes(kind: Kind, settings: &Settings, fixes: &mut Vec<Fix>) {
    let bytes = |name: &str| settings.bytes(name);
    match kind {
        Kind::WritersThrottled | Kind::DirtyLimits | Kind::Setting => {
            for (name, value) in [("checkpoint_flush_after", "256kB"), ("bgwriter_flush_after", "512kB")] {
                if bytes(name) == Some(0) {
                    let why = "what it writes is then sent to the disk as it goes, not all at the end";
                    fixes.push(set(settings, name, value, Effect::Reload, why));
                }
            }
            if matches!(kind, Kind::WritersThrottled | Kind::DirtyLimits)
                && bytes("backend_flush_after").is_none_or(|size| size == 0)
            {
                let why = "the same for what backends write themselves; slower where the data fits the page cache but \
                    not shared_buffers";
                fixes.push(set(settings, "backend_flush_after", "256kB", Effect::Reload, why));
            }
            if kind == Kind::Setting
                && settings.is_on("wal_recycle") == Some(false)
                && settings.is_on("wal_init_zero") != Some(false)
            {
                let why = "a segment is then written once, not first with zeros; recycling is worth having but on \
                    copy-on-write file systems";
                fixes.push(set(settings, "wal_recycle", "on", Effect::Reload, why));
            }
        }
        Kind::LogsInCache => {
            if bytes("wal_keep_size").is_some_and(|size| size > 0) {
                let why = "replication slots keep what a standby needs, and no more";
                fixes.push(set(settings, "wal_keep_size", "0", Effect::Reload, why));
            }
            if bytes("max_wal_size").is_some_and(|size| size > 4 << 30) {
                let why = "fewer segments are kept for reuse; checkpoints come more often";
                fixes.push(set(settings, "max_wal_size", "4GB", Effect::Reload, why));
            }
            fixes.push(advice(
                "no setting makes PostgreSQL drop WAL from the page cache unless wal_level = minimal, which allows \
                 neither replicas nor archiving; pagekeeper guard releases it",
            ));
        }
        Kind::ColdStart => {
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
        Kind::LongRecovery => {
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
        Kind::MemoryShort | Kind::MixedIo | Kind::SharedDevice | Kind::Stream | Kind::IdleReclaim => {}
    }
}

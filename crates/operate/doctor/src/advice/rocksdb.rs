//! Decides which options of `RocksDB` are advised, by the name that the embedding program uses.
//!
//! Invariant: no option is named that the program lacks: a server does not start with an unknown
//! line.

use pagekeeper_observe::File;

use super::advised::Advised;
use super::apply;
use super::rocksdb_options::{is_on, size};
use super::table::{Goal, Product};
use crate::Fix;
use crate::settings::{Engine, Settings};

const NO_DIRECT_READS: &str =
    "TiKV has no setting that makes its reads direct, too: its tables are read through the page cache";
const DIRECT_OUTPUT: &str = "use_direct_io_for_flush_and_compaction";
const DIRECT_READS: &str = "use_direct_reads";
const RECYCLED_LOGS: &str = "recycle_log_file_num";

pub(super) fn advise(goal: Goal, settings: &Settings, advised: &mut Advised) {
    let on = |option: &str| is_on(settings, option);
    let fixes = &mut advised.fixes;
    match goal {
        Goal::SteadyWriteback => {
            let direct = on(DIRECT_OUTPUT) == Some(true);
            let unset = |option: &str| size(settings, option).is_none_or(|bytes| bytes == 0);
            if !direct {
                fixes.extend(fix(settings, DIRECT_OUTPUT));
                if unset("bytes_per_sync") {
                    fixes.extend(fix(settings, "bytes_per_sync").map(or));
                }
            }
            if unset("wal_bytes_per_sync") {
                let wal = fix(settings, "wal_bytes_per_sync");
                fixes.extend(if direct { wal } else { wal.map(or) });
            }
        }
        // Two options that are both on or both off do not mix direct and buffered I/O.
        Goal::NoMixedIo if on(DIRECT_OUTPUT) != on(DIRECT_READS) => {
            if on(DIRECT_OUTPUT) == Some(false) {
                fixes.extend(fix(settings, DIRECT_OUTPUT));
            }
            if settings.engine == Engine::TiKv {
                advised.remarks.push(NO_DIRECT_READS.to_owned());
            } else if on(DIRECT_READS) == Some(false) {
                fixes.extend(fix(settings, DIRECT_READS));
            }
        }
        Goal::LogsOutOfCache => fixes.extend(recycled(settings)),
        Goal::NoMixedIo
        | Goal::LessPageCache
        | Goal::LessDoubleCaching
        | Goal::WarmStart
        | Goal::LogOnItsOwnDisk
        | Goal::ShortRecovery => {}
    }
}

/// Returns the fix by an option, as this program has it.
fn fix(settings: &Settings, option: &str) -> Option<Fix> {
    apply::fix(settings, Product::with_rocksdb(settings.engine), option)
}

/// Whether all of its reads are direct.
pub(crate) fn reads_directly(settings: &Settings) -> bool {
    is_on(settings, DIRECT_READS) == Some(true)
}

/// Whether a file is a table file of `RocksDB`, which has this name in every program.
pub(crate) fn is_rocksdb(file: &File) -> bool {
    file.path.extension().is_some_and(|ending| ending == "sst")
}

/// Marks a fix as the alternative to direct I/O, which comes before it.
fn or(fix: Fix) -> Fix {
    Fix { does: format!("or, without direct I/O: {}", fix.does), ..fix }
}

/// Returns the fix that makes logs new files instead of recycled ones: only for programs that open
/// the database with their own options.
pub(crate) fn recycled(settings: &Settings) -> Option<Fix> {
    let is_recycled = size(settings, RECYCLED_LOGS).is_some_and(|number| number > 0);
    (is_recycled && settings.engine == Engine::RocksDb).then(|| fix(settings, RECYCLED_LOGS)).flatten()
}

/// Returns the fix that moves the WAL.
pub(crate) fn move_wal(settings: &Settings, disk: &str) -> Option<Fix> {
    apply::fix_to(settings, Product::with_rocksdb(settings.engine), "wal_dir", disk)
}

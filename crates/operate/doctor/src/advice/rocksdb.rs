//! Decides which options of `RocksDB` are advised, by the name that the embedding program uses.
//!
//! Invariant: no option is named that the program lacks: a server does not start with an unknown line.

use pagekeeper_observe::File;

use super::rocksdb_options::{is_on, size};
use super::row::Advice;
use super::table::rocksdb::{
    BYTES_PER_SYNC, DIRECT_OUTPUT, DIRECT_READS, MYROCKS_BYTES_PER_SYNC, MYROCKS_DIRECT_OUTPUT,
    MYROCKS_DIRECT_READS, MYROCKS_WAL_BYTES_PER_SYNC, MYROCKS_WAL_DIRECTORY, RECYCLE, TIKV_BYTES_PER_SYNC,
    TIKV_DIRECT_OUTPUT, TIKV_WAL_BYTES_PER_SYNC, TIKV_WAL_DIRECTORY, WAL_BYTES_PER_SYNC, WAL_DIRECTORY,
};
use super::{Advised, Goal};
use crate::Fix;
use crate::settings::{Engine, Settings};

const NO_DIRECT_READS: &str =
    "TiKV has no setting that makes its reads direct, too: its tables are read through the page cache";
const OUTPUT: &str = "use_direct_io_for_flush_and_compaction";

pub(super) fn advise(goal: Goal, settings: &Settings, advised: &mut Advised) {
    let on = |option: &str| is_on(settings, option);
    let fixes = &mut advised.fixes;
    match goal {
        Goal::SteadyWriteback => {
            let direct = on(OUTPUT) == Some(true);
            let unset = |option: &str| size(settings, option).is_none_or(|bytes| bytes == 0);
            if !direct {
                fixes.extend(
                    of(settings, [&DIRECT_OUTPUT, &MYROCKS_DIRECT_OUTPUT, &TIKV_DIRECT_OUTPUT]).fix(settings),
                );
                if unset("bytes_per_sync") {
                    let row = of(settings, [&BYTES_PER_SYNC, &MYROCKS_BYTES_PER_SYNC, &TIKV_BYTES_PER_SYNC]);
                    fixes.extend(row.fix(settings).map(or));
                }
            }
            if unset("wal_bytes_per_sync") {
                let rows = [&WAL_BYTES_PER_SYNC, &MYROCKS_WAL_BYTES_PER_SYNC, &TIKV_WAL_BYTES_PER_SYNC];
                let wal = of(settings, rows).fix(settings);
                fixes.extend(if direct { wal } else { wal.map(or) });
            }
        }
        // Both on or both off do not mix.
        Goal::NoMixedIo if on(OUTPUT) != on("use_direct_reads") => {
            if on(OUTPUT) == Some(false) {
                fixes.extend(
                    of(settings, [&DIRECT_OUTPUT, &MYROCKS_DIRECT_OUTPUT, &TIKV_DIRECT_OUTPUT]).fix(settings),
                );
            }
            if settings.engine == Engine::TiKv {
                advised.remarks.push(NO_DIRECT_READS.to_owned());
            } else if on("use_direct_reads") == Some(false) {
                fixes.extend(
                    of(settings, [&DIRECT_READS, &MYROCKS_DIRECT_READS, &DIRECT_READS]).fix(settings),
                );
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

/// Returns the row for this program, among those of `RocksDB`, `MyRocks` and `TiKV`.
pub(super) fn of(settings: &Settings, [rocksdb, myrocks, tikv]: [&'static Advice; 3]) -> &'static Advice {
    match settings.engine {
        Engine::MariaDb | Engine::MySql => myrocks,
        Engine::TiKv => tikv,
        Engine::PostgreSql | Engine::RocksDb | Engine::MongoDb | Engine::Other => rocksdb,
    }
}

/// Whether all of its reads are direct.
pub(crate) fn reads_directly(settings: &Settings) -> bool {
    is_on(settings, "use_direct_reads") == Some(true)
}

/// Whether a file is a table file of `RocksDB`, which has this name in every program.
pub(crate) fn is_rocksdb(file: &File) -> bool {
    file.path.extension().is_some_and(|ending| ending == "sst")
}

/// Marks a fix as the alternative to direct I/O, which comes before it.
fn or(fix: Fix) -> Fix {
    Fix { does: format!("or, if direct I/O can't be: {}", fix.does), ..fix }
}

/// Returns the fix that makes logs new files instead of recycled ones: only for programs that open the database
/// with their own options.
pub(crate) fn recycled(settings: &Settings) -> Option<Fix> {
    let number = size(settings, RECYCLE.setting).filter(|number| *number > 0);
    number.filter(|_| settings.engine == Engine::RocksDb).and_then(|_| RECYCLE.fix(settings))
}

/// Returns the fix that moves the WAL.
pub(crate) fn move_wal(settings: &Settings, disk: &str) -> Option<Fix> {
    of(settings, [&WAL_DIRECTORY, &MYROCKS_WAL_DIRECTORY, &TIKV_WAL_DIRECTORY]).fix_to(settings, disk)
}

//! The rows of `RocksDB`: as a program's own options, and as settings of `MyRocks` and `TiKV`.
//!
//! Measured figures: `RocksDB` 7.8, 25 MB/s of puts, a disk limited to 60 MB/s, `dirty_bytes` 128 MiB.

use crate::Goal;
use crate::advice::row::{Advice, Against, Effect, Offer, Product};

/// The common part of a program's own options.
const ROCKSDB: Advice = Advice {
    id: "",
    product: Product::RocksDb,
    since: "6",
    before: None,
    goals: &[],
    setting: "",
    offer: Offer::Is(""),
    default: "",
    against: Against::Default,
    effect: Effect::Restart,
    does: "",
    costs: "",
    recovery: None,
    source: "",
};

pub(crate) const DIRECT_OUTPUT: Advice = Advice {
    id: "rocksdb-direct-flush-and-compaction",
    goals: &[Goal::SteadyWriteback, Goal::NoMixedIo],
    setting: "use_direct_io_for_flush_and_compaction",
    offer: Offer::Is("true"),
    default: "false",
    against: Against::Other("the same data with the same syncs, past the page cache"),
    does: "flushes and compactions then leave no dirty pages (measured: the longest put took 11 and 16 ms, before 216 ms)",
    costs: "what they wrote is not resident when it is first read; size the block cache for that",
    source: "https://github.com/facebook/rocksdb/wiki/Direct-IO",
    ..ROCKSDB
};
pub(crate) const MYROCKS_DIRECT_OUTPUT: Advice = Advice {
    id: "myrocks-direct-flush-and-compaction",
    product: Product::MyRocks,
    since: "10.5",
    setting: "rocksdb_use_direct_io_for_flush_and_compaction",
    offer: Offer::Is("ON"),
    default: "OFF",
    source: "https://mariadb.com/kb/en/myrocks-system-variables/#rocksdb_use_direct_io_for_flush_and_compaction",
    ..DIRECT_OUTPUT
};
pub(crate) const TIKV_DIRECT_OUTPUT: Advice = Advice {
    id: "tikv-direct-flush-and-compaction",
    product: Product::TiKv,
    since: "5",
    setting: "rocksdb.use-direct-io-for-flush-and-compaction",
    source: "https://docs.pingcap.com/tidb/stable/tikv-configuration-file#use-direct-io-for-flush-and-compaction",
    ..DIRECT_OUTPUT
};

/// `TiKV` has no such key.
pub(crate) const DIRECT_READS: Advice = Advice {
    id: "rocksdb-direct-reads",
    goals: &[Goal::NoMixedIo],
    setting: "use_direct_reads",
    offer: Offer::Is("true"),
    default: "false",
    against: Against::Other("the same data, past the page cache"),
    does: "then all I/O on its tables is direct",
    costs: "what the page cache answered is read from the disk: size the block cache to hold it",
    source: "https://github.com/facebook/rocksdb/wiki/Direct-IO",
    ..ROCKSDB
};
pub(crate) const MYROCKS_DIRECT_READS: Advice = Advice {
    id: "myrocks-direct-reads",
    product: Product::MyRocks,
    since: "10.5",
    setting: "rocksdb_use_direct_reads",
    offer: Offer::Is("ON"),
    default: "OFF",
    source: "https://mariadb.com/kb/en/myrocks-system-variables/#rocksdb_use_direct_reads",
    ..DIRECT_READS
};

pub(crate) const BYTES_PER_SYNC: Advice = Advice {
    id: "rocksdb-bytes-per-sync",
    goals: &[Goal::SteadyWriteback],
    setting: "bytes_per_sync",
    offer: Offer::Is("1048576"),
    default: "0",
    effect: Effect::SetDbOptions,
    against: Against::Other("0 leaves all to the kernel; what is synced at the end is synced all the same"),
    does: "tables are sent to the disk as they are written, not all at the end (measured, with wal_bytes_per_sync and \
           without direct I/O: the longest put took 83 and 167 ms, before 216 ms)",
    costs: "more and smaller writes to the disk",
    source: "https://github.com/facebook/rocksdb/wiki/IO#range-sync",
    ..ROCKSDB
};
pub(crate) const MYROCKS_BYTES_PER_SYNC: Advice = Advice {
    id: "myrocks-bytes-per-sync",
    product: Product::MyRocks,
    since: "10.5",
    setting: "rocksdb_bytes_per_sync",
    effect: Effect::SetGlobal,
    source: "https://mariadb.com/kb/en/myrocks-system-variables/#rocksdb_bytes_per_sync",
    ..BYTES_PER_SYNC
};
pub(crate) const TIKV_BYTES_PER_SYNC: Advice = Advice {
    id: "tikv-bytes-per-sync",
    product: Product::TiKv,
    since: "5",
    setting: "rocksdb.bytes-per-sync",
    offer: Offer::Is("1MB"),
    default: "1MB",
    against: Against::Default,
    effect: Effect::Restart,
    source: "https://docs.pingcap.com/tidb/stable/tikv-configuration-file#bytes-per-sync",
    ..BYTES_PER_SYNC
};

pub(crate) const WAL_BYTES_PER_SYNC: Advice = Advice {
    id: "rocksdb-wal-bytes-per-sync",
    setting: "wal_bytes_per_sync",
    offer: Offer::Is("524288"),
    does: "the WAL is sent to the disk as it is written: it never has much to sync at once",
    ..BYTES_PER_SYNC
};
pub(crate) const MYROCKS_WAL_BYTES_PER_SYNC: Advice = Advice {
    id: "myrocks-wal-bytes-per-sync",
    product: Product::MyRocks,
    since: "10.5",
    setting: "rocksdb_wal_bytes_per_sync",
    effect: Effect::SetGlobal,
    source: "https://mariadb.com/kb/en/myrocks-system-variables/#rocksdb_wal_bytes_per_sync",
    ..WAL_BYTES_PER_SYNC
};
pub(crate) const TIKV_WAL_BYTES_PER_SYNC: Advice = Advice {
    id: "tikv-wal-bytes-per-sync",
    product: Product::TiKv,
    since: "5",
    setting: "rocksdb.wal-bytes-per-sync",
    offer: Offer::Is("512KB"),
    default: "512KB",
    against: Against::Default,
    effect: Effect::Restart,
    source: "https://docs.pingcap.com/tidb/stable/tikv-configuration-file#wal-bytes-per-sync",
    ..WAL_BYTES_PER_SYNC
};

/// Neither `MyRocks` nor `TiKV` has a setting for it.
pub(crate) const RECYCLE: Advice = Advice {
    id: "rocksdb-recycle-log-file-num",
    goals: &[Goal::LogsOutOfCache],
    setting: "recycle_log_file_num",
    offer: Offer::Is("0"),
    default: "0",
    does: "a recycled log is written over in parts of pages and has to stay resident; one that is not can be released \
           by pagekeeper guard",
    costs: "a sync of a file that grows takes longer than of a recycled one",
    source: "https://github.com/facebook/rocksdb/blob/main/include/rocksdb/options.h",
    ..ROCKSDB
};

pub(crate) const MAX_TOTAL_WAL_SIZE: Advice = Advice {
    id: "rocksdb-max-total-wal-size",
    goals: &[Goal::ShortRecovery],
    setting: "max_total_wal_size",
    offer: Offer::Reckoned { how: "what can be recovered within the target" },
    default: "0",
    against: Against::Other(
        "0 sets a bound of its own, by the sizes of the memtables; a bound in its place is for the target",
    ),
    effect: Effect::SetDbOptions,
    does: "column families whose data only an old log holds are flushed in time",
    costs: "more and smaller tables, and more compaction",
    recovery: Some("shorter"),
    source: "https://github.com/facebook/rocksdb/wiki/Column-Families#write-ahead-log",
    ..ROCKSDB
};
pub(crate) const MYROCKS_MAX_TOTAL_WAL_SIZE: Advice = Advice {
    id: "myrocks-max-total-wal-size",
    product: Product::MyRocks,
    since: "10.5",
    setting: "rocksdb_max_total_wal_size",
    effect: Effect::Restart,
    source: "https://mariadb.com/kb/en/myrocks-system-variables/#rocksdb_max_total_wal_size",
    ..MAX_TOTAL_WAL_SIZE
};
pub(crate) const TIKV_MAX_TOTAL_WAL_SIZE: Advice = Advice {
    id: "tikv-max-total-wal-size",
    product: Product::TiKv,
    since: "5",
    setting: "rocksdb.max-total-wal-size",
    offer: Offer::Reckoned { how: "what can be recovered within the target, and at least the default" },
    default: "4GB",
    against: Against::Default,
    effect: Effect::Restart,
    source: "https://docs.pingcap.com/tidb/stable/tikv-configuration-file#max-total-wal-size",
    ..MAX_TOTAL_WAL_SIZE
};

pub(crate) const WRITE_BUFFER_SIZE: Advice = Advice {
    id: "rocksdb-write-buffer-size",
    goals: &[Goal::ShortRecovery],
    setting: "write_buffer_size",
    offer: Offer::Reckoned { how: "what can be recovered within the target, and at least the default" },
    default: "64MB",
    does: "a memtable is flushed before its log is longer",
    costs: "more and smaller tables, and more compaction",
    recovery: Some("shorter"),
    source: "https://github.com/facebook/rocksdb/wiki/Setup-Options-and-Basic-Tuning#write-buffer-size",
    ..ROCKSDB
};
pub(crate) const TIKV_WRITE_BUFFER_SIZE: Advice = Advice {
    id: "tikv-write-buffer-size",
    product: Product::TiKv,
    since: "5",
    setting: "rocksdb.defaultcf.write-buffer-size",
    default: "128MB",
    source: "https://docs.pingcap.com/tidb/stable/tikv-configuration-file#write-buffer-size",
    ..WRITE_BUFFER_SIZE
};

/// Neither `MyRocks` nor `TiKV` has a setting for it.
pub(crate) const FLUSH_AT_SHUTDOWN: Advice = Advice {
    id: "rocksdb-flush-at-shutdown",
    goals: &[Goal::ShortRecovery],
    setting: "avoid_flush_during_shutdown",
    offer: Offer::Is("false"),
    default: "false",
    does: "a clean shutdown then leaves no log to replay",
    costs: "a shutdown takes as long as its memtables take to be written",
    recovery: Some("shorter after a clean shutdown"),
    source: "https://github.com/facebook/rocksdb/blob/main/include/rocksdb/options.h",
    ..ROCKSDB
};

const ANOTHER_PLACE: Against = Against::Other("the same log in another place");

pub(crate) const WAL_DIRECTORY: Advice = Advice {
    id: "rocksdb-wal-directory",
    goals: &[Goal::LogOnItsOwnDisk],
    setting: "wal_dir",
    offer: Offer::Reckoned { how: "a directory on another disk" },
    default: "the database's directory",
    against: ANOTHER_PLACE,
    does: "on a disk of its own; move its .log files there while it is stopped (measured: the writer throttled 5 times \
           and once, before 65 and 144 times)",
    costs: "another disk, and a stop while the files are moved",
    recovery: Some("needs the files in their new place: shut it down cleanly before they are moved"),
    source: "https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-(WAL)",
    ..ROCKSDB
};
pub(crate) const MYROCKS_WAL_DIRECTORY: Advice = Advice {
    id: "myrocks-wal-directory",
    product: Product::MyRocks,
    since: "10.5",
    setting: "rocksdb_wal_dir",
    source: "https://mariadb.com/kb/en/myrocks-system-variables/#rocksdb_wal_dir",
    ..WAL_DIRECTORY
};
pub(crate) const TIKV_WAL_DIRECTORY: Advice = Advice {
    id: "tikv-wal-directory",
    product: Product::TiKv,
    since: "5",
    setting: "rocksdb.wal-dir",
    source: "https://docs.pingcap.com/tidb/stable/tikv-configuration-file#wal-dir",
    ..WAL_DIRECTORY
};
pub(crate) const TIKV_RAFT_DIRECTORY: Advice = Advice {
    id: "tikv-raft-engine-directory",
    since: "6.1",
    setting: "raft-engine.dir",
    default: "raft-engine in the data directory",
    does: "on a disk of its own; move its files there while it is stopped",
    source: "https://docs.pingcap.com/tidb/stable/tikv-configuration-file#dir",
    ..TIKV_WAL_DIRECTORY
};

/// All rows.
pub(super) const ROWS: [&Advice; 22] = [
    &DIRECT_OUTPUT,
    &DIRECT_READS,
    &BYTES_PER_SYNC,
    &WAL_BYTES_PER_SYNC,
    &RECYCLE,
    &MAX_TOTAL_WAL_SIZE,
    &WRITE_BUFFER_SIZE,
    &FLUSH_AT_SHUTDOWN,
    &WAL_DIRECTORY,
    &MYROCKS_DIRECT_OUTPUT,
    &MYROCKS_DIRECT_READS,
    &MYROCKS_BYTES_PER_SYNC,
    &MYROCKS_WAL_BYTES_PER_SYNC,
    &MYROCKS_MAX_TOTAL_WAL_SIZE,
    &MYROCKS_WAL_DIRECTORY,
    &TIKV_DIRECT_OUTPUT,
    &TIKV_BYTES_PER_SYNC,
    &TIKV_WAL_BYTES_PER_SYNC,
    &TIKV_MAX_TOTAL_WAL_SIZE,
    &TIKV_WRITE_BUFFER_SIZE,
    &TIKV_WAL_DIRECTORY,
    &TIKV_RAFT_DIRECTORY,
];

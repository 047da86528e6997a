//! The rows of `MariaDB` and `MySQL` themselves: InnoDB, Aria, binary and relay logs.

use crate::Goal;
use crate::advice::row::{Advice, Against, Effect, Offer, Product};

/// The common part of the rows of `MariaDB`.
const MARIADB: Advice = Advice {
    id: "",
    product: Product::MariaDb,
    since: "10.5",
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
/// The common part of the rows of `MySQL`.
const MYSQL: Advice = Advice { product: Product::MySql, since: "5.7", ..MARIADB };

const TABLES: &[Goal] = &[Goal::LessPageCache, Goal::NoMixedIo, Goal::SteadyWriteback];
const TABLES_DIRECT: &str = "tables then bypass the page cache; syncs are as before";
const TABLES_COST: &str =
    "what the page cache answered is read from the disk: size innodb_buffer_pool_size to hold it";
const POOL: &str = "InnoDB then loads its buffer pool again by itself";
const POOL_COST: &str =
    "a shutdown writes a list of pages, and after a start they are read in the background";

pub(crate) const MARIADB_FLUSH_METHOD: Advice = Advice {
    id: "mariadb-flush-method",
    goals: TABLES,
    setting: "innodb_flush_method",
    offer: Offer::Is("O_DIRECT"),
    default: "O_DIRECT (fsync before 10.6)",
    does: TABLES_DIRECT,
    costs: TABLES_COST,
    source: "https://mariadb.com/kb/en/innodb-system-variables/#innodb_flush_method",
    ..MARIADB
};

pub(crate) const MYSQL_FLUSH_METHOD: Advice = Advice {
    id: "mysql-flush-method",
    goals: TABLES,
    setting: "innodb_flush_method",
    offer: Offer::Is("O_DIRECT"),
    default: "O_DIRECT (fsync before 8.4)",
    does: TABLES_DIRECT,
    costs: TABLES_COST,
    source: "https://dev.mysql.com/doc/refman/8.4/en/innodb-parameters.html#sysvar_innodb_flush_method",
    ..MYSQL
};

pub(crate) const MARIADB_DATA_FILE_BUFFERING: Advice = Advice {
    id: "mariadb-data-file-buffering",
    since: "11.0",
    goals: TABLES,
    setting: "innodb_data_file_buffering",
    offer: Offer::Is("OFF"),
    default: "OFF",
    does: TABLES_DIRECT,
    costs: TABLES_COST,
    source: "https://mariadb.com/kb/en/innodb-system-variables/#innodb_data_file_buffering",
    ..MARIADB
};

pub(crate) const MARIADB_LOG_FILE_BUFFERING: Advice = Advice {
    id: "mariadb-log-file-buffering",
    since: "10.8.4",
    goals: &[Goal::LogsOutOfCache],
    setting: "innodb_log_file_buffering",
    offer: Offer::Is("OFF"),
    default: "OFF",
    does: "the redo log then uses direct I/O; syncs are as before",
    costs: "each write of the log goes to the disk at once: where commits don't wait for a sync, they may wait for that",
    source: "https://mariadb.com/kb/en/innodb-system-variables/#innodb_log_file_buffering",
    ..MARIADB
};

pub(crate) const MARIADB_POOL_DUMP: Advice = Advice {
    id: "mariadb-buffer-pool-dump",
    goals: &[Goal::WarmStart],
    setting: "innodb_buffer_pool_dump_at_shutdown",
    offer: Offer::Is("ON"),
    default: "ON",
    does: POOL,
    costs: POOL_COST,
    source: "https://mariadb.com/kb/en/innodb-system-variables/#innodb_buffer_pool_dump_at_shutdown",
    ..MARIADB
};

pub(crate) const MARIADB_POOL_LOAD: Advice = Advice {
    id: "mariadb-buffer-pool-load",
    setting: "innodb_buffer_pool_load_at_startup",
    source: "https://mariadb.com/kb/en/innodb-system-variables/#innodb_buffer_pool_load_at_startup",
    ..MARIADB_POOL_DUMP
};

pub(crate) const MYSQL_POOL_DUMP: Advice = Advice {
    id: "mysql-buffer-pool-dump",
    product: Product::MySql,
    since: "5.7",
    source: "https://dev.mysql.com/doc/refman/8.4/en/innodb-parameters.html#sysvar_innodb_buffer_pool_dump_at_shutdown",
    ..MARIADB_POOL_DUMP
};

pub(crate) const MYSQL_POOL_LOAD: Advice = Advice {
    id: "mysql-buffer-pool-load",
    setting: "innodb_buffer_pool_load_at_startup",
    source: "https://dev.mysql.com/doc/refman/8.4/en/innodb-parameters.html#sysvar_innodb_buffer_pool_load_at_startup",
    ..MYSQL_POOL_DUMP
};

/// A redo log size for the recovery target.
const REDO: Advice = Advice {
    goals: &[Goal::ShortRecovery],
    offer: Offer::Reckoned { how: "what can be recovered within the target, and at least the default" },
    does: "a smaller redo log bounds a recovery",
    costs: "pages are written more often, and under load writers wait for that: less throughput",
    recovery: Some("shorter"),
    ..MARIADB
};

pub(crate) const MARIADB_LOG_FILE_SIZE_AT_START: Advice = Advice {
    id: "mariadb-log-file-size-at-start",
    before: Some("10.9"),
    setting: "innodb_log_file_size",
    default: "96M",
    source: "https://mariadb.com/kb/en/innodb-system-variables/#innodb_log_file_size",
    ..REDO
};

pub(crate) const MARIADB_LOG_FILE_SIZE: Advice = Advice {
    id: "mariadb-log-file-size",
    since: "10.9",
    before: None,
    effect: Effect::SetGlobal,
    ..MARIADB_LOG_FILE_SIZE_AT_START
};

pub(crate) const MYSQL_LOG_FILE_SIZE: Advice = Advice {
    id: "mysql-log-file-size",
    product: Product::MySql,
    since: "5.7",
    before: Some("8.0.30"),
    setting: "innodb_log_file_size",
    default: "48M",
    source: "https://dev.mysql.com/doc/refman/8.0/en/innodb-parameters.html#sysvar_innodb_log_file_size",
    ..REDO
};

pub(crate) const MYSQL_REDO_LOG_CAPACITY: Advice = Advice {
    id: "mysql-redo-log-capacity",
    product: Product::MySql,
    since: "8.0.30",
    setting: "innodb_redo_log_capacity",
    default: "100M",
    effect: Effect::SetGlobal,
    source: "https://dev.mysql.com/doc/refman/8.4/en/innodb-parameters.html#sysvar_innodb_redo_log_capacity",
    ..REDO
};

/// A log on its own disk.
const MOVED: Advice = Advice {
    goals: &[Goal::LogOnItsOwnDisk],
    offer: Offer::Reckoned { how: "a directory on another disk" },
    against: Against::Other("the same log in another place"),
    does: "on a disk of its own; move the log's files there while the server is stopped",
    costs: "another disk, and a stop while the files are moved",
    recovery: Some("needs the files in their new place: shut the server down cleanly before they are moved"),
    ..MARIADB
};
const INDEXED: &str = "on a disk of its own; move its files there while the server is stopped, and name their new places in its .index file";

pub(crate) const MARIADB_REDO_DIRECTORY: Advice = Advice {
    id: "mariadb-redo-directory",
    setting: "innodb_log_group_home_dir",
    default: "./",
    source: "https://mariadb.com/kb/en/innodb-system-variables/#innodb_log_group_home_dir",
    ..MOVED
};

pub(crate) const MYSQL_REDO_DIRECTORY: Advice = Advice {
    id: "mysql-redo-directory",
    product: Product::MySql,
    since: "5.7",
    source: "https://dev.mysql.com/doc/refman/8.4/en/innodb-parameters.html#sysvar_innodb_log_group_home_dir",
    ..MARIADB_REDO_DIRECTORY
};

pub(crate) const MARIADB_ARIA_DIRECTORY: Advice = Advice {
    id: "mariadb-aria-log-directory",
    setting: "aria_log_dir_path",
    default: "the data directory",
    source: "https://mariadb.com/kb/en/aria-system-variables/#aria_log_dir_path",
    ..MOVED
};

pub(crate) const MARIADB_BINLOG: Advice = Advice {
    id: "mariadb-binlog-directory",
    setting: "log_bin",
    default: "the data directory",
    does: INDEXED,
    source: "https://mariadb.com/kb/en/replication-and-binary-log-system-variables/#log_bin",
    ..MOVED
};

pub(crate) const MARIADB_RELAY_LOG: Advice = Advice {
    id: "mariadb-relay-log-directory",
    setting: "relay_log",
    source: "https://mariadb.com/kb/en/replication-and-binary-log-system-variables/#relay_log",
    ..MARIADB_BINLOG
};

pub(crate) const MYSQL_BINLOG: Advice = Advice {
    id: "mysql-binlog-directory",
    product: Product::MySql,
    since: "5.7",
    source: "https://dev.mysql.com/doc/refman/8.4/en/replication-options-binary-log.html#option_mysqld_log-bin",
    ..MARIADB_BINLOG
};

pub(crate) const MYSQL_RELAY_LOG: Advice = Advice {
    id: "mysql-relay-log-directory",
    setting: "relay_log",
    source: "https://dev.mysql.com/doc/refman/8.4/en/replication-options-replica.html#sysvar_relay_log",
    ..MYSQL_BINLOG
};

/// All rows.
pub(super) const ROWS: [&Advice; 19] = [
    &MARIADB_FLUSH_METHOD,
    &MARIADB_DATA_FILE_BUFFERING,
    &MARIADB_LOG_FILE_BUFFERING,
    &MARIADB_POOL_DUMP,
    &MARIADB_POOL_LOAD,
    &MARIADB_LOG_FILE_SIZE_AT_START,
    &MARIADB_LOG_FILE_SIZE,
    &MARIADB_REDO_DIRECTORY,
    &MARIADB_ARIA_DIRECTORY,
    &MARIADB_BINLOG,
    &MARIADB_RELAY_LOG,
    &MYSQL_FLUSH_METHOD,
    &MYSQL_POOL_DUMP,
    &MYSQL_POOL_LOAD,
    &MYSQL_LOG_FILE_SIZE,
    &MYSQL_REDO_LOG_CAPACITY,
    &MYSQL_REDO_DIRECTORY,
    &MYSQL_BINLOG,
    &MYSQL_RELAY_LOG,
];

//! The demo's sizes, all in one place, so that its report and its disk use follow from them.
//!
//! The bytes per commit are those of an update of a few dozen rows. Files are smaller than a server's, so that
//! rotation and wraparounds happen within seconds.

use std::time::Duration;

/// Files of the redo ring.
pub(super) const REDO_FILES: u32 = 4;
/// Size of each redo file.
pub(super) const REDO_FILE_BYTES: u64 = 64 << 20;
/// Distance of the checkpoint behind the end of the redo log.
pub(super) const CHECKPOINT_BEHIND_BYTES: u64 = REDO_FILES as u64 * REDO_FILE_BYTES / 2;
/// Size at which a binlog file is closed.
pub(super) const BINLOG_FILE_BYTES: u64 = 32 << 20;
/// Binlog files that exist at one time; older ones are purged.
pub(super) const BINLOG_FILES_MAX: u64 = 40;
/// Threads that commit.
pub(super) const COMMITTERS: usize = 8;
/// Redo bytes of one commit.
pub(super) const REDO_PER_COMMIT_BYTES: usize = 10 << 10;
/// Binlog bytes of one commit.
pub(super) const BINLOG_PER_COMMIT_BYTES: usize = 5 << 10;
/// Size of one output of the compaction.
pub(super) const BULK_FILE_BYTES: u64 = 64 << 20;
/// Outputs that exist at one time; older ones are removed.
pub(super) const BULK_FILES_MAX: u64 = 4;
/// Interval at which outputs are begun.
pub(super) const BULK_EACH: Duration = Duration::from_secs(2);
/// Highest rate at which an output is written.
pub(super) const BULK_BYTES_PER_SECOND: u64 = 64 << 20;
/// Rows of the store that is killed.
pub(super) const STORE_ROWS: u64 = 64 << 10;
/// Size of each row: with their keys four rows fill a page of 4 KiB.
pub(super) const STORE_ROW_BYTES: usize = 960;
/// Rows that each of its commits changes, and the changed bytes of each.
pub(super) const STORE_ROWS_PER_COMMIT: usize = 4;
pub(super) const STORE_CHANGE_BYTES: usize = 96;
/// The limit of its journal, and so of the bytes that its recovery reads.
pub(super) const STORE_JOURNAL_BYTES: u64 = 128 << 20;
/// Its memory budget, part of which holds committed changes that are not yet in the data file.
pub(super) const STORE_MEMORY_BYTES: u64 = 512 << 20;
/// Time for which it commits before it is killed.
pub(super) const STORE_COMMITS_FOR: Duration = Duration::from_secs(2);
/// Most bytes that the log files take, with room for files that are purged or removed only when the next one
/// exists. The store is created after they are removed, and takes less.
pub(super) const DISK_BYTES_MAX: u64 = REDO_FILES as u64 * REDO_FILE_BYTES
    + (BINLOG_FILES_MAX + 2) * BINLOG_FILE_BYTES
    + (BULK_FILES_MAX + 1) * BULK_FILE_BYTES;

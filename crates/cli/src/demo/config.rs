//! The demo's sizes: all in one place, so that its report and its disk use follow from them.
//!
//! Bytes per commit are those of an update of a few dozen rows; files are smaller than a server's, so that rotation
//! and wraparounds are seen within seconds.

use std::time::Duration;

/// Files of the redo ring.
pub(super) const REDO_FILES: u32 = 4;
/// Size of each.
pub(super) const REDO_FILE_BYTES: u64 = 64 << 20;
/// The checkpoint follows so far behind the end of the redo log.
pub(super) const CHECKPOINT_BEHIND_BYTES: u64 = REDO_FILES as u64 * REDO_FILE_BYTES / 2;
/// A binlog file is closed once it has this size.
pub(super) const BINLOG_FILE_BYTES: u64 = 32 << 20;
/// Binlog files that exist at one time; older ones are purged.
pub(super) const BINLOG_FILES_MAX: u64 = 40;
/// Threads that commit.
pub(super) const COMMITTERS: usize = 8;
/// Redo of one commit.
pub(super) const REDO_PER_COMMIT_BYTES: usize = 10 << 10;
/// Binlog of one commit.
pub(super) const BINLOG_PER_COMMIT_BYTES: usize = 5 << 10;
/// Size of one output of the compaction.
pub(super) const BULK_FILE_BYTES: u64 = 64 << 20;
/// Outputs that exist at one time; older ones are removed.
pub(super) const BULK_FILES_MAX: u64 = 4;
/// How often one is begun.
pub(super) const BULK_EACH: Duration = Duration::from_secs(2);
/// How fast it is written at most.
pub(super) const BULK_BYTES_PER_SECOND: u64 = 64 << 20;
/// Rows of the store that is killed.
pub(super) const STORE_ROWS: u64 = 64 << 10;
/// Size of each: with its key four of them fill a page of 4 KiB.
pub(super) const STORE_ROW_BYTES: usize = 960;
/// Rows that each of its commits changes, and bytes of each.
pub(super) const STORE_ROWS_PER_COMMIT: usize = 4;
pub(super) const STORE_CHANGE_BYTES: usize = 96;
/// The cap on its journal, and so on what its recovery reads.
pub(super) const STORE_JOURNAL_BYTES: u64 = 128 << 20;
/// Its budget of memory, of which a part holds what is committed and not in the data file.
pub(super) const STORE_MEMORY_BYTES: u64 = 512 << 20;
/// How long it commits before the kill.
pub(super) const STORE_COMMITS_FOR: Duration = Duration::from_secs(2);
/// What the logs' files take at most, with room for files that are purged or removed only once the next one is there. The store comes
/// when they are gone, and takes less.
pub(super) const DISK_BYTES_MAX: u64 = REDO_FILES as u64 * REDO_FILE_BYTES
    + (BINLOG_FILES_MAX + 2) * BINLOG_FILE_BYTES
    + (BULK_FILES_MAX + 1) * BULK_FILE_BYTES;

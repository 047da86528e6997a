//! The demo's sizes: all in one place, so that its report and its disk use follow from them.
//!
//! Bytes per commit are those of an update of a few dozen rows; files are smaller than a server's, so that rotation
//! and laps are seen within half a minute.

/// Files of the redo ring.
pub(super) const REDO_FILES: u64 = 4;
/// Size of each.
pub(super) const REDO_FILE_BYTES: u64 = 64 << 20;
/// A binlog file is closed once it has this size.
pub(super) const BINLOG_FILE_BYTES: u64 = 32 << 20;
/// Binlog files that exist at one time; older ones are purged.
pub(super) const BINLOG_FILES_MAX: usize = 40;
/// Threads that commit.
pub(super) const COMMITTERS: u64 = 8;
/// Redo of one commit.
pub(super) const REDO_PER_COMMIT_BYTES: usize = 10 << 10;
/// Binlog of one commit.
pub(super) const BINLOG_PER_COMMIT_BYTES: usize = 5 << 10;
/// What the files take at most, with room for one binlog file over the limit.
pub(super) const DISK_BYTES_MAX: u64 =
    REDO_FILES * REDO_FILE_BYTES + (BINLOG_FILES_MAX as u64 + 2) * BINLOG_FILE_BYTES;

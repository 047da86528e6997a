//! The counters of a redo log.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a [`RedoLog`](crate::RedoLog) since it was opened, in bytes or numbers of times.
///
/// ```
/// use pagekeeper_wal::RedoLog;
/// # let dir = tempfile::tempdir_in(".")?;
/// let log = RedoLog::options().files(2).file_bytes(1 << 20).create(&dir.path().join("redo"))?;
/// let lsn = log.append(b"x = 1")?;
/// log.wait_flushed(lsn)?;
/// let stats = log.stats();
/// assert_eq!((stats.appends, stats.commits, stats.syncs), (1, 1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RedoStats {
    /// Records appended.
    pub appends: u64,
    /// Bytes of the log that the records and the padding between them took up.
    pub bytes: u64,
    /// Bytes of these that were written to the files.
    pub written: u64,
    /// Writes, each of one or more blocks.
    pub writes: u64,
    /// Calls of `wait_flushed` that had something to wait for.
    pub commits: u64,
    /// Syncs. `commits / syncs` is the average size of a group.
    pub syncs: u64,
    /// Number of times that an append waited because the log buffer was full.
    pub waits_for_buffer: u64,
    /// Number of times that an append waited because the ring was full up to the checkpoint.
    pub waits_for_ring: u64,
    /// Number of times that the checkpoint moved.
    pub checkpoints: u64,
    /// Bytes of pages that were released.
    pub released: u64,
    /// Bytes of pages that were resident when last sampled, and not yet released; 0 if none are
    /// released.
    pub resident: u64,
}

/// The counters, alone on their cache lines: each append counts itself, and reads much of the
/// neighbouring state.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) appends: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) commits: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) waits_for_buffer: AtomicU64,
    pub(super) waits_for_ring: AtomicU64,
    pub(super) checkpoints: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) resident: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn snapshot(&self, bytes: u64, written: u64) -> RedoStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RedoStats {
            appends: get(&self.appends),
            bytes,
            written,
            writes: get(&self.writes),
            commits: get(&self.commits),
            syncs: get(&self.syncs),
            waits_for_buffer: get(&self.waits_for_buffer),
            waits_for_ring: get(&self.waits_for_ring),
            checkpoints: get(&self.checkpoints),
            released: get(&self.released),
            resident: get(&self.resident),
        }
    }
}

//! The counters of a binlog.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a [`BinLog`](crate::BinLog) since it was opened.
///
/// ```
/// use pagekeeper_simdisk::SimDisk;
/// use pagekeeper_wal::BinLog;
/// use std::sync::Arc;
///
/// let log = BinLog::options().io(Arc::new(SimDisk::new())).open("/binlog")?;
/// log.append_group(&[b"insert", b"commit"])?;
/// log.sync()?;
/// let stats = log.stats();
/// assert_eq!((stats.groups, stats.syncs), (1, 1));
/// # Ok::<(), pagekeeper_wal::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BinLogStats {
    /// Groups of records appended.
    pub groups: u64,
    /// Bytes of the log that these groups took up.
    pub bytes: u64,
    /// Syncs. `groups / syncs` is the average number of groups that share one.
    pub syncs: u64,
}

/// The counters. Only the thread that writes changes them.
#[derive(Debug, Default)]
pub(super) struct BinLogCounters {
    groups: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
}

impl BinLogCounters {
    pub(super) fn appended(&self, groups: u64, bytes: u64) {
        self.groups.fetch_add(groups, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn synced(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> BinLogStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BinLogStats { groups: get(&self.groups), bytes: get(&self.bytes), syncs: get(&self.syncs) }
    }
}

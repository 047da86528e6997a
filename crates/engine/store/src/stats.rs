//! Statistics of a store.

use pagekeeper_kernel::mutex::lock;

use crate::Seq;
use crate::core::Core;
use crate::opening::Opening;

/// Statistics of a store, as returned by [`Store::stats`](crate::Store::stats).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StoreStats {
    /// Bytes of a page.
    pub page_size: usize,
    /// Pages of the data file that are or were in use.
    pub pages: u64,
    /// The number of these pages that are free.
    pub free_pages: u64,
    /// The last commit.
    pub seq: Seq,
    /// The last commit that readers see.
    pub visible_seq: Seq,
    /// The last commit known to be durable in the data file.
    pub checkpoint_seq: Seq,
    /// Bytes of the journal that a recovery would read.
    pub journal_bytes: u64,
    /// The limit of these bytes.
    pub max_journal_bytes: u64,
    /// Pages that are committed and not yet in the data file.
    pub unapplied_pages: u64,
    /// Bytes of memory of these pages, and of versions kept for old snapshots.
    pub unapplied_bytes: u64,
    /// Bytes on disk of versions kept for old snapshots.
    pub snapshot_bytes: u64,
    /// The budget in bytes.
    pub memory: u64,
    /// Whether first changes are journaled as full pages.
    pub full_page_images: bool,
    /// The page cache over the data file.
    pub cache: pagekeeper_cache::CacheStats,
    /// The statistics of its opening.
    pub opening: Opening,
}

impl Core {
    pub(crate) fn stats(&self) -> StoreStats {
        let fixed = StoreStats {
            page_size: self.config.page_size,
            max_journal_bytes: self.config.max_journal_bytes,
            memory: self.config.options.memory,
            full_page_images: !self.config.diffs_first,
            cache: self.cache.stats(),
            opening: self.config.opening,
            ..StoreStats::default()
        };
        if !self.process.is_current() {
            return fixed;
        }
        let (seq, lsn, meta) = {
            let tail = lock(&self.tail);
            (tail.seq, tail.lsn, tail.meta.clone())
        };
        StoreStats {
            pages: meta.pages,
            free_pages: meta.free_pages,
            seq,
            visible_seq: self.snapshots.visible().0,
            checkpoint_seq: self.checkpoints.seq(),
            journal_bytes: lsn.saturating_sub(self.checkpoints.lsn()),
            unapplied_pages: self.index.unapplied_pages(meta.pages),
            unapplied_bytes: self.index.bytes(),
            snapshot_bytes: self.version_file_bytes(),
            ..fixed
        }
    }
}

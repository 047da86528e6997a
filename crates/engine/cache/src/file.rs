//! A file in the cache that does not change. A file that its owner writes is in `owned`.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::Access;

use crate::file_stats::FileStats;
use crate::handle::FileHandle;

/// A file whose pages are cached. Cheap to clone; all clones are one open file, which is closed
/// with the last of them.
///
/// The file must not change while it is open. If it does, loading a page after the change fails
/// ([`Error::Cut`](crate::Error::Cut), [`Error::Grew`](crate::Error::Grew),
/// [`Error::Changed`](crate::Error::Changed), detected by length and times); a page that was loaded
/// before is returned as it was then. A link or a rename does not count as a change.
/// [`PageCache::open`](crate::PageCache::open) never returns such a file again.
#[derive(Clone)]
pub struct CachedFile {
    handle: Arc<FileHandle>,
}

impl CachedFile {
    pub(crate) fn new(handle: Arc<FileHandle>) -> Self {
        Self { handle }
    }

    #[inline]
    pub(crate) fn handle(&self) -> &Arc<FileHandle> {
        &self.handle
    }

    /// Returns the file's length at the open, in bytes.
    pub fn len(&self) -> u64 {
        self.handle.stat.size
    }

    /// Whether the file was empty at the open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of pages; the last may be shorter than the others.
    pub fn pages(&self) -> u64 {
        self.handle.page_table.table.pages().into()
    }

    /// Returns the bytes of a page of the cache.
    pub fn page_size(&self) -> usize {
        1 << self.handle.shared.settings.page_shift
    }

    /// Returns the path that the file was opened by.
    pub fn path(&self) -> &Path {
        &self.handle.path
    }

    /// Returns a number that no other open of this cache ever has. Two opens of one path that was
    /// replaced in between differ.
    pub fn id(&self) -> u64 {
        self.handle.page_table.number
    }

    /// Whether reads go past the kernel's page cache. False on file systems without direct I/O, and
    /// with [`Backend::Buffered`](crate::Backend::Buffered).
    pub fn is_direct(&self) -> bool {
        self.handle.access == Access::Direct
    }

    /// Returns the bytes that others had left in the kernel's page cache at the open, and that were
    /// dropped.
    pub fn found_resident(&self) -> u64 {
        self.handle.found_resident
    }

    /// Returns the number of its pages that are in the cache or being loaded; 0 once the file is
    /// closed.
    pub fn resident_pages(&self) -> u64 {
        if self.handle.is_closed() { 0 } else { self.handle.page_table.live_pages() }
    }

    /// Returns the file's counters up to now, and how many of its pages are in the cache.
    pub fn stats(&self) -> FileStats {
        self.handle.page_table.counts.stats(self.resident_pages())
    }

    /// Takes the pages out of the cache that have a byte of this range, and returns their number.
    /// Guards keep their bytes, and pages that are being loaded stay. The next read of such a page
    /// loads it again. Takes no longer than the pages of the file in the cache need.
    ///
    /// ```
    /// # let dir = tempfile::tempdir_in(".")?;
    /// # let path = dir.path().join("000012.sst");
    /// # std::fs::write(&path, vec![7; 40_000])?;
    /// use pagekeeper_cache::{FilePriority, OpenOptions, PageCache};
    /// let cache = PageCache::options().memory(64 << 20).build()?;
    /// let file = cache.open_with(&path, OpenOptions::new().priority(FilePriority::Low))?;
    /// file.read_at(0, &mut [0; 10_000])?;
    /// assert_eq!(file.forget(0..5_000), 2);
    /// assert_eq!((file.stats().misses, file.stats().resident_pages), (3, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget(&self, range: Range<u64>) -> u64 {
        let (handle, shared) = (&*self.handle, &self.handle.shared);
        if range.is_empty() || !shared.process.is_current() || handle.is_closed() {
            return 0;
        }
        let pages = handle.page_table.table.pages();
        let page = |at: u64| u32::try_from(at).unwrap_or(pages).min(pages);
        let shift = shared.settings.page_shift;
        let pages = page(range.start >> shift)..page(range.end.div_ceil(1 << shift));
        shared.pool.forget(&handle.page_table, pages, shared.slots.readers())
    }

    /// Closes the file for all its clones, in O(1) however many pages are cached. Reads in progress
    /// complete, and guards keep their bytes; every later read fails with
    /// [`Error::Closed`](crate::Error::Closed). The file's frames are reused first. The descriptor
    /// is closed with the last clone and the last [`PageRef`](crate::PageRef).
    pub fn close(&self) {
        self.handle.close();
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile")
            .field("path", &self.handle.path)
            .field("id", &self.id())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

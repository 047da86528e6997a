//! A file in the cache that does not change. A file that its owner writes is in `owned`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::Access;

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
        if self.handle.io().is_ok() { self.handle.page_table.live_pages() } else { 0 }
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

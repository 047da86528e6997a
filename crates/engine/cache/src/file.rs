//! A file in the cache that does not change; one that its owner writes is in `owned`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::Access;

use crate::handle::Handle;

/// A file whose pages are cached. Cheap to clone; all clones are one open file, which is closed with the last of them.
///
/// The file must not change while it is open. Where it does all the same: a page that is loaded after the change is an
/// error ([`Error::Cut`](crate::Error::Cut), [`Error::Grew`](crate::Error::Grew), [`Error::Changed`](crate::Error::Changed), detected by length and times); a page that was loaded
/// before is given as it was then. A link, a rename and the like are no such change. [`PageCache::open`](crate::PageCache::open) never gives such a file again.
#[derive(Clone)]
pub struct CachedFile {
    handle: Arc<Handle>,
}

impl CachedFile {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        Self { handle }
    }

    #[inline]
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Its length at the open, in bytes.
    pub fn len(&self) -> u64 {
        self.handle.stat.size
    }

    /// Whether it had no byte at the open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many pages it has; the last may be shorter than the others.
    pub fn pages(&self) -> u64 {
        self.handle.page_table.table.pages().into()
    }

    /// Bytes of a page of the cache.
    pub fn page_size(&self) -> usize {
        1 << self.handle.shared.settings.page_shift
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.handle.path
    }

    /// A number that no other open of this cache has, ever: two opens of one path that was replaced in between differ.
    pub fn id(&self) -> u64 {
        self.handle.page_table.number
    }

    /// Whether reads go past the kernel's page cache. False on file systems without direct I/O, and with
    /// [`Backend::Buffered`](crate::Backend::Buffered).
    pub fn is_direct(&self) -> bool {
        self.handle.access == Access::Direct
    }

    /// Bytes that others had left in the kernel's page cache when it was opened, and that were dropped.
    pub fn found_resident(&self) -> u64 {
        self.handle.found_resident
    }

    /// Pages of it that are in the cache, or on their way; none once it is closed.
    pub fn resident_pages(&self) -> u64 {
        if self.handle.io().is_ok() { self.handle.page_table.live_pages() } else { 0 }
    }

    /// Closes the file for all its clones, in O(1) however many pages are cached. Reads that are under way end well, guards
    /// keep their bytes; every later read is [`Error::Closed`](crate::Error::Closed). The frames are the first to be used again. The descriptor
    /// goes with the last clone and the last [`PageRef`](crate::PageRef).
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

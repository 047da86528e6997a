//! A file in the cache, by its handle, and as one that does not change; one that its owner writes is in `owned`.
//!
//! Invariants: length and identity are those of the open; a file is closed once, by [`CachedFile::close`] or with its last
//! handle, and finds no page after that.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagekeeper_io::{Access, FileStat, IoFile};

use crate::Error;
use crate::cache::Shared;
use crate::fast_path::FastPath;
use crate::page_table::PageTable;
use crate::verifier::Verifier;

/// A file whose pages are cached. Cheap to clone; all clones are one open file, which is closed with the last of them.
///
/// The file must not change while it is open. Where it does all the same: a page that is loaded after the change is an
/// error ([`Error::Cut`], [`Error::Grew`], [`Error::Changed`], detected by length and time of change); a page that was loaded
/// before is given as it was then. [`PageCache::open`](crate::PageCache::open) never gives such a file again.
#[derive(Clone)]
pub struct CachedFile {
    handle: Arc<Handle>,
}

/// What the clones of a [`CachedFile`] share.
pub(crate) struct Handle {
    pub(crate) fast_path: FastPath,
    pub(crate) shared: Arc<Shared>,
    pub(crate) page_table: Arc<PageTable>,
    io: Arc<dyn IoFile>,
    closed: AtomicBool,
    access: Access,
    pub(crate) path: PathBuf,
    pub(crate) stat: FileStat,
    pub(crate) verifier: Option<Verifier>,
    kind: Kind,
    found_resident: u64,
}

/// What may become of a file while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing: what is loaded later goes with what was loaded before.
    Immutable,
    /// Its owner writes it, and says so. Its length is taken to be the maximum that it may grow to, in bytes.
    Owned { max_bytes: u64 },
}

impl Handle {
    pub(crate) fn new(
        shared: Arc<Shared>,
        page_table: Arc<PageTable>,
        io: Arc<dyn IoFile>,
        stat: FileStat,
        verifier: Option<Verifier>,
        kind: Kind,
        found_resident: u64,
    ) -> Self {
        let (access, path) = (io.access(), io.path().to_owned());
        let closed = AtomicBool::new(false);
        let fast_path =
            FastPath::new(&shared.settings, &shared.pool, &shared.slots, &page_table.table, stat.size);
        Self { fast_path, shared, page_table, io, closed, access, path, stat, verifier, kind, found_resident }
    }

    /// The file, if it was not closed.
    pub(crate) fn io(&self) -> Result<&Arc<dyn IoFile>, Error> {
        if self.closed.load(Ordering::Acquire) { Err(self.closed()) } else { Ok(&self.io) }
    }

    pub(crate) fn closed(&self) -> Error {
        Error::Closed { path: self.path.clone() }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.fast_path.close();
        self.shared.pool.close(&self.page_table);
    }

    /// Whether the file is open, and `path` still names it, unchanged.
    pub(crate) fn is_same(&self, path: &Path) -> bool {
        let Ok(io) = self.io() else { return false };
        // The open handle shows whether the file changed, the path whether it was replaced.
        let Ok(named) = self.shared.settings.io.open(path, Access::Buffered).and_then(|file| file.stat())
        else {
            return false;
        };
        named == self.stat && io.stat().is_ok_and(|now| now == self.stat)
    }

    /// Bytes of the file that page `page` holds.
    pub(crate) fn page_len(&self, page: u32) -> usize {
        let shift = self.shared.settings.page_shift;
        let left = self.stat.size.saturating_sub(u64::from(page) << shift);
        #[expect(clippy::cast_possible_truncation, reason = "at most a page")]
        let len = left.min(1 << shift) as usize;
        len
    }

    /// Where in its page a byte of the file is.
    #[inline]
    pub(crate) fn offset_in_page(&self, offset: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the page size")]
        let within = (offset & ((1 << self.shared.settings.page_shift) - 1)) as usize;
        within
    }

    /// The page by its number as users give it.
    pub(crate) fn page_number(&self, page: u64) -> Result<u32, Error> {
        let pages = self.page_table.table.pages();
        u32::try_from(page).ok().filter(|&page| page < pages).ok_or_else(|| Error::NoSuchPage {
            path: self.path.clone(),
            page,
            pages: pages.into(),
        })
    }

    /// Whether its pages may be read past the cache in parts: misses are buffered reads, and nobody verifies whole pages.
    pub(crate) fn may_read_from_kernel_cache(&self) -> bool {
        self.access == Access::Buffered && self.verifier.is_none() && !self.is_owned()
    }

    pub(crate) fn is_owned(&self) -> bool {
        matches!(self.kind, Kind::Owned { .. })
    }

    /// How many of `wanted` bytes from `offset` on the file has. An error where that is fewer and there are more by now: silence
    /// would be wrong.
    pub(crate) fn len_within(&self, offset: u64, wanted: usize) -> Result<usize, Error> {
        let size = self.stat.size;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        if wanted <= left || self.is_owned() {
            return Ok(left.min(wanted));
        }
        let now = self.io()?.stat()?.size;
        if now > size {
            return Err(Error::Grew { path: self.path.clone(), opened: size, now });
        }
        Ok(left)
    }

    /// Whether the file is still as it was opened; if not, how it differs. `range` is what was to be read. One that its owner
    /// writes is not asked.
    pub(crate) fn check_unchanged(&self, io: &dyn IoFile, range: std::ops::Range<u64>) -> Result<(), Error> {
        if self.is_owned() {
            return Ok(());
        }
        let (now, opened) = (io.stat()?, self.stat);
        if now.size == opened.size && now.modified == opened.modified {
            return Ok(());
        }
        let path = self.path.clone();
        Err(match now.size.cmp(&opened.size) {
            std::cmp::Ordering::Less => Error::Cut { path, opened: opened.size, now: now.size, range },
            std::cmp::Ordering::Greater => Error::Grew { path, opened: opened.size, now: now.size },
            std::cmp::Ordering::Equal => Error::Changed { path },
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
        // Not if the path was opened anew meanwhile.
        self.shared.opened.remove_if(&*self.path, |handle| handle.strong_count() == 0);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("path", &self.path).field("stat", &self.stat).finish_non_exhaustive()
    }
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
    /// keep their bytes; every later read is [`Error::Closed`]. The frames are the first to be used again. The descriptor
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

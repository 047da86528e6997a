//! A file that its owner writes while it is open: the second kind of file in the cache.
//!
//! Only its owner writes the file, past the cache, and notifies the cache of each page after the
//! write: by [`OwnedFile::discard`], or with the new content by [`OwnedFile::install`]. Therefore
//! no load checks the file's length and time of change. Everything else is as for a [`CachedFile`]:
//! the same table, frames, guards and loads.
//!
//! Invariant: a read that begins after the notification returns no content of the device from
//! before it (see `rewrite`). Fails as reads do; the notification never fails.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::IoFile;

use crate::frames::LoadingFrame;
use crate::handle::{FileHandle, FileKind};
use crate::pool::LoadReason;
use crate::{CachedFile, Error, OpenOptions, PageCache, PageGuard, PageNo, PageRef, ReadRequest};

/// The initial frequency of a page that [`OwnedFile::install`] brings into the cache. A page in the
/// cache that somebody has read keeps its frequency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallAs {
    /// As for a page that was loaded because somebody read it.
    Read,
    /// As for a prefetched page: if nobody reads it, it is among the first to be evicted.
    Prefetched,
}

/// A file whose pages are cached while its owner writes it. Cheap to clone; all clones are one open
/// file, which is closed with the last of them. Created by [`PageCache::open_owned`].
///
/// The owner writes whole pages past the cache, one writer of a page at a time, and calls
/// [`discard`](Self::discard) or [`install`](Self::install) when the write has returned. Reads that
/// begin after that call return the new content. Reads that began before it return the old or the
/// new content. A read of the device during the write may return parts of both, which only a
/// [verifier](OpenOptions::verifier) can detect. Such a read fails with [`Error::Rejected`], unless
/// the cache was notified of the write meanwhile and the page is loaded again. An owner that allows
/// reads of a page during its writes must repeat such a read.
///
/// ```
/// use pagekeeper_cache::{InstallAs, PageCache, PageNo};
/// use pagekeeper_io::{Access, AlignedBuf, Create, Io, WriteMode};
/// use pagekeeper_simdisk::SimDisk;
/// # use std::sync::Arc;
///
/// let disk = SimDisk::new();
/// let cache = PageCache::options().memory(16 << 20).io(Arc::new(disk.clone())).build()?;
/// let data = disk.open_writable("/data".as_ref(), Access::Direct, Create::New)?;
/// let file = cache.open_owned(data.clone(), 1 << 28)?; // may grow to 1 TiB
///
/// let mut page = AlignedBuf::new(4096);
/// data.write_at(0, &page, WriteMode::Plain)?;
/// let first = PageNo::new(0);
/// assert_eq!(file.page(first)?[..3], [0, 0, 0]);
///
/// page[..3].copy_from_slice(b"new");
/// data.write_at(0, &page, WriteMode::Plain)?;
/// file.install(first, &page, InstallAs::Read)?; // or file.discard(first)
/// assert_eq!(file.page(first)?[..3], *b"new");
/// assert_eq!(file.resident(), [first..first + 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct OwnedFile {
    cached: CachedFile,
}

impl PageCache {
    /// Caches a file that only the caller writes. It may have up to `max_pages` pages, whatever its
    /// length is now. Its table takes up address space for that number (four bytes each), and
    /// memory only where the file is read. So opening a terabyte costs no more than
    /// opening a megabyte.
    ///
    /// The cache's back-end reads it in the way that `file` was opened: directly or through the
    /// kernel's cache. The back-end must support this kind of file: a file of a simulated disk
    /// needs that disk. If the file is read directly, its pages that others left in the kernel's
    /// cache are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] from 2^32 - 1 pages on, [`Error::NoMemory`], [`Error::Io`].
    pub fn open_owned(&self, file: Arc<dyn IoFile>, max_pages: u64) -> Result<OwnedFile, Error> {
        self.open_owned_with(file, max_pages, OpenOptions::default())
    }

    /// Like [`open_owned`](Self::open_owned), with options: a verifier of its own.
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one open")]
    pub fn open_owned_with(
        &self,
        file: Arc<dyn IoFile>,
        max_pages: u64,
        options: OpenOptions,
    ) -> Result<OwnedFile, Error> {
        let kind = FileKind::Owned { max_bytes: max_pages.saturating_mul(self.page_size() as u64) };
        let cached = CachedFile::new(self.shared.adopt(file, kind, &options)?);
        Ok(OwnedFile { cached })
    }
}

impl OwnedFile {
    #[inline]
    pub(crate) fn handle(&self) -> &Arc<FileHandle> {
        self.cached.handle()
    }

    /// Returns the same open file, for code that reads a [`CachedFile`]. Its length is the maximum
    /// length.
    pub fn as_cached_file(&self) -> &CachedFile {
        &self.cached
    }

    /// Like [`CachedFile::read_at`]. Fills all of `buf`, or less at the end of the maximum length.
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`] if the current file ends before the end of a page that must be loaded,
    /// [`Error::Io`], [`Error::Rejected`], [`Error::Closed`]. The next call tries again.
    #[inline]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.cached.read_at(offset, buf)
    }

    /// Like [`CachedFile::read_at_async`], with the errors of [`read_at`](Self::read_at).
    pub async fn read_at_async(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.cached.read_at_async(offset, buf).await
    }

    /// Like [`CachedFile::read_many`], with the errors of [`read_at`](Self::read_at).
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), Error> {
        self.cached.read_many(requests)
    }

    /// Like [`CachedFile::page`], with the errors of [`read_at`](Self::read_at) and
    /// [`Error::NoSuchPage`].
    #[inline]
    pub fn page(&self, page: PageNo) -> Result<PageGuard<'_>, Error> {
        self.cached.page(page)
    }

    /// Like [`CachedFile::page_ref`], with the errors of [`page`](Self::page).
    pub fn page_ref(&self, page: PageNo) -> Result<PageRef, Error> {
        self.cached.page_ref(page)
    }

    /// Like [`CachedFile::prefetch`]; the range is in bytes. Pages past the file's end count as
    /// begun, and fail.
    pub fn prefetch(&self, range: Range<u64>) -> u64 {
        self.cached.prefetch(range)
    }

    /// Notes that the page's content on the device is new: no read that begins after this call
    /// returns older content.
    ///
    /// A resident page is taken out; guards keep their bytes. The result of a load in flight goes
    /// to the caller that began it and is not kept; other callers that wait for it load again. This
    /// call waits for nothing.
    pub fn discard(&self, page: PageNo) {
        self.discard_many(&[page]);
    }

    /// Like [`discard`](Self::discard), for many pages in any order.
    pub fn discard_many(&self, pages: &[PageNo]) {
        let handle = self.handle();
        if !handle.shared.process.is_current() {
            return;
        }
        let pages: Vec<_> = pages.iter().filter_map(|&page| handle.page_number(page).ok()).collect();
        handle.shared.pool.discard(&handle.page_table, &pages);
    }

    /// Like [`discard`](Self::discard), and puts the new content in place of the old at once: the
    /// page can be read as if it were loaded. Returns false if no frame was available without
    /// waiting, or if the file is closed; the page is then only discarded. The verifier is not
    /// called.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPage`].
    ///
    /// # Panics
    ///
    /// If `bytes` is not exactly one page.
    pub fn install(&self, page: PageNo, bytes: &[u8], how: InstallAs) -> Result<bool, Error> {
        let handle = &**self.handle();
        assert_eq!(bytes.len(), self.page_size(), "bytes to install as a page");
        handle.shared.require_own_process()?;
        let number = handle.page_number(page)?;
        let (pool, page_table) = (&handle.shared.pool, &handle.page_table);
        let attempt = || pool.begin_install(page_table, number);
        let Some(ticket) = attempt().or_else(|| handle.shared.make_room().then(attempt).flatten()) else {
            pool.discard(page_table, &[number]);
            return Ok(false);
        };
        let short = ticket.short;
        let mut filling = LoadingFrame::new(handle, ticket);
        filling.bytes_mut().copy_from_slice(bytes);
        let installed = filling.install(match how {
            InstallAs::Read => LoadReason::Read,
            InstallAs::Prefetched => LoadReason::Prefetch,
        });
        if short {
            handle.shared.make_room();
        }
        Ok(installed)
    }

    /// Returns the cached pages, as ranges of page numbers in ascending order, for example to
    /// prefetch them later. Takes no lock; the result may or may not contain pages that come or go
    /// meanwhile. Takes time proportional to `max_pages` / 1024 and to the number of resident
    /// pages.
    pub fn resident(&self) -> Vec<Range<PageNo>> {
        self.handle().page_table.readable()
    }

    /// Returns the number of its pages that are in the cache or being loaded; 0 once the file is
    /// closed.
    pub fn resident_pages(&self) -> u64 {
        self.cached.resident_pages()
    }

    /// Returns the maximum number of pages.
    pub fn max_pages(&self) -> u64 {
        self.cached.pages()
    }

    /// Returns the bytes of a page.
    pub fn page_size(&self) -> usize {
        self.cached.page_size()
    }

    /// Returns the path that the file was opened by.
    pub fn path(&self) -> &Path {
        self.cached.path()
    }

    /// Like [`CachedFile::id`].
    pub fn id(&self) -> u64 {
        self.cached.id()
    }

    /// Whether reads go past the kernel's page cache.
    pub fn is_direct(&self) -> bool {
        self.cached.is_direct()
    }

    /// Like [`CachedFile::close`].
    pub fn close(&self) {
        self.cached.close();
    }
}

impl fmt::Debug for OwnedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedFile")
            .field("path", &self.path())
            .field("id", &self.id())
            .field("max_pages", &self.max_pages())
            .finish_non_exhaustive()
    }
}

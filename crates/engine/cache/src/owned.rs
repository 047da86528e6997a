//! A file that its owner writes while it is open: the second kind of file in the cache.
//!
//! Its owner alone writes it, past the cache, and notifies the cache of each page after it was written: by
//! [`OwnedFile::discard`], or with the new content by [`OwnedFile::install`]. So no load asks the file for its length and
//! time of change. All else is as of a [`CachedFile`]: the same table, frames, guards and loads.
//!
//! Invariant: a read that begins after the cache was notified gives no content of the device from before (see `rewrite`).
//! Fails as reads do; notifying the cache never fails.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::IoFile;

use crate::frames::Filling;
use crate::handle::{Handle, Kind};
use crate::pool::LoadReason;
use crate::{CachedFile, Error, OpenOptions, PageCache, PageGuard, PageRef, ReadRequest};

/// How hot a page is that [`OwnedFile::install`] brings into the cache. One that is resident already stays as hot as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallAs {
    /// As one that was loaded because somebody read it.
    Read,
    /// As one that was prefetched: if nobody reads it, it is among the first to be evicted.
    Prefetched,
}

/// A file whose pages are cached while its owner writes it. Cheap to clone; all clones are one open file, which is closed with
/// the last of them. Made by [`PageCache::open_owned`].
///
/// The owner writes whole pages past the cache, one writer of a page at a time, and calls [`discard`](Self::discard) or
/// [`install`](Self::install) when the write has returned. Reads that begin after that give the new content. Reads that
/// began before give the old or the new; one that goes to the device while the page is being written may find some
/// of both, which only a [verifier](OpenOptions::verifier) can detect: [`Error::Rejected`], unless the cache was notified of the
/// write meanwhile and the page is loaded again. An owner that lets pages be read while it writes them reads such a page again.
///
/// ```
/// use pagekeeper_cache::{InstallAs, PageCache};
/// use pagekeeper_io::{Access, AlignedBuf, Create, Io, SimDisk, WriteMode};
/// # use std::sync::Arc;
///
/// let disk = SimDisk::new();
/// let cache = PageCache::builder().memory(16 << 20).io(Arc::new(disk.clone())).build()?;
/// let data = disk.open_writable("/data".as_ref(), Access::Direct, Create::New)?;
/// let file = cache.open_owned(data.clone(), 1 << 28)?; // may grow to 1 TiB
///
/// let mut page = AlignedBuf::new(4096);
/// data.write_at(0, &page, WriteMode::Plain)?;
/// assert_eq!(file.page(0)?[..3], [0, 0, 0]);
///
/// page[..3].copy_from_slice(b"new");
/// data.write_at(0, &page, WriteMode::Plain)?;
/// file.install(0, &page, InstallAs::Read)?; // or file.discard(0)
/// assert_eq!(file.page(0)?[..3], *b"new");
/// assert_eq!(file.resident(), [0..1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct OwnedFile {
    cached: CachedFile,
}

impl PageCache {
    /// Caches a file that the caller writes, and that nobody else does. It may have up to `max_pages` pages, whatever its length
    /// is now: its table takes up address space for so many (four bytes each), and memory only where it is read, so that a
    /// terabyte costs no more to open than a megabyte.
    ///
    /// It is read as `file` was opened: directly or through the kernel's cache, by the cache's back-end, so it must be of
    /// a kind that this can read (a file of a simulated disk needs that disk). Pages that others left in the
    /// kernel's cache are dropped if it is read directly.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] from 2^32 - 1 pages on, [`Error::NoMemory`], [`Error::Io`].
    pub fn open_owned(&self, file: Arc<dyn IoFile>, max_pages: u64) -> Result<OwnedFile, Error> {
        self.open_owned_with(file, max_pages, OpenOptions::default())
    }

    /// As [`open_owned`](Self::open_owned), with options: a verifier of its own.
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one open")]
    pub fn open_owned_with(
        &self,
        file: Arc<dyn IoFile>,
        max_pages: u64,
        options: OpenOptions,
    ) -> Result<OwnedFile, Error> {
        let kind = Kind::Owned { max_bytes: max_pages.saturating_mul(self.page_size() as u64) };
        let cached = CachedFile::new(self.shared.adopt(file, kind, &options)?);
        Ok(OwnedFile { cached })
    }
}

impl OwnedFile {
    #[inline]
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        self.cached.handle()
    }

    /// The same open file, for code that reads a [`CachedFile`]: its length is the most that it may have.
    pub fn as_cached_file(&self) -> &CachedFile {
        &self.cached
    }

    /// As [`CachedFile::read_at`]: all of `buf`, less only at the end of what the file may come to.
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`] where the file as it is now ends before a page that is to be loaded, [`Error::Io`],
    /// [`Error::Rejected`], [`Error::Closed`]. The next call tries again.
    #[inline]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.cached.read_at(offset, buf)
    }

    /// As [`CachedFile::read_at_async`], with the errors of [`read_at`](Self::read_at).
    pub async fn read_at_async(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.cached.read_at_async(offset, buf).await
    }

    /// As [`CachedFile::read_many`], with the errors of [`read_at`](Self::read_at).
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), Error> {
        self.cached.read_many(requests)
    }

    /// As [`CachedFile::page`], with the errors of [`read_at`](Self::read_at) and [`Error::NoSuchPage`].
    #[inline]
    pub fn page(&self, page: u64) -> Result<PageGuard<'_>, Error> {
        self.cached.page(page)
    }

    /// As [`CachedFile::page_ref`], with the errors of [`page`](Self::page).
    pub fn page_ref(&self, page: u64) -> Result<PageRef, Error> {
        self.cached.page_ref(page)
    }

    /// As [`CachedFile::prefetch`]; the range is of bytes. Pages behind the file's end count as begun, and fail.
    pub fn prefetch(&self, range: Range<u64>) -> u64 {
        self.cached.prefetch(range)
    }

    /// The page's content on the device is new: no read that begins after this call gives what was loaded before it.
    ///
    /// A resident page is taken out; guards keep their bytes. A load that is under way goes to those who began it,
    /// and is not kept; others who wait for it load again. Waits for nothing.
    pub fn discard(&self, page: u64) {
        self.discard_many(&[page]);
    }

    /// As [`discard`](Self::discard), for many pages in any order.
    pub fn discard_many(&self, pages: &[u64]) {
        let handle = self.handle();
        if !handle.shared.process.is_current() {
            return;
        }
        let pages: Vec<_> = pages.iter().filter_map(|&page| handle.page_number(page).ok()).collect();
        handle.shared.pool.discard(&handle.page_table, &pages);
    }

    /// As [`discard`](Self::discard), and puts the new content in place of the old at once: the page can be read, as if loaded. True
    /// if so; false if no frame could be had without waiting, or the file is closed: then it is discarded only. The
    /// verifier is not asked.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPage`].
    ///
    /// # Panics
    ///
    /// If `bytes` are not exactly a page.
    pub fn install(&self, page: u64, bytes: &[u8], how: InstallAs) -> Result<bool, Error> {
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
        let mut filling = Filling::new(handle, ticket);
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

    /// The pages that are in the cache, as ranges of page numbers in ascending order: what to prefetch another time. Takes no
    /// lock; pages that come or go meanwhile may be in it or not. Its time goes by `max_pages` / 1024 and by what
    /// is resident.
    pub fn resident(&self) -> Vec<Range<u64>> {
        self.handle().page_table.readable()
    }

    /// Pages of it that are in the cache, or on their way; none once it is closed.
    pub fn resident_pages(&self) -> u64 {
        self.cached.resident_pages()
    }

    /// How many pages it may come to.
    pub fn max_pages(&self) -> u64 {
        self.cached.pages()
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> usize {
        self.cached.page_size()
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        self.cached.path()
    }

    /// As [`CachedFile::id`].
    pub fn id(&self) -> u64 {
        self.cached.id()
    }

    /// Whether reads go past the kernel's page cache.
    pub fn is_direct(&self) -> bool {
        self.cached.is_direct()
    }

    /// As [`CachedFile::close`].
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

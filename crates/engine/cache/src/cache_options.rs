//! Settings of a cache, and their bounds.

use std::fmt;
use std::sync::Arc;

use pagekeeper_io::{Access, Io, Threads, Uring};

use crate::entry::FRAMES_MAX;
use crate::pool::FramePool;
use crate::queues::FrameRecord;
use crate::settings::{CacheSettings, HugePages, TABLES_BUDGET_DIVISOR};
use crate::sys::arena::FrameArena;
use crate::sys::memory;
use crate::verifier::{LoadedPage, PageVerifier};
use crate::{BuildError, PageCache};

/// The smallest number of frames that a cache works with.
const FRAMES_MIN: u64 = 64;

/// Bookkeeping beside the frames, in bytes: threads' slots, files' records, waiters.
const BOOKKEEPING_BYTES: u64 = 64 << 10;

/// The way to read missed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backend {
    /// Direct I/O by `io_uring`, or by threads if `io_uring` is unavailable.
    #[default]
    Auto,
    /// Direct I/O by `io_uring`; the build fails if it is unavailable.
    Uring,
    /// Direct I/O by threads of pread(2).
    Threads,
    /// Through the kernel's page cache, by threads of pread(2): a page may be cached twice. While
    /// all pages of this cache are in use, most pages that the kernel has resident are read from
    /// the kernel's cache alone.
    Buffered,
}

/// The settings of a cache that is not built yet.
#[derive(Clone)]
pub struct CacheOptions {
    memory: u64,
    page_size: usize,
    huge_pages: HugePages,
    backend: Backend,
    io: Option<Arc<dyn Io>>,
    verifier: Option<PageVerifier>,
    max_open_files: Option<usize>,
    reserve_tables: bool,
    threads: bool,
}

impl Default for CacheOptions {
    /// 64 MiB in pages of 4 KiB.
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            page_size: 4096,
            huge_pages: HugePages::default(),
            backend: Backend::default(),
            io: None,
            verifier: None,
            max_open_files: None,
            reserve_tables: false,
            threads: true,
        }
    }
}

impl PageCache {
    /// Returns the settings of a new cache.
    ///
    /// ```
    /// use pagekeeper_cache::PageCache;
    /// let cache = PageCache::options().memory(64 << 20).page_size(16 << 10).build()?;
    /// assert_eq!(cache.page_size(), 16384);
    /// # Ok::<(), pagekeeper_cache::BuildError>(())
    /// ```
    pub fn options() -> CacheOptions {
        CacheOptions::default()
    }
}

impl CacheOptions {
    /// Sets the budget in bytes [default: 64 MiB]. Frames, their records and the tables of open
    /// files all count.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the size of a page in bytes: a power of two from 4096 to 65536 [default: 4096].
    #[must_use]
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = bytes;
        self
    }

    /// Sets the source of the frames' memory [default: transparent huge pages].
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets the way to read missed pages [default: direct I/O, `io_uring` or threads].
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets a back-end in place of [`backend`](Self::backend), for direct access: the simulated
    /// disk, or a back-end that is shared.
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    /// Keeps at most `files` of the files open that [`PageCache::open`] opens by their paths
    /// [default: no limit], and those that are being read. A descriptor that made room comes back
    /// with the next miss of its file, so handles stay valid and hits notice nothing.
    ///
    /// If the path then names another file (device, inode or generation), that miss fails with
    /// [`Error::Replaced`](crate::Error::Replaced). So do not replace, rename or remove a file while
    /// it is in use.
    #[must_use]
    pub fn max_open_files(mut self, files: usize) -> Self {
        self.max_open_files = Some(files);
        self
    }

    /// Starts no threads except those of the back-end. Reads are then verified on the thread where
    /// they end, in that order, and memory is cleared when it is used. For tests that repeat an
    /// order, on a back-end of their own.
    #[must_use]
    pub fn without_threads(mut self) -> Self {
        self.threads = false;
        self
    }

    /// Takes the whole table of a file out of the budget when the file is opened, instead of only
    /// the parts that are touched [default: no]. The capacity then changes when files are opened
    /// and closed, and not as they are read.
    #[must_use]
    pub fn reserve_tables(mut self, reserve: bool) -> Self {
        self.reserve_tables = reserve;
        self
    }

    /// Checks every page once, when it is loaded, outside all locks. A page that the verifier
    /// rejects is not cached, and all callers that wait for it get
    /// [`Error::Rejected`](crate::Error::Rejected) with the reason. The verifier must not read
    /// through the cache. If it waits for its own page, or for another page of its file, that read
    /// fails with [`Error::WithinVerifier`](crate::Error::WithinVerifier); verifiers of two files
    /// can still wait for each other. If it panics, the panic continues in the thread that reads.
    /// Other callers that wait for the page, and for neighbours read together with it, get
    /// [`Error::LoaderPanicked`](crate::Error::LoaderPanicked).
    ///
    /// ```
    /// use pagekeeper_cache::{LoadedPage, PageCache};
    /// let cache = PageCache::options()
    ///     .memory(16 << 20)
    ///     .verifier(|page: &LoadedPage<'_>| match page.bytes().first() {
    ///         Some(0xd7) => Ok(()),
    ///         other => Err(format!("begins with {other:?}, not with 0xd7")),
    ///     })
    ///     .build()?;
    /// # Ok::<(), pagekeeper_cache::BuildError>(())
    /// ```
    #[must_use]
    pub fn verifier(
        mut self,
        verifier: impl Fn(&LoadedPage<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.verifier = Some(Arc::new(verifier));
        self
    }

    /// Returns the budget that has room for this many pages while no file is open. Open files take
    /// about 1,200 bytes each, and four bytes for each page of their own length where they are read
    /// (at least one kernel page), up to half of the budget in all.
    pub fn memory_for(pages: u32, page_size: usize) -> u64 {
        BOOKKEEPING_BYTES
            .saturating_add(u64::from(pages).saturating_mul((page_size as u64).saturating_add(per_frame())))
    }

    /// Builds the cache. Its memory is taken up as it fills.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the setting that is impossible and the values that are possible.
    pub fn build(self) -> Result<PageCache, BuildError> {
        self.build_on(memory::page())
    }

    /// Like `build`, for a kernel whose pages have `kernel_page` bytes.
    pub(crate) fn build_on(self, kernel_page: usize) -> Result<PageCache, BuildError> {
        let Self {
            memory,
            page_size,
            huge_pages,
            backend,
            io,
            verifier,
            max_open_files,
            reserve_tables,
            threads,
        } = self;
        if !page_size.is_power_of_two() || !(4096..=65536).contains(&page_size) {
            return Err(BuildError::PageSize { given: page_size });
        }
        let least = BOOKKEEPING_BYTES + FRAMES_MIN * (page_size as u64 + per_frame());
        if memory < least {
            return Err(BuildError::TooLittleMemory { given: memory, page_size, least });
        }
        let frames = u32::try_from((memory - BOOKKEEPING_BYTES) / (page_size as u64 + per_frame()))
            .ok()
            .filter(|&frames| frames < FRAMES_MAX)
            .ok_or(BuildError::TooMuchMemory { given: memory, page_size })?;
        let page_shift = page_size.trailing_zeros();
        let arena =
            FrameArena::new(kernel_page, frames, page_shift, huge_pages).map_err(
                |errno| match huge_pages {
                    HugePages::Hugetlb => BuildError::NoHugePages {
                        needed: (u64::from(frames) << page_shift).div_ceil(2 << 20),
                        errno: errno.raw_os_error(),
                    },
                    HugePages::Transparent | HugePages::Off => {
                        BuildError::NoMemory { errno: errno.raw_os_error() }
                    }
                },
            )?;
        let access = if backend == Backend::Buffered { Access::Buffered } else { Access::Direct };
        let io: Arc<dyn Io> = match (io, backend) {
            (Some(io), _) => io,
            (None, Backend::Uring) => Arc::new(Uring::new().map_err(BuildError::Backend)?),
            (None, Backend::Auto) => pagekeeper_io::best(),
            (None, Backend::Threads | Backend::Buffered) => Arc::new(Threads::new()),
        };
        let part_bytes = kernel_page as u64;
        let parts_max = usize::try_from(memory / TABLES_BUDGET_DIVISOR / part_bytes).unwrap_or(usize::MAX);
        let pool = FramePool::new(arena, frames, parts_max.max(1))
            .loan_frames_to_tables(part_bytes, page_size as u64);
        Ok(PageCache::new(
            CacheSettings {
                memory,
                page_shift,
                io,
                access,
                verifier,
                reserve_tables,
                max_open_files,
                threads,
                kernel_page,
            },
            pool,
        ))
    }
}

/// Returns the number of frames for a budget, in a cache that was built with `built` frames: the
/// records of all of those are within the budget.
pub(crate) fn frames_of_built(memory: u64, page_size: usize, built: u32) -> Result<u32, BuildError> {
    let records = BOOKKEEPING_BYTES + u64::from(built) * per_frame();
    let least = records + FRAMES_MIN * page_size as u64;
    if memory < least {
        return Err(BuildError::TooLittleMemory { given: memory, page_size, least });
    }
    let frames = (memory - records) / page_size as u64;
    Ok(u32::try_from(frames).map_or(built, |frames| frames.min(built)))
}

/// Returns the bytes of one frame's records: its place in the queues, its pins, its number in the
/// list of free frames.
fn per_frame() -> u64 {
    (size_of::<FrameRecord>() + 2 * size_of::<u32>()) as u64
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheOptions")
            .field("memory", &self.memory)
            .field("page_size", &self.page_size)
            .field("huge_pages", &self.huge_pages)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_refused_with_the_possible_range() {
        let error = |options: CacheOptions| options.build().unwrap_err().to_string();
        for size in [0, 1, 512, 2048, 5000, 12288, 131_072] {
            let message = error(PageCache::options().page_size(size));
            assert_eq!(message, format!("a page of {size} bytes: give a power of two from 4096 to 65536"));
        }
        let BuildError::TooLittleMemory { least, .. } =
            PageCache::options().memory(100_000).build().unwrap_err()
        else {
            panic!("not too little")
        };
        assert!(PageCache::options().memory(least - 1).build().is_err());
        let cache = PageCache::options().memory(least).build().unwrap();
        assert_eq!(cache.capacity_pages(), 64);
        assert!(error(PageCache::options().memory(1 << 50)).contains("choose a larger page size"));
    }

    #[test]
    fn memory_for_pages_is_enough_for_them_and_no_more() {
        for (pages, size) in [(64, 4096), (1000, 4096), (77, 65536)] {
            let memory = CacheOptions::memory_for(pages, size);
            let cache = PageCache::options().memory(memory).page_size(size).build().unwrap();
            assert_eq!(cache.capacity_pages(), u64::from(pages));
            let less = PageCache::options().memory(memory - 1).page_size(size).build();
            assert!(less.map_or(true, |cache| cache.capacity_pages() < u64::from(pages)));
        }
    }

    #[test]
    fn huge_pages_that_are_not_there_are_named() {
        // More than any test machine sets aside.
        let error =
            PageCache::options().memory(900 << 30).huge_pages(HugePages::Hugetlb).build().unwrap_err();
        assert!(error.to_string().contains("set vm.nr_hugepages to"), "{error}");
    }
}

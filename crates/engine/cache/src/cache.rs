//! The cache as its users hold it, and the opening of files.
//!
//! `build` fails on impossible settings, an open on an unsuitable file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::Io;

use crate::handle::{CacheState, FileKind};
use crate::pool::FramePool;
use crate::settings::CacheSettings;
use crate::stats::CacheStats;
use crate::{BuildError, CachedFile, Error, FilePriority, OpenOptions, cache_options};

/// A page cache in user space, for files that do not change while they are open: SST files,
/// segments, blobs.
///
/// Cheap to clone; all clones are one cache. See the [crate](crate) for how it is used.
#[derive(Debug, Clone)]
pub struct PageCache {
    pub(crate) shared: Arc<CacheState>,
}

impl PageCache {
    pub(crate) fn new(settings: CacheSettings, pool: FramePool) -> Self {
        Self { shared: Arc::new(CacheState::new(settings, pool)) }
    }

    /// Returns the bytes of a page.
    pub fn page_size(&self) -> usize {
        1 << self.shared.settings.page_shift
    }

    /// Returns the number of pages that the cache has room for now: the budget less bookkeeping and
    /// the tables of open files.
    pub fn capacity_pages(&self) -> u64 {
        u64::from(self.shared.pool.limit())
    }

    /// Sets the budget in bytes while the cache is in use: from a cache's minimum up to the budget
    /// it was built with. If the budget shrinks, pages are evicted and their memory
    /// returns to the kernel before this call returns. Pages that guards hold go with the next load
    /// after the guards were dropped; pages that are being loaded meanwhile go when they are
    /// evicted. Other threads continue to read.
    ///
    /// Build the cache with the largest budget that it may ever have: memory is taken up only as
    /// the cache fills. The records of all its pages, 32 bytes each, stay and are within the new
    /// budget. With [`HugePages::Hugetlb`](crate::HugePages::Hugetlb) all memory stays.
    ///
    /// ```
    /// use pagekeeper_cache::PageCache;
    /// let cache = PageCache::options().memory(1 << 30).build()?;
    /// cache.set_memory(16 << 20)?; // the host needs it
    /// assert!(cache.capacity_pages() < 4096);
    /// cache.set_memory(1 << 30)?;
    /// # Ok::<(), pagekeeper_cache::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::TooLittleMemory`]; [`BuildError::BeyondBuilt`] for more than the cache was
    /// built with; [`BuildError::Backend`] in a forked child. On an error nothing changes.
    pub fn set_memory(&self, bytes: u64) -> Result<(), BuildError> {
        self.shared.process.require().map_err(BuildError::Backend)?;
        let CacheSettings { memory: built, page_shift, .. } = self.shared.settings;
        if bytes > built {
            return Err(BuildError::BeyondBuilt { given: bytes, built });
        }
        let pool = &self.shared.pool;
        let frames = cache_options::frames_of_built(bytes, 1 << page_shift, pool.frames())?;
        pool.resize(frames, self.shared.slots.readers());
        Ok(())
    }

    /// Returns the back-end that reads. It opens files for writing that
    /// [`open_owned`](Self::open_owned) accepts.
    pub fn io(&self) -> &Arc<dyn Io> {
        &self.shared.settings.io
    }

    /// Returns the name of the back-end, for messages: "`io_uring`", "threads".
    pub fn backend(&self) -> &'static str {
        self.shared.settings.io.name()
    }

    /// Returns the counts up to now and how full the cache is; zeros in a forked child.
    pub fn stats(&self) -> CacheStats {
        self.shared.stats()
    }

    /// Opens a file that will not change while it is open.
    ///
    /// The file is opened for direct I/O, and its pages that others left in the kernel's page cache
    /// are dropped. If direct I/O is unavailable, it is read through the kernel's cache
    /// ([`CachedFile::is_direct`]):
    ///
    /// - on tmpfs;
    /// - if ext4 journals its data (`data=journal`), or btrfs compresses it;
    /// - if the device's blocks are larger than the cache's pages.
    ///
    /// Many threads that open one path at once open it once. If the path is open already and names
    /// the same unchanged file (device, inode, length, time of change), this returns that file
    /// again, with its cached pages. A file that was replaced or changed is opened again, and
    /// shares nothing with the old one.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file can't be opened or is not a regular file (a directory, FIFO,
    /// device); [`Error::TooLarge`]; [`Error::NoMemory`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<CachedFile, Error> {
        self.open_with(path, OpenOptions::default())
    }

    /// Opens a file with options of its own. It is opened again each time, and shares nothing with
    /// another open of the same path.
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one open")]
    pub fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<CachedFile, Error> {
        // Before the table of open files is locked: another thread may have held its lock at a fork
        // of this process.
        self.shared.require_own_process()?;
        let path = path.as_ref();
        let io = &self.shared.settings.io;
        let open = || -> Result<CachedFile, Error> {
            let file = self.shared.open(|access| io.open(path, access))?;
            Ok(CachedFile::new(self.shared.adopt(file, FileKind::Immutable, &options)?))
        };
        if options.verifier.is_some() || options.priority != FilePriority::Normal {
            return open();
        }
        // The file that this call opened, kept alive until it is returned.
        let mut own = None;
        loop {
            let found = self.shared.opened.get_or_open_if(
                path,
                |handle| handle.upgrade().is_some_and(|handle| handle.is_same(path)),
                || {
                    let file = open()?;
                    let weak = Arc::downgrade(file.handle());
                    own = Some(file);
                    Ok(weak)
                },
            );
            match found {
                Ok(handle) => {
                    if let Some(handle) = handle.upgrade() {
                        return Ok(CachedFile::new(handle));
                    }
                }
                Err(error) => return Err((*error).clone()),
            }
        }
    }

    /// Takes over a file that is open for reading. It is opened again for direct I/O, through
    /// `/proc/self/fd`.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[expect(clippy::needless_pass_by_value, reason = "the descriptor is taken over")]
    pub fn adopt(&self, file: File) -> Result<CachedFile, Error> {
        let io = &self.shared.settings.io;
        let file = self.shared.open(|access| {
            let copy =
                rustix::io::fcntl_dupfd_cloexec(&file, 3).map_err(|errno| pagekeeper_io::Error::Call {
                    call: "dup",
                    path: PathBuf::from("an adopted file"),
                    errno: errno.raw_os_error(),
                })?;
            io.adopt(copy.into(), access)
        })?;
        Ok(CachedFile::new(self.shared.adopt(file, FileKind::Adopted, &OpenOptions::default())?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::sys::memory;
    use crate::{CacheOptions, HugePages, PageNo};

    #[test]
    fn numbers_of_files_do_not_come_round() {
        let disk = pagekeeper_simdisk::SimDisk::new();
        disk.create_patterned("/file", 10_000, 1).unwrap();
        let cache = PageCache::options().io(Arc::new(disk)).build().unwrap();
        let first = cache.open("/file").unwrap();
        cache.shared.next_number.fetch_add(u64::from(u32::MAX), Ordering::Relaxed);
        let other = cache.open_with("/file", OpenOptions::new().verifier(|_| Ok(()))).unwrap();
        assert_eq!(first.id() + (1 << 32), other.id());
        let (mut read, mut again) = ([0; 10_000], [0; 10_000]);
        assert_eq!(
            (first.read_at(0, &mut read).unwrap(), other.read_at(0, &mut again).unwrap()),
            (10_000, 10_000)
        );
        assert_eq!(read, again);
        assert_eq!((first.resident_pages(), other.resident_pages(), cache.stats().misses), (3, 3, 6));
    }
    /// In `BerkeleyDB` each read writes to the page's pin count, which all threads share. Reads
    /// here write to no shared memory.
    #[test]
    fn reads_and_short_guards_count_no_pins() {
        let disk = pagekeeper_simdisk::SimDisk::new();
        disk.create_patterned("/file", 10_000, 1).unwrap();
        let cache = PageCache::options().io(Arc::new(disk)).build().unwrap();
        let file = cache.open("/file").unwrap();
        let pins = || cache.shared.pool.pins.iter().map(|pins| pins.load(Ordering::Relaxed)).sum::<u32>();
        for _ in 0..10 {
            file.read_at(10, &mut [0; 5000]).unwrap();
            let guard = file.page(PageNo::new(1)).unwrap();
            assert_eq!((guard.len(), pins()), (4096, 0));
        }
        let kept = file.page_ref(PageNo::new(1)).unwrap();
        assert_eq!(pins(), 1);
        drop(kept);
        assert_eq!(pins(), 0);
    }

    /// On a kernel whose pages are larger than the cache's, several frames share one kernel page.
    /// Its memory returns to the kernel once none of them is used.
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel what memory is taken up")]
    fn a_budget_that_comes_and_goes_changes_no_page_and_gives_memory_back() {
        const PAGES: usize = 400;
        for kernel_page in [4096, 16_384, 65_536].into_iter().filter(|&page| page >= memory::page()) {
            let disk = pagekeeper_simdisk::SimDisk::new();
            disk.create_patterned("/file", PAGES as u64 * 4096, 1).unwrap();
            let memory = CacheOptions::memory_for(500, 4096);
            let options = PageCache::options().memory(memory).huge_pages(HugePages::Off).io(Arc::new(disk));
            let cache = options.build_on(kernel_page).unwrap();
            let pool = &cache.shared.pool;
            let mut right = vec![0; PAGES * 4096];
            let reader = cache.io().open("/file".as_ref(), pagekeeper_io::Access::Buffered).unwrap();
            reader.read_at(0, &mut right).unwrap();
            let file = cache.open("/file").unwrap();
            let right = |page: usize| &right[page * 4096..][..4096];
            let read_all = || {
                for page in 0..PAGES {
                    let mut read = [0; 4096];
                    file.read_at(page as u64 * 4096, &mut read).unwrap();
                    assert!(read == right(page), "page {page} on pages of {kernel_page}");
                }
            };
            read_all();
            let kept =
                [3, 130, 257, 399].map(|page| (page, file.page_ref(PageNo::new(page as u64)).unwrap()));
            for frames in [300, 77, 64, 500, 65] {
                let records = memory - 500 * 4096;
                cache.set_memory(records + frames * 4096).unwrap();
                for _ in 0..3 {
                    read_all();
                }
                for (page, kept) in &kept {
                    assert!(**kept == *right(*page), "page {page}, which is kept, on pages of {kernel_page}");
                }
            }
            drop(kept);
            read_all();
            // Frames that share a kernel page with a used frame stay.
            let most = (pool.limit() as usize * 4096).next_multiple_of(kernel_page);
            assert!(pool.arena.taken_up() <= most, "{} of {most}", pool.arena.taken_up());
        }
    }
}

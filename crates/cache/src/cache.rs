//! The cache as a whole: its settings, what all its files share, and opening.
//!
//! Invariants: what the frames, their records and the tables of open files take up is never more than the budget; the
//! state that is shared outlives every file and every guard. Fails at the build where the settings are impossible, at an
//! open where the file is.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use pagekeeper_file_table::FileTable;
use pagekeeper_io::{Access, IoFile, Process};

use crate::file::{Handle, Kind};
use crate::kernel_leftovers;
use crate::page_table::PageTable;
use crate::pool::Pool;
use crate::readers::Readers;
use crate::settings::{Settings, TABLES_SHARE};
use crate::stats::{DeviceCounts, Stats};
use crate::sync::Barrier;
use crate::sys::table::Table;
use crate::thread::Slots;
use crate::{CachedFile, Error, OpenOptions};

/// A page cache in user space, for files that do not change while they are open: SST files, segments, blobs.
///
/// Cheap to clone; all clones are one cache. See the [crate](crate) for how it is used.
#[derive(Debug, Clone)]
pub struct PageCache {
    pub(crate) shared: Arc<Shared>,
}

/// What all files of a cache share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) slots: Slots,
    pub(crate) pool: Pool,
    /// What the tables come to if all of them are touched, in bytes.
    tables: Arc<AtomicU64>,
    pub(crate) device: DeviceCounts,
    next_number: AtomicU64,
    process: Process,
    pub(crate) opened: FileTable<PathBuf, Weak<Handle>, Error>,
}

impl PageCache {
    pub(crate) fn new(settings: Settings, pool: Pool) -> Self {
        let shared = Shared {
            settings,
            slots: Slots::new(Readers::new(Barrier::probe())),
            pool,
            tables: Arc::default(),
            device: DeviceCounts::default(),
            next_number: AtomicU64::new(0),
            process: Process::current(),
            opened: FileTable::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> usize {
        1 << self.shared.settings.page_shift
    }

    /// How many pages the cache has room for now: the budget less what bookkeeping and the tables of open files come to.
    pub fn capacity_pages(&self) -> u64 {
        u64::from(self.shared.pool.limit())
    }

    /// The back-end that reads, for messages: "`io_uring`", "threads".
    pub fn backend(&self) -> &'static str {
        self.shared.settings.io.name()
    }

    /// What was counted up to now, and how full it is.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Opens a file that will not change while it is open.
    ///
    /// It is opened for direct I/O, and pages of it that others left in the kernel's page cache are dropped. Where the file
    /// has no direct I/O it is read through the kernel's cache ([`CachedFile::is_direct`]): on tmpfs, where ext4 journals its data
    /// (`data=journal`), compressed on btrfs, or where the device's blocks are larger than the cache's pages.
    ///
    /// Many threads that open one path at once open it once. A path that is open already, and names the same unchanged
    /// file (device, inode, length, time of change), gives that file again, with its cached pages; a file that was
    /// replaced or changed is opened anew, and shares nothing with the old one.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the file can't be opened or is none (a directory, FIFO, device), [`Error::TooLarge`],
    /// [`Error::NoMemory`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<CachedFile, Error> {
        self.open_with(path, OpenOptions::default())
    }

    /// Opens a file with options of its own. With options it is opened anew each time, and shares nothing with another
    /// open of the same path.
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one open")]
    pub fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<CachedFile, Error> {
        let path = path.as_ref();
        let io = &self.shared.settings.io;
        let open = || -> Result<CachedFile, Error> {
            let file = self.shared.open(|access| io.open(path, access))?;
            self.shared.adopt(&self.shared, file, Kind::Immutable, &options)
        };
        if options.verifier.is_some() {
            return open();
        }
        // Opened by this very call: kept alive until it is returned.
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

    /// Takes over a file that is open for reading. It is opened anew for direct I/O, through `/proc/self/fd`.
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
        self.shared.adopt(&self.shared, file, Kind::Immutable, &OpenOptions::default())
    }
}

impl Shared {
    /// In a child of fork(2) nothing is loaded: it has none of the threads that loads under way wait for, and maybe locks that
    /// nobody will let go of.
    pub(crate) fn require_own_process(&self) -> Result<(), Error> {
        Ok(self.process.require()?)
    }

    /// Opens directly, or through the kernel's cache where direct reads are refused or would go through it all the same.
    fn open(
        &self,
        open: impl Fn(Access) -> Result<Arc<dyn IoFile>, pagekeeper_io::Error>,
    ) -> Result<Arc<dyn IoFile>, Error> {
        self.require_own_process()?;
        let Settings { access, page_shift, .. } = self.settings;
        match open(access) {
            Err(pagekeeper_io::Error::NoDirect { .. }) => Ok(open(Access::Buffered)?),
            Ok(file) if access == Access::Direct && !kernel_leftovers::is_direct(&*file, 1 << page_shift) => {
                Ok(open(Access::Buffered)?)
            }
            other => Ok(other?),
        }
    }

    pub(crate) fn adopt(
        &self,
        this: &Arc<Self>,
        file: Arc<dyn IoFile>,
        kind: Kind,
        options: &OpenOptions,
    ) -> Result<CachedFile, Error> {
        let mut stat = file.stat()?;
        if let Kind::Owned { max_bytes } = kind {
            stat.size = max_bytes;
        }
        let path = file.path().to_owned();
        let page_size = 1_usize << self.settings.page_shift;
        let pages = u32::try_from(stat.size.div_ceil(page_size as u64))
            .ok()
            .filter(|&pages| pages < u32::MAX)
            .ok_or_else(|| Error::TooLarge { path: path.clone(), bytes: stat.size, page_size })?;
        let table = Table::new(pages, &self.tables)
            .map_err(|errno| Error::NoMemory { path: path.clone(), errno: errno.raw_os_error() })?;
        self.pool.tidy(self.slots.readers());
        self.settle_budget();
        let found_resident =
            if file.access() == Access::Direct { kernel_leftovers::drop_leftovers(&*file) } else { 0 };
        let page_table = Arc::new(PageTable::new(self.next_number.fetch_add(1, Ordering::Relaxed), table));
        if pages > 0 {
            self.pool.add(Arc::clone(&page_table));
        }
        let verifier = options.verifier.clone().or_else(|| self.settings.verifier.clone());
        let handle = Handle::new(Arc::clone(this), page_table, file, stat, verifier, kind, found_resident);
        Ok(CachedFile::new(Arc::new(handle)))
    }

    /// Loans frames for the whole tables of all open files, if the cache was built so.
    pub(crate) fn settle_budget(&self) {
        if self.settings.reserve_tables {
            let tables = self.tables.load(Ordering::Relaxed).min(self.settings.memory / TABLES_SHARE);
            let frames = tables.div_ceil(1 << self.settings.page_shift);
            let Ok(frames) = u32::try_from(frames) else {
                unreachable!("a share of the frames, which are fewer than 2^28")
            };
            self.pool.reserve(frames, self.slots.readers());
        }
    }

    /// Frees frames, and first of all lets those go on whom they wait for; true if some are free now.
    pub(crate) fn make_room_patiently(&self) -> bool {
        self.pool.make_room_patiently(self.slots.readers())
    }

    /// Frees frames; true if some are free now.
    pub(crate) fn make_room(&self) -> bool {
        self.pool.make_room(self.slots.readers())
    }

    fn stats(&self) -> Stats {
        let (resident_pages, counts) = self.pool.totals();
        let hits = self.slots.readers().hits();
        let capacity_pages = u64::from(self.pool.limit());
        Stats {
            resident_pages,
            capacity_pages,
            page_size: 1 << self.settings.page_shift,
            ..Stats::counted(hits, counts, &self.device)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_files_do_not_come_round() {
        let disk = pagekeeper_io::SimDisk::new();
        disk.create_patterned("/file", 10_000, 1).unwrap();
        let cache = PageCache::builder().io(Arc::new(disk)).build().unwrap();
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
    /// `BerkeleyDB`: each read writes to the counter of the page's pins, which all threads share.
    #[test]
    fn reads_and_short_guards_count_no_pins() {
        let disk = pagekeeper_io::SimDisk::new();
        disk.create_patterned("/file", 10_000, 1).unwrap();
        let cache = PageCache::builder().io(Arc::new(disk)).build().unwrap();
        let file = cache.open("/file").unwrap();
        let pins = || cache.shared.pool.pins.iter().map(|pins| pins.load(Ordering::Relaxed)).sum::<u32>();
        for _ in 0..10 {
            file.read_at(10, &mut [0; 5000]).unwrap();
            let guard = file.page(1).unwrap();
            assert_eq!((guard.len(), pins()), (4096, 0));
        }
        let kept = file.page_ref(1).unwrap();
        assert_eq!(pins(), 1);
        drop(kept);
        assert_eq!(pins(), 0);
    }
}

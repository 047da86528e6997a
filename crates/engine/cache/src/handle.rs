//! The handle of an open file, and the state that all files of a cache share.
//!
//! Invariants: the frames, their records and the tables of open files never exceed the budget
//! together; the shared state outlives every file and every guard. Length and identity of a file
//! are those of the open. A file is closed once, by [`FileHandle::close`] or with its last handle,
//! and finds no page after that.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use pagekeeper_file_table::FileTable;
use pagekeeper_io::{Access, FileStat, IoFile, OwnedRead, Process};

use crate::bypass_queue::BypassQueue;
use crate::clear_ahead::ClearAhead;
use crate::descriptors::{Descriptor, OpenDescriptors, OpenFile};
use crate::fast_path::{FastPath, fetch_line};
use crate::inode_change::InodeChange;
use crate::kernel_leftovers;
use crate::page_table::PageTable;
use crate::pool::FramePool;
use crate::readers::ReaderRegistry;
use crate::settings::{CacheSettings, TABLES_BUDGET_DIVISOR};
use crate::settlers::SettlerPool;
use crate::stats::{CacheStats, DeviceCounts};
use crate::sync::BarrierPair;
use crate::sys::table::EntryTable;
use crate::thread::ThreadSlots;
use crate::verifier::PageVerifier;
use crate::{Error, OpenOptions, PageNo};

/// Futures read at most one part in `BYPASS_FRAMES_DIVISOR` of the frames past the cache at once,
/// beside the budget, and at most `BYPASS_PAGES_MAX` pages: enough to keep a device busy.
const BYPASS_FRAMES_DIVISOR: u32 = 16;
const BYPASS_PAGES_MAX: u32 = 256;

/// A read past the cache that waits for its turn.
pub(crate) trait QueuedRead: fmt::Debug + Send {
    /// Returns the read, if it is still to be made.
    fn begin(self: Box<Self>, shared: &Arc<CacheState>) -> Option<OwnedRead>;
}

/// The state that all files of a cache share.
#[derive(Debug)]
pub(crate) struct CacheState {
    pub(crate) settings: CacheSettings,
    pub(crate) slots: ThreadSlots,
    pub(crate) pool: FramePool,
    /// The size of all tables if they were touched in full, in bytes.
    tables: Arc<AtomicU64>,
    pub(crate) device: DeviceCounts,
    pub(crate) next_number: AtomicU64,
    pub(crate) process: Process,
    pub(crate) opened: FileTable<PathBuf, Weak<FileHandle>, Error>,
    /// The descriptors that come and go, if there is a limit.
    descriptors: Option<OpenDescriptors>,
    /// The reads past the cache that futures make.
    pub(crate) bypasses: BypassQueue<Box<dyn QueuedRead>>,
    /// The threads that settle background reads of files with a verifier.
    pub(crate) settlers: SettlerPool,
    pub(crate) clear_ahead: ClearAhead,
}

impl AsRef<FramePool> for CacheState {
    fn as_ref(&self) -> &FramePool {
        &self.pool
    }
}

impl CacheState {
    pub(crate) fn new(settings: CacheSettings, pool: FramePool) -> Self {
        let bypasses =
            BypassQueue::new((pool.limit() / BYPASS_FRAMES_DIVISOR).clamp(1, BYPASS_PAGES_MAX) as usize);
        let is_wanted = settings.threads && pool.arena.is_in_huge_pages();
        let clear_ahead = ClearAhead::new(settings.page_shift, pool.frames(), is_wanted);
        Self {
            clear_ahead,
            bypasses,
            settlers: SettlerPool::new(settings.threads),
            descriptors: OpenDescriptors::new(settings.max_open_files),
            settings,
            slots: ThreadSlots::new(ReaderRegistry::new(BarrierPair::probe())),
            pool,
            tables: Arc::default(),
            device: DeviceCounts::default(),
            next_number: AtomicU64::new(0),
            process: Process::current(),
            opened: FileTable::new(),
        }
    }

    /// Fails in a forked child; called before any lock is taken. A forked child has none of the
    /// threads that loads in flight wait for, and may have locks that nobody will release.
    pub(crate) fn require_own_process(&self) -> Result<(), Error> {
        Ok(self.process.require()?)
    }

    /// Opens for direct I/O, or through the kernel's cache if direct reads are refused or would go
    /// through it anyway.
    pub(crate) fn open(
        &self,
        open: impl Fn(Access) -> Result<Arc<dyn IoFile>, pagekeeper_io::Error>,
    ) -> Result<Arc<dyn IoFile>, Error> {
        self.require_own_process()?;
        let CacheSettings { access, page_shift, .. } = self.settings;
        match open(access) {
            Err(pagekeeper_io::Error::NoDirect { .. }) => Ok(open(Access::Buffered)?),
            Ok(file) if access == Access::Direct && !kernel_leftovers::is_direct(&*file, 1 << page_shift) => {
                Ok(open(Access::Buffered)?)
            }
            other => Ok(other?),
        }
    }

    /// Returns a handle of a file that is already open.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        file: Arc<dyn IoFile>,
        kind: FileKind,
        options: &OpenOptions,
    ) -> Result<Arc<FileHandle>, Error> {
        self.require_own_process()?;
        let mut stat = file.stat()?;
        if let FileKind::Owned { max_bytes } = kind {
            stat.size = max_bytes;
        }
        let path = file.path().to_owned();
        let page_size = 1_usize << self.settings.page_shift;
        let pages = u32::try_from(stat.size.div_ceil(page_size as u64))
            .ok()
            .filter(|&pages| pages < u32::MAX)
            .ok_or_else(|| Error::TooLarge { path: path.clone(), bytes: stat.size, page_size })?;
        let table = EntryTable::new(self.settings.kernel_page, pages, &self.tables)
            .map_err(|errno| Error::NoMemory { path: path.clone(), errno: errno.raw_os_error() })?;
        self.clear_ahead.note_use(self, 0);
        self.pool.tidy(self.slots.readers());
        self.settle_budget();
        let found_resident =
            if file.access() == Access::Direct { kernel_leftovers::drop_leftovers(&*file) } else { 0 };
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let page_table = Arc::new(PageTable::new(number, table).with_priority(options.priority));
        if pages > 0 {
            self.pool.add(Arc::clone(&page_table));
        }
        let verifier = options.verifier.clone().or_else(|| self.settings.verifier.clone());
        let handle =
            FileHandle::new(Arc::clone(self), page_table, file, stat, verifier, kind, found_resident);
        Ok(Arc::new(handle))
    }

    /// Loans frames for the whole tables of all open files, if the cache was built that way.
    pub(crate) fn settle_budget(&self) {
        if self.settings.reserve_tables {
            let tables =
                self.tables.load(Ordering::Relaxed).min(self.settings.memory / TABLES_BUDGET_DIVISOR);
            let frames = tables.div_ceil(1 << self.settings.page_shift);
            let Ok(frames) = u32::try_from(frames) else {
                unreachable!("a share of the frames, which are fewer than 2^28")
            };
            self.pool.reserve(frames, self.slots.readers());
        }
    }

    /// Frees frames, but retires no more while a batch waits for readers. Returns whether some are
    /// free now.
    pub(crate) fn make_room_patiently(&self) -> bool {
        self.pool.make_room_patiently(self.slots.readers())
    }

    /// Frees frames. Returns whether some are free now.
    pub(crate) fn make_room(&self) -> bool {
        self.pool.make_room(self.slots.readers())
    }

    pub(crate) fn stats(&self) -> CacheStats {
        if !self.process.is_current() {
            return CacheStats::default();
        }
        let (resident_pages, counts) = self.pool.totals();
        let hits = self.slots.readers().hits();
        let capacity_pages = u64::from(self.pool.limit());
        CacheStats {
            resident_pages,
            capacity_pages,
            page_size: 1 << self.settings.page_shift,
            ..CacheStats::counted(hits, counts, &self.device)
        }
    }
}

/// The state that the clones of a [`CachedFile`](crate::CachedFile) share.
pub(crate) struct FileHandle {
    pub(crate) fast_path: FastPath,
    pub(crate) shared: Arc<CacheState>,
    pub(crate) page_table: Arc<PageTable>,
    descriptor: Descriptor,
    pub(crate) access: Access,
    pub(crate) path: PathBuf,
    pub(crate) stat: FileStat,
    pub(crate) verifier: Option<PageVerifier>,
    kind: FileKind,
    pub(crate) inode_change: InodeChange,
    pub(crate) found_resident: u64,
}

/// The changes that a file may undergo while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// None: pages that are loaded later match those that were loaded before.
    Immutable,
    /// None, and its path may not be its name.
    Adopted,
    /// Its owner writes it, and notifies the cache. Its length counts as the maximum that it may
    /// grow to, in bytes.
    Owned { max_bytes: u64 },
}

impl FileHandle {
    pub(crate) fn new(
        shared: Arc<CacheState>,
        page_table: Arc<PageTable>,
        io: Arc<dyn IoFile>,
        stat: FileStat,
        verifier: Option<PageVerifier>,
        kind: FileKind,
        found_resident: u64,
    ) -> Self {
        let (access, path) = (io.access(), io.path().to_owned());
        let (frames, slots) = (shared.pool.arena.first(), shared.slots.number_if_asymmetric());
        let page_shift = shared.settings.page_shift;
        let fast_path =
            FastPath::new(&page_table.table, stat.size, frames, page_shift, slots, shared.process);
        let inode_change = InodeChange::new(&*io, &stat);
        let descriptor = match &shared.descriptors {
            Some(all) if kind == FileKind::Immutable => all.lend(io, &stat),
            _ => Descriptor::Kept(io),
        };
        Self {
            fast_path,
            shared,
            page_table,
            descriptor,
            access,
            path,
            stat,
            verifier,
            kind,
            inode_change,
            found_resident,
        }
    }

    /// Returns the file, unless it was closed.
    pub(crate) fn io(&self) -> Result<OpenFile<'_>, Error> {
        if self.is_closed() {
            return Err(self.closed());
        }
        self.descriptor.get(self.shared.descriptors.as_ref(), &*self.shared.settings.io)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.fast_path.is_closed()
    }

    pub(crate) fn closed(&self) -> Error {
        Error::Closed { path: self.path.clone() }
    }

    pub(crate) fn close(&self) {
        if !self.shared.process.is_current() {
            return;
        }
        // Fetches these fields early: they are rarely in the processor's caches at a close.
        let (table, pool) = (&self.page_table.table, &self.shared.pool);
        fetch_line(std::ptr::from_ref(table).cast());
        fetch_line(std::ptr::from_ref(&pool.in_use).cast());
        fetch_line(std::ptr::from_ref(&pool.just_closed).cast());
        self.fast_path.close();
        self.descriptor.close();
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

    /// Returns the number of the file's bytes in page `page`.
    pub(crate) fn page_len(&self, page: u32) -> usize {
        let shift = self.shared.settings.page_shift;
        let left = self.stat.size.saturating_sub(u64::from(page) << shift);
        #[expect(clippy::cast_possible_truncation, reason = "at most a page")]
        let len = left.min(1 << shift) as usize;
        len
    }

    /// Returns the position of a byte of the file within its page.
    #[inline]
    pub(crate) fn offset_in_page(&self, offset: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the page size")]
        let within = (offset & ((1 << self.shared.settings.page_shift) - 1)) as usize;
        within
    }

    /// Returns the page for a number given by a user.
    pub(crate) fn page_number(&self, page: PageNo) -> Result<u32, Error> {
        let pages = self.page_table.table.pages();
        u32::try_from(page.get()).ok().filter(|&page| page < pages).ok_or_else(|| Error::NoSuchPage {
            path: self.path.clone(),
            page,
            pages: pages.into(),
        })
    }

    /// Whether parts of its pages may be read past the cache: misses are buffered reads, and nobody
    /// verifies whole pages.
    pub(crate) fn may_read_from_kernel_cache(&self) -> bool {
        self.access == Access::Buffered && self.verifier.is_none() && !self.is_owned()
    }

    pub(crate) fn is_owned(&self) -> bool {
        matches!(self.kind, FileKind::Owned { .. })
    }

    /// Returns how many of `wanted` bytes from `offset` on the file has. Fails if these are fewer
    /// and the file has grown since: a silent short read would be wrong.
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

    /// Fails if the file differs from the file at the open, and reports how. `range` is the range
    /// to be read. A file that its owner writes is not checked.
    pub(crate) fn check_unchanged(&self, io: &dyn IoFile, range: std::ops::Range<u64>) -> Result<(), Error> {
        if self.is_owned() {
            return Ok(());
        }
        let (now, opened) = (io.stat()?, self.stat);
        let has_same_times = now.size == opened.size && now.modified == opened.modified;
        if has_same_times && self.is_content_unchanged(io, &now) {
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

impl Drop for FileHandle {
    fn drop(&mut self) {
        if !self.shared.process.is_current() {
            return;
        }
        self.close();
        // Not if the path was opened again meanwhile.
        self.shared.opened.remove_if(&*self.path, |handle| handle.strong_count() == 0);
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileHandle")
            .field("path", &self.path)
            .field("stat", &self.stat)
            .finish_non_exhaustive()
    }
}

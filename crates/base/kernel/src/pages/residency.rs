//! Residency: how much of a file is in the page cache, and in what state.
//!
//! It uses cachestat(2) (Linux 6.5), whose cost depends on the resident pages, not on the file's
//! size. If the kernel lacks that call, or a sandbox blocks it, mincore(2) is used, which shows
//! only which pages are resident. Both require ownership of the file, write permission or
//! `CAP_FOWNER`. Otherwise cachestat returns EPERM and mincore claims *all resident*: that is
//! reported as an [`Error`] with [`Error::is_denied`], never as a figure. Files on overlayfs are
//! queried by mincore(2) too, since cachestat returns 0 for them (measured on Linux 6.18).
//! Read-ahead in flight counts as resident.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use crate::sys::cachestat::{PageCounts, cachestat};
use crate::sys::mapping::FileMapping;
use crate::{Error, FileSystem, InspectedFile, Result, page_size};

/// The source of residency figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResidencySource {
    /// cachestat(2): all figures are known.
    Cachestat,
    /// mincore(2): only [`Residency::resident`] is known, the others are `None`.
    Mincore,
}

/// Page-cache counts of a byte range of a file, in bytes (whole pages).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Residency {
    /// Bytes in the page cache.
    pub resident: u64,
    /// Bytes changed and not yet written to disk.
    pub dirty: Option<u64>,
    /// Bytes being written to disk.
    pub writeback: Option<u64>,
    /// Bytes that were resident and were reclaimed by the kernel under memory pressure. Released
    /// pages leave no trace here.
    pub evicted: Option<u64>,
    /// The part of `evicted` that was reclaimed so recently that reading it again would count as
    /// thrashing.
    pub recently_evicted: Option<u64>,
    /// The source of the figures.
    pub source: ResidencySource,
}

impl Residency {
    /// Returns the bytes dirty or under writeback; 0 if unknown.
    pub fn unwritten(&self) -> u64 {
        self.dirty.unwrap_or(0) + self.writeback.unwrap_or(0)
    }

    fn from_counts(counts: PageCounts) -> Self {
        let bytes = |pages: u64| pages * page_size();
        Self {
            resident: bytes(counts.cache),
            dirty: Some(bytes(counts.dirty)),
            writeback: Some(bytes(counts.writeback)),
            evicted: Some(bytes(counts.evicted)),
            recently_evicted: Some(bytes(counts.recently_evicted)),
            source: ResidencySource::Cachestat,
        }
    }

    /// Returns the sum over the parts of a file; a figure unknown for one part is unknown for the
    /// sum.
    fn sum(parts: &[Self]) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        parts.iter().fold(Self::from_counts(PageCounts::default()), |sum, part| Self {
            resident: sum.resident + part.resident,
            dirty: both(sum.dirty, part.dirty),
            writeback: both(sum.writeback, part.writeback),
            evicted: both(sum.evicted, part.evicted),
            recently_evicted: both(sum.recently_evicted, part.recently_evicted),
            source: if part.source == ResidencySource::Mincore {
                ResidencySource::Mincore
            } else {
                sum.source
            },
        })
    }

    fn from_mincore(resident: u64) -> Self {
        Self {
            resident,
            dirty: None,
            writeback: None,
            evicted: None,
            recently_evicted: None,
            source: ResidencySource::Mincore,
        }
    }
}

/// Counts the pages of `range`; an end of `u64::MAX` means the end of the file.
///
/// A page belongs to the range when any of its bytes does.
///
/// ```
/// use pagekeeper_kernel::{InspectedFile, Links, residency};
/// let path = std::env::current_exe()?;
/// let file = InspectedFile::open(&path, Links::Refuse)?;
/// assert!(residency(&file, 0..u64::MAX)?.resident > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn residency(file: &InspectedFile, range: Range<u64>) -> Result<Residency> {
    if range.start >= range.end {
        return Ok(Residency::from_counts(PageCounts::default()));
    }
    let len = if range.end == u64::MAX { 0 } else { range.end - range.start };
    match cachestat(file, range.start, len) {
        // The pages of an overlayfs file belong to the file of the lower layer, which only mincore
        // sees (Linux 6.18).
        Ok(counts) if counts == PageCounts::default() && file.size() > 0 && is_overlay(file)? => {
            residency_by_mincore(file, range)
        }
        Ok(counts) => Ok(Residency::from_counts(counts)),
        // A sandbox's filter answers EPERM to a call that it does not know, as the kernel does
        // without permission.
        Err(Errno::NOSYS | Errno::PERM) => residency_by_mincore(file, range),
        Err(errno) => Err(Error::call("cachestat", file.path(), errno)),
    }
}

/// Whether the file's pages belong to a file of another file system, below an overlay.
pub(crate) fn is_overlay(file: &InspectedFile) -> Result<bool> {
    Ok(file.file_system()? == FileSystem::Overlay)
}

/// Returns the resident pages only, at a cost that depends on the file's size. This is the
/// fallback, public so that other tools and tests can compare.
pub fn residency_by_mincore(file: &InspectedFile, range: Range<u64>) -> Result<Residency> {
    require_truthful_mincore(file)?;
    let mut resident_pages = 0;
    for_each_mincore_chunk(file, range, |_, pages| {
        resident_pages += pages.iter().filter(|&&page| page & 1 == 1).count() as u64;
    })?;
    Ok(Residency::from_mincore(resident_pages * page_size()))
}

/// Fails with EPERM if mincore would claim every page to be resident: for callers that neither own
/// the file nor may write it (`can_do_mincore` of mm/mincore.c, Linux 5.2).
pub(crate) fn require_truthful_mincore(file: &InspectedFile) -> Result<()> {
    let denied = || Error::call("mincore", file.path(), Errno::PERM);
    let _call = file.announce_call()?;
    let stat = rustix::fs::fstat(file).map_err(|e| Error::call("fstat", file.path(), e))?;
    let owner = stat.st_uid == rustix::process::geteuid().as_raw();
    if owner || may_write(file) || may_ignore_ownership(file) { Ok(()) } else { Err(denied()) }
}

/// Whether the caller has write permission, checked on the open file itself.
fn may_write(file: &InspectedFile) -> bool {
    use rustix::fs::{Access, AtFlags};
    rustix::fs::accessat(file, c"", Access::WRITE_OK, AtFlags::EMPTY_PATH | AtFlags::EACCESS).is_ok()
}

/// Whether `O_NOATIME` is granted, as it is to exactly those callers to whom mincore answers
/// because of ownership: owners and `CAP_FOWNER` (open(2)). The flag is cleared first: the kernel
/// checks only when it is newly set, and somebody else may have opened the file. It is left as
/// found, unless it was set and this caller may not set it.
fn may_ignore_ownership(file: &InspectedFile) -> bool {
    use rustix::fs::OFlags;
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    let without = flags - OFlags::NOATIME;
    let granted = rustix::fs::fcntl_setfl(file, without).is_ok()
        && rustix::fs::fcntl_setfl(file, flags | OFlags::NOATIME).is_ok();
    // Left set if it was set before, otherwise cleared: a caller that may set it may do either.
    granted && (flags.contains(OFlags::NOATIME) || rustix::fs::fcntl_setfl(file, without).is_ok())
}

/// Maps the range chunk by chunk (constant memory) and passes each chunk's start offset and mincore
/// bytes to `each`.
pub(crate) fn for_each_mincore_chunk(
    file: &InspectedFile,
    range: Range<u64>,
    mut each: impl FnMut(u64, &[u8]),
) -> Result<()> {
    /// Bytes mapped at once.
    const MINCORE_CHUNK_BYTES: u64 = 1 << 30;
    let page = page_size();
    let end = range.end.min(file.size_now()?).next_multiple_of(page);
    let mut start = range.start / page * page;
    let mut pages = Vec::new();
    while start < end {
        let len = usize::try_from(MINCORE_CHUNK_BYTES.min(end - start)).unwrap_or(usize::MAX);
        let map = FileMapping::new(file, start, len).map_err(|e| Error::call("mmap", file.path(), e))?;
        map.mincore(&mut pages).map_err(|e| Error::call("mincore", file.path(), e))?;
        each(start, &pages);
        start += len as u64;
    }
    Ok(())
}

/// Counts as [`residency`] does, with the range of a large file shared among up to `threads`
/// threads.
///
/// Threads are started only after counting has taken a while: a large file with few resident pages
/// costs next to nothing. Each stretch of the file is counted at one moment, but not all of them at
/// the same.
pub fn residency_wide(file: &InspectedFile, range: Range<u64>, threads: usize) -> Result<Residency> {
    /// Minimum size of a large file in bytes: smaller ones are counted in a millisecond or two,
    /// whatever is resident.
    const LARGE_FILE_BYTES_MIN: u64 = 64 << 20;
    /// Number of stretches: enough to share out evenly, few enough that the calls cost nothing.
    const STRETCHES_MAX: u64 = 256;
    let end = range.end.min(file.size());
    let len = end.saturating_sub(range.start);
    if threads < 2 || len < LARGE_FILE_BYTES_MIN {
        return residency(file, range);
    }
    let stretch = len.div_ceil(STRETCHES_MAX).next_multiple_of(page_size());
    let count = len.div_ceil(stretch);
    let counted = count_stretches(usize::try_from(count).unwrap_or(usize::MAX), threads, &|index| {
        let start = range.start + index as u64 * stretch;
        // The last one includes data appended since the file was opened.
        let end = if index as u64 + 1 == count { range.end } else { start + stretch };
        residency(file, start..end)
    })?;
    Ok(Residency::sum(&counted))
}

/// A map of a file's residency: the file in equal cells, each with its resident bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ResidencyMap {
    /// Bytes per cell (a multiple of the page size); the end of the file may cut the last one
    /// short.
    pub cell_bytes: u64,
    /// Resident bytes of each cell, in file order.
    pub resident: Vec<u64>,
    /// The sum of all cells.
    pub total: Residency,
}

impl ResidencyMap {
    /// Returns the resident share of each cell of a file of this size as a level from 0 to `full`:
    /// 0 only for none, and `full` only for all.
    pub fn levels(&self, file_size: u64, full: u8) -> Vec<u8> {
        let level = |(index, &resident): (usize, &u64)| {
            // The last cell ends at the end of the file, which may have moved since.
            let rest = file_size.saturating_sub(index as u64 * self.cell_bytes);
            let whole = rest.clamp(1, self.cell_bytes).next_multiple_of(page_size());
            match resident {
                0 => 0,
                _ if resident >= whole => full,
                _ => {
                    let share = u128::from(resident) * u128::from(full) / u128::from(whole);
                    u8::try_from(share).unwrap_or(full).clamp(1, full - 1)
                }
            }
        };
        self.resident.iter().enumerate().map(level).collect()
    }
}

/// Maps the residency of the whole file to at most `cells` cells (at least 1), with up to `threads`
/// threads as in [`residency_wide`], at little more than its cost. Memory use depends on `cells`
/// alone.
pub fn residency_map(file: &InspectedFile, cells: usize, threads: usize) -> Result<ResidencyMap> {
    /// Size in bytes below which one extra call for all cells is cheaper than one per cell, in case
    /// all are alike.
    const SMALL_FILE_BYTES_MAX: u64 = 64 << 20;
    let size = file.size_now()?;
    let page = page_size();
    let cell_bytes =
        size.div_ceil(cells.max(1) as u64).max(1).checked_next_multiple_of(page).unwrap_or(1 << 63);
    let count = usize::try_from(size.div_ceil(cell_bytes)).unwrap_or(usize::MAX);
    let cell = |index: usize| {
        let start = index as u64 * cell_bytes;
        start..start.saturating_add(cell_bytes).min(size)
    };
    if size < SMALL_FILE_BYTES_MAX {
        let total = residency(file, 0..size)?;
        if total.resident == 0 || total.resident == size.next_multiple_of(page) {
            let all_or_none = |index| {
                if total.resident == 0 { 0 } else { whole_pages(&cell(index)) }
            };
            return Ok(ResidencyMap { cell_bytes, resident: (0..count).map(all_or_none).collect(), total });
        }
    }
    let counted = count_stretches(count, threads, &|index| residency(file, cell(index)))?;
    let resident = counted.iter().map(|counts| counts.resident).collect();
    Ok(ResidencyMap { cell_bytes, resident, total: Residency::sum(&counted) })
}

/// Returns the length of the pages that a page-aligned range touches.
fn whole_pages(range: &Range<u64>) -> u64 {
    (range.end - range.start).div_ceil(page_size()) * page_size()
}

/// Counts stretches 0 to `count` (exclusive), in order, by `one`; with `threads` threads if it
/// takes longer than starting them.
fn count_stretches(
    count: usize,
    threads: usize,
    one: &(dyn Fn(usize) -> Result<Residency> + Sync),
) -> Result<Vec<Residency>> {
    /// Time that one thread counts alone: starting the others would take as long.
    const SINGLE_THREAD_TIME_MAX: Duration = Duration::from_micros(300);
    let started = Instant::now();
    let mut counted = Vec::with_capacity(count);
    while counted.len() < count && (threads < 2 || started.elapsed() < SINGLE_THREAD_TIME_MAX) {
        counted.push(one(counted.len())?);
    }
    if counted.len() == count {
        return Ok(counted);
    }
    let next = AtomicUsize::new(counted.len());
    let work = || {
        let mut mine = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(mine);
            }
            mine.push((index, one(index)?));
        }
    };
    let parts: Vec<Result<Vec<(usize, Residency)>>> = std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let join = |helper: std::thread::ScopedJoinHandle<'_, _>| match helper.join() {
            Ok(part) => part,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        std::iter::once(own).chain(helpers.into_iter().map(join)).collect()
    });
    counted.resize(count, Residency::from_counts(PageCounts::default()));
    for part in parts {
        for (index, counts) in part? {
            counted[index] = counts;
        }
    }
    Ok(counted)
}

/// Returns whether cachestat(2) answers at all. It does not for files on an overlay, such as all
/// files of a container.
pub fn has_cachestat() -> bool {
    let made = |flags| rustix::fs::memfd_create("pagekeeper", MemfdFlags::CLOEXEC | flags);
    // `vm.memfd_noexec=2` demands the flag (Linux 6.3); older kernels do not know it.
    let Ok(memory) = made(MemfdFlags::NOEXEC_SEAL).or_else(|_| made(MemfdFlags::empty())) else {
        return false;
    };
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    InspectedFile::open(std::path::Path::new(&path), crate::Links::Follow)
        .and_then(|file| residency(&file, 0..u64::MAX))
        .is_ok_and(|counts| counts.source != ResidencySource::Mincore)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Links;
    use crate::testing::{counts_unwritten, evict_all, file_of, tebibyte};

    #[test]
    fn a_level_distinguishes_none_some_and_all() {
        let page = page_size();
        let resident = [0, 1, 50, 99, 100, 1].map(|pages| pages * page).to_vec();
        let map = ResidencyMap { cell_bytes: 100 * page, resident, total: Residency::sum(&[]) };
        assert_eq!(map.levels(500 * page + 1, 8), [0, 1, 4, 7, 8, 8]);
        assert_eq!(map.levels(0, 4)[1..], [4; 5]);
    }

    /// Creates a file with this many pages.
    fn file_of_pages(pages: u64) -> (tempfile::TempDir, InspectedFile) {
        file_of(usize::try_from(pages * page_size()).unwrap())
    }

    #[test]
    fn cachestat_and_mincore_agree() {
        let (page, (_dir, file)) = (page_size(), file_of_pages(64));
        assert_eq!(residency(&file, 0..u64::MAX).unwrap().resident, 64 * page);
        evict_all(&file);
        assert_eq!(residency(&file, 0..u64::MAX).unwrap().resident, 0);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        for index in [3_u64, 17, 63] {
            std::os::unix::fs::FileExt::read_exact_at(file.file(), &mut [0], index * page).unwrap();
        }
        let by_cachestat = residency(&file, 0..u64::MAX).unwrap();
        let by_mincore = residency_by_mincore(&file, 0..u64::MAX).unwrap();
        assert_eq!(by_cachestat.resident, 3 * page);
        assert_eq!(by_mincore.resident, 3 * page);
        assert_eq!((by_mincore.source, by_mincore.dirty), (ResidencySource::Mincore, None));
        assert_eq!(residency(&file, 17 * page..18 * page).unwrap().resident, page);
        assert_eq!(residency_by_mincore(&file, 17 * page..18 * page).unwrap().resident, page);
        assert_eq!(residency(&file, 4 * page..17 * page).unwrap().resident, 0);
    }

    #[test]
    fn dirty_pages_are_counted_until_synced() {
        let (_dir, file) = file_of(0);
        // At least once nobody else has synced the file system in between.
        let is_dirty = |_| {
            std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
            let before = residency(&file, 0..u64::MAX).unwrap();
            assert_eq!(before.resident, 1 << 20);
            before.unwritten() > 0 || !counts_unwritten(&file)
        };
        assert!((0..50).any(is_dirty));
        std::fs::File::open(file.path()).unwrap().sync_all().unwrap();
        assert_eq!(residency(&file, 0..u64::MAX).unwrap().unwritten(), 0);
    }

    #[test]
    fn an_empty_range_has_nothing() {
        let (_dir, file) = file_of(4096);
        assert_eq!(residency(&file, 4096..4096).unwrap().resident, 0);
    }

    #[test]
    fn the_map_shows_where() {
        let (page, (_dir, file)) = (page_size(), file_of_pages(100));
        evict_all(&file);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(file.file(), &mut [0], 50 * page).unwrap();
        let map = residency_map(&file, 100, 2).unwrap();
        assert_eq!(map.cell_bytes, page);
        assert_eq!(map.resident.len(), 100);
        let shown: Vec<usize> = (0..100).filter(|&cell| map.resident[cell] > 0).collect();
        assert_eq!(shown, [50]);
        let coarse = residency_map(&file, 10, 2).unwrap();
        assert_eq!(coarse.resident.iter().sum::<u64>(), page);
        assert_eq!(coarse.resident[5], page);
        assert_eq!((coarse.total, map.total), (map.total, residency(&file, 0..u64::MAX).unwrap()));
    }

    #[test]
    fn the_map_of_a_whole_file_is_full_to_its_last_short_cell() {
        let page = page_size();
        let (_dir, file) = file_of(usize::try_from(10 * page + 1).unwrap());
        let map = residency_map(&file, 4, 1).unwrap();
        assert_eq!(
            (map.cell_bytes, map.resident.as_slice()),
            (3 * page, [3 * page, 3 * page, 3 * page, 2 * page].as_slice())
        );
        assert_eq!(map.total.resident, 11 * page);
    }

    #[test]
    fn several_threads_count_what_one_does() {
        let (_dir, file) = file_of(96 << 20);
        // Aligned to the largest folio, so all of it is dropped.
        rustix::fs::fadvise(&file, 16 << 20, std::num::NonZero::new(32 << 20), rustix::fs::Advice::DontNeed)
            .unwrap();
        let alone = residency(&file, 0..u64::MAX).unwrap();
        assert_eq!(alone.resident, 64 << 20);
        assert_eq!(residency_wide(&file, 0..u64::MAX, 8).unwrap(), alone);
        let odd = 5 << 20..(90 << 20) + 5;
        // The kernel may drop pages between two counts.
        let is_same =
            || residency_wide(&file, odd.clone(), 2).unwrap() == residency(&file, odd.clone()).unwrap();
        assert!((0..10).any(|_| is_same()));
        assert!((0..10).any(|_| {
            residency_map(&file, 7, 8).unwrap().total == residency(&file, 0..u64::MAX).unwrap()
        }));
    }

    #[test]
    fn stretches_are_counted_once_and_in_order_from_many_threads() {
        let slowly = |index: usize| {
            std::thread::sleep(Duration::from_micros(100));
            Ok(Residency::from_mincore(index as u64))
        };
        let counted = count_stretches(100, 8, &slowly).unwrap();
        assert!(counted.iter().enumerate().all(|(index, counts)| counts.resident == index as u64));
        let sum = Residency::sum(&counted);
        assert_eq!((sum.resident, sum.dirty, sum.source), (4950, None, ResidencySource::Mincore));
        let failing = |index: usize| {
            if index == 99 { Err(Error::call("cachestat", "/x", Errno::IO)) } else { slowly(index) }
        };
        assert!(count_stretches(100, 8, &failing).is_err());
    }

    #[test]
    fn a_sparse_file_of_fifteen_tib_costs_nothing() {
        let (_dir, file) = file_of(0);
        let len = 15 * tebibyte(&file);
        std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(len).unwrap();
        let map = residency_map(&file, 4096, 2).unwrap();
        assert_eq!(map.resident.len(), 4096);
        assert!(map.resident.iter().all(|&cell| cell == 0));
    }

    #[test]
    fn asking_leaves_the_open_flags_alone() {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let (_dir, file) = file_of(4096);
        for noatime in [OFlags::empty(), OFlags::NOATIME] {
            let flags = (fcntl_getfl(&file).unwrap() - OFlags::NOATIME) | noatime;
            fcntl_setfl(&file, flags).unwrap();
            assert!(may_ignore_ownership(&file));
            assert_eq!(fcntl_getfl(&file).unwrap() & OFlags::NOATIME, noatime);
        }
    }

    #[test]
    fn strangers_get_an_error_not_a_figure() {
        if !rustix::process::geteuid().is_root() {
            crate::testing::skip("strangers_get_an_error_not_a_figure needs root to give up root");
            return;
        }
        let (_dir, file) = file_of(4096);
        std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let path = file.path().to_path_buf();
        let parent = path.parent().unwrap();
        std::fs::set_permissions(parent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (by_call, by_mincore) = crate::testing::as_nobody(move || {
            let opened_by_nobody = InspectedFile::open(&path, Links::Refuse).unwrap();
            // A file that root opened is no better: the caller counts.
            let by_mincore = residency_by_mincore(&file, 0..u64::MAX);
            (residency(&opened_by_nobody, 0..u64::MAX), by_mincore)
        });
        assert!(by_call.unwrap_err().is_denied());
        assert!(by_mincore.unwrap_err().is_denied());
    }

    #[test]
    fn cachestat_is_detected_on_memory_as_on_a_file() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let file = InspectedFile::open(&path, crate::Links::Refuse).unwrap();
        if file.file_system().unwrap() == FileSystem::Overlay {
            return pagekeeper_testing::skip(
                "cachestat_is_detected_on_memory_as_on_a_file: the temporary directory is on an overlay, which has none",
            );
        }
        assert_eq!(
            has_cachestat(),
            residency(&file, 0..u64::MAX).unwrap().source != ResidencySource::Mincore
        );
    }
}

//! Finds resident pages of a file, by cachestat(2) or mincore(2), for those who read, watch or drop
//! them.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use pagekeeper_policy::WINDOW;
use pagekeeper_policy::stream::StreamWindows;

use crate::counters::Count;
use crate::process::count;
use crate::sys::{self, Errno};

/// Nanoseconds after which pages further ahead are sampled again: others may have brought them in.
pub const STALE_NS: u64 = 2_000_000_000;
/// The largest number of pages in a window.
pub(crate) const WINDOW_PAGES_MAX: usize = (WINDOW / 4096) as usize;

/// Whether cachestat(2) is missing, or forbidden to the process.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// The ways in which the residency of a file can be sampled.
#[derive(Debug, Clone, Copy)]
pub struct ResidencyProbe {
    /// Whether cachestat(2) counts its pages.
    pub(crate) has_counts: bool,
    /// Whether mincore(2) is right for this process; `None` until that is tested.
    sees: Option<bool>,
}

impl ResidencyProbe {
    /// Nothing is tested yet.
    pub const NEW: Self = Self { has_counts: true, sees: None };

    /// Creates one for a file whose pages are counted, or are not.
    pub fn with(has_counts: bool) -> Self {
        Self { has_counts, ..Self::NEW }
    }

    /// Samples a range of a file of `size` bytes, for a stream. Returns `false` if that is not
    /// possible.
    pub fn sample<const PARTIAL_MAX: usize>(
        &mut self,
        stream: &mut StreamWindows<PARTIAL_MAX>,
        fd: c_int,
        range: &Range<u64>,
        size: u64,
    ) -> bool {
        let counts = self.has_counts && !NO_CACHESTAT.load(Ordering::Relaxed);
        match counts.then(|| resident(fd, range)) {
            Some(Ok(bytes)) if stream.record_residency(range, bytes) => return true,
            Some(Ok(_)) => {
                for window in windows(range) {
                    let known =
                        resident(fd, &window).is_ok_and(|bytes| stream.record_residency(&window, bytes));
                    if !known {
                        self.sample_pages(stream, fd, &window, size);
                    }
                }
                return true;
            }
            // Forbidden for this file alone, or for the process.
            Some(Err(Errno(libc::ENOSYS))) => NO_CACHESTAT.store(true, Ordering::Relaxed),
            Some(Err(Errno(libc::EPERM))) if self.sees_pages(fd, size) => {
                NO_CACHESTAT.store(true, Ordering::Relaxed);
            }
            Some(Err(_)) | None => {}
        }
        let can = self.sees_pages(fd, size);
        for window in windows(range).filter(|_| can) {
            self.sample_pages(stream, fd, &window, size);
        }
        can
    }

    /// Returns the resident bytes of the range; `None` if they cannot be seen.
    pub fn resident(&mut self, fd: c_int, range: &Range<u64>) -> Option<u64> {
        if self.has_counts {
            return resident(fd, range).ok();
        }
        if self.sees != Some(true) {
            return None;
        }
        windows(range).try_fold(0_u64, |sum, window| {
            Some(sum + resident_pages(fd, &window, &mut [0; WINDOW_PAGES_MAX])?)
        })
    }

    /// Drops the pages of a range. Returns the bytes that went, and those that stayed.
    pub(crate) fn drop_range(&mut self, fd: c_int, range: &Range<u64>) -> Result<(u64, u64), Errno> {
        let there = self.resident(fd, range).unwrap_or(0);
        sys::drop_pages(fd, range.clone())?;
        let left = self.resident(fd, range).unwrap_or(0);
        Ok((there.saturating_sub(left), left))
    }

    /// Whether the residency of a file of `size` bytes can be seen.
    pub fn can_see(&mut self, fd: c_int, size: u64, has_counts: bool) -> bool {
        self.has_counts = has_counts;
        let counts = has_counts && !NO_CACHESTAT.load(Ordering::Relaxed);
        (counts && resident(fd, &(0..1)).is_ok()) || self.sees_pages(fd, size)
    }

    /// Calls [`sees_pages`] once, and keeps the result.
    fn sees_pages(&mut self, fd: c_int, size: u64) -> bool {
        *self.sees.get_or_insert_with(|| sees_pages(fd, size))
    }

    /// Samples each page of a window if that is possible.
    fn sample_pages<const PARTIAL_MAX: usize>(
        &mut self,
        stream: &mut StreamWindows<PARTIAL_MAX>,
        fd: c_int,
        window: &Range<u64>,
        size: u64,
    ) {
        let mut pages = [0_u8; WINDOW_PAGES_MAX];
        let bytes = if self.sees_pages(fd, size) { resident_pages(fd, window, &mut pages) } else { None };
        let Some(bytes) = bytes else { return count(Count::StreamUnobserved, window.end - window.start) };
        if !stream.record_residency(window, bytes) {
            let count = (window.end - window.start).div_ceil(sys::page_size()) as usize;
            stream.record_pages(window.start, sys::page_size(), pages.get(..count).unwrap_or_default());
        }
    }
}

/// Returns the windows of a range, the first and the last as far as they are in it.
pub(crate) fn windows(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let Range { mut start, end } = *range;
    core::iter::from_fn(move || {
        let window = start..(start / WINDOW + 1).saturating_mul(WINDOW).min(end);
        start = window.end;
        (!window.is_empty()).then_some(window)
    })
}

/// Whether mincore(2) is right for this process. Without permission, it reports all pages as
/// resident, even those behind the end of the file.
pub(crate) fn sees_pages(fd: c_int, size: u64) -> bool {
    let page = sys::page_size();
    let behind = size.saturating_add(1 << 30) / page * page;
    let mut resident = [1];
    sys::mincore(fd, &(behind..behind + page), &mut resident).is_ok() && resident[0] & 1 == 0
}

/// Returns the resident bytes of a window by mincore(2), and marks its resident pages.
pub(crate) fn resident_pages(
    fd: c_int,
    window: &Range<u64>,
    pages: &mut [u8; WINDOW_PAGES_MAX],
) -> Option<u64> {
    let page = sys::page_size();
    let pages = pages.get_mut(..(window.end - window.start).div_ceil(page) as usize)?;
    sys::mincore(fd, window, pages).ok()?;
    Some(pages.iter().filter(|&&is| is & 1 == 1).count() as u64 * page)
}

/// Returns the resident bytes of the range, by cachestat(2).
pub(crate) fn resident(fd: c_int, range: &Range<u64>) -> Result<u64, Errno> {
    sys::cachestat(fd, range.clone()).map(|seen| seen.cached * sys::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    /// Pages may have any size: around an accessed page the kernel maps the others of its 64 KiB,
    /// which may be a single page.
    #[test]
    fn the_probe_agrees_with_residency() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("file");
        let (size, page) = (WINDOW + 10_000, sys::page_size());
        std::fs::write(&path, vec![1; usize::try_from(size).unwrap()]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        let fd = file.as_raw_fd();
        sys::drop_pages(fd, 0..u64::MAX).unwrap();
        sys::advise_order(fd, libc::POSIX_FADV_RANDOM);
        for at in [0, 70_000, 1 << 20, (1 << 20) + 2 * page, WINDOW - 1, WINDOW, size - 1] {
            file.read_exact_at(&mut [0], at).unwrap();
        }
        for window in windows(&(0..size)) {
            let count = usize::try_from((window.end - window.start).div_ceil(page)).unwrap();
            let differs = || {
                let (mut probed, mut resident) = ([1; WINDOW_PAGES_MAX], [0; WINDOW_PAGES_MAX]);
                resident_pages(fd, &window, &mut resident).unwrap();
                crate::pages::page_probe::probe(fd, &window, &mut probed).unwrap();
                // The first page of each 64 KiB is read. It may already be there when the read
                // returns that it was not.
                let is_first = |nth: usize| (nth as u64 * page).is_multiple_of(64 << 10);
                (0..count)
                    .find(|&nth| probed[nth] != resident[nth] & 1 && !(is_first(nth) && probed[nth] == 1))
            };
            // A page that the kernel has locked at this moment is not mapped with those around it.
            let found = (0..20).map(|_| differs()).find(Option::is_none);
            assert!(found.is_some(), "page {:?} of {page} bytes in {window:?}", differs());
        }
    }
}

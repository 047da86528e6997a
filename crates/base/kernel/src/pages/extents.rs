//! Extents: the exact resident pages of a file, as byte ranges in file order.
//!
//! Ranges are queried by cachestat(2). An empty or full range needs nothing more, a partial one is
//! split, and the smallest ones are read page by page with mincore(2). Without cachestat only
//! mincore is used.
//!
//! Invariants: memory use does not depend on the file's size or the number of resident pages.
//! Extents are sorted, disjoint and do not touch. They consist of whole pages, so the last may end
//! past the end of the file.
//!
//! Fails with [`Error::is_denied`] if the kernel would not report the truth (see
//! [`residency`](crate::residency())). Read-ahead in flight counts as resident in a full range, and
//! as absent in a partial one.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::Range;

use rustix::io::Errno;

use crate::pages::residency::require_truthful_mincore;
use crate::sys::cachestat::cachestat;
use crate::sys::mapping::FileMapping;
use crate::{Error, InspectedFile, Result, page_size};

/// Minimum size of a first-level range in bytes: small enough that recounting the parts of a
/// partial one is cheap. One cachestat of an empty range costs 0.2 µs whatever its size (measured
/// on Linux 6.18).
const FIRST_RANGE_BYTES_MIN: u64 = 64 << 20;

/// Approximate maximum number of first-level ranges in a huge file, so that 15 TiB without resident
/// pages cost about a millisecond.
const FIRST_RANGES_MAX: u64 = 4096;

/// Number of parts that a partial range is split into.
const PARTS_PER_SPLIT: u64 = 32;

/// Maximum size in bytes of a partial range that is read by mincore.
const MINCORE_RANGE_BYTES_MAX: u64 = 2 << 20;

/// A part of a file whose pages are all resident or all absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResidencyRun {
    pub(crate) range: Range<u64>,
    pub(crate) resident: bool,
}

/// An iterator over the runs of a range in order, each of maximum length.
#[derive(Debug)]
pub(crate) struct ResidencyRuns<'a> {
    file: &'a InspectedFile,
    has_cachestat: bool,
    /// The rest, not split into ranges yet.
    rest: Range<u64>,
    first_range_bytes: u64,
    /// Ranges to inspect, the next one last.
    ranges: Vec<Range<u64>>,
    /// Inspected but not returned yet: the last one may still grow.
    found: VecDeque<ResidencyRun>,
    pages: Vec<u8>,
    failed: bool,
}

impl<'a> ResidencyRuns<'a> {
    /// Creates the runs of the file's current pages that `range` touches.
    pub(crate) fn new(file: &'a InspectedFile, range: Range<u64>) -> Result<Self> {
        let page = page_size();
        let end = range.end.min(file.size_now()?).next_multiple_of(page);
        let start = (range.start / page * page).min(end);
        let has_cachestat = match cachestat(file, 0, 1) {
            Ok(_) => true,
            // A sandbox's filter answers EPERM to calls it does not know: mincore may still be
            // truthful.
            Err(Errno::NOSYS | Errno::PERM) => {
                require_truthful_mincore(file)?;
                false
            }
            Err(errno) => return Err(Error::call("cachestat", file.path(), errno)),
        };
        Ok(Self {
            file,
            has_cachestat,
            rest: start..end,
            first_range_bytes: ((end - start) / FIRST_RANGES_MAX)
                .next_multiple_of(FIRST_RANGE_BYTES_MIN)
                .max(FIRST_RANGE_BYTES_MIN),
            ranges: Vec::new(),
            found: VecDeque::new(),
            pages: Vec::new(),
            failed: false,
        })
    }

    fn push_run(&mut self, range: Range<u64>, resident: bool) {
        debug_assert!(!range.is_empty());
        debug_assert!(
            self.found.back().is_none_or(|last| last.range.end == range.start),
            "in order, without gaps"
        );
        match self.found.back_mut() {
            Some(last) if last.resident == resident => last.range.end = range.end,
            _ => self.found.push_back(ResidencyRun { range, resident }),
        }
    }

    fn next_range(&mut self) -> Option<Range<u64>> {
        if let Some(range) = self.ranges.pop() {
            return Some(range);
        }
        if self.rest.is_empty() {
            return None;
        }
        // Multiples of its size, so that ranges for mincore cover whole large folios.
        let end = (self.rest.start / self.first_range_bytes + 1) * self.first_range_bytes;
        let range = self.rest.start..end.min(self.rest.end);
        self.rest.start = range.end;
        Some(range)
    }

    fn inspect(&mut self, range: Range<u64>) -> Result<()> {
        if !self.has_cachestat {
            return self.inspect_pages(range);
        }
        let len = range.end - range.start;
        let counts = cachestat(self.file, range.start, len)
            .map_err(|e| Error::call("cachestat", self.file.path(), e))?;
        if counts.cache == 0 || counts.cache == len / page_size() {
            self.push_run(range, counts.cache > 0);
        } else if len <= MINCORE_RANGE_BYTES_MAX {
            self.inspect_pages(range)?;
        } else {
            let step = (len / PARTS_PER_SPLIT).max(MINCORE_RANGE_BYTES_MAX).next_multiple_of(page_size());
            let pieces = len.div_ceil(step);
            for index in (0..pieces).rev() {
                let start = range.start + index * step;
                self.ranges.push(start..(start + step).min(range.end));
            }
        }
        Ok(())
    }

    fn inspect_pages(&mut self, range: Range<u64>) -> Result<()> {
        let page = page_size();
        let mut at = range.start;
        while at < range.end {
            let part = at..(at + FIRST_RANGE_BYTES_MIN).min(range.end);
            let len = usize::try_from(part.end - part.start).unwrap_or(usize::MAX);
            let map = match FileMapping::new(self.file, part.start, len) {
                Ok(map) => map,
                // The last page of the largest possible file: mmap(2) refuses a mapping that ends
                // past 2^63 - 1.
                Err(Errno::OVERFLOW) if self.has_cachestat => {
                    at = part.end;
                    self.count_each_page(part)?;
                    continue;
                }
                Err(errno) => return Err(Error::call("mmap", self.file.path(), errno)),
            };
            let mut pages = std::mem::take(&mut self.pages);
            map.mincore(&mut pages).map_err(|e| Error::call("mincore", self.file.path(), e))?;
            let mut start = part.start;
            for run in pages.chunk_by(|a, b| a & 1 == b & 1) {
                let end = start + run.len() as u64 * page;
                self.push_run(start..end, run[0] & 1 == 1);
                start = end;
            }
            self.pages = pages;
            at = part.end;
        }
        Ok(())
    }

    fn count_each_page(&mut self, range: Range<u64>) -> Result<()> {
        let page = page_size();
        for start in range.step_by(usize::try_from(page).unwrap_or(usize::MAX)) {
            let counts = cachestat(self.file, start, page)
                .map_err(|e| Error::call("cachestat", self.file.path(), e))?;
            self.push_run(start..start + page, counts.cache > 0);
        }
        Ok(())
    }
}

impl Iterator for ResidencyRuns<'_> {
    type Item = Result<ResidencyRun>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        while self.found.len() < 2 {
            let Some(range) = self.next_range() else {
                break;
            };
            if let Err(error) = self.inspect(range) {
                self.failed = true;
                return Some(Err(error));
            }
        }
        self.found.pop_front().map(Ok)
    }
}

impl FusedIterator for ResidencyRuns<'_> {}

/// The resident extents of a range in file order, as returned by [`resident_extents`].
#[derive(Debug)]
pub struct ResidentExtents<'a>(ResidencyRuns<'a>);

impl Iterator for ResidentExtents<'_> {
    type Item = Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|run| match run {
            Ok(run) => run.resident.then_some(Ok(run.range)),
            Err(error) => Some(Err(error)),
        })
    }
}

impl FusedIterator for ResidentExtents<'_> {}

/// Returns the resident pages of `range`; an end of `u64::MAX` means the end of the file.
///
/// The extents are sorted byte ranges of whole pages that never touch each other. Pages loaded or
/// dropped meanwhile may or may not be reported.
///
/// ```
/// use pagekeeper_kernel::{InspectedFile, Links, resident_extents};
/// let file = InspectedFile::open(std::env::current_exe()?, Links::Refuse)?;
/// for extent in resident_extents(&file, 0..u64::MAX)? {
///     let extent = extent?;
///     println!("{} bytes from {}", extent.end - extent.start, extent.start);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn resident_extents(file: &InspectedFile, range: Range<u64>) -> Result<ResidentExtents<'_>> {
    ResidencyRuns::new(file, range).map(ResidentExtents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::residency::for_each_mincore_chunk;
    use crate::testing::{evict_all, file_of, tebibyte};
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    /// Returns the number of bytes in a test's MiB.
    fn mib() -> u64 {
        (1 << 20) / page_size()
    }

    fn extents(file: &InspectedFile, range: Range<u64>) -> Vec<Range<u64>> {
        resident_extents(file, range).unwrap().collect::<Result<_>>().unwrap()
    }

    fn one(extent: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(extent).collect()
    }

    /// Returns the extents page by page: slow, but simple.
    fn by_mincore(file: &InspectedFile) -> Vec<Range<u64>> {
        let (page, mut found) = (page_size(), Vec::<Range<u64>>::new());
        for_each_mincore_chunk(file, 0..u64::MAX, |start, pages| {
            for (index, _) in pages.iter().enumerate().filter(|(_, byte)| **byte & 1 == 1) {
                let at = start + index as u64 * page;
                match found.last_mut() {
                    Some(last) if last.end == at => last.end = at + page,
                    _ => found.push(at..at + page),
                }
            }
        })
        .unwrap();
        found
    }

    fn load_single_pages(file: &InspectedFile, pages: &[u64]) {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random).unwrap();
        for number in pages {
            file.file().read_exact_at(&mut [0; 1], number * page_size()).unwrap();
        }
    }

    #[test]
    fn an_empty_and_a_full_file_are_one_stretch() {
        let page = page_size();
        let (_dir, file) = file_of(8 << 20);
        assert_eq!(extents(&file, 0..u64::MAX), one(0..8 << 20));
        assert_eq!(extents(&file, 5 * page + 1..9 * page + 1), one(5 * page..10 * page));
        evict_all(&file);
        assert!(extents(&file, 0..u64::MAX).is_empty());
        let stretches: Vec<_> = ResidencyRuns::new(&file, 0..u64::MAX).unwrap().map(Result::unwrap).collect();
        assert_eq!(stretches, [ResidencyRun { range: 0..8 << 20, resident: false }]);
    }

    #[test]
    fn scattered_pages_are_found_exactly() {
        let (page, mib) = (page_size(), mib());
        let (_dir, file) = file_of(200 << 20);
        evict_all(&file);
        // First and last, at the seams of ranges and leaves, alone and in pairs.
        let (window, range, odd) = (2 * mib, 64 * mib, 78 * mib);
        let pages =
            [0, 1, window - 1, window, window + 1, range - 1, range, odd, odd + 1, 156 * mib, 200 * mib - 1];
        load_single_pages(&file, &pages);
        let found = extents(&file, 0..u64::MAX);
        assert_eq!(found, by_mincore(&file));
        let loaded: Vec<u64> =
            found.iter().flat_map(|extent| extent.start / page..extent.end / page).collect();
        assert_eq!(loaded, pages);
        assert_eq!(
            extents(&file, window * page..(odd + 1) * page),
            [(window, 2), (range - 1, 2), (odd, 1)]
                .map(|(first, count)| first * page..(first + count) * page)
        );
    }

    #[test]
    fn the_stretches_cover_the_range_without_a_gap() {
        let (_dir, file) = file_of((10 << 20) + 100);
        evict_all(&file);
        load_single_pages(&file, &[7, 9, 3 * mib(), 10 * mib()]);
        let mut at = 0;
        let mut last = None;
        for stretch in ResidencyRuns::new(&file, 0..u64::MAX).unwrap() {
            let stretch = stretch.unwrap();
            assert_eq!(stretch.range.start, at);
            assert_ne!(last, Some(stretch.resident));
            at = stretch.range.end;
            last = Some(stretch.resident);
        }
        assert_eq!(at, (10 << 20) + page_size());
    }

    #[test]
    fn a_sparse_file_of_fifteen_tib_is_one_stretch() {
        let (page, (_dir, file)) = (page_size(), file_of(0));
        let tebibyte = tebibyte(&file);
        std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(15 * tebibyte).unwrap();
        assert!(extents(&file, 0..u64::MAX).is_empty());
        load_single_pages(&file, &[7 * tebibyte / page + 3]);
        assert_eq!(extents(&file, 0..u64::MAX), one(7 * tebibyte + 3 * page..7 * tebibyte + 4 * page));
    }

    #[test]
    fn nothing_has_no_extents() {
        let page = page_size();
        let (_dir, file) = file_of(4096);
        assert!(extents(&file, page..u64::MAX).is_empty());
        assert!(extents(&file, 9 * page..10 * page).is_empty());
        let (_dir, empty) = file_of(0);
        assert!(extents(&empty, 0..u64::MAX).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_pattern_is_found_as_mincore_sees_it(pages in prop::collection::btree_set(0..8 * mib(), 0..200)) {
            let (_dir, file) = file_of(8 << 20);
            evict_all(&file);
            let pages: Vec<u64> = pages.into_iter().collect();
            load_single_pages(&file, &pages);
            prop_assert_eq!(extents(&file, 0..u64::MAX), by_mincore(&file));
        }
    }
}

//! The sums below the table of `stat`, in which the unknown stays unknown.

use pagekeeper_kernel::{Residency, page_size};

/// The sum of all files. The optional figures are `None` where they are known of no file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) files: u64,
    pub(super) size: u64,
    pub(super) resident: u64,
    /// Sizes of the files whose residency is known, in whole pages: what `resident` is a share of.
    pub(super) whole_pages: u64,
    pub(super) dirty: Sum,
    pub(super) writeback: Sum,
    pub(super) evicted: Sum,
    pub(super) recently_evicted: Sum,
    pub(super) unknown_files: u64,
    /// Files of which the fallback knew only what is resident.
    pub(super) resident_only_files: u64,
}

/// A sum of figures some of which are unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    known: u64,
    any_known: bool,
    any_unknown: bool,
}

impl Sum {
    fn add(&mut self, figure: Option<u64>) {
        match figure {
            Some(bytes) => {
                self.known += bytes;
                self.any_known = true;
            }
            None => self.any_unknown = true,
        }
    }

    /// The sum of what is known; `None` if files were there and nothing is known of any.
    pub(super) fn get(self) -> Option<u64> {
        (self.any_known || !self.any_unknown).then_some(self.known)
    }
}

impl Totals {
    /// Adds a file.
    pub(super) fn add(&mut self, size: u64, counts: Option<&Residency>) {
        self.files += 1;
        self.size = self.size.saturating_add(size);
        if let Some(counts) = counts {
            self.resident += counts.resident;
            self.whole_pages = self.whole_pages.saturating_add(size.next_multiple_of(page_size()));
            self.resident_only_files += u64::from(counts.dirty.is_none());
        } else {
            self.unknown_files += 1;
        }
        self.dirty.add(counts.and_then(|c| c.dirty));
        self.writeback.add(counts.and_then(|c| c.writeback));
        self.evicted.add(counts.and_then(|c| c.evicted));
        self.recently_evicted.add(counts.and_then(|c| c.recently_evicted));
    }

    /// The share of known files' pages that is resident is undefined where nothing is known.
    pub(super) fn resident_known(&self) -> Option<u64> {
        (self.unknown_files == 0 || self.unknown_files < self.files).then_some(self.resident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Source;

    #[test]
    fn unknown_files_are_counted_and_add_nothing() {
        let counts = Residency {
            resident: 4096,
            dirty: Some(4096),
            writeback: Some(0),
            evicted: Some(0),
            recently_evicted: Some(0),
            source: Source::Cachestat,
        };
        let mut totals = Totals::default();
        totals.add(10_000, Some(&counts));
        totals.add(50_000, None);
        assert_eq!((totals.files, totals.unknown_files, totals.size), (2, 1, 60_000));
        assert_eq!(
            (totals.resident_known(), totals.dirty.get(), totals.whole_pages),
            (Some(4096), Some(4096), 12_288)
        );
        let mut unknown = Totals::default();
        unknown.add(1, None);
        assert_eq!((unknown.resident_known(), unknown.dirty.get()), (None, None));
        assert_eq!((Totals::default().resident_known(), Totals::default().dirty.get()), (Some(0), Some(0)));
    }

    #[test]
    fn what_mincore_does_not_know_is_unknown_in_the_sum() {
        let counts = Residency {
            resident: 4096,
            dirty: None,
            writeback: None,
            evicted: None,
            recently_evicted: None,
            source: Source::Mincore,
        };
        let mut totals = Totals::default();
        totals.add(4096, Some(&counts));
        assert_eq!(
            (totals.resident_known(), totals.dirty.get(), totals.resident_only_files),
            (Some(4096), None, 1)
        );
    }
}

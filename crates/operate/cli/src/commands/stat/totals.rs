//! The sums below the table of `stat`, in which unknown figures stay unknown.

use pagekeeper_kernel::page_size;

use super::columns::{COLUMNS, Column};
use super::row::Row;

/// The sum of all files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) files: u64,
    /// The sum of the known figures of each of [`COLUMNS`]; `None` before the first.
    pub(super) sums: [Option<u64>; COLUMNS.len()],
    /// Sizes, in whole pages, of the files whose residency is known: the resident share refers to
    /// this.
    pub(super) whole_pages: u64,
    pub(super) unknown_files: u64,
    /// Files for which the fallback knew only the resident bytes.
    pub(super) resident_only_files: u64,
}

impl Totals {
    /// Adds a file.
    pub(super) fn add(&mut self, row: &Row) {
        self.files += 1;
        if let Some(counts) = row.residency {
            self.whole_pages = self.whole_pages.saturating_add(row.size.next_multiple_of(page_size()));
            self.resident_only_files += u64::from(counts.dirty.is_none());
        } else {
            self.unknown_files += 1;
        }
        for (sum, column) in self.sums.iter_mut().zip(&COLUMNS) {
            if let Some(bytes) = (column.value)(row) {
                *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
            }
        }
    }

    /// Returns the sum of each figure; `None` if there are files, and it is known for none.
    pub(super) fn of_columns(&self) -> impl Iterator<Item = (&'static Column, Option<u64>)> {
        const ALL: &[Column] = &COLUMNS;
        let of_none = (self.files == 0).then_some(0);
        ALL.iter().zip(self.sums.map(|sum| sum.or(of_none)))
    }

    /// Returns the resident bytes of the files for which they are known.
    pub(super) fn resident(&self) -> u64 {
        let resident = self.of_columns().find(|(column, _)| column.shared);
        resident.and_then(|(_, sum)| sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::{Residency, ResidencySource};

    fn row(size: u64, residency: Option<Residency>) -> Row {
        Row { path: "file".into(), size, residency, picture: None }
    }

    fn sum(totals: &Totals, key: &str) -> Option<u64> {
        totals.of_columns().find(|(column, _)| column.key == key).unwrap().1
    }

    #[test]
    fn unknown_files_are_counted_and_add_nothing() {
        let counts = Residency {
            resident: 4096,
            dirty: Some(4096),
            writeback: Some(0),
            evicted: Some(0),
            recently_evicted: Some(0),
            source: ResidencySource::Cachestat,
        };
        let mut totals = Totals::default();
        totals.add(&row(10_000, Some(counts)));
        totals.add(&row(50_000, None));
        assert_eq!((totals.files, totals.unknown_files, sum(&totals, "size")), (2, 1, Some(60_000)));
        assert_eq!(
            (sum(&totals, "resident"), sum(&totals, "dirty"), totals.whole_pages),
            (Some(4096), Some(4096), 12_288)
        );
        assert_eq!(totals.resident(), 4096);
        let mut unknown = Totals::default();
        unknown.add(&row(1, None));
        assert_eq!((sum(&unknown, "resident"), sum(&unknown, "dirty")), (None, None));
        let none = Totals::default();
        assert_eq!((sum(&none, "resident"), sum(&none, "dirty")), (Some(0), Some(0)));
    }

    #[test]
    fn counts_that_mincore_lacks_are_unknown_in_the_sum() {
        let counts = Residency {
            resident: 4096,
            dirty: None,
            writeback: None,
            evicted: None,
            recently_evicted: None,
            source: ResidencySource::Mincore,
        };
        let mut totals = Totals::default();
        totals.add(&row(4096, Some(counts)));
        assert_eq!(
            (sum(&totals, "resident"), sum(&totals, "dirty"), totals.resident_only_files),
            (Some(4096), None, 1)
        );
    }
}

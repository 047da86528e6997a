//! Chooses the files that `stat` shows, and their order.
//!
//! Invariant: for a tree of any size, it keeps few more rows than will be shown.

use std::cmp::Ordering;
use std::path::Path;

use super::columns::Sort;
use super::row::Row;

impl Sort {
    /// Sorts by figure, greatest first, then by path: no two rows are equal.
    fn order(self, a: &Row, b: &Row) -> Ordering {
        let by_path = || a.path.as_os_str().cmp(b.path.as_os_str());
        match self {
            Self::Path => by_path(),
            Self::Figure(of) => of(b).cmp(&of(a)).then_with(by_path),
        }
    }
}

/// Number of files that are not in the table, by reason.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeftOut {
    /// Beyond the limit on the number of rows.
    pub(super) by_top: u64,
    /// Below the minimum size.
    pub(super) by_min: u64,
    /// Nothing of them is or was resident.
    pub(super) empty: u64,
}

/// Rows chosen so far.
#[derive(Debug)]
pub(super) struct Choice {
    sort: Sort,
    top: usize,
    min: u64,
    all: bool,
    rows: Vec<Row>,
    left_out: LeftOut,
}

impl Choice {
    /// Makes a choice of the first `top` rows with at least `min` of the figure that is sorted by.
    /// With `all`, it includes files of which nothing is or was resident.
    pub(super) fn new(sort: Sort, top: usize, min: u64, all: bool) -> Self {
        Self { sort, top, min, all, rows: Vec::new(), left_out: LeftOut::default() }
    }

    /// Considers a row. The row of a file that the user named is not left out for being empty.
    pub(super) fn add(&mut self, row: Row, is_named: impl FnOnce(&Path) -> bool) {
        /// Rows kept beyond `top` before they are sorted out: enough to make that cheap.
        const SLACK_ROWS: usize = 1024;
        if !(self.all || has_something_to_show(&row) || is_named(&row.path)) {
            self.left_out.empty += 1;
        } else if self.sort.of(&row) < self.min {
            self.left_out.by_min += 1;
        } else {
            self.rows.push(row);
            if self.rows.len() > self.top.saturating_add(SLACK_ROWS) {
                self.sort_out();
            }
        }
    }

    fn sort_out(&mut self) {
        if self.top < self.rows.len() {
            self.rows.select_nth_unstable_by(self.top, |a, b| self.sort.order(a, b));
            self.left_out.by_top += (self.rows.len() - self.top) as u64;
            self.rows.truncate(self.top);
        }
    }

    /// Returns the rows in order, and the number of rows left out.
    pub(super) fn finish(mut self) -> (Vec<Row>, LeftOut) {
        self.sort_out();
        self.rows.sort_unstable_by(|a, b| self.sort.order(a, b));
        (self.rows, self.left_out)
    }
}

fn has_something_to_show(row: &Row) -> bool {
    row.residency.is_none_or(|counts| counts.resident > 0 || counts.evicted.is_some_and(|bytes| bytes > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::{Residency, ResidencySource};

    fn row(index: u64, resident: u64) -> Row {
        let residency = Residency {
            resident,
            dirty: Some(0),
            writeback: Some(0),
            evicted: Some(0),
            recently_evicted: Some(0),
            source: ResidencySource::Cachestat,
        };
        Row { path: format!("{index:06}").into(), size: 1 << 20, residency: Some(residency), picture: None }
    }

    fn paths(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.path.to_str().unwrap()).collect()
    }

    #[test]
    fn the_top_of_very_many_is_right_and_the_rest_is_counted() {
        let mut choice = Choice::new(Sort::named("resident"), 3, 0, false);
        for index in 0..10_000 {
            // Two rows for each figure; the greatest ones are neither first nor last.
            choice.add(row(index, (index * 7919 % 10_000) / 2 * 2), |_| false);
        }
        assert!(choice.rows.len() < 2000, "{}", choice.rows.len());
        let (rows, left_out) = choice.finish();
        let figures: Vec<u64> = rows.iter().map(Row::resident).collect();
        assert_eq!(figures, [9998, 9998, 9996]);
        assert!(rows[0].path < rows[1].path);
        // The two files with figure 0 have nothing to show.
        assert_eq!((left_out.by_top, left_out.empty), (9995, 2));
    }

    #[test]
    fn named_files_are_shown_though_nothing_is_resident() {
        let mut choice = Choice::new(Sort::Path, usize::MAX, 0, false);
        choice.add(row(2, 0), |path| path == Path::new("000002"));
        choice.add(row(1, 4096), |_| false);
        choice.add(row(3, 0), |_| false);
        let (rows, left_out) = choice.finish();
        assert_eq!((paths(&rows), left_out.empty), (vec!["000001", "000002"], 1));
    }

    #[test]
    fn the_least_size_is_of_the_figure_sorted_by() {
        for (sort, min, expected) in [("resident", 4096, 1), ("size", 4096, 2), ("size", 2 << 20, 0)] {
            let mut choice = Choice::new(Sort::named(sort), usize::MAX, min, true);
            choice.add(row(1, 4096), |_| false);
            choice.add(row(2, 0), |_| false);
            let (rows, left_out) = choice.finish();
            assert_eq!((rows.len(), left_out.by_min), (expected, 2 - expected as u64), "{sort}");
        }
    }
}

//! One look at a tree: a row for each file worth keeping, and the sum of all.
//!
//! Invariants: every file is in the totals once; a file whose figures are not for this user is counted as unknown, never
//! guessed; rows that will not be shown are not kept, so that memory follows what is shown where nothing else is asked.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pagekeeper_kernel::{InspectedFile, Residency, WalkOptions, page_size, residency_map, residency_wide};

use crate::paths::Tree;
use crate::problems::{Problem, Problems};

/// What to find out, and which files to keep rows of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Cells of each file's picture; none without a number.
    pub(super) cells: Option<usize>,
    /// Keep rows of files of which no page is or was resident, too.
    pub(super) all: bool,
}

/// One file.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// `None` where the kernel does not tell this user.
    pub(super) residency: Option<Residency>,
    /// Share of each cell that is resident, 0 to [`FULL`]; empty without a picture.
    pub(super) cells: Vec<u8>,
    /// Bytes each cell stands for.
    pub(super) cell_bytes: u64,
}

impl Row {
    /// Resident bytes; 0 where that is unknown.
    pub(super) fn resident(&self) -> u64 {
        self.residency.map_or(0, |counts| counts.resident)
    }
}

/// A cell that is wholly resident.
pub(super) const FULL: u8 = 8;

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
    fn add(&mut self, size: u64, counts: Option<&Residency>) {
        self.files += 1;
        self.size = self.size.saturating_add(size);
        if let Some(counts) = counts {
            self.resident += counts.resident;
            self.whole_pages = self
                .whole_pages
                .saturating_add(size.next_multiple_of(page_size()));
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

/// The outcome.
#[derive(Debug)]
pub(super) struct Scan {
    /// In no order.
    pub(super) rows: Vec<Row>,
    pub(super) totals: Totals,
    pub(super) problems: Vec<Problem>,
}

/// Looks at every file of the tree.
pub(super) fn scan(tree: &Tree, wanted: Wanted) -> Scan {
    let threads = WalkOptions::default().threads;
    let problems = Problems::default();
    let found = Mutex::new((Vec::new(), Totals::default()));
    tree.walk(None, &|visited| match visited
        .and_then(|file| look(&file, wanted, threads).map(|row| (row, file)))
    {
        Ok((looked, file)) => {
            let keep = wanted.all || looked.is_worth_a_row() || tree.is_named(file.path());
            let path = if keep {
                Some(file.path().to_path_buf())
            } else {
                None
            };
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.1.add(file.size(), looked.residency.as_ref());
            if let Some(path) = path {
                let Looked {
                    residency,
                    cells,
                    cell_bytes,
                } = looked;
                found.0.push(Row {
                    path,
                    size: file.size(),
                    residency,
                    cells,
                    cell_bytes,
                });
            }
        }
        Err(error) => problems.note(&error),
    });
    let (rows, totals) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Scan {
        rows,
        totals,
        problems: problems.into_sorted(),
    }
}

struct Looked {
    residency: Option<Residency>,
    cells: Vec<u8>,
    cell_bytes: u64,
}

impl Looked {
    fn is_worth_a_row(&self) -> bool {
        self.residency
            .is_none_or(|counts| counts.resident > 0 || counts.evicted.is_some_and(|bytes| bytes > 0))
    }
}

fn look(file: &InspectedFile, wanted: Wanted, threads: usize) -> pagekeeper_kernel::Result<Looked> {
    let mut looked = Looked {
        residency: None,
        cells: Vec::new(),
        cell_bytes: 0,
    };
    let seen = if let Some(cells) = wanted.cells {
        residency_map(file, cells, threads).map(|map| {
            looked.cells = map
                .resident
                .iter()
                .map(|&resident| level(resident, map.cell_bytes))
                .collect();
            // The last cell is cut short by the end of the file.
            if let (Some(last), Some(&resident)) = (looked.cells.last_mut(), map.resident.last()) {
                let rest = file.size().next_multiple_of(page_size())
                    - (map.resident.len() as u64 - 1) * map.cell_bytes;
                *last = level(resident, rest.clamp(page_size(), map.cell_bytes));
            }
            looked.cell_bytes = map.cell_bytes;
            map.total
        })
    } else {
        residency_wide(file, 0..u64::MAX, threads)
    };
    match seen {
        Ok(counts) => looked.residency = Some(counts),
        Err(error) if error.is_denied() => {}
        Err(error) => return Err(error),
    }
    Ok(looked)
}

/// The share as a level that is 0 only for none and [`FULL`] only for all.
fn level(resident: u64, whole: u64) -> u8 {
    if resident == 0 {
        return 0;
    }
    if resident >= whole {
        return FULL;
    }
    let rounded = u128::from(resident) * u128::from(FULL) / u128::from(whole);
    u8::try_from(rounded).unwrap_or(FULL).clamp(1, FULL - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Source;

    #[test]
    fn a_level_tells_none_some_and_all_apart() {
        assert_eq!(
            [0, 1, 50, 99, 100].map(|resident| level(resident, 100)),
            [0, 1, 4, 7, FULL]
        );
        assert_eq!(level(u64::MAX / 2, u64::MAX), 3);
    }

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
        assert_eq!(
            (Totals::default().resident_known(), Totals::default().dirty.get()),
            (Some(0), Some(0))
        );
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
            (
                totals.resident_known(),
                totals.dirty.get(),
                totals.resident_only_files
            ),
            (Some(4096), None, 1)
        );
    }
}

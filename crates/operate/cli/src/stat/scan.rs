//! One sample of a tree: a row for each file to keep, and the sum of all files.
//!
//! Invariants: every file is in the totals once; a file whose figures the user may not see is counted as unknown,
//! never estimated; a file is opened, counted and closed before its thread takes the next one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::{
    InspectedFile, Residency, ResidencyMap, WalkOptions, page_size, residency_map, residency_wide,
};

use super::choice::Choice;
use super::row::{FULL, Picture, Row};
use super::totals::Totals;
use crate::devices::MountedDevices;
use crate::paths::Tree;
use crate::problems::{Problem, Problems};

/// The facts to find out beyond the figures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Cells of each file's picture; `None` for no pictures.
    pub(super) cells: Option<usize>,
    /// Record the resident bytes of every file, shown or not.
    pub(super) remember: bool,
}

/// The result.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) choice: Choice,
    pub(super) totals: Totals,
    pub(super) problems: Vec<Problem>,
    pub(super) mounted: MountedDevices,
    /// Resident bytes of the files that have any, if they are to be recorded.
    pub(super) remembered: HashMap<PathBuf, u64>,
}

/// Inspects every file of the tree, and chooses among them.
pub(super) fn scan(tree: &Tree, choice: Choice, wanted: Wanted) -> Scan {
    let threads = WalkOptions::default().threads;
    let (problems, mounted) = (Problems::default(), MountedDevices::default());
    let scan = Scan {
        choice,
        totals: Totals::default(),
        problems: Vec::new(),
        mounted: MountedDevices::default(),
        remembered: HashMap::new(),
    };
    let scan = Mutex::new(scan);
    tree.walk(None, &|visited| match visited
        .and_then(|file| mounted.has(&file).map(|_| file))
        .and_then(|file| inspect(&file, wanted, threads).map(|seen| (seen, file)))
    {
        Ok(((residency, picture), file)) => {
            let row = Row { path: file.path().to_path_buf(), size: file.size(), residency, picture };
            let mut scan = lock(&scan);
            scan.totals.add(&row);
            if wanted.remember && row.resident() > 0 {
                scan.remembered.insert(row.path.clone(), row.resident());
            }
            scan.choice.add(row, |path| tree.is_named(path));
        }
        Err(error) => problems.note(&error),
    });
    let scan = ignore_poison(scan.into_inner());
    Scan { problems: problems.into_sorted(), mounted, ..scan }
}

/// A file's figures, if the user may see them, and its picture, if requested.
type Seen = (Option<Residency>, Option<Box<Picture>>);

fn inspect(file: &InspectedFile, wanted: Wanted, threads: usize) -> pagekeeper_kernel::Result<Seen> {
    let seen = match wanted.cells {
        None => residency_wide(file, 0..u64::MAX, threads).map(|counts| (Some(counts), None)),
        Some(cells) => residency_map(file, cells, threads)
            .map(|map| (Some(map.total), Some(Box::new(Picture::of(&map, file.size()))))),
    };
    match seen {
        Err(error) if error.is_denied() => Ok((None, None)),
        seen => seen,
    }
}

impl Picture {
    /// Returns the picture of a file of `size` bytes.
    fn of(map: &ResidencyMap, size: u64) -> Self {
        let page = page_size();
        let cell = |(index, &resident): (usize, &u64)| {
            // The last cell ends at the end of the file, which may have moved since.
            let rest = size.saturating_sub(index as u64 * map.cell_bytes).clamp(1, map.cell_bytes);
            level(resident, rest.next_multiple_of(page))
        };
        Self { cell_bytes: map.cell_bytes, cells: map.resident.iter().enumerate().map(cell).collect() }
    }
}

/// Returns the share as a level that is 0 only for none and [`FULL`] only for all.
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
    #[test]
    fn a_level_distinguishes_none_some_and_all() {
        assert_eq!([0, 1, 50, 99, 100].map(|resident| level(resident, 100)), [0, 1, 4, 7, FULL]);
        assert_eq!(level(u64::MAX / 2, u64::MAX), 3);
    }
}

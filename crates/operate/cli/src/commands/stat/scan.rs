//! One sample of a tree: a row for each file to keep, and the sum of all files.
//!
//! Invariants: every file is in the totals once; a file whose figures the user may not see is
//! counted as unknown, never estimated; a file is opened, counted and closed before its thread
//! takes the next one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::{InspectedFile, Residency, WalkOptions, residency_map, residency_wide};

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
        Some(cells) => residency_map(file, cells, threads).map(|map| {
            (
                Some(map.total),
                Some(Box::new(Picture { cell_bytes: map.cell_bytes, cells: map.levels(file.size(), FULL) })),
            )
        }),
    };
    match seen {
        Err(error) if error.is_denied() => Ok((None, None)),
        seen => seen,
    }
}

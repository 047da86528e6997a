//! Searches the host for the holders of page cache beside the databases, including closed files:
//! one walk over its local file systems.
//!
//! Invariants: the search only reads. Its caller may end the walk early, which is reported; files
//! that a process has open are still found then. Everything that belongs to an inspected database
//! is left out.
//!
//! A failure is a gap, not an error: the report is made without it.

use std::collections::HashSet;
use std::sync::Arc;

use pagekeeper_kernel::{Inode, hang};

use super::holders::{HeldFile, Holder, OpenIn, holders};
use crate::{
    Census, CensusOptions, ObserveError, Row, RowKey, RowQuery, Snapshot, VisibilityGap, WalkProgress,
};

/// Files that are considered: those with the most page cache.
const FILES_MAX: usize = 20_000;

/// Returns the largest holders of page cache among the files that are not in the snapshot, and a
/// gap if the list may be incomplete. `progress` ends the walk.
pub fn largest_elsewhere(
    snapshot: &Snapshot,
    progress: &Arc<WalkProgress>,
) -> (Vec<Holder>, Option<VisibilityGap>) {
    let gap = |why: String| VisibilityGap {
        what: "all closed files that hold page cache beside the databases".to_owned(),
        why,
        needs: None,
    };
    match rows(progress) {
        Ok(rows) => {
            let known: HashSet<Inode> = snapshot.files.iter().map(|file| file.inode).collect();
            let is_other = |row: &Row| !matches!(row.key, RowKey::File(inode) if known.contains(&inode));
            let files = rows.into_iter().filter(is_other).filter_map(held_file).collect();
            let why = "the walk over all files was ended after five seconds, or by a signal; `pagekeeper top --once` takes the time \
                       it needs";
            (holders(files), progress.is_walk_ended().then(|| gap(why.to_owned())))
        }
        Err(error) => (Vec::new(), Some(gap(error.to_string()))),
    }
}

/// Returns the files of the host with the most page cache.
fn rows(progress: &Arc<WalkProgress>) -> Result<Vec<Row>, ObserveError> {
    hang::run_job(|| {
        let progress = Arc::clone(progress);
        move || {
            let options = CensusOptions { trace: None, follow: false, progress, ..CensusOptions::default() };
            let mut census = Census::start(options)?;
            Ok(census.rows(&RowQuery { limit: FILES_MAX, ..RowQuery::default() }).rows)
        }
    })?
}

/// Returns the file; `None` if it has no name.
fn held_file(row: Row) -> Option<HeldFile> {
    // A deleted file is reached through a descriptor, a path that is useless to people.
    let path = if row.deleted { Some(format!("{} (deleted)", row.label).into()) } else { row.path };
    let open = row.owners.into_iter().filter(|owner| owner.used.is_some());
    Some(HeldFile {
        path: path?,
        size: row.size,
        resident: row.resident,
        open_in: open.map(|owner| OpenIn { name: owner.name, pid: owner.pid }).collect(),
    })
}

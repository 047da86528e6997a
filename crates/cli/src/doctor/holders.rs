//! Searches the host for who holds page cache beside the databases, closed files too: one walk over its local file systems.
//!
//! Invariants: only reads; the walk ends after [`MOST_TIME`] or at a signal, which is said, and then files that a process has open are
//! still found; what belongs to a database that was inspected is left out.
//!
//! Where it fails that is a gap, not an error: the report stands without it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_doctor::{HeldFile, Holder, OpenIn, VisibilityGap, holders};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::hang;
use pagekeeper_observe::{Census, CensusOptions, ObserveError, Progress, Query, Row, RowKey, Snapshot};

use crate::signals::Stop;

/// How long is searched at the most.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Files that are taken into account: those that have the most.
const FILES: usize = 20_000;

/// Those that have the most page cache, of the files that are not in the snapshot; and why that may not be all.
pub(super) fn search(snapshot: &Snapshot, stop: &Stop) -> (Vec<Holder>, Option<VisibilityGap>) {
    let gap = |why: String| {
        Some(VisibilityGap {
            what: "all closed files that hold page cache beside the databases".to_owned(),
            why,
            needs: None,
        })
    };
    let progress = Arc::new(Progress::default());
    match stop.during(Some(MOST_TIME), || progress.end_walk(), || rows(&progress)) {
        Ok(rows) => {
            let known: HashSet<Inode> = snapshot.files.iter().map(|file| file.inode).collect();
            let is_other = |row: &Row| !matches!(row.key, RowKey::File(inode) if known.contains(&inode));
            let files = rows.into_iter().filter(is_other).filter_map(held_file).collect();
            let why = "the walk over all files was ended after five seconds, or by a signal; `pagekeeper top --once` takes the time \
                       it needs";
            (holders(files), progress.is_walk_ended().then(|| why.to_owned()).and_then(gap))
        }
        Err(error) => (Vec::new(), gap(error.to_string())),
    }
}

/// The files of the host with the most in memory.
fn rows(progress: &Arc<Progress>) -> Result<Vec<Row>, ObserveError> {
    hang::patiently(|| {
        let progress = Arc::clone(progress);
        move || {
            let options = CensusOptions { trace: None, follow: false, progress, ..CensusOptions::default() };
            let mut census = Census::start(options)?;
            Ok(census.rows(&Query { limit: FILES, ..Query::default() }).rows)
        }
    })?
}

/// `None` of what has no name.
fn held_file(row: Row) -> Option<HeldFile> {
    // A deleted file is reached through a descriptor: no name for people.
    let path = if row.deleted { Some(format!("{} (deleted)", row.label).into()) } else { row.path };
    let open = row.owners.into_iter().filter(|owner| owner.used.is_some());
    Some(HeldFile {
        path: path?,
        size: row.size,
        resident: row.resident,
        open_in: open.map(|owner| OpenIn { name: owner.name, pid: owner.pid }).collect(),
    })
}

//! Evicts pages that are left in the page cache from files used with direct I/O.
//!
//! Invariants: no byte of a file can change. Three kinds of files are left alone:
//! * files that a process may read or write through the page cache now,
//! * files that a program other than their database read so during the watch,
//! * files whose profile does not say that their database reads them by direct I/O only.
//!
//! Fails file by file.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use pagekeeper_kernel::{Error, Inode, ReleaseOptions, ReleaseReport, Result, hang, release};
use pagekeeper_observe::{File, Snapshot};

use crate::Observation;
use crate::finders::{MixedWith, mixed_with, was_read_through_cache};

/// The result for one file.
#[derive(Debug)]
pub struct EvictedLeftover {
    /// The file.
    pub path: PathBuf,
    /// What was released, and what stayed.
    pub report: ReleaseReport,
    /// The reason why it was left alone, if it was.
    pub left_alone: Option<&'static str>,
}

/// Evicts the rest of files that were just inspected, except for those that were read through the
/// page cache in one of the observations. Returns the results by path, and the failures.
///
/// # Errors
///
/// If too many file systems do not answer.
pub fn evict_leftovers(
    now: &Arc<Snapshot>,
    seen: [&Observation<'_>; 2],
) -> Result<(Vec<EvictedLeftover>, Vec<Error>)> {
    let files = seen.iter().flat_map(|seen| seen.after.files.iter().map(move |file| (seen, file)));
    let read = files.filter(|(seen, file)| was_read_through_cache(seen, file));
    let read: Arc<HashSet<Inode>> = Arc::new(read.map(|(_, file)| file.inode).collect());
    hang::run_job(|| {
        let (now, read) = (Arc::clone(now), Arc::clone(&read));
        move || evict_all(&now, &read)
    })
}

fn evict_all(snapshot: &Snapshot, read: &HashSet<Inode>) -> (Vec<EvictedLeftover>, Vec<Error>) {
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for file in &snapshot.files {
        let Some(mixed_with) = mixed_with(snapshot, file) else { continue };
        match evict(file, mixed_with, read.contains(&file.inode)) {
            Ok(evicted) => all.extend(evicted),
            Err(error) => errors.push(error),
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    (all, errors)
}

/// Evicts one file's pages; `None` if none is resident.
fn evict(file: &File, mixed_with: MixedWith, was_read: bool) -> Result<Option<EvictedLeftover>> {
    let resident = file.resident();
    if resident == 0 {
        return Ok(None);
    }
    let left_alone = |why| {
        let report = ReleaseReport { resident_before: resident, ..ReleaseReport::default() };
        Ok(Some(EvictedLeftover { path: file.path.clone(), report, left_alone: Some(why) }))
    };
    match mixed_with {
        MixedWith::Writer => return left_alone("somebody may write it through the page cache"),
        MixedWith::Reader => return left_alone("somebody may read it through the page cache"),
        MixedWith::OnPurpose => {
            return left_alone("its database may read it through the page cache, too");
        }
        MixedWith::Leftover if was_read => {
            return left_alone("it was read through the page cache while watching");
        }
        MixedWith::Leftover => {}
    }
    let opened = match file.open() {
        Err(Error::OtherFile { .. } | Error::SymbolicLink { .. }) => {
            return left_alone("another file has its name now");
        }
        other => other?,
    };
    let report = release(&opened, 0..u64::MAX, &ReleaseOptions::default())?;
    Ok(Some(EvictedLeftover { path: file.path.clone(), report, left_alone: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use pagekeeper_kernel::{InspectedFile, Links, residency};
    use pagekeeper_testing::{OpenCounter, disk_dir};

    /// Returns a file of 64 KiB that was just written.
    fn dirty_file(path: &Path) -> File {
        std::fs::write(path, vec![1; 1 << 16]).unwrap();
        let opened = InspectedFile::open(path, Links::Refuse).unwrap();
        File {
            inode: Inode { dev: 1, ..opened.inode() },
            stat_inode: opened.inode(),
            path: path.to_path_buf(),
            reach: path.to_path_buf(),
            size: 1 << 16,
            database: None,
            class: None,
            residency: Some(residency(&opened, 0..u64::MAX).unwrap()),
            openers: Vec::new(),
        }
    }

    #[test]
    fn files_that_somebody_may_read_are_left_alone() {
        let dir = disk_dir();
        let file = dirty_file(&dir.path().join("table"));
        for (mixed_with, was_read) in [
            (MixedWith::Writer, false),
            (MixedWith::Reader, false),
            (MixedWith::OnPurpose, false),
            (MixedWith::Leftover, true),
        ] {
            let fixed = evict(&file, mixed_with, was_read).unwrap().unwrap();
            assert!(fixed.left_alone.is_some_and(|why| why.contains("through the page cache")), "{fixed:?}");
            assert_eq!(fixed.report.released, 0, "{mixed_with:?}");
        }
        let resident = residency(&file.open().unwrap(), 0..u64::MAX).unwrap().resident;
        assert_eq!(resident, file.residency.unwrap().resident);
        assert_eq!(evict(&file, MixedWith::Leftover, false).unwrap().unwrap().left_alone, None);
    }

    #[test]
    fn a_replaced_file_is_neither_opened_nor_evicted() {
        let dir = disk_dir();
        let [path, secret] = ["table", "secret"].map(|name| dir.path().join(name));
        std::fs::write(&secret, vec![2; 1 << 16]).unwrap();
        let file = dirty_file(&path);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        let opens = OpenCounter::of(&secret);
        let fixed = evict(&file, MixedWith::Leftover, false).unwrap().unwrap();
        assert_eq!((fixed.left_alone, opens.any()), (Some("another file has its name now"), false));
    }
}

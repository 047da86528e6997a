//! What is read beside the two snapshots: the databases' settings, what their disks were measured to do, and where pages lie.
//!
//! Fails only for a snapshot that was named; what else can't be read is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use pagekeeper_doctor::settings::{Settings, SettingsReader};
use pagekeeper_doctor::{
    Journal, Observation, SavedFile, SavedSnapshot, VisibilityGap, lacks_snapshot, mixed_with,
};
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::text::escaped;
use pagekeeper_kernel::{Inode, resident_extents};
use pagekeeper_observe::{File, Snapshot};
use pagekeeper_policy::DiskProfile;

/// Files whose stretches of pages are listed.
const FILES: usize = 32;
/// Stretches of each.
const STRETCHES: usize = 16;

/// The settings of each database, in its order.
pub(super) fn settings(snapshot: &Snapshot, roots: &SysRoots) -> Vec<Settings> {
    let mut reader = SettingsReader::default();
    snapshot.databases.iter().map(|database| reader.read(database, snapshot, roots)).collect()
}

/// The databases that have more settings than are read of one.
pub(super) fn cut_settings(snapshot: &Snapshot, settings: &[Settings]) -> Vec<VisibilityGap> {
    let cut = snapshot.databases.iter().zip(settings).filter(|(_, settings)| settings.is_cut());
    cut.map(|(database, _)| {
        let process = database.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        VisibilityGap {
            what: format!("all settings of {}{process}", database.name),
            why: "its settings files are more, larger or deeper than is read of one database".to_owned(),
            needs: None,
        }
    })
    .collect()
}

/// What a recovery of each database would read, in its order; `settings` are theirs.
pub(super) fn journals(snapshot: &Snapshot, settings: &[Settings], roots: &SysRoots) -> Vec<Option<Journal>> {
    let of = |(index, settings)| pagekeeper_doctor::journal(index, snapshot, settings, roots);
    settings.iter().enumerate().map(of).collect()
}

/// Reads a snapshot that was named.
pub(super) fn snapshot(path: &Path) -> anyhow::Result<SavedSnapshot> {
    let read =
        crate::snapshot::read(path).with_context(|| format!("can't use the snapshot {}", escaped(path)))?;
    let seconds = u64::try_from(read.created.seconds)
        .with_context(|| format!("{} says that it was taken before 1970", escaped(path)))?;
    let files = read.files.iter().map(|file| SavedFile {
        path: file.path.clone(),
        inode: Inode { dev: file.dev, ino: file.ino },
        resident: file.resident_pages() * read.page_size,
    });
    Ok(SavedSnapshot {
        path: path.to_path_buf(),
        taken: UNIX_EPOCH + Duration::new(seconds, read.created.nanos),
        files: files.collect(),
    })
}

/// What is not known of databases that were just started, where no snapshot was named.
pub(super) fn without_snapshot(observation: &Observation<'_>) -> Option<VisibilityGap> {
    lacks_snapshot(observation).then(|| VisibilityGap {
        what: "whether as much data is resident as before the start".to_owned(),
        why: "no snapshot to compare with".to_owned(),
        needs: Some(
            "pagekeeper snapshot DIR -o FILE before the next one, then doctor --snapshot FILE".to_owned(),
        ),
    })
}

/// What the disks under the files were measured to do: as `given`, if it is of that very file system, else as saved; and
/// what is not known for that.
pub(super) fn disks(
    snapshot: &Snapshot,
    given: Option<&DiskProfile>,
) -> (Vec<(u64, DiskProfile)>, Vec<VisibilityGap>) {
    let (mut disks, mut gaps) = (BTreeMap::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for file in snapshot.files.iter().filter(|file| seen.insert(file.inode.dev)) {
        let Some(directory) = file.reach.parent() else { continue };
        let profile = pagekeeper_catalog::disks::of(given.map_or(&[], std::slice::from_ref), directory);
        let why = match profile {
            Ok(Some(profile)) => {
                disks.insert(file.inode.dev, profile);
                continue;
            }
            Ok(None) if given.is_none() => continue,
            Ok(None) => "the disk profile that was named is of another file system".to_owned(),
            Err(error) => error.to_string(),
        };
        let what = format!("what the disk under {} was measured to do", escaped(directory));
        gaps.push(VisibilityGap { what, why, needs: None });
    }
    (disks.into_iter().collect(), gaps)
}

/// Where the pages lie of files that direct I/O and the page cache meet on: the first few stretches of those that have
/// the most.
pub(super) fn stretches(snapshot: &Snapshot) -> Vec<(Inode, Vec<Range<u64>>)> {
    let resident = |file: &File| file.residency.map_or(0, |residency| residency.resident);
    let mut files: Vec<&File> =
        snapshot.files.iter().filter(|file| mixed_with(file).is_some() && resident(file) > 0).collect();
    files.sort_by_key(|file| std::cmp::Reverse(resident(file)));
    files.truncate(FILES);
    files.into_iter().filter_map(|file| Some((file.inode, stretches_of(file)?))).collect()
}

/// `None` if the file can't be read.
fn stretches_of(file: &File) -> Option<Vec<Range<u64>>> {
    resident_extents(&file.open().ok()?, 0..u64::MAX).ok()?.take(STRETCHES).collect::<Result<_, _>>().ok()
}

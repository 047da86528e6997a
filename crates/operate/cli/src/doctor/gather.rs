//! Data that is read beside the two snapshots: the databases' settings, the measured properties of their disks,
//! and the location of pages.
//!
//! Fails only for a snapshot that the user named; other data that can't be read is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use pagekeeper_doctor::settings::{self, Settings, SettingsReader};
use pagekeeper_doctor::{
    Journal, Observation, Releasable, SavedFile, SavedSnapshot, Streamer, VisibilityGap, lacks_snapshot,
    mixed_with,
};
use pagekeeper_kernel::hang;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::{Inode, resident_extents};
use pagekeeper_observe::{File, Snapshot};
use pagekeeper_policy::DiskProfile;
use pagekeeper_text::escaped;

use super::watch::Judged;

/// Files whose ranges of pages are listed.
const FILES: usize = 32;
/// Ranges listed for each file.
const STRETCHES: usize = 16;

/// Data that is read beside the snapshots.
pub(super) struct Gathered {
    pub(super) settings: Vec<Settings>,
    pub(super) journals: Vec<Option<Journal>>,
    pub(super) disks: Vec<(u64, DiskProfile)>,
    pub(super) unmeasured: Vec<VisibilityGap>,
    pub(super) stretches: Vec<(Inode, Vec<Range<u64>>)>,
    pub(super) streamers: Vec<Streamer>,
    pub(super) releasable: Vec<Releasable>,
}

/// Reads all of it, in a way that allows for a file system that does not answer.
pub(super) fn all(
    snapshot: &Arc<Snapshot>,
    judged: &Arc<Judged>,
    given: Option<DiskProfile>,
    roots: &SysRoots,
) -> pagekeeper_kernel::Result<Gathered> {
    let given = Arc::new(given);
    hang::patiently(|| {
        let (snapshot, judged) = (Arc::clone(snapshot), Arc::clone(judged));
        let (given, roots) = (Arc::clone(&given), roots.clone());
        move || {
            let (disks, unmeasured) = disks(&snapshot, given.as_ref().as_ref());
            let settings = settings(&snapshot, &roots);
            Gathered {
                journals: journals(&snapshot, &settings, &roots),
                settings,
                disks,
                unmeasured,
                releasable: judged.releasable(&snapshot),
                stretches: stretches(&snapshot),
                streamers: pagekeeper_doctor::streamers(&snapshot, &roots),
            }
        }
    })
}

/// Returns the settings of each database, in the order of the databases.
fn settings(snapshot: &Snapshot, roots: &SysRoots) -> Vec<Settings> {
    let mut reader = SettingsReader::default();
    snapshot.databases.iter().map(|database| settings::read(&mut reader, database, snapshot, roots)).collect()
}

/// Returns gaps for the databases with more settings than are read.
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

/// Returns what a recovery of each database would read, in the order of the databases; `settings` are theirs.
fn journals(snapshot: &Snapshot, settings: &[Settings], roots: &SysRoots) -> Vec<Option<Journal>> {
    let of = |(index, settings)| pagekeeper_doctor::journal(index, snapshot, settings, roots);
    settings.iter().enumerate().map(of).collect()
}

/// Reads a snapshot that the user named.
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

/// Returns the gap for databases that have just started, if no snapshot was named.
pub(super) fn without_snapshot(observation: &Observation<'_>) -> Option<VisibilityGap> {
    lacks_snapshot(observation).then(|| VisibilityGap {
        what: "whether as much data is resident as before the start".to_owned(),
        why: "no snapshot to compare with".to_owned(),
        needs: Some(
            "pagekeeper snapshot DIR -o FILE before the next one, then doctor --snapshot FILE".to_owned(),
        ),
    })
}

/// Returns the measured properties of the disks under the files: `given`, if it is of the same file system, else
/// the saved ones. Also returns the gaps for disks without any.
fn disks(snapshot: &Snapshot, given: Option<&DiskProfile>) -> (Vec<(u64, DiskProfile)>, Vec<VisibilityGap>) {
    let (mut disks, mut gaps) = (BTreeMap::new(), Vec::new());
    let mut seen = BTreeSet::new();
    // A file without a name shows no directory: the next one of its file system may.
    let named = snapshot.files.iter().filter_map(|file| Some((file, file.directory()?)));
    for (file, directory) in named.filter(|(file, _)| seen.insert(file.inode.dev)) {
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

/// Returns the location of the pages of files that are used by both direct I/O and the page cache: the first few
/// ranges of the files that have the most.
fn stretches(snapshot: &Snapshot) -> Vec<(Inode, Vec<Range<u64>>)> {
    let mut files: Vec<&File> = snapshot
        .files
        .iter()
        .filter(|file| mixed_with(snapshot, file).is_some() && file.resident() > 0)
        .collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.resident()));
    files.truncate(FILES);
    files.into_iter().filter_map(|file| Some((file.inode, stretches_of(file)?))).collect()
}

/// Returns the first ranges of a file; `None` if it can't be read.
fn stretches_of(file: &File) -> Option<Vec<Range<u64>>> {
    resident_extents(&file.open().ok()?, 0..u64::MAX).ok()?.take(STRETCHES).collect::<Result<_, _>>().ok()
}

//! Data that is read beside the two snapshots: the databases' settings, the measured properties of
//! their disks, and the location of pages.
//!
//! Data that can't be read is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::{Inode, Result, hang, resident_extents};
use pagekeeper_observe::{File, Snapshot, VisibilityGap, streamers};
use pagekeeper_policy::DiskProfile;
use pagekeeper_text::escaped;

use crate::finders::mixed_with;
use crate::settings::{self, Settings, SettingsReader};
use crate::{Journal, Observation, PoolPressure, Streamer, journal};

/// Files whose ranges of pages are listed.
const LISTED_FILES_MAX: usize = 32;
/// Ranges listed for each file.
const LISTED_RANGES_MAX: usize = 16;

/// Data that is read beside the snapshots.
#[derive(Debug)]
pub struct GatheredData {
    settings: Vec<Settings>,
    journals: Vec<Option<Journal>>,
    pool_pressure: Vec<Option<PoolPressure>>,
    disks: Vec<(u64, DiskProfile)>,
    stretches: Vec<(Inode, Vec<Range<u64>>)>,
    streamers: Vec<Streamer>,
    /// The data that could not be read.
    pub visibility_gaps: Vec<VisibilityGap>,
}

impl GatheredData {
    /// Reads it for the databases of a snapshot, in a way that allows for a file system that does
    /// not answer. `given` is a disk profile that is used for its own file system.
    ///
    /// # Errors
    ///
    /// If too many file systems do not answer.
    pub fn read(after: &Arc<Snapshot>, given: Option<DiskProfile>, roots: &SysRoots) -> Result<Self> {
        let given = Arc::new(given);
        hang::run_job(|| {
            let (after, given, roots) = (Arc::clone(after), Arc::clone(&given), roots.clone());
            move || Self::read_at_once(&after, given.as_ref().as_ref(), &roots)
        })
    }

    fn read_at_once(snapshot: &Snapshot, given: Option<&DiskProfile>, roots: &SysRoots) -> Self {
        let mut reader = SettingsReader::default();
        let databases = snapshot.databases.iter();
        let settings: Vec<Settings> =
            databases.map(|database| settings::read(&mut reader, database, snapshot, roots)).collect();
        let of = |(index, settings)| journal(index, snapshot, settings, roots);
        let (disks, mut visibility_gaps) = disks(snapshot, given);
        visibility_gaps.extend(cut_settings(snapshot, &settings));
        let databases = snapshot.databases.iter().zip(&settings);
        let pressure = |(database, settings)| PoolPressure::of(database, snapshot, settings, roots);
        Self {
            pool_pressure: databases.map(pressure).collect(),
            journals: settings.iter().enumerate().map(of).collect(),
            settings,
            disks,
            stretches: stretches(snapshot),
            streamers: streamers(snapshot.change.as_ref(), roots),
            visibility_gaps,
        }
    }

    /// Returns the observation of two snapshots with this data.
    pub fn observation<'a>(self, before: &'a Snapshot, after: &'a Snapshot) -> Observation<'a> {
        let Self { settings, journals, pool_pressure, disks, stretches, streamers, visibility_gaps: _ } =
            self;
        Observation {
            settings,
            disks,
            stretches,
            streamers,
            pool_pressure,
            journals,
            ..Observation::new(before, after)
        }
    }
}

/// Returns gaps for the databases with more settings than are read.
fn cut_settings(snapshot: &Snapshot, settings: &[Settings]) -> Vec<VisibilityGap> {
    let cut = snapshot.databases.iter().zip(settings).filter(|(_, settings)| settings.is_cut());
    cut.map(|(database, _)| {
        let process = database.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        VisibilityGap {
            what: format!("all settings of {}{process}", database.name),
            why: "its settings files exceed the number, size or depth that is read per database".to_owned(),
            needs: None,
        }
    })
    .collect()
}

/// Returns the measured properties of the disks under the files: `given`, if it is of the same file
/// system, else the saved ones. Also returns the gaps for disks without any.
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
        let what = format!("the measured speed of the disk under {}", escaped(directory));
        gaps.push(VisibilityGap { what, why, needs: None });
    }
    (disks.into_iter().collect(), gaps)
}

/// Returns the location of the pages of files that are used by both direct I/O and the page cache:
/// the first few ranges of the files that have the most.
fn stretches(snapshot: &Snapshot) -> Vec<(Inode, Vec<Range<u64>>)> {
    let mut files: Vec<&File> = snapshot
        .files
        .iter()
        .filter(|file| mixed_with(snapshot, file).is_some() && file.resident() > 0)
        .collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.resident()));
    files.truncate(LISTED_FILES_MAX);
    files.into_iter().filter_map(|file| Some((file.inode, stretches_of(file)?))).collect()
}

/// Returns the first ranges of a file; `None` if it can't be read.
fn stretches_of(file: &File) -> Option<Vec<Range<u64>>> {
    let file = file.open().ok()?;
    let extents = resident_extents(&file, 0..u64::MAX).ok()?;
    extents.take(LISTED_RANGES_MAX).collect::<Result<_>>().ok()
}

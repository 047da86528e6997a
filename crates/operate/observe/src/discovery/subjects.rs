//! Finds the databases to observe: those named by a scope, and processes that the catalog
//! recognises by name or by the files they hold.
//!
//! A database that was named and has ended or gone since is a visibility gap, not a failure.
//! [`claims`](crate::discovery::claims) finds the directories of their files.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_catalog::{ClaimStrength, DatabaseFinder, Party, Profile, logs_below, recognise, workers_of};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::hang::announce;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::{escaped, unescaped};

use crate::discovery::claims::{directories_of, settle};
use crate::discovery::unknown_databases;
use crate::files::opened_files::{OpenedFile, may_hold, opened_by};
use crate::trees::fair_shares::{FairShares, PartyDemand};
use crate::visibility::VisibilityGaps;
use crate::{DirectoryFilter, ObserveError, ObserverOptions, ObserverScope};

/// Descriptors and mappings kept per file that may be kept. One takes less than half of the memory
/// of a file.
const OPENED_PER_FILE_MAX: usize = 2;

/// A database to observe.
#[derive(Debug, Clone)]
pub(crate) struct ObservedDatabase {
    pub(crate) pid: Option<u32>,
    pub(crate) name: OsString,
    /// The party whose share it counts towards.
    pub(crate) party: Party,
    pub(crate) workers: Vec<u32>,
    pub(crate) profile: Arc<Profile>,
    /// Whether more than its name identifies it.
    pub(crate) certain: bool,
    /// Its directories, as it sees them itself.
    pub(crate) directories: Vec<PathBuf>,
    /// The inode of each directory that it claims, and the strength of the claim. Directories that
    /// were named have none.
    pub(crate) claims: HashMap<PathBuf, (Inode, ClaimStrength)>,
    /// The files that its processes hold, with the process.
    pub(crate) held: Vec<(u32, OpenedFile)>,
    /// The number of descriptors and mappings beyond those.
    pub(crate) further_descriptors: usize,
    /// The processes that have these further descriptors.
    pub(crate) partly_read: HashSet<u32>,
    /// Whether some files were left out because they may not be touched.
    pub(crate) has_excluded_files: bool,
}

impl ObservedDatabase {
    /// Returns the process through whose root its directories are reached; `None` for this
    /// process's root.
    pub(crate) fn through(&self, proc: &ProcRoot) -> Option<u32> {
        self.pid.and_then(|pid| proc.through(pid))
    }

    /// Returns its processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.pid.into_iter().chain(self.workers.iter().copied())
    }

    /// Returns those of its processes whose held files are all known.
    pub(crate) fn fully_read_pids(&self) -> impl Iterator<Item = u32> {
        self.pids().filter(|pid| !self.partly_read.contains(pid))
    }

    pub(crate) fn of_process(
        proc: &ProcRoot,
        pid: u32,
        profile: Arc<Profile>,
        certain: bool,
        workers: Vec<u32>,
    ) -> Self {
        let name = proc.name(pid).unwrap_or_default();
        Self {
            pid: Some(pid),
            name,
            party: Party::of(proc, pid),
            workers,
            profile,
            certain,
            directories: Vec::new(),
            claims: HashMap::new(),
            held: Vec::new(),
            further_descriptors: 0,
            partly_read: HashSet::new(),
            has_excluded_files: false,
        }
    }

    /// Makes a subject for a directory without a known process, with the profile that its logs fit.
    fn of_directory(directory: PathBuf, profiles: &[Arc<Profile>]) -> Result<Self, ObserveError> {
        let fits = logs_below(&directory, profiles).map(|found| found.profile);
        let profile = fits.or_else(|| fallback(profiles)).ok_or(ObserveError::NoProfile)?;
        Ok(Self {
            pid: None,
            name: OsString::new(),
            party: Party::Operator,
            workers: Vec::new(),
            profile,
            certain: false,
            directories: vec![directory],
            claims: HashMap::new(),
            held: Vec::new(),
            further_descriptors: 0,
            partly_read: HashSet::new(),
            has_excluded_files: false,
        })
    }

    /// Returns the inode that a directory had when its claim was judged.
    pub(crate) fn pin(&self, directory: &Path) -> Option<Inode> {
        self.claims.get(directory).map(|(inode, _)| *inode)
    }

    /// Leaves out files that it holds in directories that may not be touched.
    fn leave_out(&mut self, selects: &DirectoryFilter) {
        let (pid, before) = (self.pid, self.held.len());
        self.held.retain(|(_, held)| selects.selects(pid, held.path.parent().unwrap_or(&held.path)));
        self.has_excluded_files = self.held.len() < before;
    }

    /// Takes a process as the owner of a directory.
    pub(crate) fn take_process(&mut self, proc: &ProcRoot, pid: u32, profile: Arc<Profile>) {
        self.pid = Some(pid);
        self.name = proc.name(pid).unwrap_or_default();
        self.workers = workers_of(proc, pid, &profile).unwrap_or_default();
        self.profile = profile;
    }
}

/// Returns the profile for anything that no other profile fits.
fn fallback(profiles: &[Arc<Profile>]) -> Option<Arc<Profile>> {
    profiles.iter().find(|profile| profile.name == "generic").or(profiles.last()).cloned()
}

/// Results of earlier snapshots. If one of these ends or goes away, that is not a failure.
#[derive(Debug, Default)]
pub(crate) struct EarlierFindings {
    finder: DatabaseFinder,
    /// Named processes, with their start times.
    processes: HashMap<u32, u64>,
    directories: HashMap<PathBuf, PathBuf>,
    /// Processes that no profile knows, with their start times; `None` before the first snapshot.
    unknown: Option<Vec<(u32, u64)>>,
}

impl EarlierFindings {
    /// Returns the named processes and directories only; discovered ones can be found again.
    pub(crate) fn named_only(&self) -> Self {
        let (processes, directories) = (self.processes.clone(), self.directories.clone());
        Self { processes, directories, ..Self::default() }
    }
}

/// Finds the databases in a scope. Directories get their process only later, when it is known who
/// has their files open.
pub(crate) fn find(
    proc: &ProcRoot,
    options: &ObserverOptions,
    profiles: &[Arc<Profile>],
    earlier: &mut EarlierFindings,
    gaps: &mut VisibilityGaps,
) -> Result<Vec<ObservedDatabase>, ObserveError> {
    let (scope, selects) = (&options.scope, &options.selects);
    let mut subjects: Vec<ObservedDatabase> = match scope {
        ObserverScope::Directories(directories) => {
            return directories
                .iter()
                .filter(|path| selects.selects(None, path))
                .map(|path| named_directory(path, earlier, gaps))
                .filter(|resolved| resolved.as_ref().map_or(true, |path| selects.selects(None, path)))
                .map(|resolved| ObservedDatabase::of_directory(resolved?, profiles))
                .collect();
        }
        ObserverScope::All => earlier
            .finder
            .find(proc, profiles)?
            .into_iter()
            .map(|found| {
                ObservedDatabase::of_process(proc, found.pid, found.profile, found.certain, found.workers)
            })
            .collect(),
        ObserverScope::Pids(pids) => {
            let mut subjects = Vec::new();
            for &pid in pids.iter().collect::<BTreeSet<_>>() {
                subjects.extend(named_process(proc, pid, profiles, earlier, gaps)?);
            }
            subjects
        }
    };
    // A process that ended in between is no longer a database, and neither is a zombie that its
    // parent has yet to reap.
    subjects.retain(|subject| subject.pid.is_none_or(|pid| started(proc, pid).is_some()));
    read_all_held(proc, options, &mut subjects, gaps);
    for subject in &mut subjects {
        for (path, inode, strength) in directories_of(proc, subject, selects, gaps) {
            subject.claims.insert(path.clone(), (inode, strength));
            subject.directories.push(path);
        }
    }
    settle(&mut subjects, gaps);
    subjects.retain(|subject| !subject.has_excluded_files || !subject.directories.is_empty());
    if options.unknown_databases && *scope == ObserverScope::All {
        let mut unknown = unknown(proc, profiles, &subjects, earlier);
        read_all_held(proc, options, &mut unknown, gaps);
        subjects.extend(unknown);
    }
    Ok(subjects)
}

/// Returns the databases that no profile knows: the ones of the first snapshot that still run. They
/// claim no directories.
fn unknown(
    proc: &ProcRoot,
    profiles: &[Arc<Profile>],
    subjects: &[ObservedDatabase],
    earlier: &mut EarlierFindings,
) -> Vec<ObservedDatabase> {
    let Some(profile) = fallback(profiles) else { return Vec::new() };
    let known: HashSet<u32> = subjects.iter().flat_map(ObservedDatabase::pids).collect();
    let taken = || subjects.iter().flat_map(|subject| &subject.held).map(|(_, held)| held.inode).collect();
    let found = earlier.unknown.get_or_insert_with(|| unknown_databases::find(proc, &known, taken()));
    let running = found.iter().filter(|(pid, start)| started(proc, *pid) == Some(*start));
    let unknown = running.filter(|(pid, _)| !known.contains(pid));
    let of = |(pid, _): &(u32, u64)| {
        ObservedDatabase::of_process(proc, *pid, Arc::clone(&profile), false, Vec::new())
    };
    unknown.map(of).collect()
}

/// Reads the files that the subjects' processes hold, and shares the limit between them.
fn read_all_held(
    proc: &ProcRoot,
    options: &ObserverOptions,
    subjects: &mut [ObservedDatabase],
    gaps: &mut VisibilityGaps,
) {
    let may_hold = |subject: &ObservedDatabase| subject.pids().map(|pid| may_hold(proc, pid)).collect();
    let wanted: Vec<PartyDemand> =
        subjects.iter().map(|subject| (subject.party, may_hold(subject))).collect();
    let mut shares = FairShares::new(options.max_files.saturating_mul(OPENED_PER_FILE_MAX), &wanted);
    for (index, subject) in subjects.iter_mut().enumerate() {
        read_held(proc, (index, subject), &mut shares, gaps);
        subject.leave_out(&options.selects);
    }
}

/// Returns the start time of a process that has not ended. A zombie has ended, unless other threads
/// of it still run.
fn started(proc: &ProcRoot, pid: u32) -> Option<u64> {
    let stat = proc.stat(pid).ok()?;
    let ended = matches!(stat.state, 'Z' | 'X') && stat.threads <= 1;
    (!ended).then_some(stat.start_time)
}

fn named_process(
    proc: &ProcRoot,
    pid: u32,
    profiles: &[Arc<Profile>],
    earlier: &mut EarlierFindings,
    gaps: &mut VisibilityGaps,
) -> Result<Option<ObservedDatabase>, ObserveError> {
    let started = started(proc, pid);
    match (earlier.processes.get(&pid), started) {
        (None, None) => return Err(ObserveError::NoProcess { pid }),
        (None, Some(started)) => drop(earlier.processes.insert(pid, started)),
        (Some(before), Some(started)) if *before == started => {}
        (Some(_), _) => {
            gaps.add(&format!("the activity of process {pid}"), "it has ended", None);
            return Ok(None);
        }
    }
    let recognised = recognise(proc, pid, profiles);
    let certain = recognised.as_ref().is_some_and(|recognised| recognised.certain);
    let fits = recognised.map(|recognised| recognised.profile).or_else(|| fallback(profiles));
    let profile = fits.ok_or(ObserveError::NoProfile)?;
    let workers = workers_of(proc, pid, &profile)?;
    Ok(Some(ObservedDatabase::of_process(proc, pid, profile, certain, workers)))
}

/// Returns the directory that a name leads to.
fn named_directory(
    path: &Path,
    earlier: &mut EarlierFindings,
    gaps: &mut VisibilityGaps,
) -> Result<PathBuf, ObserveError> {
    let failed = |source| ObserveError::Directory { path: path.to_path_buf(), source };
    let call = announce(path)?;
    let found = std::fs::canonicalize(path).and_then(|path| {
        let is_directory = std::fs::metadata(&path)?.is_dir();
        is_directory.then_some(path).ok_or_else(|| std::io::ErrorKind::NotADirectory.into())
    });
    drop(call);
    match (found, earlier.directories.get(path)) {
        (Ok(found), _) => {
            earlier.directories.insert(path.to_path_buf(), found.clone());
            Ok(found)
        }
        (Err(error), None) => Err(failed(error)),
        (Err(error), Some(before)) => {
            gaps.add(&format!("the content of {}", escaped(path)), error.to_string(), None);
            Ok(before.clone())
        }
    }
}

/// Reads the files that the subject's processes hold, up to the limit.
fn read_held(
    proc: &ProcRoot,
    (index, subject): (usize, &mut ObservedDatabase),
    shares: &mut FairShares,
    gaps: &mut VisibilityGaps,
) {
    let pids: Vec<u32> = subject.pids().collect();
    for (at, pid) in pids.into_iter().enumerate() {
        let held = opened_by(proc, pid, shares.limit(index, at));
        shares.take(index, at, held.kept.len());
        subject.held.extend(held.kept.into_iter().map(|held| (pid, held)));
        if held.left_out > 0 {
            subject.further_descriptors += held.left_out;
            subject.partly_read.insert(pid);
        }
        if let Some(error) = held.error {
            gaps.process(subject.party, pid, &unescaped(&subject.name), &error);
        }
    }
}

//! The files in one directory of a database and below, and their pages in the page cache.
//!
//! Invariants:
//! 1. No link below is followed, no descriptor is held between scans, and directories of other
//!    databases are skipped.
//! 2. The first scan samples every file. Later ones list the directories that changed, and sample
//!    as many files as their time allows: open and dirty ones first, then those not sampled for
//!    longest.
//! 3. No scan reads more names than it may. A directory that has more is listed again when it
//!    changes or when more may be read, after the others. Until then its known files stay.
//! 4. A file that is gone is forgotten when its directory is listed or when it is sampled.
//!
//! The guard's `directory` lists and samples directories too, and shares only the kernel's calls
//! with this module. It keeps the logs of one directory, with name, sequence and time of birth. It
//! sees each change at once, by inotify, and samples a quiet file at growing intervals, since it
//! acts at each tick. This module keeps all files of a whole tree, for an occasional snapshot. It
//! watches nothing, recognises changed directories by their time of change, and spends a time
//! budget. One type for both would carry the state of both for every file, and inotify watches for
//! whole trees.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_catalog::{Party, Profile};
use pagekeeper_kernel::hang::announce;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{
    Error, ExpectedFile, Inode, InspectedFile, Links, NameLimit, Result, WalkOptions, open_directory,
    stat_of_name, walk,
};
use pagekeeper_policy::FileClass;
use pagekeeper_text::escaped;
use rustix::fs::FileType;

use crate::files::sample::{FileSample, GapReason};
use crate::visibility::{GapKind, VisibilityGaps};

#[cfg(test)]
mod tests;

/// A directory that changed this recently may change again without a new time of change.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Room for new files that is requested in addition to the known ones.
const EXTRA_FILES: usize = 256;

/// Once there were too many names, a directory with more than 1/`LARGE_DIRECTORY_DIVISOR` of all
/// names read comes after the others.
const LARGE_DIRECTORY_DIVISOR: usize = 8;

/// The key of a directory: the process through whose root it is reached, unless it is this one's,
/// and its path there.
pub(crate) type TreeKey = (Option<u32>, PathBuf);

/// One directory and everything below. Paths of its files and directories are relative to it.
#[derive(Debug)]
pub(crate) struct DirectoryTree {
    key: TreeKey,
    /// Its path for this process, without links.
    reach: PathBuf,
    /// Its inode, once it could be opened.
    pub(crate) inode: Option<Inode>,
    profile: String,
    /// The time of the last change of each directory, if it was listed and has settled since.
    directories: HashMap<PathBuf, Option<SystemTime>>,
    files: HashMap<PathBuf, TreeFile>,
    /// The number of files of each directory that were left out at its last listing.
    left_out: HashMap<PathBuf, usize>,
    /// The directories that were not read to their end, and the number of their names that were
    /// read.
    cut: HashMap<PathBuf, usize>,
    /// Maximum number of names that a scan has read.
    most_read: usize,
}

/// The cost of a scan.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScanCost {
    /// Time for sampling known files.
    pub(crate) time: Duration,
    /// The number of names that were read.
    pub(crate) names: usize,
}

/// A file.
#[derive(Debug)]
pub(crate) struct TreeFile {
    pub(crate) sample: FileSample,
    pub(crate) class: Option<FileClass>,
    gap: Option<GapReason>,
    /// The number of the snapshot that last sampled it.
    sampled_in: u64,
}

/// The parameters of a scan.
pub(crate) struct ScanContext<'a> {
    pub(crate) proc: &'a ProcRoot,
    pub(crate) profile: &'a Profile,
    /// The party whose share of the list of gaps it counts towards.
    pub(crate) party: Party,
    /// Returns whether a directory, as the database sees it, is another database's, and not
    /// entered.
    pub(crate) is_anothers: &'a (dyn Fn(&Path) -> bool + Sync),
    /// Returns whether a directory, as the database sees it, may be entered.
    pub(crate) selects: &'a (dyn Fn(&Path) -> bool + Sync),
    /// Files that a process has open.
    pub(crate) busy: &'a HashSet<Inode>,
    /// The number of the snapshot, starting at 1.
    pub(crate) number: u64,
    /// The time for sampling known files.
    pub(crate) time: Duration,
    /// Maximum number of files and subdirectories that are kept.
    pub(crate) max_files: usize,
    /// Maximum number of names that are read.
    pub(crate) max_names: usize,
    /// The required inode of the directory.
    pub(crate) pin: Option<Inode>,
}

impl DirectoryTree {
    pub(crate) fn new(key: TreeKey) -> Self {
        Self {
            reach: key.1.clone(),
            key,
            inode: None,
            profile: String::new(),
            directories: HashMap::new(),
            files: HashMap::new(),
            left_out: HashMap::new(),
            cut: HashMap::new(),
            most_read: 0,
        }
    }

    /// Returns the number of files and directories that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.files.len() + self.directories.len().saturating_sub(1)
    }

    /// Returns the number of files and directories to ask room for: the existing ones, and some for
    /// new ones.
    pub(crate) fn wanted(&self) -> usize {
        let found = self.kept().saturating_add(self.left_out.values().sum());
        found.saturating_add(found / 4).saturating_add(EXTRA_FILES)
    }

    /// Returns the number of names to ask for, in case every directory changes.
    pub(crate) fn wanted_names(&self) -> usize {
        let read = self.most_read.saturating_add(self.most_read / 4).saturating_add(EXTRA_FILES);
        if self.cut.is_empty() { self.wanted().max(read) } else { usize::MAX }
    }

    /// Scans the tree.
    pub(crate) fn scan(&mut self, context: &ScanContext<'_>, gaps: &mut VisibilityGaps) -> ScanCost {
        if self.profile != context.profile.name {
            self.profile.clone_from(&context.profile.name);
            self.forget();
        }
        let start = match self.open(context) {
            Ok(start) => start,
            Err(error) => {
                self.forget();
                gaps.failed(context.party, GapKind::Directory, &error);
                return ScanCost::default();
            }
        };
        self.trim(context);
        let names = self.list(context, &start, gaps);
        self.most_read = self.most_read.max(names);
        let time = self.resample(context, &start);
        let left_out: usize = self.left_out.values().sum();
        if left_out > 0 {
            let what = format!("all files in {}", escaped(&self.key.1));
            let why = format!("{left_out} of them exceed the number kept per directory");
            gaps.add_of(context.party, &what, why);
        }
        for (below, read) in &self.cut {
            let here = if below.as_os_str().is_empty() { self.key.1.clone() } else { self.key.1.join(below) };
            let what = format!("all names in {}", escaped(&here));
            let why = format!("{read} of them were read, and there are more than are read at once");
            gaps.add_of(context.party, &what, why);
        }
        for (below, gap) in self.files.iter().filter_map(|(below, known)| Some((below, known.gap.as_ref()?)))
        {
            let example = || escaped(&self.key.1.join(below)).to_string();
            gaps.count(context.party, gap.kind, example, &gap.why);
        }
        ScanCost { time, names }
    }

    /// Leaves out the excess over the present limit, files that nobody has open first. They are
    /// listed again once there is room.
    fn trim(&mut self, context: &ScanContext<'_>) {
        if self.directories.len() > context.max_files.saturating_add(1) {
            self.forget();
        }
        let surplus = self.kept().saturating_sub(context.max_files);
        if surplus == 0 {
            return;
        }
        let mut known: Vec<(bool, PathBuf)> = self
            .files
            .iter()
            .map(|(below, known)| (context.busy.contains(&known.sample.inode), below.clone()))
            .collect();
        known.sort_unstable();
        for (_, below) in known.into_iter().take(surplus) {
            self.files.remove(&below);
            let parent = below.parent().unwrap_or(&below).to_path_buf();
            *self.left_out.entry(parent).or_default() += 1;
        }
    }

    fn forget(&mut self) {
        self.directories.clear();
        self.files.clear();
        self.left_out.clear();
        self.cut.clear();
    }

    /// Opens the directory, through the process's root if that is another one, and learns the path
    /// that leads to it.
    fn open(&mut self, context: &ScanContext<'_>) -> Result<ScanStart> {
        let (proc, (through, path)) = (context.proc, &self.key);
        let start = match through {
            None => {
                let fd = open_directory(path, Links::Follow)?;
                self.reach = shown(&link_to(proc, &fd))?;
                ScanStart { fd, path: path.clone() }
            }
            Some(pid) => {
                let fd = proc.open_directory_in_namespace(*pid, path)?;
                let link = link_to(proc, &fd);
                let shown = shown(&link)?;
                let sample = proc.as_seen_by(*pid, &shown);
                self.reach = proc.root(*pid).join(sample.strip_prefix("/").unwrap_or(&sample));
                ScanStart { fd, path: link }
            }
        };
        let _call = announce(&self.reach)?;
        let found = rustix::fs::fstat(&start.fd).map_err(|error| Error::call("fstat", path, error))?;
        let inode = Some(Inode::of(&found));
        if context.pin.is_some_and(|pin| inode != Some(pin)) {
            return Err(Error::OtherFile { path: path.clone() });
        }
        if self.inode != inode {
            self.inode = inode;
            self.forget();
        }
        Ok(start)
    }

    /// Lists the directories that changed since they were listed. Returns the number of names read.
    fn list(&mut self, context: &ScanContext<'_>, start: &ScanStart, gaps: &mut VisibilityGaps) -> usize {
        let kept = self.kept();
        let changed = self.changed_directories(start, kept < context.max_files, context.max_names);
        if changed.is_empty() {
            return 0;
        }
        let turns = self.in_turn(&changed, start, context.max_names);
        let here = &self.key.1;
        let (known, directories) = (&self.files, Mutex::new(&mut self.directories));
        let names: Mutex<HashSet<PathBuf>> = Mutex::default();
        // Known files that are gone by now count too, until the next scan.
        let (room, taken) = (context.max_files.saturating_sub(kept), AtomicUsize::new(0));
        let left_out: Mutex<HashMap<PathBuf, usize>> = Mutex::default();
        let has_room = |below: &Path| {
            let is_taken = taken.fetch_add(1, Ordering::Relaxed) < room;
            if !is_taken {
                let parent = below.parent().unwrap_or(below).to_path_buf();
                *lock(&left_out).entry(parent).or_default() += 1;
            }
            is_taken
        };
        let filter = |path: &Path, is_directory: bool| {
            let Ok(below) = path.strip_prefix(&start.path) else { return false };
            if !is_directory {
                let is_known = known.contains_key(below);
                if is_known {
                    lock(&names).insert(below.to_path_buf());
                }
                return !is_known && has_room(below);
            }
            // A directory that was entered before is entered again only if it changed itself.
            let directory = here.join(below);
            !(context.is_anothers)(&directory)
                && (context.selects)(&directory)
                && !lock(&directories).contains_key(below)
                && has_room(below)
                && {
                    let settled = settled_change(path);
                    lock(&directories).insert(below.to_path_buf(), settled).is_none()
                }
        };
        let found: Mutex<Vec<(PathBuf, TreeFile)>> = Mutex::default();
        let problems: Mutex<Vec<Error>> = Mutex::default();
        let beneath = Some((start.fd.as_fd(), start.path.as_path()));
        let cut: Mutex<HashMap<PathBuf, usize>> = Mutex::default();
        let note_cut = |path: &Path, read: usize| {
            if let Ok(below) = path.strip_prefix(&start.path) {
                lock(&cut).insert(below.to_path_buf(), read);
            }
        };
        let limit = NameLimit::new(context.max_names, &note_cut);
        let options =
            WalkOptions { filter: Some(&filter), beneath, names: Some(&limit), ..WalkOptions::default() };
        let visit = |visited: Result<InspectedFile>| {
            let (path, sample, gap) = match visited {
                Ok(file) => {
                    let (sample, gap) = FileSample::of(&file);
                    (file.path().to_path_buf(), sample, gap)
                }
                Err(error) => match FileSample::without_opening(&error) {
                    Some(sample) => {
                        (error.path().to_path_buf(), sample, Some(GapReason::of(GapKind::File, &error)))
                    }
                    None => return lock(&problems).push(error),
                },
            };
            let Ok(below) = path.strip_prefix(&start.path) else { return };
            let class = class_of(context.profile, here, below, start);
            let known = TreeFile { sample, class, gap, sampled_in: context.number };
            lock(&found).push((below.to_path_buf(), known));
        };
        for roots in turns {
            walk(&roots, &options, &visit);
        }
        let read = context.max_names - limit.left();
        let (names, cut) = (ignore_poison(names.into_inner()), ignore_poison(cut.into_inner()));
        if !self.files.is_empty() {
            let changed: HashSet<&Path> = changed.iter().map(PathBuf::as_path).collect();
            let listed = |below: &Path| below.parent().is_some_and(|parent| changed.contains(parent));
            let is_cut = |below: &Path| below.parent().is_some_and(|parent| cut.contains_key(parent));
            self.files.retain(|below, _| !listed(below) || is_cut(below) || names.contains(below));
            for (below, known) in self.files.iter_mut().filter(|(below, _)| listed(below)) {
                // Its name may be that of another file now, and its index may have come.
                known.sampled_in = 0;
                known.class = known.class.or_else(|| class_of(context.profile, here, below, start));
            }
        }
        self.files.extend(ignore_poison(found.into_inner()));
        self.left_out.retain(|below, _| !changed.contains(below) && self.directories.contains_key(below));
        self.left_out.extend(ignore_poison(left_out.into_inner()));
        self.cut.retain(|below, _| !changed.contains(below) && self.directories.contains_key(below));
        self.cut.extend(cut);
        for error in ignore_poison(problems.into_inner()) {
            let Ok(below) = error.path().strip_prefix(&start.path) else { continue };
            if !error.is_gone() {
                let gap = GapReason::of(GapKind::Directory, &error);
                let example = || escaped(&here.join(below)).to_string();
                gaps.count(context.party, gap.kind, example, &gap.why);
            }
            // To be retried, and reported, at the next scan.
            self.directories.insert(below.to_path_buf(), None);
        }
        read
    }

    /// Returns the order of listing: directories with very many names do not delay the others.
    fn in_turn(&self, changed: &[PathBuf], start: &ScanStart, max_names: usize) -> Vec<Vec<PathBuf>> {
        let is_large = |below: &&PathBuf| {
            self.cut.get(*below).is_some_and(|read| *read > max_names / LARGE_DIRECTORY_DIVISOR)
        };
        let (large, small): (Vec<&PathBuf>, Vec<&PathBuf>) = changed.iter().partition(is_large);
        let listed = [small, large].into_iter().filter(|listed| !listed.is_empty());
        listed.map(|listed| listed.into_iter().map(|below| start.join(below)).collect()).collect()
    }

    /// Returns the directories to be listed. These include directories of which files were left
    /// out, if there is room, and directories that were not read to their end, if more may be read.
    /// Forgets those that are gone.
    fn changed_directories(&mut self, start: &ScanStart, has_room: bool, max_names: usize) -> Vec<PathBuf> {
        if self.directories.is_empty() {
            self.directories.insert(PathBuf::new(), None);
        }
        let (mut changed, mut gone) = (Vec::new(), HashSet::new());
        for (below, listed) in &mut self.directories {
            let path = start.join(below);
            match stat_of_name(&path) {
                Ok(found) if below.as_os_str().is_empty() || is_directory(&found) => {
                    let now = settled_change(&path);
                    let lacks = has_room && self.left_out.contains_key(below)
                        || self.cut.get(below).is_some_and(|read| *read < max_names);
                    if lacks || listed.is_none() || *listed != now {
                        changed.push(below.clone());
                    }
                    *listed = now;
                }
                _ => drop(gone.insert(below.clone())),
            }
        }
        if !gone.is_empty() {
            let is_there = |path: &Path| !path.ancestors().any(|above| gone.contains(above));
            self.directories.retain(|path, _| is_there(path));
            self.files.retain(|path, _| is_there(path));
            self.cut.retain(|path, _| is_there(path));
            changed.retain(|path| is_there(path));
        }
        changed
    }

    /// Samples known files again, as long as there is time. Returns the time taken.
    fn resample(&mut self, context: &ScanContext<'_>, start: &ScanStart) -> Duration {
        let began = Instant::now();
        for below in self.due(context) {
            if began.elapsed() > context.time {
                break;
            }
            // Any file with that name is sampled: on some file systems a file's identity changes
            // while it exists.
            let opened = InspectedFile::open_below(
                start.fd.as_fd(),
                below.as_path(),
                ExpectedFile::Any,
                start.path.join(&below),
            );
            let Some(known) = self.files.get_mut(&below) else { continue };
            known.sampled_in = context.number;
            match opened {
                Ok(file) => (known.sample, known.gap) = FileSample::of(&file),
                Err(error) if error.is_denied() => {
                    known.sample.residency = None;
                    known.gap = Some(GapReason::of(GapKind::File, &error));
                }
                // Gone, or something else by now.
                Err(_) => drop(self.files.remove(&below)),
            }
        }
        began.elapsed()
    }

    /// Returns the files that this scan has not sampled yet, the most urgent first: as many as
    /// there can be time for.
    fn due(&self, context: &ScanContext<'_>) -> Vec<PathBuf> {
        let mut due: Vec<(bool, u64, &PathBuf)> = self
            .files
            .iter()
            .filter(|(_, known)| known.sampled_in < context.number)
            .map(|(below, known)| {
                let quiet = !context.busy.contains(&known.sample.inode) && !known.sample.is_unwritten();
                (quiet, known.sampled_in, below)
            })
            .collect();
        due.sort_unstable_by_key(|(quiet, sampled_in, _)| (*quiet, *sampled_in));
        // Each takes at least a microsecond.
        let max = usize::try_from(context.time.as_micros()).unwrap_or(usize::MAX);
        due.into_iter().take(max.saturating_add(1)).map(|(_, _, below)| below.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the files: path as the database sees it, path for this process, and the sample.
    pub(crate) fn files(&self) -> impl Iterator<Item = (PathBuf, PathBuf, &TreeFile)> {
        self.files.iter().map(|(below, known)| (self.key.1.join(below), self.reach.join(below), known))
    }
}

/// Returns the link to the target of a descriptor of this process.
fn link_to(proc: &ProcRoot, fd: &OwnedFd) -> PathBuf {
    proc.path().join(format!("self/fd/{}", fd.as_raw_fd()))
}

/// Returns the target of one of the kernel's links.
fn shown(link: &Path) -> Result<PathBuf> {
    std::fs::read_link(link).map_err(|error| Error::call("readlink", link, error))
}

/// The start of a scan: the directory, and a path to it that may lead through the descriptor.
struct ScanStart {
    fd: OwnedFd,
    path: PathBuf,
}

impl ScanStart {
    /// Joins without a slash at the end, which [`Path::join`] leaves after an empty path.
    fn join(&self, below: &Path) -> PathBuf {
        if below.as_os_str().is_empty() { self.path.clone() } else { self.path.join(below) }
    }
}

fn class_of(profile: &Profile, here: &Path, below: &Path, start: &ScanStart) -> Option<FileClass> {
    let exists = |path: &Path| {
        path.strip_prefix(here).is_ok_and(|below| stat_of_name(&start.path.join(below)).is_ok())
    };
    profile.class_beside(&here.join(below), exists)
}

fn is_directory(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Returns the time of the last change of a directory, if that is long enough ago that another
/// change would show.
fn settled_change(path: &Path) -> Option<SystemTime> {
    let _call = announce(path).ok()?;
    let changed = std::fs::metadata(path).and_then(|meta| meta.modified()).ok()?;
    (changed.elapsed().is_ok_and(|ago| ago > SETTLE_TIME)).then_some(changed)
}

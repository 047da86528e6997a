//! Walks files on disk: all of them in several threads, or those of one directory.
//!
//! Invariants: files are opened for inspection only, as by `pagekeeper_kernel::walk`. No lock is
//! held over I/O. Files that this user may not see are counted, and never mistaken for absent.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use pagekeeper_kernel::hang::{announce, announce_from};
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{
    DIRECTORY_NAMES_MAX, Inode, InspectedFile, Links, Result, WalkOptions, open_directory, residency, walk,
};

use super::file_systems::FileSystems;
use super::table::{DirectoryTable, FileName, FoundFile};

/// The progress of the first walk, and a switch to end it early.
#[derive(Debug, Default)]
pub struct WalkProgress {
    files: AtomicU64,
    walk_ended: AtomicBool,
    cancelled: AtomicBool,
}

impl WalkProgress {
    /// Returns the number of files visited so far.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Ends the walk soon: of the files not yet visited, only those are found that a process has
    /// open.
    pub fn end_walk(&self) {
        self.walk_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether the walk was ended early.
    pub fn is_walk_ended(&self) -> bool {
        self.walk_ended.load(Ordering::Relaxed)
    }

    /// Ends the start of a census soon: files not yet visited are missing.
    pub fn cancel(&self) {
        self.end_walk();
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns whether the start was ended early.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct WalkResult {
    /// Files with pages in memory.
    pub(super) found: Vec<FoundFile>,
    /// The directory of each file.
    pub(super) known: Vec<(Inode, u32)>,
    /// Files whose figures this user may not see, and directories that it may not list.
    pub(super) denied: u64,
    /// Files and directories that could not be read for another reason.
    pub(super) failed: u64,
}

impl WalkResult {
    pub(super) fn merge(&mut self, other: Self) {
        self.found.extend(other.found);
        self.known.extend(other.known);
        self.denied += other.denied;
        self.failed += other.failed;
    }
}

/// The state that walkers share.
#[derive(Debug)]
pub(super) struct WalkScope {
    pub(super) file_systems: FileSystems,
    directories: Mutex<DirectoryTable>,
    /// The file system of each device, as in `st_dev` of its files.
    devices: Mutex<HashMap<u64, u16>>,
    /// Mount points by now, including those that are newer than the start: these are not entered
    /// either.
    mounted: Mutex<HashSet<PathBuf>>,
}

impl WalkScope {
    pub(super) fn new(file_systems: FileSystems) -> Self {
        Self {
            file_systems,
            directories: Mutex::default(),
            devices: Mutex::default(),
            mounted: Mutex::default(),
        }
    }

    pub(super) fn directories(&self) -> MutexGuard<'_, DirectoryTable> {
        lock(&self.directories)
    }

    /// Returns the file systems by the devices of their files.
    pub(super) fn devices(&self) -> MutexGuard<'_, HashMap<u64, u16>> {
        lock(&self.devices)
    }

    fn mounted(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        lock(&self.mounted)
    }

    /// Finds new mounts. Returns the mount points that a new walk would enter.
    pub(super) fn find_new_mounts(&self, proc: &ProcRoot, network: bool) -> Vec<PathBuf> {
        let Ok(now) = self.file_systems.again(proc, network) else { return Vec::new() };
        let new = self.file_systems.new_in(&now);
        let mut mounted = now.excluded;
        mounted.extend(proc.own_mounts().unwrap_or_default().into_iter().map(|mount| mount.point));
        *self.mounted() = mounted;
        new
    }

    /// Returns whether anything was mounted in this mount namespace since
    /// [`Self::find_new_mounts`]: a cheap check.
    pub(super) fn has_more_mounts(&self, proc: &ProcRoot) -> bool {
        let mounts = proc.own_mounts().unwrap_or_default();
        let known = self.mounted();
        mounts.iter().any(|mount| !known.contains(&mount.point))
    }

    /// Returns whether the walk enters a directory that it meets.
    pub(super) fn enters(&self, directory: &Path) -> bool {
        self.file_systems.enters(directory) && !self.mounted().contains(directory)
    }

    /// Returns the file system of a device's files; `None` if it is not walked.
    pub(super) fn file_system_of(&self, dev: u64) -> Option<u16> {
        self.devices().get(&dev).copied()
    }

    /// Returns the number of a directory, and its file system.
    pub(super) fn number(&self, path: &Path) -> (u32, u16) {
        let mut directories = self.directories();
        let number = directories.number(path, || {
            let file_system = self.file_systems.of_path(path).unwrap_or(0);
            u16::try_from(file_system).unwrap_or(u16::MAX)
        });
        let file_system = directories.get(number).map_or(0, |directory| directory.file_system);
        (number, file_system)
    }

    /// Records the time of the last change of a directory's names.
    fn stamp(&self, number: u32, stamp: Option<i128>) {
        if let Some(directory) = self.directories().get_mut(number) {
            directory.changed = stamp;
        }
    }
}

/// Returns the time of the last change of the names in a directory. `None` if it is unknown, or so
/// recent that another change would not show.
pub(super) fn change_of(path: &Path) -> Option<i128> {
    const RECENT_CHANGE_NS: i128 = 3_000_000_000;
    let _call = announce(path).ok()?;
    let stat = rustix::fs::stat(path).ok()?;
    let changed = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos();
    (changed + RECENT_CHANGE_NS < i128::try_from(now).ok()?).then_some(changed)
}

/// The results that one thread of a walk collects.
#[derive(Debug, Default)]
struct WalkThread {
    result: WalkResult,
    directory: Vec<u8>,
    number: u32,
    file_system: u16,
    dev: u64,
}

impl WalkThread {
    fn visit(&mut self, scope: &WalkScope, visited: Result<InspectedFile>) {
        let file = match visited {
            Ok(file) => file,
            Err(error) if error.is_denied() => {
                self.result.denied += 1;
                return;
            }
            Err(error) if error.is_gone() => return,
            Err(_) => {
                self.result.failed += 1;
                return;
            }
        };
        let path = file.path().as_os_str().as_bytes();
        let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let (directory, name) = (&path[..slash.max(1)], &path[(slash + 1).min(path.len())..]);
        if self.directory != directory || self.dev != file.inode().dev {
            let path = Path::new(OsStr::from_bytes(directory));
            (self.number, self.file_system) = scope.number(path);
            self.directory = directory.to_vec();
            if self.dev != file.inode().dev {
                self.dev = file.inode().dev;
                scope.devices().entry(self.dev).or_insert(self.file_system);
            }
        }
        self.result.known.push((file.inode(), self.number));
        let name = FileName::In(self.number, OsStr::from_bytes(name).into());
        match count(&file, name, self.file_system) {
            Ok(Some(found)) => self.result.found.push(found),
            Ok(None) => {}
            Err(error) if error.is_denied() => self.result.denied += 1,
            Err(_) => self.result.failed += 1,
        }
    }
}

/// Counts the pages of a file; `None` if it has none in memory.
pub(super) fn count(file: &InspectedFile, name: FileName, file_system: u16) -> Result<Option<FoundFile>> {
    let start = Instant::now();
    let residency = residency(file, 0..u64::MAX)?;
    if residency.resident == 0 && residency.evicted.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let cost = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
    Ok(Some(FoundFile { inode: file.inode(), name, size: file.size(), file_system, residency, cost }))
}

/// Visits all files of all file systems.
pub(super) fn walk_all(scope: &WalkScope, threads: usize, progress: &WalkProgress) -> WalkResult {
    let walkers: Vec<Mutex<WalkThread>> = (0..threads.max(1)).map(|_| Mutex::default()).collect();
    let enters = |path: &Path, is_directory: bool| {
        if !is_directory {
            return true;
        }
        let entered = scope.enters(path);
        if entered {
            // Before it is listed, so that no change is missed.
            let changed = change_of(path);
            let (number, _) = scope.number(path);
            scope.stamp(number, changed);
        }
        entered
    };
    let stop = || progress.is_walk_ended();
    let options = WalkOptions { threads, filter: Some(&enters), stop: Some(&stop), ..WalkOptions::default() };
    // One after the other. The root, which mostly has programs, comes last: there may not be time
    // for all.
    for file_system in scope.file_systems.walked.iter().rev() {
        walk(std::slice::from_ref(&file_system.point), &options, &|visited| {
            progress.files.fetch_add(1, Ordering::Relaxed);
            // There are as many walkers as threads, so one is free.
            let free = walkers.iter().find_map(|walker| walker.try_lock().ok());
            if let Some(mut walker) = free {
                walker.visit(scope, visited);
            }
        });
    }
    let mut result = WalkResult::default();
    for walker in walkers {
        result.merge(ignore_poison(walker.into_inner()).result);
    }
    result
}

/// Visits the files of one directory until `stop` returns true. Returns the results, and the paths
/// of the directories in it.
pub(super) fn visit_directory(
    scope: &WalkScope,
    path: &Path,
    stop: &(dyn Fn() -> bool + Sync),
) -> (WalkResult, Vec<PathBuf>) {
    let changed = change_of(path);
    let walker = Mutex::new(WalkThread::default());
    let below = Mutex::new(Vec::new());
    let enters = |path: &Path, is_directory: bool| {
        if is_directory && scope.enters(path) {
            lock(&below).push(path.to_path_buf());
        }
        !is_directory
    };
    let options =
        WalkOptions { threads: 1, filter: Some(&enters), stop: Some(stop), ..WalkOptions::default() };
    walk(&[path.to_path_buf()], &options, &|visited| {
        lock(&walker).visit(scope, visited);
    });
    let (number, _) = scope.number(path);
    scope.stamp(number, changed);
    let result = ignore_poison(walker.into_inner()).result;
    (result, ignore_poison(below.into_inner()))
}

/// Returns the names in a directory of some files, by inode number.
pub(super) fn names_in(path: &Path, numbers: &[u64]) -> Vec<(u64, Box<OsStr>)> {
    let Ok(directory) = open_directory(path, Links::RefuseAll) else { return Vec::new() };
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    let mut left = DIRECTORY_NAMES_MAX;
    while left > 0
        && let Ok(_call) = announce_from(directory.as_fd(), path)
        && let Some(Ok(entry)) = entries.next()
    {
        left -= 1;
        if numbers.contains(&entry.ino()) {
            names.push((entry.ino(), OsStr::from_bytes(entry.file_name().to_bytes()).into()));
            if names.len() == numbers.len() {
                break;
            }
        }
    }
    names
}

/// The directories of a walk, shared with the thread in the background.
pub(super) type SharedScope = Arc<WalkScope>;

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, WalkScope) {
        let dir = tempfile::tempdir_in(".").unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        for (name, size) in [("one", 8192), ("a/two", 4096), ("a/b/three", 1), ("a/b/empty", 0)] {
            std::fs::write(dir.path().join(name), vec![1; size]).unwrap();
        }
        let root = dir.path().to_path_buf();
        let file_systems = FileSystems::of_directories(&ProcRoot::default(), &[root], false).unwrap();
        (dir, WalkScope::new(file_systems))
    }

    #[test]
    fn a_walk_that_was_ended_visits_nothing_more() {
        let (_dir, scope) = tree();
        let progress = WalkProgress::default();
        progress.end_walk();
        assert_eq!(walk_all(&scope, 2, &progress).known.len(), 0);
        assert!(!progress.is_cancelled(), "processes are still listed");
    }

    #[test]
    fn every_file_is_known_and_those_with_pages_are_found() {
        let (_dir, scope) = tree();
        let progress = WalkProgress::default();
        let result = walk_all(&scope, 3, &progress);
        assert_eq!((result.known.len(), progress.files()), (4, 4));
        let mut paths: Vec<_> = result
            .found
            .iter()
            .map(|found| match &found.name {
                FileName::In(_, name) => (name.to_str().unwrap().to_owned(), found.residency.resident),
                other => panic!("{other:?}"),
            })
            .collect();
        paths.sort();
        assert_eq!(paths, [("one".to_owned(), 8192), ("three".to_owned(), 4096), ("two".to_owned(), 4096)]);
        assert_eq!((result.denied, result.failed), (0, 0));
    }

    #[test]
    fn file_systems_mounted_during_a_walk_are_not_entered() {
        let (dir, scope) = tree();
        let a = dir.path().canonicalize().unwrap().join("a");
        scope.mounted().insert(a.join("b"));
        assert_eq!(visit_directory(&scope, &a, &|| false).1, Vec::<PathBuf>::new());
        assert_eq!(scope.find_new_mounts(&ProcRoot::default(), false), Vec::<PathBuf>::new());
        assert_eq!(visit_directory(&scope, &a, &|| false).1, [a.join("b")], "it is a mount no more");
        assert!(!scope.enters(Path::new("/proc")));
        // Others may mount something in between.
        let known = (0..10).any(|_| {
            scope.find_new_mounts(&ProcRoot::default(), false);
            !scope.has_more_mounts(&ProcRoot::default())
        });
        assert!(known);
        scope.mounted().remove(Path::new("/proc"));
        assert!(scope.has_more_mounts(&ProcRoot::default()));
    }

    #[test]
    fn a_cancelled_walk_ends() {
        let (_dir, scope) = tree();
        let progress = WalkProgress::default();
        progress.cancel();
        assert_eq!(walk_all(&scope, 1, &progress).known.len(), 0);
    }

    #[test]
    fn a_directory_is_visited_without_its_subdirectories() {
        let (dir, scope) = tree();
        let a = dir.path().canonicalize().unwrap().join("a");
        let (result, below) = visit_directory(&scope, &a, &|| false);
        assert_eq!((result.known.len(), below), (1, vec![a.join("b")]));
        let ino = result.known[0].0.ino;
        let names = names_in(&a, &[ino, u64::MAX]);
        assert_eq!(names, [(ino, OsStr::new("two").into())]);
    }
}

//! Looking at files on disk: all of them from several threads, or those of one directory.
//!
//! Invariants: opens files for inspection only, as `pagekeeper_kernel::walk` does; no lock is held over I/O; what this
//! user may not see is counted, never taken for nothing.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Inode, InspectedFile, Links, Result, WalkOptions, open_directory, residency, walk};

use super::places::Places;
use super::table::{Directories, Found, Name};

/// How far the first walk has come, and the wish to end it.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// Files that were looked at so far.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Ends the walk soon: what was not looked at is missing.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Files with something in memory.
    pub(super) found: Vec<Found>,
    /// In which directory each file lies.
    pub(super) known: Vec<(Inode, u32)>,
    /// Files whose figures this user may not see, and directories that he may not list.
    pub(super) denied: u64,
    /// Files and directories that could not be looked at for another reason.
    pub(super) failed: u64,
}

impl Seen {
    pub(super) fn merge(&mut self, other: Self) {
        self.found.extend(other.found);
        self.known.extend(other.known);
        self.denied += other.denied;
        self.failed += other.failed;
    }
}

/// What walkers share.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) places: Places,
    directories: Mutex<Directories>,
    /// Which place the files of a device belong to, as `st_dev` has it.
    devices: Mutex<HashMap<u64, u16>>,
    /// What is mounted by now, and may not have been at the start: it is not entered either.
    mounted: Mutex<HashSet<PathBuf>>,
}

impl Ground {
    pub(super) fn new(places: Places) -> Self {
        Self { places, directories: Mutex::default(), devices: Mutex::default(), mounted: Mutex::default() }
    }

    pub(super) fn directories(&self) -> MutexGuard<'_, Directories> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places by the devices of their files.
    pub(super) fn devices(&self) -> MutexGuard<'_, HashMap<u64, u16>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mounted(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for what was mounted meanwhile: where, if it is something to be walked.
    pub(super) fn look_for_mounts(&self, proc: &ProcRoot, network: bool) -> Vec<PathBuf> {
        let Ok(now) = self.places.again(proc, network) else { return Vec::new() };
        let new = self.places.new_in(&now);
        let mut mounted = now.passed_by;
        mounted.extend(proc.own_mounts().unwrap_or_default().into_iter().map(|mount| mount.point));
        *self.mounted() = mounted;
        new
    }

    /// Whether something was mounted in this mount namespace since it was looked for: that is asked at little cost.
    pub(super) fn has_more_mounts(&self, proc: &ProcRoot) -> bool {
        let mounts = proc.own_mounts().unwrap_or_default();
        let known = self.mounted();
        mounts.iter().any(|mount| !known.contains(&mount.point))
    }

    /// Whether a directory met on the way is entered.
    pub(super) fn enters(&self, directory: &Path) -> bool {
        self.places.enters(directory) && !self.mounted().contains(directory)
    }

    /// The place of a device's files; `None` if it is not walked.
    pub(super) fn place_of(&self, dev: u64) -> Option<u16> {
        self.devices().get(&dev).copied()
    }

    /// The number of a directory, and its place.
    pub(super) fn number(&self, path: &Path) -> (u32, u16) {
        let mut directories = self.directories();
        let number = directories.number(path, || {
            let place = self.places.of_path(path).unwrap_or(0);
            u16::try_from(place).unwrap_or(u16::MAX)
        });
        let place = directories.get(number).map_or(0, |directory| directory.place);
        (number, place)
    }

    /// Notes when a directory's names changed last.
    fn stamp(&self, number: u32, stamp: Option<i128>) {
        if let Some(directory) = self.directories().get_mut(number) {
            directory.changed = stamp;
        }
    }
}

/// When the names in a directory changed last; `None` where that was a moment ago, so that a change more would not
/// show, or can't be told.
pub(super) fn change_of(path: &Path) -> Option<i128> {
    const MOMENT: i128 = 3_000_000_000;
    let stat = rustix::fs::stat(path).ok()?;
    let changed = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos();
    (changed + MOMENT < i128::try_from(now).ok()?).then_some(changed)
}

/// One thread's share of a walk.
#[derive(Debug, Default)]
struct Hand {
    seen: Seen,
    directory: Vec<u8>,
    number: u32,
    place: u16,
    dev: u64,
}

impl Hand {
    fn visit(&mut self, ground: &Ground, visited: Result<InspectedFile>) {
        let file = match visited {
            Ok(file) => file,
            Err(error) if error.is_denied() => {
                self.seen.denied += 1;
                return;
            }
            Err(error) if error.is_gone() => return,
            Err(_) => {
                self.seen.failed += 1;
                return;
            }
        };
        let path = file.path().as_os_str().as_bytes();
        let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let (directory, name) = (&path[..slash.max(1)], &path[(slash + 1).min(path.len())..]);
        if self.directory != directory || self.dev != file.inode().dev {
            let path = Path::new(OsStr::from_bytes(directory));
            (self.number, self.place) = ground.number(path);
            self.directory = directory.to_vec();
            if self.dev != file.inode().dev {
                self.dev = file.inode().dev;
                ground.devices().entry(self.dev).or_insert(self.place);
            }
        }
        self.seen.known.push((file.inode(), self.number));
        let name = Name::In(self.number, OsStr::from_bytes(name).into());
        match count(&file, name, self.place) {
            Ok(Some(found)) => self.seen.found.push(found),
            Ok(None) => {}
            Err(error) if error.is_denied() => self.seen.denied += 1,
            Err(_) => self.seen.failed += 1,
        }
    }
}

/// Counts the pages of a file; `None` if it has nothing in memory.
pub(super) fn count(file: &InspectedFile, name: Name, place: u16) -> Result<Option<Found>> {
    let start = Instant::now();
    let residency = residency(file, 0..u64::MAX)?;
    if residency.resident == 0 && residency.evicted.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let cost = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
    Ok(Some(Found { inode: file.inode(), name, size: file.size(), place, residency, cost }))
}

/// Looks at all files of all places.
pub(super) fn walk_all(ground: &Ground, threads: usize, progress: &Progress) -> Seen {
    let hands: Vec<Mutex<Hand>> = (0..threads.max(1)).map(|_| Mutex::default()).collect();
    let roots: Vec<PathBuf> = ground.places.walked.iter().map(|place| place.point.clone()).collect();
    let enters = |path: &Path, is_directory: bool| {
        if !is_directory {
            return !progress.cancelled();
        }
        let entered = !progress.cancelled() && ground.enters(path);
        if entered {
            // Before it is listed, so that no change is missed.
            let changed = change_of(path);
            let (number, _) = ground.number(path);
            ground.stamp(number, changed);
        }
        entered
    };
    let options = WalkOptions { threads, filter: Some(&enters), ..WalkOptions::default() };
    walk(&roots, &options, &|visited| {
        progress.files.fetch_add(1, Ordering::Relaxed);
        // As many hands as threads: one is free.
        let free = hands.iter().find_map(|hand| hand.try_lock().ok());
        if let Some(mut hand) = free {
            hand.visit(ground, visited);
        }
    });
    let mut seen = Seen::default();
    for hand in hands {
        seen.merge(hand.into_inner().unwrap_or_else(PoisonError::into_inner).seen);
    }
    seen
}

/// Looks at the files of one directory, not of those below it, whose paths are handed out.
pub(super) fn visit_directory(ground: &Ground, path: &Path) -> (Seen, Vec<PathBuf>) {
    let changed = change_of(path);
    let hand = Mutex::new(Hand::default());
    let below = Mutex::new(Vec::new());
    let enters = |path: &Path, is_directory: bool| {
        if is_directory && ground.enters(path) {
            below.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_path_buf());
        }
        !is_directory
    };
    let options = WalkOptions { threads: 1, filter: Some(&enters), ..WalkOptions::default() };
    walk(&[path.to_path_buf()], &options, &|visited| {
        hand.lock().unwrap_or_else(PoisonError::into_inner).visit(ground, visited);
    });
    let (number, _) = ground.number(path);
    ground.stamp(number, changed);
    let seen = hand.into_inner().unwrap_or_else(PoisonError::into_inner).seen;
    (seen, below.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The names in a directory of some files, by inode number.
pub(super) fn names_in(path: &Path, numbers: &[u64]) -> Vec<(u64, Box<OsStr>)> {
    let Ok(directory) = open_directory(path, Links::Refuse) else { return Vec::new() };
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
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
pub(super) type SharedGround = Arc<Ground>;

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Ground) {
        let dir = tempfile::tempdir_in(".").unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        for (name, size) in [("one", 8192), ("a/two", 4096), ("a/b/three", 1), ("a/b/empty", 0)] {
            std::fs::write(dir.path().join(name), vec![1; size]).unwrap();
        }
        let root = dir.path().to_path_buf();
        let places = Places::of_directories(&ProcRoot::default(), &[root], false).unwrap();
        (dir, Ground::new(places))
    }

    #[test]
    fn every_file_is_known_and_those_with_pages_are_found() {
        let (_dir, ground) = tree();
        let progress = Progress::default();
        let seen = walk_all(&ground, 3, &progress);
        assert_eq!((seen.known.len(), progress.files()), (4, 4));
        let mut paths: Vec<_> = seen
            .found
            .iter()
            .map(|found| match &found.name {
                Name::In(_, name) => (name.to_str().unwrap().to_owned(), found.residency.resident),
                other => panic!("{other:?}"),
            })
            .collect();
        paths.sort();
        assert_eq!(paths, [("one".to_owned(), 8192), ("three".to_owned(), 4096), ("two".to_owned(), 4096)]);
        assert_eq!((seen.denied, seen.failed), (0, 0));
    }

    #[test]
    fn what_was_mounted_meanwhile_is_not_entered() {
        let (dir, ground) = tree();
        let a = dir.path().canonicalize().unwrap().join("a");
        ground.mounted().insert(a.join("b"));
        assert_eq!(visit_directory(&ground, &a).1, Vec::<PathBuf>::new());
        assert_eq!(ground.look_for_mounts(&ProcRoot::default(), false), Vec::<PathBuf>::new());
        assert_eq!(visit_directory(&ground, &a).1, [a.join("b")], "it is a mount no more");
        assert!(!ground.enters(Path::new("/proc")));
        // Others may mount something in between.
        let known = (0..10).any(|_| {
            ground.look_for_mounts(&ProcRoot::default(), false);
            !ground.has_more_mounts(&ProcRoot::default())
        });
        assert!(known);
        ground.mounted().remove(Path::new("/proc"));
        assert!(ground.has_more_mounts(&ProcRoot::default()));
    }

    #[test]
    fn a_cancelled_walk_ends() {
        let (_dir, ground) = tree();
        let progress = Progress::default();
        progress.cancel();
        assert_eq!(walk_all(&ground, 1, &progress).known.len(), 0);
    }

    #[test]
    fn one_directory_is_looked_at_without_those_below() {
        let (dir, ground) = tree();
        let a = dir.path().canonicalize().unwrap().join("a");
        let (seen, below) = visit_directory(&ground, &a);
        assert_eq!((seen.known.len(), below), (1, vec![a.join("b")]));
        let ino = seen.known[0].0.ino;
        let names = names_in(&a, &[ino, u64::MAX]);
        assert_eq!(names, [(ino, OsStr::new("two").into())]);
    }
}

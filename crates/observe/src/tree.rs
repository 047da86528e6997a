//! The files in one directory of a database and below: which there are, and what of them is in the page cache.
//!
//! Invariants:
//! 1. No link below is followed, no descriptor is held between scans, directories of other databases are passed over.
//! 2. The first scan samples every file. Later ones list the directories that changed, and sample as many files as their
//!    time allows: open and dirty ones first, then those not sampled for longest.
//! 3. A file that is gone is forgotten when its directory is listed or when it is sampled.
//!
//! The guard's `directory` lists and samples directories too, and shares nothing with this but the kernel's calls. It
//! keeps the logs of one directory, known by name, sequence and time of birth; it has each change at once, by inotify,
//! and samples a quiet file ever more seldom, since it acts each tick. This keeps all files of a whole tree for one
//! snapshot now and then: it watches nothing, recognises changed directories by their time of change, and spends a
//! time budget. One type for both would carry the state of both for every file, and inotify watches for whole trees.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::hang::asking;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::text::escaped;
use pagekeeper_kernel::{
    Error, Expected, Inode, InspectedFile, Links, Result, WalkOptions, open_directory, stat_of_name, walk,
};
use pagekeeper_policy::FileClass;
use rustix::fs::FileType;

use crate::sample::{FileSample, GapReason};
use crate::visibility::{GapKind, VisibilityGaps};

/// A directory that changed so lately may change again without its time of change being another.
const SETTLED: Duration = Duration::from_secs(1);

/// Which directory: the process through whose root it is reached, if another's, and its path there.
pub(crate) type Key = (Option<u32>, PathBuf);

/// One directory and all below. Paths of its files and directories are those below it.
#[derive(Debug)]
pub(crate) struct DirectoryTree {
    key: Key,
    /// Its path for this process, without links.
    reach: PathBuf,
    /// Which directory it is, once it could be opened.
    pub(crate) inode: Option<Inode>,
    profile: String,
    /// When each was changed last, if it was listed and has settled since.
    directories: HashMap<PathBuf, Option<SystemTime>>,
    files: HashMap<PathBuf, TreeFile>,
    /// How many files of each directory were left out when it was last listed.
    left_out: HashMap<PathBuf, usize>,
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

/// What the scan of a tree needs to know.
pub(crate) struct ScanContext<'a> {
    pub(crate) proc: &'a ProcRoot,
    pub(crate) profile: &'a Profile,
    /// Directories that are not entered, as the database sees them.
    pub(crate) excluded: &'a HashSet<&'a Path>,
    /// Whether a directory, as the database sees it, may be entered.
    pub(crate) selects: &'a (dyn Fn(&Path) -> bool + Sync),
    /// Files that a process has open.
    pub(crate) busy: &'a HashSet<Inode>,
    /// The number of the snapshot, from 1 on.
    pub(crate) number: u64,
    /// How long known files may be sampled.
    pub(crate) time: Duration,
    /// The most files that are kept.
    pub(crate) max_files: usize,
    /// Which directory it has to be.
    pub(crate) pin: Option<Inode>,
}

impl DirectoryTree {
    pub(crate) fn new(key: Key) -> Self {
        Self {
            reach: key.1.clone(),
            key,
            inode: None,
            profile: String::new(),
            directories: HashMap::new(),
            files: HashMap::new(),
            left_out: HashMap::new(),
        }
    }

    pub(crate) fn scan(&mut self, context: &ScanContext<'_>, gaps: &mut VisibilityGaps) {
        if self.profile != context.profile.name {
            self.profile.clone_from(&context.profile.name);
            self.forget();
        }
        let start = match self.open(context) {
            Ok(start) => start,
            Err(error) => {
                self.forget();
                gaps.failed(GapKind::Directory, &error);
                return;
            }
        };
        self.list(context, &start, gaps);
        self.resample(context, &start);
        let left_out: usize = self.left_out.values().sum();
        if left_out > 0 {
            let what = format!("all files in {}", escaped(&self.key.1));
            gaps.add(&what, format!("{left_out} of them are more than are kept of one directory"), None);
        }
        for (below, gap) in self.files.iter().filter_map(|(below, known)| Some((below, known.gap.as_ref()?)))
        {
            gaps.count(gap.kind, &escaped(&self.key.1.join(below)).to_string(), &gap.why);
        }
    }

    fn forget(&mut self) {
        self.directories.clear();
        self.files.clear();
        self.left_out.clear();
    }

    /// Opens it, where the process has another root through that, and learns what path leads to it.
    fn open(&mut self, context: &ScanContext<'_>) -> Result<Start> {
        let (proc, (through, path)) = (context.proc, &self.key);
        let start = match through {
            None => {
                let fd = open_directory(path, Links::Follow)?;
                self.reach = shown(&link_to(proc, &fd))?;
                Start { fd, path: path.clone() }
            }
            Some(pid) => {
                let fd = proc.open_directory_in_namespace(*pid, path)?;
                let link = link_to(proc, &fd);
                let shown = shown(&link)?;
                let sample = proc.as_seen_by(*pid, &shown);
                self.reach = proc.root(*pid).join(sample.strip_prefix("/").unwrap_or(&sample));
                Start { fd, path: link }
            }
        };
        let _asking = asking(&self.reach)?;
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

    /// Lists the directories that changed since they were listed.
    fn list(&mut self, context: &ScanContext<'_>, start: &Start, gaps: &mut VisibilityGaps) {
        let changed = self.changed_directories(start, self.files.len() < context.max_files);
        if changed.is_empty() {
            return;
        }
        let here = &self.key.1;
        let (known, directories) = (&self.files, Mutex::new(&mut self.directories));
        let names: Mutex<HashSet<PathBuf>> = Mutex::default();
        // Known ones that are gone by now count too, until the next scan.
        let (room, taken) = (context.max_files.saturating_sub(known.len()), AtomicUsize::new(0));
        let left_out: Mutex<HashMap<PathBuf, usize>> = Mutex::default();
        let filter = |path: &Path, is_directory: bool| {
            let Ok(below) = path.strip_prefix(&start.path) else { return false };
            if !is_directory {
                let is_known = known.contains_key(below);
                if is_known {
                    lock(&names).insert(below.to_path_buf());
                }
                let is_taken = !is_known && taken.fetch_add(1, Ordering::Relaxed) < room;
                if !is_known && !is_taken {
                    let parent = below.parent().unwrap_or(below).to_path_buf();
                    *lock(&left_out).entry(parent).or_default() += 1;
                }
                return is_taken;
            }
            // What was entered before is entered again only if it changed itself.
            let directory = here.join(below);
            !context.excluded.contains(directory.as_path())
                && (context.selects)(&directory)
                && !lock(&directories).contains_key(below)
                && {
                    let settled = settled_change(path);
                    lock(&directories).insert(below.to_path_buf(), settled).is_none()
                }
        };
        let found: Mutex<Vec<(PathBuf, TreeFile)>> = Mutex::default();
        let problems: Mutex<Vec<Error>> = Mutex::default();
        let beneath = Some((start.fd.as_fd(), start.path.as_path()));
        let options = WalkOptions { filter: Some(&filter), beneath, ..WalkOptions::default() };
        let roots: Vec<PathBuf> = changed.iter().map(|below| start.join(below)).collect();
        walk(&roots, &options, &|visited| {
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
        });
        let names = ignore_poison(names.into_inner());
        if !self.files.is_empty() {
            let changed: HashSet<&Path> = changed.iter().map(PathBuf::as_path).collect();
            let listed = |below: &Path| below.parent().is_some_and(|parent| changed.contains(parent));
            self.files.retain(|below, _| !listed(below) || names.contains(below));
            for (below, known) in self.files.iter_mut().filter(|(below, _)| listed(below)) {
                // Its name may be that of another file now, and its index may have come.
                known.sampled_in = 0;
                known.class = known.class.or_else(|| class_of(context.profile, here, below, start));
            }
        }
        self.files.extend(ignore_poison(found.into_inner()));
        self.left_out.retain(|below, _| !changed.contains(below) && self.directories.contains_key(below));
        self.left_out.extend(ignore_poison(left_out.into_inner()));
        for error in ignore_poison(problems.into_inner()) {
            let Ok(below) = error.path().strip_prefix(&start.path) else { continue };
            if !error.is_gone() {
                let gap = GapReason::of(GapKind::Directory, &error);
                gaps.count(gap.kind, &escaped(&here.join(below)).to_string(), &gap.why);
            }
            // To be tried, and reported, again at the next scan.
            self.directories.insert(below.to_path_buf(), None);
        }
    }

    /// The directories that are to be listed, with those of which files were left out if there is room; those that are gone
    /// are forgotten.
    fn changed_directories(&mut self, start: &Start, has_room: bool) -> Vec<PathBuf> {
        if self.directories.is_empty() {
            self.directories.insert(PathBuf::new(), None);
        }
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        for (below, listed) in &mut self.directories {
            let path = start.join(below);
            match stat_of_name(&path) {
                Ok(found) if below.as_os_str().is_empty() || is_directory(&found) => {
                    let now = settled_change(&path);
                    let lacks = has_room && self.left_out.contains_key(below);
                    if lacks || listed.is_none() || *listed != now {
                        changed.push(below.clone());
                    }
                    *listed = now;
                }
                _ => gone.push(below.clone()),
            }
        }
        for below in &gone {
            self.directories.retain(|path, _| !path.starts_with(below));
            self.files.retain(|path, _| !path.starts_with(below));
            changed.retain(|path| !path.starts_with(below));
        }
        changed
    }

    /// Scans again at files that were known before, as long as there is time.
    fn resample(&mut self, context: &ScanContext<'_>, start: &Start) {
        let began = Instant::now();
        for below in self.due(context) {
            if began.elapsed() > context.time {
                return;
            }
            // Whatever has the name now: on some file systems the identity of a file changes while it is there.
            let opened = InspectedFile::open_below(
                start.fd.as_fd(),
                below.as_path(),
                Expected::Any,
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
    }

    /// The files that this scan has not sampled yet, the most urgent first: as many as there can be time for.
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
        // One takes a microsecond and more.
        let max = usize::try_from(context.time.as_micros()).unwrap_or(usize::MAX);
        due.into_iter().take(max.saturating_add(1)).map(|(_, _, below)| below.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// The files: path as the database sees it, path for this process, and its sample.
    pub(crate) fn files(&self) -> impl Iterator<Item = (PathBuf, PathBuf, &TreeFile)> {
        self.files.iter().map(|(below, known)| (self.key.1.join(below), self.reach.join(below), known))
    }
}

/// The link to what a descriptor of this process refers to.
fn link_to(proc: &ProcRoot, fd: &OwnedFd) -> PathBuf {
    proc.path().join(format!("self/fd/{}", fd.as_raw_fd()))
}

/// Where a link of the kernel's leads to.
fn shown(link: &Path) -> Result<PathBuf> {
    std::fs::read_link(link).map_err(|error| Error::call("readlink", link, error))
}

/// Where a scan begins: the directory, and a path to it that may lead through the descriptor.
struct Start {
    fd: OwnedFd,
    path: PathBuf,
}

impl Start {
    /// Without a slash at the end, which [`Path::join`] leaves after an empty path.
    fn join(&self, below: &Path) -> PathBuf {
        if below.as_os_str().is_empty() { self.path.clone() } else { self.path.join(below) }
    }
}

fn class_of(profile: &Profile, here: &Path, below: &Path, start: &Start) -> Option<FileClass> {
    let exists = |path: &Path| {
        path.strip_prefix(here).is_ok_and(|below| stat_of_name(&start.path.join(below)).is_ok())
    };
    profile.class_beside(&here.join(below), exists)
}

fn is_directory(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// When a directory was changed last, if that is so long ago that another change would show.
fn settled_change(path: &Path) -> Option<SystemTime> {
    let _asking = asking(path).ok()?;
    let changed = std::fs::metadata(path).and_then(|meta| meta.modified()).ok()?;
    (changed.elapsed().is_ok_and(|ago| ago > SETTLED)).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::disk_dir;
    use pagekeeper_catalog::find_profile;

    struct Scans {
        tree: DirectoryTree,
        profile: Profile,
        number: u64,
        pin: Option<Inode>,
    }

    impl Scans {
        fn at(path: &Path) -> Self {
            let profile = find_profile(&Profile::built_in(), "mariadb").unwrap().clone();
            Self { tree: DirectoryTree::new((None, path.to_path_buf())), profile, number: 0, pin: None }
        }

        fn scan(&mut self, time: Duration, busy: &[Inode]) -> Vec<String> {
            self.number += 1;
            let busy = busy.iter().copied().collect();
            let context = ScanContext {
                proc: &ProcRoot::default(),
                profile: &self.profile,
                excluded: &HashSet::new(),
                selects: &|_| true,
                busy: &busy,
                number: self.number,
                time,
                max_files: 1000,
                pin: self.pin,
            };
            self.tree.scan(&context, &mut VisibilityGaps::default());
            let mut names: Vec<_> = self.tree.files.keys().map(|name| name.display().to_string()).collect();
            names.sort();
            names
        }

        fn size(&self, name: &str) -> u64 {
            self.tree.files[Path::new(name)].sample.size
        }
    }

    /// Lets directories settle, as if the last change had been long ago.
    fn settle(path: &Path) {
        let ago = SystemTime::now() - Duration::from_secs(100);
        std::fs::File::open(path).unwrap().set_modified(ago).unwrap();
    }

    #[test]
    fn a_directory_that_took_the_place_of_the_one_that_was_judged_is_not_listed() {
        let dir = disk_dir();
        let (data, other) = (dir.path().join("data"), dir.path().join("other"));
        for path in [&data, &other] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("ibdata1"), b"x").unwrap();
        }
        let mut scans = Scans::at(&data);
        scans.pin = Some(Inode::of(&stat_of_name(&data).unwrap()));
        assert_eq!(scans.scan(Duration::MAX, &[]), ["ibdata1"]);
        std::fs::rename(&data, dir.path().join("was")).unwrap();
        std::os::unix::fs::symlink(&other, &data).unwrap();
        assert_eq!(scans.scan(Duration::MAX, &[]), [""; 0]);
    }

    #[test]
    fn later_scans_follow_what_comes_goes_and_is_renamed() {
        let dir = disk_dir();
        let path = dir.path();
        let write = |name: &str, len: usize| std::fs::write(path.join(name), vec![1; len]).unwrap();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        write("a/b/1.ibd", 10);
        write("a/2.ibd", 20);
        write("bin.000001", 30);
        let mut scans = Scans::at(path);
        let ample = Duration::from_secs(100);
        assert_eq!(scans.scan(ample, &[]), ["a/2.ibd", "a/b/1.ibd", "bin.000001"]);
        assert_eq!(scans.tree.files[Path::new("bin.000001")].class, None);
        for below in ["a/b", "a", ""] {
            settle(&path.join(below));
        }
        assert_eq!(scans.scan(ample, &[]).len(), 3);
        assert!(scans.tree.directories.values().all(Option::is_some), "{:?}", scans.tree.directories);
        write("bin.index", 1);
        std::fs::create_dir(path.join("c")).unwrap();
        write("c/3.ibd", 40);
        std::fs::remove_file(path.join("a/2.ibd")).unwrap();
        write("new", 50);
        std::fs::rename(path.join("new"), path.join("a/b/1.ibd")).unwrap();
        assert_eq!(scans.scan(ample, &[]), ["a/b/1.ibd", "bin.000001", "bin.index", "c/3.ibd"]);
        assert_eq!(scans.tree.files[Path::new("bin.000001")].class, Some(FileClass::Binlog));
        assert_eq!(scans.size("a/b/1.ibd"), 50);
        std::fs::remove_dir_all(path.join("a")).unwrap();
        assert_eq!(scans.scan(ample, &[]), ["bin.000001", "bin.index", "c/3.ibd"]);
        std::fs::remove_dir_all(path).unwrap();
        assert!(scans.scan(ample, &[]).is_empty());
    }

    #[test]
    fn open_and_dirty_files_come_first_then_those_not_sampled_for_longest() {
        let dir = disk_dir();
        for name in ["1", "2", "3", "4"] {
            let file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.set_len(1).unwrap();
            file.sync_all().unwrap();
        }
        std::fs::write(dir.path().join("4"), b"dirty").unwrap();
        let mut scans = Scans::at(dir.path());
        scans.scan(Duration::ZERO, &[]);
        scans.tree.files.get_mut(Path::new("3")).unwrap().sampled_in = 0;
        let busy = HashSet::from([scans.tree.files[Path::new("2")].sample.inode]);
        let context = ScanContext {
            proc: &ProcRoot::default(),
            profile: &scans.profile,
            excluded: &HashSet::new(),
            selects: &|_| true,
            busy: &busy,
            number: 2,
            time: Duration::from_secs(1),
            max_files: 1000,
            pin: None,
        };
        let due: Vec<_> = scans.tree.due(&context);
        let mut due: Vec<_> = due.iter().map(|below| below.to_str().unwrap()).collect();
        let first =
            if scans.tree.files[Path::new("4")].sample.is_unwritten() { vec!["2", "4"] } else { vec!["2"] };
        // Which of two as urgent comes first is left open.
        due[..first.len()].sort_unstable();
        assert_eq!(due[..first.len()], first);
        assert_eq!(due[first.len()], "3");
        assert_eq!(due.len(), 4);
    }

    #[test]
    fn of_very_many_files_some_are_kept_and_the_rest_counted() {
        let dir = disk_dir();
        for name in 0..1500 {
            std::fs::write(dir.path().join(name.to_string()), b"").unwrap();
        }
        let mut scans = Scans::at(dir.path());
        for _ in 0..3 {
            scans.scan(Duration::from_secs(100), &[]);
            assert_eq!((scans.tree.files.len(), scans.tree.left_out.values().sum()), (1000, 500));
        }
        for name in 0..800 {
            std::fs::remove_file(dir.path().join(name.to_string())).unwrap();
        }
        // Room is there once it is known what is gone.
        scans.scan(Duration::from_secs(100), &[]);
        scans.scan(Duration::from_secs(100), &[]);
        assert_eq!((scans.tree.files.len(), scans.tree.left_out.values().sum()), (700, 0));
    }

    #[test]
    fn without_time_only_new_files_are_sampled() {
        let dir = disk_dir();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("old"), b"").unwrap();
        let mut scans = Scans::at(dir.path());
        scans.scan(Duration::ZERO, &[]);
        std::fs::write(path("old"), b"123").unwrap();
        std::fs::write(path("new"), b"123").unwrap();
        scans.scan(Duration::ZERO, &[]);
        assert_eq!((scans.size("old"), scans.size("new")), (0, 3));
        scans.scan(Duration::from_secs(100), &[]);
        assert_eq!(scans.size("old"), 3);
    }
}

//! Walks trees of files with several threads, opening each regular file for inspection.
//!
//! Invariants:
//! 1. A path that the caller names is followed if it is a link. A link found below is followed only
//!    with [`WalkOptions::follow_links`].
//! 2. A directory is entered once, whatever links or bind mounts lead to it, so loops end. A file
//!    with several names is returned once.
//! 3. FIFOs, sockets and devices found below are skipped. If the caller names one, that is an
//!    error, except for the block devices in [`WalkOptions::devices`].
//! 4. Files that vanish during the walk are skipped. Every other failure is passed to the visitor
//!    and the walk continues.
//! 5. At most as many names are read as [`NameLimit`] allows; directories that were cut short by it
//!    are reported.
//! 6. A listing that never ends, as a user-space file system can produce, is left after
//!    [`DIRECTORY_NAMES_MAX`] names, and the visitor gets an error for its directory.
//! 7. Once [`WalkOptions::stop`] returns true, the walk reads no further name and opens no further
//!    file.
//! 8. No file is opened by more than one thread, and no lock is held while files are opened or
//!    read.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FileType, RawDir, Stat};

use crate::hang::{self, announce_from, announce_on_device};
use crate::mutex::ignore_poison;
use crate::open::OwnDescriptors;
use crate::work::WorkQueue;
use crate::{
    Error, ExpectedFile, FileSystem, Inode, InspectedFile, Links, PathHandle, Result, open_directory_in,
};

/// Maximum number of names read from one directory: disk file systems stay far below it.
pub const DIRECTORY_NAMES_MAX: usize = 1 << 24;

/// Decides whether an entry below a named path is visited or entered, by its path and whether it is
/// a directory.
pub type WalkFilter<'a> = &'a (dyn Fn(&Path, bool) -> bool + Sync);

/// A limit of the names read from all directories together.
pub struct NameLimit<'a> {
    left: AtomicUsize,
    cut: &'a (dyn Fn(&Path, usize) + Sync),
}

impl<'a> NameLimit<'a> {
    /// Creates a limit of `max` names of any kind. `cut` is called for each directory that has more
    /// names than are left, with the number of its names that were read.
    pub fn new(max: usize, cut: &'a (dyn Fn(&Path, usize) + Sync)) -> Self {
        Self { left: AtomicUsize::new(max), cut }
    }

    /// Returns how many more names may be read.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// Options of a walk.
pub struct WalkOptions<'a> {
    /// Follow symbolic links found below the named paths.
    pub follow_links: bool,
    /// Stay on the file system of each named path.
    pub one_file_system: bool,
    /// Named paths that may be block devices.
    pub devices: &'a [PathBuf],
    /// Number of threads; at least 1.
    pub threads: usize,
    /// Selects the entries to visit; all if `None`.
    pub filter: Option<WalkFilter<'a>>,
    /// An open directory and its path. Roots below that path are reached from the descriptor, and
    /// no link on the way is followed. Entries may have been replaced since they were listed.
    pub beneath: Option<(BorrowedFd<'a>, &'a Path)>,
    /// Limits the names read; unlimited if `None`.
    pub names: Option<&'a NameLimit<'a>>,
    /// Whether to end the walk early; called before each name and each file, from several threads.
    pub stop: Option<&'a (dyn Fn() -> bool + Sync)>,
}

impl Default for WalkOptions<'_> {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
        Self {
            follow_links: false,
            one_file_system: false,
            devices: &[],
            threads,
            filter: None,
            beneath: None,
            names: None,
            stop: None,
        }
    }
}

/// Maximum number of files in one batch of work: enough to make taking it cheap, few enough to
/// share a flat directory.
const BATCH_FILES_MAX: usize = 128;

/// Visits every regular file at and below `roots`, with the opened file or the error that prevented
/// it.
///
/// `visit` is called from several threads at once, in no particular order. A panic in it ends one
/// thread and is propagated once the others have done the rest.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pagekeeper_kernel::{WalkOptions, residency, walk};
/// let resident = AtomicU64::new(0);
/// walk(&["src".into()], &WalkOptions::default(), &|visited| {
///     if let Ok(counts) = visited.and_then(|file| residency(&file, 0..u64::MAX)) {
///         resident.fetch_add(counts.resident, Ordering::Relaxed);
///     }
/// });
/// ```
pub fn walk(roots: &[PathBuf], options: &WalkOptions<'_>, visit: &(dyn Fn(Result<InspectedFile>) + Sync)) {
    // Last first: the queue is a stack.
    let jobs = roots.iter().rev().map(|root| WalkJob::Root(root.clone())).collect();
    let walker = Walker { options, visit, queue: WorkQueue::new(jobs), seen: Mutex::new(HashSet::new()) };
    let of_job = hang::current();
    std::thread::scope(|scope| {
        for _ in 1..options.threads {
            scope.spawn(|| {
                hang::work_on(of_job.clone());
                walker.queue.work(|job| walker.run(job));
            });
        }
        walker.queue.work(|job| walker.run(job));
    });
}

/// One walk, which its threads share.
struct Walker<'a> {
    options: &'a WalkOptions<'a>,
    visit: &'a (dyn Fn(Result<InspectedFile>) + Sync),
    queue: WorkQueue<WalkJob>,
    /// Directories entered, and files that have several names or were named by the caller.
    seen: Mutex<HashSet<Inode>>,
}

/// A piece of work for one thread.
enum WalkJob {
    Root(PathBuf),
    Directory { parent: Arc<WalkedDirectory>, name: CString },
    Files { parent: Arc<WalkedDirectory>, names: Vec<CString> },
}

/// A directory that was entered.
struct WalkedDirectory {
    fd: OwnedFd,
    path: PathBuf,
    dev: u64,
    /// Device of the named path from which this directory was reached.
    root_dev: u64,
    /// Queried once per device on the way down, since on some file systems the call sums up the
    /// counters of all CPUs.
    file_system: Option<FileSystem>,
}

impl WalkedDirectory {
    fn join(&self, name: &CStr) -> PathBuf {
        self.path.join(OsStr::from_bytes(name.to_bytes()))
    }
}

impl Walker<'_> {
    fn is_stopped(&self) -> bool {
        self.options.stop.is_some_and(|stop| stop())
    }

    fn run(&self, job: WalkJob) {
        if self.is_stopped() {
            return;
        }
        match job {
            WalkJob::Root(path) => {
                if let Err(error) = self.enter_root(&path) {
                    (self.visit)(Err(error));
                }
            }
            WalkJob::Directory { parent, name } => {
                let path = parent.join(&name);
                let entered = open_directory_in(parent.fd.as_fd(), name.as_c_str(), &path)
                    .and_then(|fd| self.enter(fd, path, Some(&parent)));
                self.report_unless_gone(entered);
            }
            WalkJob::Files { parent, names } => {
                let descriptors = OwnDescriptors::of_this_thread();
                for name in names.iter().take_while(|_| !self.is_stopped()) {
                    self.visit_file(&parent, name, descriptors.as_ref());
                }
            }
        }
    }

    fn report_unless_gone(&self, result: Result<()>) {
        match result {
            Err(error) if !error.is_gone() => (self.visit)(Err(error)),
            _ => {}
        }
    }

    /// Enters a path that the caller named. A link is followed, unless the path is beneath an open
    /// directory. An object other than a file or a directory is an error.
    fn enter_root(&self, path: &Path) -> Result<()> {
        let beneath = self.options.beneath.and_then(|(fd, start)| Some((fd, path.strip_prefix(start).ok()?)));
        let handle = match beneath {
            Some((fd, below)) if !below.as_os_str().is_empty() => {
                PathHandle::below(fd, below, path.to_path_buf())
            }
            Some((fd, _)) => PathHandle::below(fd, c".", path.to_path_buf()),
            None => PathHandle::at(path, Links::Follow).map_err(|error| explain_dangling(path, error)),
        }?;
        if handle.kind() == FileType::Directory {
            return self.enter(handle.open_directory(ExpectedFile::Any)?, path.to_path_buf(), None);
        }
        let file = if beneath.is_none() && self.options.devices.iter().any(|device| device == path) {
            handle.open_file_or_device(ExpectedFile::Any)
        } else {
            handle.open(ExpectedFile::Any)
        }?;
        if self.is_first_sight(file.inode()) {
            (self.visit)(Ok(file));
        }
        Ok(())
    }

    fn is_first_sight(&self, inode: Inode) -> bool {
        ignore_poison(self.seen.lock()).insert(inode)
    }

    /// Turns the entries of a directory into jobs.
    fn enter(&self, fd: OwnedFd, path: PathBuf, parent: Option<&WalkedDirectory>) -> Result<()> {
        let call = announce_from(fd.as_fd(), &path)?;
        let inode = Inode::of(&rustix::fs::fstat(&fd).map_err(|e| Error::call("fstat", &path, e))?);
        drop(call);
        let root_dev = parent.map_or(inode.dev, |parent| parent.root_dev);
        if (self.options.one_file_system && inode.dev != root_dev) || !self.is_first_sight(inode) {
            return Ok(());
        }
        let file_system = match parent {
            Some(parent) if parent.dev == inode.dev => parent.file_system,
            _ => FileSystem::of(&fd, &path).ok(),
        };
        let directory = Arc::new(WalkedDirectory { fd, path, dev: inode.dev, root_dev, file_system });
        let mut names = Vec::new();
        let mut directories = Vec::new();
        let mut read = 0;
        let mut buffer = Vec::with_capacity(64 << 10);
        let mut entries = RawDir::new(&directory.fd, buffer.spare_capacity_mut());
        loop {
            let call = announce_on_device(directory.dev, &directory.path)?;
            let Some(entry) = entries.next() else { break };
            drop(call);
            if self.is_stopped() {
                return Ok(());
            }
            if read == DIRECTORY_NAMES_MAX {
                let reason = "its listing does not end: no further name is read";
                (self.visit)(Err(Error::Unsupported { path: directory.path.clone(), reason }));
                break;
            }
            let entry = entry.map_err(|e| Error::call("getdents64", &directory.path, e))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if let Some(limit) = self.options.names.filter(|limit| !limit.take()) {
                (limit.cut)(&directory.path, read);
                break;
            }
            read += 1;
            let kind = match entry.file_type() {
                FileType::Unknown => self.kind_of(&directory, name),
                FileType::Symlink if self.options.follow_links => {
                    self.follow(&directory, name);
                    continue;
                }
                known => known,
            };
            match kind {
                FileType::Directory if self.is_wanted(&directory, name, true) => {
                    directories
                        .push(WalkJob::Directory { parent: Arc::clone(&directory), name: name.into() });
                }
                FileType::RegularFile if self.is_wanted(&directory, name, false) => {
                    names.push(name.into());
                    if names.len() == BATCH_FILES_MAX {
                        let names = std::mem::take(&mut names);
                        self.queue.push(vec![WalkJob::Files { parent: Arc::clone(&directory), names }]);
                    }
                }
                _ => {}
            }
        }
        if !names.is_empty() {
            directories.push(WalkJob::Files { parent: directory, names });
        }
        if !directories.is_empty() {
            self.queue.push(directories);
        }
        Ok(())
    }

    fn is_wanted(&self, parent: &WalkedDirectory, name: &CStr, is_directory: bool) -> bool {
        self.options.filter.is_none_or(|filter| filter(&parent.join(name), is_directory))
    }

    /// Returns the type of an entry on a file system whose listings do not show it.
    fn kind_of(&self, parent: &WalkedDirectory, name: &CStr) -> FileType {
        let flags = if self.options.follow_links { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let Ok(_call) = announce_on_device(parent.dev, &parent.path) else { return FileType::Unknown };
        rustix::fs::statat(&parent.fd, name, flags)
            .map_or(FileType::Unknown, |stat: Stat| FileType::from_raw_mode(stat.st_mode))
    }

    fn visit_file(&self, parent: &WalkedDirectory, name: &CStr, descriptors: Option<&OwnDescriptors>) {
        let visited = PathHandle::below(parent.fd.as_fd(), name, parent.join(name)).and_then(|handle| {
            let stat = handle.stat();
            // The file may have been replaced since it was listed.
            let regular = handle.kind() == FileType::RegularFile;
            if regular && (stat.st_nlink < 2 || self.is_first_sight(handle.inode())) {
                // Not for files of another device: below an overlay's directory they may belong to
                // a layer.
                let file_system = parent.file_system.filter(|_| stat.st_dev == parent.dev);
                (self.visit)(Ok(handle.open_by(ExpectedFile::Any, descriptors)?.on(file_system)));
            }
            Ok(())
        });
        self.report_unless_gone(visited);
    }

    /// Follows a link found below, if links are to be followed.
    fn follow(&self, parent: &WalkedDirectory, name: &CStr) {
        let path = parent.join(name);
        let followed = PathHandle::following(parent.fd.as_fd(), name, path.clone()).and_then(|handle| {
            match handle.kind() {
                FileType::Directory if self.is_wanted(parent, name, true) => {
                    self.enter(handle.open_directory(ExpectedFile::Any)?, path, Some(parent))
                }
                FileType::RegularFile if self.is_wanted(parent, name, false) => {
                    let inode = handle.inode();
                    if self.options.one_file_system && inode.dev != parent.root_dev {
                        return Ok(());
                    }
                    let file = handle.open(ExpectedFile::Any)?;
                    if self.is_first_sight(inode) {
                        (self.visit)(Ok(file));
                    }
                    Ok(())
                }
                _ => Ok(()),
            }
        });
        if let Err(error) = followed {
            (self.visit)(Err(explain_dangling(&parent.join(name), error)));
        }
    }
}

/// Explains a missing target of a link. A dangling link existed and had to be followed: unlike a
/// vanished file, it is reported.
fn explain_dangling(path: &Path, error: Error) -> Error {
    let is_link = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink());
    if error.is_gone() && is_link(path) {
        return Error::Unsupported { path: path.to_path_buf(), reason: "it is a link to nothing" };
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(roots: &[PathBuf], options: &WalkOptions<'_>) -> (Vec<String>, Vec<Error>) {
        let found = Mutex::new(Vec::new());
        let problems = Mutex::new(Vec::new());
        walk(roots, options, &|visited| match visited {
            Ok(file) => {
                found.lock().unwrap().push(file.path().file_name().unwrap().to_string_lossy().into_owned());
            }
            Err(error) => problems.lock().unwrap().push(error),
        });
        let mut found = found.into_inner().unwrap();
        found.sort();
        (found, problems.into_inner().unwrap())
    }

    #[test]
    fn finds_every_file_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        for index in 0..1000 {
            std::fs::write(dir.path().join(format!("a/b/{index}")), b"").unwrap();
        }
        std::fs::write(dir.path().join("a/b/c/deep"), b"").unwrap();
        std::fs::hard_link(dir.path().join("a/b/7"), dir.path().join("a/seven-again")).unwrap();
        for threads in [1, 2, 8] {
            let options = WalkOptions { threads, ..WalkOptions::default() };
            let (found, problems) = names(&[dir.path().to_path_buf(), dir.path().join("a")], &options);
            assert_eq!(found.len(), 1001, "{threads} threads");
            assert!(problems.is_empty());
        }
    }

    #[test]
    fn no_more_names_are_read_than_are_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        std::fs::create_dir(&large).unwrap();
        for index in 0..1000 {
            std::fs::write(large.join(index.to_string()), b"").unwrap();
        }
        let cut = Mutex::new(Vec::new());
        let note = |path: &Path, read: usize| cut.lock().unwrap().push((path.to_path_buf(), read));
        let limit = NameLimit::new(301, &note);
        let (found, problems) = names(
            &[dir.path().to_path_buf()],
            &WalkOptions { names: Some(&limit), ..WalkOptions::default() },
        );
        assert_eq!((found.len(), problems.len(), limit.left()), (300, 0, 0));
        assert_eq!(*cut.lock().unwrap(), [(large, 300)]);
        let all = NameLimit::new(1001, &note);
        let options = WalkOptions { names: Some(&all), ..WalkOptions::default() };
        assert_eq!(names(&[dir.path().to_path_buf()], &options).0.len(), 1000);
        assert_eq!(cut.lock().unwrap().len(), 1);
    }

    #[test]
    fn loops_end_and_dangling_links_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/file"), b"").unwrap();
        symlink("..", dir.path().join("a/up")).unwrap();
        symlink("nowhere", dir.path().join("a/dangling")).unwrap();
        symlink("self", dir.path().join("a/self")).unwrap();
        let roots = [dir.path().to_path_buf()];
        let (found, problems) = names(&roots, &WalkOptions::default());
        assert_eq!((found.as_slice(), problems.len()), (["file".to_owned()].as_slice(), 0));
        let options = WalkOptions { follow_links: true, ..WalkOptions::default() };
        let (found, problems) = names(&roots, &options);
        assert_eq!(found, ["file"]);
        assert_eq!(problems.len(), 2, "dangling and self: {problems:?}");
        let dangling = problems.iter().find(|problem| problem.path().ends_with("dangling")).unwrap();
        assert!(dangling.to_string().contains("a link to nothing"), "the link is there: {dangling}");
        let named = [dir.path().join("a/dangling"), dir.path().join("gone")];
        let (_, problems) = names(&named, &WalkOptions::default());
        let said = |name: &str| {
            let of = problems.iter().find(|problem| problem.path().ends_with(name));
            of.expect("it can't be found").to_string()
        };
        assert!(said("dangling").contains("a link to nothing"), "named by the caller: {problems:?}");
        assert!(said("gone").contains("No such file"), "no link: {problems:?}");
    }

    #[test]
    fn a_link_in_the_place_of_a_root_beneath_an_open_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["tree/real", "secret"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("file"), b"").unwrap();
        }
        let start = dir.path().join("tree");
        symlink("../secret", start.join("swapped")).unwrap();
        let fd = crate::open_directory(&start, Links::Refuse).unwrap();
        let beneath = Some((fd.as_fd(), start.as_path()));
        let roots = [start.join("real"), start.join("swapped")];
        let (found, problems) = names(&roots, &WalkOptions { beneath, ..WalkOptions::default() });
        assert_eq!((found.as_slice(), problems.len()), (["file".to_owned()].as_slice(), 1));
        let (found, _) =
            names(std::slice::from_ref(&start), &WalkOptions { beneath, ..WalkOptions::default() });
        assert_eq!(found, ["file"], "the directory itself is a root, too");
    }

    #[test]
    fn a_named_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::fs::write(dir.path().join("real/file"), b"").unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        let (found, problems) = names(&[dir.path().join("link")], &WalkOptions::default());
        assert_eq!((found.as_slice(), problems.len()), (["file".to_owned()].as_slice(), 0));
    }

    #[test]
    fn special_files_are_passed_over_below_and_reported_when_named() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let (found, problems) = names(&[dir.path().to_path_buf()], &WalkOptions::default());
        assert!(found.is_empty() && problems.is_empty());
        let (_, problems) = names(&[fifo], &WalkOptions::default());
        assert!(problems[0].to_string().contains("a FIFO"), "{problems:?}");
    }

    #[test]
    fn a_missing_named_path_is_reported_and_others_are_walked() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let (found, problems) =
            names(&[dir.path().join("missing"), dir.path().join("file")], &WalkOptions::default());
        assert_eq!((found.len(), problems.len()), (1, 1));
        assert!(problems[0].is_gone());
    }

    #[test]
    fn the_filter_keeps_directories_from_being_entered() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("skip")).unwrap();
        std::fs::write(dir.path().join("skip/inner"), b"").unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let asked = AtomicUsize::new(0);
        let filter = |path: &Path, is_directory: bool| {
            asked.fetch_add(1, Ordering::Relaxed);
            !(is_directory && path.ends_with("skip"))
        };
        let options = WalkOptions { filter: Some(&filter), ..WalkOptions::default() };
        let (found, _) = names(&[dir.path().to_path_buf()], &options);
        assert_eq!(found, ["file"]);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_visitors_panic_is_passed_on_when_the_others_are_done() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..2000 {
            std::fs::write(dir.path().join(format!("{index:04}")), b"").unwrap();
        }
        let visited = AtomicUsize::new(0);
        let walked = std::panic::catch_unwind(|| {
            walk(
                &[dir.path().to_path_buf()],
                &WalkOptions { threads: 2, ..WalkOptions::default() },
                &|file| {
                    visited.fetch_add(1, Ordering::Relaxed);
                    if file.unwrap().path().ends_with("0007") {
                        std::panic::resume_unwind(Box::new("planned"));
                    }
                },
            );
        });
        assert!(walked.is_err());
        let visited = visited.load(Ordering::Relaxed);
        assert!(visited > 2000 - BATCH_FILES_MAX, "{visited} of 2000");
    }

    #[test]
    fn names_need_not_be_utf8() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(OsStr::from_bytes(b"\xff\xfe")), b"").unwrap();
        let (found, problems) = names(&[dir.path().to_path_buf()], &WalkOptions::default());
        assert_eq!((found.len(), problems.len()), (1, 0));
    }
}

//! Which databases are observed, and where their files are.
//!
//! A database's directories are those that files of its profile are found from: what it holds open (temporary files,
//! which may lie anywhere, do not count), and its working directory where the profile names directories below that.
//! Never the root of a file tree.
//!
//! Any process can be called as a database is, and name or open what it may read: a directory counts as its own if it
//! belongs to the one user that the process is, if that user is root, or if it has a file there open for writing.
//! What is left out for that is a visibility gap.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_catalog::{Finder, Profile, logs_below, recognise_process, workers_of};
use pagekeeper_kernel::hang::asking;
use pagekeeper_kernel::process::{Access, ProcRoot};
use pagekeeper_kernel::stat_of_name;
use pagekeeper_kernel::text::{escaped, unescaped};
use pagekeeper_policy::FileClass;
use rustix::fs::FileType;

use crate::held::{Held, held_by, reach};
use crate::visibility::VisibilityGaps;
use crate::{ObserveError, OpenerKind, Scope, Selects};

/// The directory of `PostgreSQL` that holds a link to each tablespace.
const TABLESPACES: &str = "pg_tblspc";

/// A database to observe.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) pid: Option<u32>,
    pub(crate) name: OsString,
    pub(crate) workers: Vec<u32>,
    pub(crate) profile: Arc<Profile>,
    /// As it sees them itself.
    pub(crate) directories: Vec<PathBuf>,
    /// What its processes hold, and which process does.
    pub(crate) held: Vec<(u32, Held)>,
    /// Some of that was left out, since it may not be touched.
    pub(crate) is_left_out: bool,
}

impl Subject {
    /// The process through whose root its directories are reached, if that is another than this process's.
    pub(crate) fn through(&self, proc: &ProcRoot) -> Option<u32> {
        self.pid.and_then(|pid| proc.through(pid))
    }

    /// Its processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.pid.into_iter().chain(self.workers.iter().copied())
    }

    fn of_process(proc: &ProcRoot, pid: u32, profile: Arc<Profile>, workers: Vec<u32>) -> Self {
        let name = proc.name(pid).unwrap_or_default();
        Self {
            pid: Some(pid),
            name,
            workers,
            profile,
            directories: Vec::new(),
            held: Vec::new(),
            is_left_out: false,
        }
    }

    /// A directory that no process was found for yet, with the profile that its logs fit.
    fn of_directory(directory: PathBuf, profiles: &[Arc<Profile>]) -> Result<Self, ObserveError> {
        let fits = logs_below(&directory, profiles).map(|(profile, _)| profile);
        let profile = fits.or_else(|| fallback(profiles)).ok_or(ObserveError::NoProfile)?;
        Ok(Self {
            pid: None,
            name: OsString::new(),
            workers: Vec::new(),
            profile,
            directories: vec![directory],
            held: Vec::new(),
            is_left_out: false,
        })
    }

    /// Leaves out what it holds in directories that may not be touched.
    fn leave_out(&mut self, selects: &Selects) {
        let (pid, before) = (self.pid, self.held.len());
        self.held.retain(|(_, held)| selects.selects(pid, held.path.parent().unwrap_or(&held.path)));
        self.is_left_out = self.held.len() < before;
    }

    /// Takes a process for that of a directory.
    pub(crate) fn take_process(&mut self, proc: &ProcRoot, pid: u32, profile: Arc<Profile>) {
        self.pid = Some(pid);
        self.name = proc.name(pid).unwrap_or_default();
        self.workers = workers_of(proc, pid, &profile).unwrap_or_default();
        self.profile = profile;
    }
}

/// The profile for what no other fits.
fn fallback(profiles: &[Arc<Profile>]) -> Option<Arc<Profile>> {
    profiles.iter().find(|profile| profile.name == "generic").or(profiles.last()).cloned()
}

/// What earlier snapshots found: it may end or go away, and that is no failure then.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    finder: Finder,
    /// Named processes, and when each began.
    processes: HashMap<u32, u64>,
    directories: HashMap<PathBuf, PathBuf>,
}

impl Earlier {
    /// What was named, without what was found: that can be found again.
    pub(crate) fn of_named(&self) -> Self {
        let (processes, directories) = (self.processes.clone(), self.directories.clone());
        Self { finder: Finder::default(), processes, directories }
    }
}

/// The databases that a scope names. To directories belongs a process only later, when it is known who has their files
/// open.
pub(crate) fn find(
    proc: &ProcRoot,
    scope: &Scope,
    selects: &Selects,
    profiles: &[Arc<Profile>],
    earlier: &mut Earlier,
    gaps: &mut VisibilityGaps,
) -> Result<Vec<Subject>, ObserveError> {
    let mut subjects: Vec<Subject> = match scope {
        Scope::Directories(directories) => {
            return directories
                .iter()
                .filter(|path| selects.selects(None, path))
                .map(|path| named_directory(path, earlier, gaps))
                .filter(|resolved| resolved.as_ref().map_or(true, |path| selects.selects(None, path)))
                .map(|resolved| Subject::of_directory(resolved?, profiles))
                .collect();
        }
        Scope::All => earlier
            .finder
            .find(proc, profiles)?
            .into_iter()
            .map(|found| Subject::of_process(proc, found.pid, found.profile, found.workers))
            .collect(),
        Scope::Pids(pids) => {
            let mut subjects = Vec::new();
            for &pid in pids.iter().collect::<BTreeSet<_>>() {
                subjects.extend(named_process(proc, pid, profiles, earlier, gaps)?);
            }
            subjects
        }
    };
    // One that ended in between is no database any more, nor is a zombie that its parent has yet to reap.
    subjects.retain(|subject| subject.pid.is_none_or(|pid| started(proc, pid).is_some()));
    for subject in &mut subjects {
        read_held(proc, subject, gaps);
        subject.leave_out(selects);
        subject.directories = directories_of(proc, subject, selects, gaps);
    }
    subjects.retain(|subject| !subject.is_left_out || !subject.directories.is_empty());
    Ok(subjects)
}

/// When a process started that has not ended. A zombie has, unless other threads of it go on.
fn started(proc: &ProcRoot, pid: u32) -> Option<u64> {
    let stat = proc.stat(pid).ok()?;
    let ended = matches!(stat.state, 'Z' | 'X') && stat.threads <= 1;
    (!ended).then_some(stat.start_time)
}

fn named_process(
    proc: &ProcRoot,
    pid: u32,
    profiles: &[Arc<Profile>],
    earlier: &mut Earlier,
    gaps: &mut VisibilityGaps,
) -> Result<Option<Subject>, ObserveError> {
    let started = started(proc, pid);
    match (earlier.processes.get(&pid), started) {
        (None, None) => return Err(ObserveError::NoProcess { pid }),
        (None, Some(started)) => drop(earlier.processes.insert(pid, started)),
        (Some(before), Some(started)) if *before == started => {}
        (Some(_), _) => {
            gaps.add(&format!("what process {pid} does"), "it has ended", None);
            return Ok(None);
        }
    }
    let fits = recognise_process(proc, pid, profiles).or_else(|| fallback(profiles));
    let profile = fits.ok_or(ObserveError::NoProfile)?;
    let workers = workers_of(proc, pid, &profile)?;
    Ok(Some(Subject::of_process(proc, pid, profile, workers)))
}

/// The directory that a name leads to.
fn named_directory(
    path: &Path,
    earlier: &mut Earlier,
    gaps: &mut VisibilityGaps,
) -> Result<PathBuf, ObserveError> {
    let failed = |source| ObserveError::Directory { path: path.to_path_buf(), source };
    let asking = asking(path)?;
    let found = std::fs::canonicalize(path).and_then(|path| {
        let is_directory = std::fs::metadata(&path)?.is_dir();
        is_directory.then_some(path).ok_or_else(|| std::io::ErrorKind::NotADirectory.into())
    });
    drop(asking);
    match (found, earlier.directories.get(path)) {
        (Ok(found), _) => {
            earlier.directories.insert(path.to_path_buf(), found.clone());
            Ok(found)
        }
        (Err(error), None) => Err(failed(error)),
        (Err(error), Some(before)) => {
            gaps.add(&format!("what is in {}", escaped(path)), error.to_string(), None);
            Ok(before.clone())
        }
    }
}

/// Reads what the subject's processes hold.
fn read_held(proc: &ProcRoot, subject: &mut Subject, gaps: &mut VisibilityGaps) {
    let pids: Vec<u32> = subject.pids().collect();
    for pid in pids {
        let (held, error) = held_by(proc, pid);
        subject.held.extend(held.into_iter().map(|held| (pid, held)));
        if let Some(error) = error {
            gaps.process(pid, &unescaped(&subject.name), &error);
        }
    }
}

/// The directories that a database's files are in.
fn directories_of(
    proc: &ProcRoot,
    subject: &Subject,
    selects: &Selects,
    gaps: &mut VisibilityGaps,
) -> Vec<PathBuf> {
    let Some(pid) = subject.pid else { return subject.directories.clone() };
    let profile = &subject.profile;
    let mut found = BTreeSet::new();
    let user = proc.users(pid).ok().and_then(|users| users.one());
    let belongs = |path: &Path| {
        let owner = proc.handle_in_namespace(pid, path).map(|found| found.stat().st_uid);
        owner.is_ok_and(|owner| user == Some(0) || user == Some(owner))
    };
    let mut written = BTreeSet::new();
    for (_, held) in subject.held.iter().filter(|(_, held)| !held.deleted && !held.private) {
        let exists = |path: &Path| stat_of_name(&reach(proc, pid, path)).is_ok();
        let base = match profile.class_beside(&held.path, exists) {
            Some(FileClass::Temp) => None,
            Some(_) => profile.base_of(&held.path),
            None => profile
                .markers
                .iter()
                .find(|marker| marker.matches(&held.path).is_some())
                .and_then(|_| profile.markers.iter().find_map(|marker| marker.base_of(&held.path))),
        };
        let Some(base) = base else { continue };
        if is_written(held) {
            written.insert(base.to_path_buf());
        }
        found.insert(base.to_path_buf());
    }
    let mut linked = Vec::new();
    if let Ok(cwd) = proc.working_directory(pid).map(|cwd| proc.as_seen_by(pid, &cwd))
        && selects.selects(Some(pid), &cwd)
    {
        let is_there = |name: &PathBuf| proc.open_directory_in_namespace(pid, &cwd.join(name)).is_ok();
        if profile.directories.iter().any(is_there) {
            linked = linked_directories(proc, pid, profile, &cwd);
            linked.retain(|link| leads_to(proc, pid, link).is_some_and(|to| selects.selects(Some(pid), &to)));
            found.insert(cwd);
        }
    }
    let mut left_out = Vec::new();
    let mut keep = |path: &PathBuf| {
        let is_its_own = written.contains(path) || belongs(path);
        if !is_its_own {
            left_out.push(path.clone());
        }
        is_its_own
    };
    found.retain(&mut keep);
    linked.retain(&mut keep);
    for path in left_out {
        let what = format!("what is in {}", escaped(&path));
        gaps.add(&what, format!("it is not the directory of the user of process {pid}"), None);
    }
    // Sorted, a directory comes before all that lies in it.
    let mut widest: Vec<PathBuf> = Vec::new();
    for path in found {
        if path.parent().is_some() && !widest.iter().any(|wider| path.starts_with(wider)) {
            widest.push(path);
        }
    }
    // A directory that the database has a link to is known by the name of the link.
    let identity = |path: &PathBuf| proc.handle_in_namespace(pid, path).ok().map(|found| found.inode());
    let linked_to: Vec<_> = linked.iter().filter_map(identity).collect();
    widest.retain(|path| identity(path).is_none_or(|inode| !linked_to.contains(&inode)));
    widest.extend(linked);
    widest
}

/// Where a link leads to, as the process sees it; nothing there is opened.
fn leads_to(proc: &ProcRoot, pid: u32, link: &Path) -> Option<PathBuf> {
    let found = proc.handle_in_namespace(pid, link).ok()?;
    let own = PathBuf::from(format!("/proc/self/fd/{}", found.as_fd().as_raw_fd()));
    Some(proc.as_seen_by(pid, &std::fs::read_link(own).ok()?))
}

/// Whether it is open for writing.
fn is_written(held: &Held) -> bool {
    match held.kind {
        OpenerKind::Buffered(access) | OpenerKind::Direct(access) => {
            matches!(access, Access::WriteOnly | Access::ReadWrite)
        }
        OpenerKind::Mapped { writable } => writable,
    }
}

/// Directories that a database keeps elsewhere, and has links to: a log, tablespaces. As it names them.
fn linked_directories(proc: &ProcRoot, pid: u32, profile: &Profile, base: &Path) -> Vec<PathBuf> {
    let mut candidates: Vec<PathBuf> = profile.directories.iter().map(|name| base.join(name)).collect();
    let tablespaces = base.join(TABLESPACES);
    let reached = reach(proc, pid, &tablespaces);
    if let Ok(_asking) = asking(&reached)
        && let Ok(entries) = std::fs::read_dir(&reached)
    {
        candidates.extend(entries.flatten().map(|entry| tablespaces.join(entry.file_name())));
    }
    candidates.retain(|path| {
        stat_of_name(&reach(proc, pid, path))
            .is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Symlink)
    });
    candidates.sort_unstable();
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::disk_dir;
    use pagekeeper_catalog::find_profile;
    use pagekeeper_kernel::Inode;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// A process that works in `cwd` and holds these files.
    fn subject(proc: &Path, profile: &str, cwd: &Path, held: &[(&Path, bool)]) -> Subject {
        let pid = 7;
        let process = proc.join("7");
        std::fs::create_dir_all(process.join("ns")).unwrap();
        std::fs::create_dir_all(proc.join("self/ns")).unwrap();
        for of in [process.clone(), proc.join("self")] {
            symlink("/", of.join("root")).unwrap();
            symlink("mnt:[1]", of.join("ns/mnt")).unwrap();
        }
        symlink(cwd, process.join("cwd")).unwrap();
        let user = std::fs::metadata(cwd).unwrap().uid();
        std::fs::write(process.join("status"), format!("Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\n"))
            .unwrap();
        let profile = find_profile(&Profile::built_in(), profile).unwrap().clone();
        let mut subject = Subject::of_process(&ProcRoot::at(proc), pid, Arc::new(profile), Vec::new());
        for (path, deleted) in held {
            let kind = crate::OpenerKind::Buffered(pagekeeper_kernel::process::Access::ReadWrite);
            let held = Held {
                kind,
                inode: Inode { dev: 0, ino: 0 },
                path: path.to_path_buf(),
                deleted: *deleted,
                private: false,
                link: PathBuf::new(),
                size: 0,
            };
            subject.held.push((pid, held));
        }
        subject
    }

    #[test]
    fn the_directories_of_innodb_are_where_its_files_are() {
        let (proc, dir) = (disk_dir(), disk_dir());
        let path = |below: &str| dir.path().join(below);
        std::fs::create_dir_all(path("logs")).unwrap();
        std::fs::write(path("logs/bin.index"), b"").unwrap();
        let held = [
            (path("data/ibdata1"), false),
            (path("data/shop/t.ibd"), false),
            (path("redo/ib_logfile0"), false),
            (path("logs/bin.000001"), false),
            (path("var/slow.log.1"), false),
            (path("tmp/#sql-1.MAI"), false),
            (path("gone/t.ibd"), true),
            (PathBuf::from("/aria_log_control"), false),
        ];
        let held: Vec<_> = held.iter().map(|(path, deleted)| (path.as_path(), *deleted)).collect();
        let subject = subject(proc.path(), "mariadb", dir.path(), &held);
        let found = directories_of(
            &ProcRoot::at(proc.path()),
            &subject,
            &Selects::default(),
            &mut VisibilityGaps::default(),
        );
        assert_eq!(found, [path("data"), path("logs"), path("redo")]);
    }

    #[test]
    fn what_postgresql_keeps_elsewhere_is_known_by_its_links() {
        let (proc, dir) = (disk_dir(), disk_dir());
        let path = |below: &str| dir.path().join(below);
        for below in
            ["data/base/5", "data/pg_tblspc", "space/PG_15_202209061/5", "wal", "other/PG_15_202209061/5"]
        {
            std::fs::create_dir_all(path(below)).unwrap();
        }
        symlink(path("wal"), path("data/pg_wal")).unwrap();
        symlink(path("space"), path("data/pg_tblspc/16384")).unwrap();
        let held = [
            path("data/base/5/2619"),
            path("space/PG_15_202209061/5/16385"),
            path("wal/000000010000000000000001"),
            path("other/PG_15_202209061/5/3"),
        ];
        let held: Vec<_> = held.iter().map(|path| (path.as_path(), false)).collect();
        let subject = subject(proc.path(), "postgresql", &path("data"), &held);
        let found = directories_of(
            &ProcRoot::at(proc.path()),
            &subject,
            &Selects::default(),
            &mut VisibilityGaps::default(),
        );
        assert_eq!(found, [path("data"), path("other"), path("data/pg_tblspc/16384"), path("data/pg_wal")]);
    }

    #[test]
    fn a_directory_of_another_user_is_not_observed_by_a_link() {
        if !rustix::process::geteuid().is_root() {
            pagekeeper_testing::skip(
                "a_directory_of_another_user_is_not_observed_by_a_link: only root may give files away",
            );
            return;
        }
        let (proc, dir) = (disk_dir(), disk_dir());
        let path = |below: &str| dir.path().join(below);
        for below in ["data/base", "data/pg_tblspc", "space", "secret", "wal"] {
            std::fs::create_dir_all(path(below)).unwrap();
        }
        for (name, target) in [("1", "secret"), ("2", "space"), ("3", "/")] {
            symlink(dir.path().join(target), path("data/pg_tblspc").join(name)).unwrap();
        }
        symlink("/etc", path("data/pg_wal")).unwrap();
        for below in ["data", "space"] {
            std::os::unix::fs::chown(path(below), Some(1234), None).unwrap();
        }
        let mut subject = subject(proc.path(), "postgresql", &path("data"), &[]);
        let mut gaps = VisibilityGaps::default();
        let found = directories_of(&ProcRoot::at(proc.path()), &subject, &Selects::default(), &mut gaps);
        assert_eq!(found, [path("data"), path("data/pg_tblspc/2")]);
        assert_eq!(gaps.into_gaps().len(), 3, "the others are named");
        // What it only reads of another's is not its own either.
        let read = Held {
            kind: OpenerKind::Buffered(Access::ReadOnly),
            inode: Inode { dev: 0, ino: 0 },
            path: path("secret/base/1/2"),
            deleted: false,
            private: false,
            link: PathBuf::new(),
            size: 0,
        };
        subject.held.push((7, read));
        assert_eq!(
            directories_of(
                &ProcRoot::at(proc.path()),
                &subject,
                &Selects::default(),
                &mut VisibilityGaps::default()
            ),
            found
        );
    }
}

//! Claims: finds the directories of databases, and decides which of several claimants has a
//! directory.
//!
//! A database's directories are found from its open files that fit its profile. Temporary files and
//! text logs, which may lie anywhere, do not count. Its working directory counts where the profile
//! names directories below it. The root of a file tree never counts.
//!
//! A claim counts, and the better of two wins, by the rules of
//! [`ownership`](pagekeeper_catalog::ownership), as for the guard. A directory that is left out for
//! that reason is a visibility gap. The decision is about a directory, not its path: only that very
//! directory is scanned later.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use pagekeeper_catalog::ownership::has_permissions_of;
use pagekeeper_catalog::{ClaimOutcome, ClaimStrength, one_user};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{ExpectedFile, Inode, PathHandle, Result, first_names, stat_of_name};
use pagekeeper_policy::FileClass;
use pagekeeper_text::escaped;
use rustix::fs::FileType;

use crate::DirectoryFilter;
use crate::discovery::subjects::ObservedDatabase;
use crate::files::opened_files::{OpenedFile, reach};
use crate::visibility::{GapKind, VisibilityGaps};

/// The directory of `PostgreSQL` that holds a link to each tablespace.
const TABLESPACE_DIRECTORY: &str = "pg_tblspc";

/// Maximum number of names of links to tablespaces that are read.
const TABLESPACE_LINKS_MAX: usize = 1024;

/// Maximum number of files that a process writes to and that are looked up per directory that it
/// claims.
const WRITTEN_PER_DIRECTORY_MAX: usize = 256;

/// The same for all directories together.
const WRITTEN_FILES_MAX: usize = 8192;

/// The most directories of a database that are observed; the guard watches as many.
const OBSERVED_DIRECTORIES_MAX: usize = 1024;

/// Gives each directory to the best of its claimants; databases of one kind share it.
pub(crate) fn settle(subjects: &mut [ObservedDatabase], gaps: &mut VisibilityGaps) {
    let mut holders: HashMap<Inode, (usize, PathBuf)> = HashMap::new();
    let mut taken: HashMap<usize, HashSet<PathBuf>> = HashMap::new();
    for index in 0..subjects.len() {
        for path in subjects[index].directories.clone() {
            let Some(&(inode, strength)) = subjects[index].claims.get(&path) else { continue };
            let Some((other, of_other)) = holders.get(&inode).cloned() else {
                holders.insert(inode, (index, path));
                continue;
            };
            let held = subjects[other].claims.get(&of_other).map(|(_, strength)| *strength);
            let of_one_kind = subjects[other].profile.name == subjects[index].profile.name;
            let (loser, lost, winner) = match strength.against(held, of_one_kind) {
                ClaimOutcome::Shared => continue,
                ClaimOutcome::Lost => (index, path, other),
                ClaimOutcome::Won => {
                    holders.insert(inode, (index, path));
                    (other, of_other, index)
                }
            };
            let (what, of) = (format!("the content of {}", escaped(&lost)), &subjects[winner]);
            let (database, process) = (&of.profile.name, of.pid.unwrap_or_default());
            let why = format!(
                "of two databases that claim it, process {process} ({database}) has the better claim"
            );
            taken.entry(loser).or_default().insert(lost);
            let party = subjects[loser].party;
            gaps.add_of(party, &what, why);
        }
    }
    for (loser, taken) in taken {
        subjects[loser].directories.retain(|path| !taken.contains(path));
    }
}

/// Returns the directories of a database's files, with their inodes and the strengths of the
/// claims.
pub(crate) fn directories_of(
    proc: &ProcRoot,
    subject: &ObservedDatabase,
    selects: &DirectoryFilter,
    gaps: &mut VisibilityGaps,
) -> Vec<(PathBuf, Inode, ClaimStrength)> {
    let Some(pid) = subject.pid else { return Vec::new() };
    let profile = &subject.profile;
    let (mut found, mut are_too_many) = (BTreeSet::new(), false);
    let user = proc.users(pid).ok().and_then(one_user);
    let mut written: Vec<&OpenedFile> = Vec::new();
    for (_, held) in subject.held.iter().filter(|(_, held)| !held.deleted && !held.private) {
        let exists = |path: &Path| stat_of_name(&reach(proc, pid, path)).is_ok();
        let base = match profile.class_beside(&held.path, exists) {
            // They may be in a directory of all programs: /var/log.
            Some(FileClass::Temp | FileClass::Text) => None,
            Some(_) => profile.base_of(&held.path),
            None => profile
                .markers
                .iter()
                .find(|marker| marker.matches(&held.path).is_some())
                .and_then(|_| profile.markers.iter().find_map(|marker| marker.base_of(&held.path))),
        };
        let Some(base) = base else { continue };
        if held.kind.writes() {
            written.push(held);
        }
        if found.len() < OBSERVED_DIRECTORIES_MAX || found.contains(base) {
            found.insert(base.to_path_buf());
        } else {
            are_too_many = true;
        }
    }
    // Sorted, files follow directly after their directory.
    written.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let mut linked = Vec::new();
    if let Ok(cwd) = proc.working_directory(pid).map(|cwd| proc.as_seen_by(pid, &cwd))
        && selects.selects(Some(pid), &cwd)
    {
        let is_there = |name: &PathBuf| {
            proc.handle_in_namespace(pid, &cwd.join(name)).is_ok_and(|found| found.kind().is_dir())
        };
        if profile.directories.iter().any(is_there) {
            linked = linked_directories(proc, subject, user, &cwd, gaps);
            linked.retain(|link| leads_to(proc, pid, link).is_some_and(|to| selects.selects(Some(pid), &to)));
            found.insert(cwd);
        }
    }
    let asks = Cell::new(WRITTEN_FILES_MAX);
    let claim = |path: &Path| {
        let directory = proc.handle_in_namespace(pid, path).ok()?;
        // The path may lead elsewhere by now than when the file was seen.
        let is_there = |held: &OpenedFile| {
            let Ok(below) = held.path.strip_prefix(path) else { return false };
            PathHandle::below(directory.as_fd(), below, held.path.clone())
                .is_ok_and(|file| file.inode() == held.inode)
        };
        let first = written.partition_point(|held| held.path.as_path() < path);
        let beneath = written[first..].iter().take_while(|held| held.path.starts_with(path));
        let writes = beneath.take(WRITTEN_PER_DIRECTORY_MAX.min(asks.get())).any(|held| {
            asks.set(asks.get() - 1);
            is_there(held)
        });
        let strength = ClaimStrength::of_claim(user, directory.stat().st_uid, writes, subject.certain)?;
        Some((directory.inode(), strength))
    };
    let mut claims: HashMap<PathBuf, (Inode, ClaimStrength)> = HashMap::new();
    let mut left_out = Vec::new();
    let mut keep = |path: &PathBuf| {
        match claim(path) {
            Some(good) => drop(claims.insert(path.clone(), good)),
            None => left_out.push(path.clone()),
        }
        claims.contains_key(path)
    };
    found.retain(&mut keep);
    linked.retain(&mut keep);
    for path in left_out {
        let what = format!("the content of {}", escaped(&path));
        gaps.add_of(subject.party, &what, format!("it is not the directory of the user of process {pid}"));
    }
    // Sorted, a directory comes before everything in it.
    let mut widest: Vec<PathBuf> = Vec::new();
    for path in found {
        if path.parent().is_some() && !widest.last().is_some_and(|wider| path.starts_with(wider)) {
            widest.push(path);
        }
    }
    // A directory that the database has a link to is identified by the name of the link.
    let linked_to: HashSet<Inode> = linked.iter().map(|path| claims[path].0).collect();
    widest.retain(|path| !linked_to.contains(&claims[path].0));
    widest.extend(linked);
    if are_too_many || widest.len() > OBSERVED_DIRECTORIES_MAX {
        widest.truncate(OBSERVED_DIRECTORIES_MAX);
        let what = format!("all directories of process {pid}");
        gaps.add_of(subject.party, &what, format!("it has files in more than {OBSERVED_DIRECTORIES_MAX}"));
    }
    widest
        .into_iter()
        .map(|path| {
            let (inode, strength) = claims[&path];
            (path, inode, strength)
        })
        .collect()
}

/// Returns the target of a link, as the process sees it; opens nothing there.
fn leads_to(proc: &ProcRoot, pid: u32, link: &Path) -> Option<PathBuf> {
    let found = proc.handle_in_namespace(pid, link).ok()?;
    let own = PathBuf::from(format!("/proc/self/fd/{}", found.as_fd().as_raw_fd()));
    Some(proc.as_seen_by(pid, &std::fs::read_link(own).ok()?))
}

/// Returns the directories that a database keeps elsewhere and has links to, as it names them: a
/// log, tablespaces.
///
/// No link at `base` itself is followed, and names are listed only in a directory of the database's
/// own user.
fn linked_directories(
    proc: &ProcRoot,
    subject: &ObservedDatabase,
    user: Option<u32>,
    base: &Path,
    gaps: &mut VisibilityGaps,
) -> Vec<PathBuf> {
    let Some(pid) = subject.pid else { return Vec::new() };
    let (profile, party) = (&subject.profile, subject.party);
    let here = match proc.open_directory_in_namespace(pid, base) {
        Ok(here) => here,
        Err(error) => {
            gaps.failed(party, GapKind::Directory, &error);
            return Vec::new();
        }
    };
    let mut candidates: Vec<PathBuf> = profile.directories.clone();
    let tablespaces = Path::new(TABLESPACE_DIRECTORY);
    match names_of_links(here.as_fd(), user, tablespaces, &base.join(tablespaces)) {
        Ok(mut names) => {
            if names.len() > TABLESPACE_LINKS_MAX {
                names.truncate(TABLESPACE_LINKS_MAX);
                let what = format!("all links in {}", escaped(&base.join(tablespaces)));
                gaps.add_of(party, &what, format!("there are more than {TABLESPACE_LINKS_MAX}"));
            }
            candidates.extend(names.into_iter().map(|name| tablespaces.join(name)));
        }
        Err(error) => gaps.failed(party, GapKind::Directory, &error),
    }
    candidates.retain(|name| {
        PathHandle::below(here.as_fd(), name.as_path(), base.join(name))
            .is_ok_and(|found| found.kind() == FileType::Symlink)
    });
    candidates.sort_unstable();
    candidates.into_iter().map(|name| base.join(name)).collect()
}

/// Returns the names in a directory beneath another, one more than the limit at most; none unless
/// it belongs to that user, or that user is root.
fn names_of_links(
    here: BorrowedFd<'_>,
    user: Option<u32>,
    name: &Path,
    path: &Path,
) -> Result<Vec<OsString>> {
    let found = PathHandle::below(here, name, path.to_path_buf())?;
    if !(found.kind().is_dir() && has_permissions_of(user, found.stat().st_uid)) {
        return Ok(Vec::new());
    }
    let opened = found.open_directory(ExpectedFile::Any)?;
    first_names(opened.as_fd(), path, TABLESPACE_LINKS_MAX + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenerKind;
    use crate::testing::disk_dir;
    use pagekeeper_catalog::{Profile, find_profile};
    use pagekeeper_kernel::process::AccessMode;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::Arc;

    fn inode_of(path: &Path) -> Inode {
        stat_of_name(path).map_or(Inode { dev: 0, ino: 0 }, |stat| Inode::of(&stat))
    }

    /// Returns the directories of a subject.
    fn found_of(proc: &Path, subject: &ObservedDatabase, gaps: &mut VisibilityGaps) -> Vec<PathBuf> {
        let found = directories_of(&ProcRoot::at(proc), subject, &DirectoryFilter::default(), gaps);
        found.into_iter().map(|(path, _, _)| path).collect()
    }

    /// Makes a process that works in `cwd` and holds these files.
    fn subject(proc: &Path, profile: &str, cwd: &Path, held: &[(&Path, bool)]) -> ObservedDatabase {
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
        let mut subject =
            ObservedDatabase::of_process(&ProcRoot::at(proc), pid, Arc::new(profile), true, Vec::new());
        for (path, deleted) in held {
            let kind = crate::OpenerKind::Buffered(pagekeeper_kernel::process::AccessMode::ReadWrite);
            let held = OpenedFile {
                kind,
                inode: inode_of(path),
                path: path.to_path_buf(),
                deleted: *deleted,
                private: false,
                link: PathBuf::new(),
                size: 0,
                count: 1,
            };
            subject.held.push((pid, held));
        }
        subject
    }

    #[test]
    fn the_directories_of_innodb_are_where_its_files_are() {
        let (proc, dir) = (disk_dir(), disk_dir());
        let path = |below: &str| dir.path().join(below);
        for file in
            ["data/ibdata1", "data/shop/t.ibd", "redo/ib_logfile0", "logs/bin.000001", "logs/bin.index"]
        {
            std::fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            std::fs::write(path(file), b"").unwrap();
        }
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
        let found = found_of(proc.path(), &subject, &mut VisibilityGaps::default());
        assert_eq!(found, [path("data"), path("logs"), path("redo")]);
    }

    #[test]
    fn postgresqls_outside_directories_are_found_by_its_links() {
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
        let found = found_of(proc.path(), &subject, &mut VisibilityGaps::default());
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
        for below in ["data", "data/pg_tblspc", "space"] {
            std::os::unix::fs::chown(path(below), Some(1234), None).unwrap();
        }
        let mut subject = subject(proc.path(), "postgresql", &path("data"), &[]);
        let mut gaps = VisibilityGaps::default();
        let found = found_of(proc.path(), &subject, &mut gaps);
        assert_eq!(found, [path("data"), path("data/pg_tblspc/2")]);
        assert_eq!(gaps.into_gaps().len(), 3, "the others are named");
        // Another user's files that it only reads are not its own either.
        let read = OpenedFile {
            kind: OpenerKind::Buffered(AccessMode::ReadOnly),
            inode: Inode { dev: 0, ino: 0 },
            path: path("secret/base/1/2"),
            deleted: false,
            private: false,
            link: PathBuf::new(),
            size: 0,
            count: 1,
        };
        subject.held.push((7, read));
        assert_eq!(found_of(proc.path(), &subject, &mut VisibilityGaps::default()), found);
    }

    #[test]
    fn links_are_listed_in_the_own_directory_alone() {
        if !rustix::process::geteuid().is_root() {
            pagekeeper_testing::skip(
                "links_are_listed_in_the_own_directory_alone: only root may give files away",
            );
            return;
        }
        let (proc, dir) = (disk_dir(), disk_dir());
        let path = |below: &str| dir.path().join(below);
        for below in ["data/pg_wal", "secret", "space", "data/pg_tblspc"] {
            std::fs::create_dir_all(path(below)).unwrap();
        }
        symlink(path("space"), path("secret/1")).unwrap();
        for below in ["data", "space"] {
            std::os::unix::fs::chown(path(below), Some(1234), None).unwrap();
        }
        let subject = subject(proc.path(), "postgresql", &path("data"), &[]);
        let found = || found_of(proc.path(), &subject, &mut VisibilityGaps::default());
        let opens = pagekeeper_testing::OpenCounter::of(&path("secret"));
        // Reached by a link; and the directory itself, as a mount would place it there.
        std::fs::remove_dir(path("data/pg_tblspc")).unwrap();
        symlink(path("secret"), path("data/pg_tblspc")).unwrap();
        assert_eq!(found(), [path("data")]);
        std::fs::remove_file(path("data/pg_tblspc")).unwrap();
        std::fs::rename(path("secret"), path("data/pg_tblspc")).unwrap();
        assert_eq!(found(), [path("data")]);
        assert!(!opens.any(), "another user's directory was listed");
        std::os::unix::fs::chown(path("data/pg_tblspc"), Some(1234), None).unwrap();
        assert_eq!(found(), [path("data"), path("data/pg_tblspc/1")]);
    }

    #[test]
    fn links_of_a_container_are_found_in_its_own_root() {
        let (proc, host) = (disk_dir(), disk_dir());
        let jail = host.path().join("jail");
        let inside = |path: &Path| jail.join(path.strip_prefix("/").unwrap());
        // The same names on the host and in the container, with an absolute link on the way to
        // them.
        let (real, data) = (host.path().join("real"), host.path().join("data"));
        for (root, space) in [(real.clone(), "of_host"), (inside(&real), "of_container")] {
            std::fs::create_dir_all(root.join("pg_tblspc")).unwrap();
            std::fs::create_dir_all(root.join("pg_wal")).unwrap();
            std::fs::create_dir_all(root.join("space")).unwrap();
            symlink("../space", root.join("pg_tblspc").join(space)).unwrap();
        }
        symlink(&real, inside(&data)).unwrap();
        let subject = subject(proc.path(), "postgresql", &real, &[]);
        std::fs::remove_file(proc.path().join("7/root")).unwrap();
        symlink(&jail, proc.path().join("7/root")).unwrap();
        std::fs::remove_file(proc.path().join("7/cwd")).unwrap();
        symlink(inside(&data), proc.path().join("7/cwd")).unwrap();
        let found = found_of(proc.path(), &subject, &mut VisibilityGaps::default());
        assert_eq!(found, [data.clone(), data.join("pg_tblspc/of_container")]);
    }

    #[test]
    fn links_are_followed_up_to_a_reported_limit() {
        let (proc, dir) = (disk_dir(), disk_dir());
        let path = |below: &str| dir.path().join(below);
        for below in ["data/pg_wal", "data/pg_tblspc", "space"] {
            std::fs::create_dir_all(path(below)).unwrap();
        }
        for number in 0..3 * TABLESPACE_LINKS_MAX {
            symlink(path("space"), path("data/pg_tblspc").join(number.to_string())).unwrap();
        }
        let subject = subject(proc.path(), "postgresql", &path("data"), &[]);
        let mut gaps = VisibilityGaps::default();
        let found = found_of(proc.path(), &subject, &mut gaps);
        assert!(found.len() <= TABLESPACE_LINKS_MAX + 1, "{}", found.len());
        let gaps = gaps.into_gaps();
        assert!(gaps.iter().any(|gap| gap.what.starts_with("all links in ")), "{gaps:?}");
    }
}

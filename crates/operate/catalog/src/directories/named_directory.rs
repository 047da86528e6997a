//! Directories that the user names: finds the profile that fits, and the directories below that
//! hold its logs.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_kernel::{ExpectedFile, Links, PathHandle, first_names, stat_of_name};
use pagekeeper_policy::FileClass;

use crate::profile::Profile;

/// The result for a directory that the user named.
#[derive(Debug, Clone)]
pub struct NamedDirectory {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The directories to watch: the named one, and its direct subdirectories that the profile's
    /// patterns name.
    pub directories: Vec<PathBuf>,
    /// Whether a file in them is a log of the profile.
    pub has_logs: bool,
}

/// Returns the profile with the most logs in `path`, or in its direct subdirectories that the
/// profile's patterns name, and the directories to watch. Among equal ones, a profile with files of
/// [`Profile::beside`] in `path` wins. A single candidate is returned whatever files there are.
///
/// The owner of `path` controls everything below it. So a directory of another user is not read, by
/// a link or otherwise, unless `path` belongs to root. Such a directory is still returned, for the
/// caller to refuse and report.
pub fn logs_below(path: &Path, candidates: &[Arc<Profile>]) -> Option<NamedDirectory> {
    let mut below = DirectoryNames { path, owner: stat_of_name(path).ok()?.st_uid, names: HashMap::new() };
    let best = candidates
        .iter()
        .map(|profile| {
            let (kinds, has_beside) = (below.kinds_found(profile), below.has_beside(profile));
            let counts = has_beside || !profile.beside_always || candidates.len() == 1;
            (if counts { (kinds, kinds > 0 && has_beside) } else { (0, false) }, profile)
        })
        // Among equals the first wins: specific profiles come before the generic one.
        .reduce(|best, next| if next.0 > best.0 { next } else { best });
    let ((kinds, _), profile) = best?;
    if kinds == 0 && candidates.len() > 1 {
        return None;
    }
    let mut directories = vec![path.to_path_buf()];
    let of_patterns = profile.logs.iter().filter_map(|log| log.files.directory()).map(Path::new);
    for name in of_patterns.chain(profile.directories.iter().map(PathBuf::as_path)) {
        let directory = path.join(name);
        let exists = PathHandle::at(&directory, Links::Follow).is_ok_and(|found| found.kind().is_dir());
        if exists && !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    Some(NamedDirectory { profile: Arc::clone(profile), directories, has_logs: kinds > 0 })
}

/// Maximum number of names read per directory.
const DIRECTORY_NAMES_MAX: usize = 16_384;

/// A directory that was named, and the names seen in and below it.
struct DirectoryNames<'a> {
    path: &'a Path,
    owner: u32,
    /// The first names of each directory read, as paths.
    names: HashMap<PathBuf, Vec<PathBuf>>,
}

impl DirectoryNames<'_> {
    /// Opens the directory itself, or one below it that counts.
    fn open(&self, directory: &Path) -> Option<OwnedFd> {
        let found = PathHandle::at(directory, Links::Follow).ok()?;
        let counts = directory == self.path || self.owner == 0 || found.stat().st_uid == self.owner;
        counts.then(|| found.open_directory(ExpectedFile::Any).ok())?
    }

    /// Returns the first names in it. The result does not depend on whether the directory is
    /// renamed meanwhile.
    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        let Some(opened) = self.open(directory) else { return Vec::new() };
        let names = first_names(opened.as_fd(), directory, DIRECTORY_NAMES_MAX).unwrap_or_default();
        names.into_iter().map(|name| directory.join(name)).collect()
    }

    /// Returns how many of a profile's logs have a file there. Text logs do not count: any program
    /// may have files with such names.
    fn kinds_found(&mut self, profile: &Profile) -> usize {
        let path = self.path;
        (0..profile.logs.len())
            .filter(|&index| profile.logs[index].class != FileClass::Text)
            .filter(|&index| match profile.logs[index].files.directory() {
                Some(name) => {
                    self.has_file(profile, &path.join(name), index) || self.has_file(profile, path, index)
                }
                None => self.has_file(profile, path, index),
            })
            .count()
    }

    /// Whether there is a file that distinguishes this database from others with the same file
    /// names.
    fn has_beside(&mut self, profile: &Profile) -> bool {
        if profile.beside.is_empty() {
            return false;
        }
        let names = self.names(self.path);
        let is_one = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|name| profile.beside.iter().any(|pattern| pattern.matches_name(name).is_some()))
        };
        names.iter().any(is_one)
    }

    fn names(&mut self, directory: &Path) -> &[PathBuf] {
        if !self.names.contains_key(directory) {
            let listed = self.list(directory);
            self.names.insert(directory.to_path_buf(), listed);
        }
        &self.names[directory]
    }

    fn has_file(&mut self, profile: &Profile, directory: &Path, index: usize) -> bool {
        self.names(directory).iter().any(|path| {
            profile.log_of(path).is_some_and(|(found, matched)| {
                found == index
                    && (!profile.logs[index].indexed
                        || stat_of_name(&directory.join(matched.index_name())).is_ok())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile_of(files: &[&str]) -> Option<(String, usize)> {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        let profiles: Vec<Arc<Profile>> = Profile::built_in().into_iter().map(Arc::new).collect();
        logs_below(dir.path(), &profiles).map(|found| (found.profile.name.clone(), found.directories.len()))
    }

    #[test]
    fn a_profile_that_was_asked_for_is_taken_without_a_log_and_that_is_known() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("passwd"), b"").unwrap();
        let mariadb: Vec<Arc<Profile>> = Profile::built_in().into_iter().take(1).map(Arc::new).collect();
        let has_logs = || logs_below(dir.path(), &mariadb).unwrap().has_logs;
        assert!(!has_logs());
        std::fs::write(dir.path().join("ib_logfile0"), b"").unwrap();
        assert!(has_logs());
    }

    #[test]
    fn files_tell_the_profile() {
        assert_eq!(profile_of(&["ib_logfile0", "aria_log.00000001"]), Some(("mariadb".into(), 1)));
        assert_eq!(
            profile_of(&["#innodb_redo/#ib_redo0", "binlog.000001", "binlog.index"]),
            Some(("mysql".into(), 2))
        );
        assert_eq!(profile_of(&["pg_wal/000000010000000000000001"]), Some(("postgresql".into(), 2)));
        assert_eq!(profile_of(&["000004.log"]), Some(("rocksdb".into(), 1)));
        assert_eq!(profile_of(&["000004.log", "OPTIONS-000007"]), Some(("rocksdb".into(), 1)));
        let segment = "00000000000000000000";
        let (log, times) = (format!("{segment}.log"), format!("{segment}.timeindex"));
        assert_eq!(profile_of(&[&log, &times]), Some(("kafka".into(), 1)));
        assert_eq!(profile_of(&["wal/00000003"]), Some(("prometheus".into(), 2)));
        assert_eq!(profile_of(&["msgs/7.blk"]), Some(("nats".into(), 2)));
        assert_eq!(profile_of(&["00000003.wal", "meta.dets"]), Some(("rabbitmq".into(), 1)));
        assert_eq!(profile_of(&["CommitLog-8-1732600000123.log"]), Some(("cassandra".into(), 1)));
        assert_eq!(profile_of(&["translog-7.tlog", "translog.ckp"]), Some(("opensearch".into(), 1)));
        for others in ["00000003.wal", "translog-7.tlog"] {
            assert_eq!(profile_of(&[others]), None, "another engine's, by all that is seen");
        }
        assert_eq!(profile_of(&["readme.txt"]), None);
    }

    #[test]
    fn names_of_another_user_are_not_listed_by_a_link_below() {
        if !rustix::process::geteuid().is_root() {
            pagekeeper_testing::skip(
                "names_of_another_user_are_not_listed_by_a_link_below: only root may give files away",
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (named, secret) = (dir.path().join("named"), dir.path().join("secret"));
        for path in [&named, &secret] {
            std::fs::create_dir(path).unwrap();
        }
        std::fs::write(secret.join("000000010000000000000001"), b"").unwrap();
        std::os::unix::fs::symlink(&secret, named.join("pg_wal")).unwrap();
        let profiles: Vec<Arc<Profile>> = Profile::built_in().into_iter().map(Arc::new).collect();
        let found =
            || logs_below(&named, &profiles).map(|found| (found.profile.name.clone(), found.directories));
        let both = vec![named.clone(), named.join("pg_wal")];
        assert_eq!(found(), Some(("postgresql".to_owned(), both.clone())), "a link of root's");
        std::os::unix::fs::chown(&named, Some(1234), None).unwrap();
        assert_eq!(found(), None);
        std::os::unix::fs::chown(&secret, Some(1234), None).unwrap();
        assert_eq!(found(), Some(("postgresql".to_owned(), both)), "its own, elsewhere");
    }
}

//! Directories that the user names: which profile fits, and which directories below hold its logs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_kernel::hang::asking;
use pagekeeper_kernel::stat_of_name;

use crate::profile::Profile;

/// The profile most of whose logs are found in `path` or in the directories right below that its patterns name,
/// and the directories to watch. With one candidate, that one, whatever is there yet.
pub fn logs_below(path: &Path, candidates: &[Arc<Profile>]) -> Option<(Arc<Profile>, Vec<PathBuf>)> {
    let mut names = HashMap::new();
    let best = candidates
        .iter()
        .map(|profile| (kinds_found(path, profile, &mut names), profile))
        // Of equals the first: the particular profiles come before the generic.
        .reduce(|best, next| if next.0 > best.0 { next } else { best });
    let (kinds, profile) = best?;
    if kinds == 0 && candidates.len() > 1 {
        return None;
    }
    let mut directories = vec![path.to_path_buf()];
    for log in &profile.logs {
        if let Some(below) = log.files.directory() {
            let below = path.join(below);
            if asking(&below).is_ok_and(|_asking| below.is_dir()) && !directories.contains(&below) {
                directories.push(below);
            }
        }
    }
    Some((Arc::clone(profile), directories))
}

/// Names of a directory by which it is judged: one may have any number.
const MOST_NAMES: usize = 16_384;

/// The first names of each directory that was asked for.
type Names = HashMap<PathBuf, Vec<PathBuf>>;

/// How many of a profile's logs have a file there.
fn kinds_found(path: &Path, profile: &Profile, names: &mut Names) -> usize {
    let mut has_file = |directory: &Path, index: usize| {
        let paths = names.entry(directory.to_path_buf()).or_insert_with(|| {
            let Ok(_asking) = asking(directory) else { return Vec::new() };
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.take(MOST_NAMES).map(|entry| entry.path()).collect()
        });
        paths.iter().any(|path| {
            profile.log_of(path).is_some_and(|(found, matched)| {
                found == index
                    && (!profile.logs[index].indexed
                        || stat_of_name(&directory.join(matched.index_name())).is_ok())
            })
        })
    };
    (0..profile.logs.len())
        .filter(|&index| match profile.logs[index].files.directory() {
            Some(below) => has_file(&path.join(below), index) || has_file(path, index),
            None => has_file(path, index),
        })
        .count()
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
        logs_below(dir.path(), &profiles)
            .map(|(profile, directories)| (profile.name.clone(), directories.len()))
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
        assert_eq!(profile_of(&["readme.txt"]), None);
    }
}

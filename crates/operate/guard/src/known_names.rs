//! An index of all watched files by name, for looking up descriptors: the kernel shows their names
//! first.
//!
//! Invariant: the index is rebuilt only if files came or went ([`Directory::version`]). With ten
//! thousand files a rebuild takes as long as a whole tick may.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use pagekeeper_kernel::Inode;
use pagekeeper_policy::FileId;

use crate::directory::Directory;
use crate::ids::{DirectoryId, hash_of};

/// An index of watched files by name and inode. See the module.
#[derive(Debug, Default)]
pub(crate) struct KnownNames {
    /// The versions of the directories that it was made from, as a hash.
    built_from: Option<u64>,
    files: HashMap<OsString, HashMap<Inode, (FileId, DirectoryId)>>,
    /// The number of rebuilds.
    #[cfg(test)]
    rebuilds: usize,
}

impl KnownNames {
    /// Rebuilds the index from these directories, unless it is up to date.
    pub(crate) fn update(&mut self, directories: &[Box<Directory>]) {
        // Versions are unique, so two states have different hashes, except by a chance of one in
        // 2^64.
        let versions: Vec<u64> = directories.iter().map(|directory| directory.version()).collect();
        let state = hash_of(&versions);
        if self.built_from == Some(state) {
            return;
        }
        self.built_from = Some(state);
        // The inner maps keep their memory: mostly the same names come again.
        self.files.values_mut().for_each(HashMap::clear);
        #[cfg(test)]
        {
            self.rebuilds += 1;
        }
        for directory in directories {
            for (name, entry) in &directory.entries {
                let file = (entry.id, directory.id);
                if let Some(files) = self.files.get_mut(name) {
                    files.entry(entry.inode).or_insert(file);
                } else {
                    self.files.insert(name.clone(), HashMap::from([(entry.inode, file)]));
                }
            }
        }
        self.files.retain(|_, files| !files.is_empty());
    }

    /// Returns whether a watched file has the name that a path ends in.
    pub(crate) fn has(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| self.files.contains_key(name))
    }

    /// Returns the watched file that has this name and inode, and its directory.
    pub(crate) fn find(&self, name: &OsStr, inode: Inode) -> Option<(FileId, DirectoryId)> {
        self.files.get(name)?.get(&inode).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Turn;
    use crate::directory::Directories;
    use pagekeeper_catalog::ownership::FileOwnership;
    use pagekeeper_catalog::{Profile, find_profile};
    use pagekeeper_policy::turns::Slice;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn names_are_read_again_only_where_files_came_or_went() {
        let dirs: Vec<_> = (0..3).map(|_| pagekeeper_testing::disk_dir()).collect();
        let profile = Arc::new(find_profile(&Profile::built_in(), "rocksdb").unwrap().clone());
        let endless = Duration::from_secs(3600);
        let list = |directory: &mut Directory| {
            let fd = std::fs::File::open(&directory.path).unwrap();
            directory.stale = true;
            assert!(directory.begin_listing(usize::MAX, Instant::now() + endless));
            let turn = Turn::begin(Slice { cpu: endless, wall: endless });
            directory.list(fd.as_fd(), &turn).unwrap();
        };
        let mut directories: Directories = Vec::new();
        for dir in &dirs {
            std::fs::write(dir.path().join("000004.log"), "").unwrap();
            let path = dir.path().to_path_buf();
            let mut of = Directory::new(path, None, None, Arc::clone(&profile), FileOwnership::Operator);
            list(&mut of);
            directories.push(Box::new(of));
        }
        let mut names = KnownNames::default();
        let inode = |directory: &Directory, name: &str| directory.entries[OsStr::new(name)].inode;
        for _ in 0..100 {
            names.update(&directories);
            for directory in &mut directories {
                list(directory);
            }
        }
        assert_eq!(names.rebuilds, 1);
        for directory in &directories {
            let found = names.find(OsStr::new("000004.log"), inode(directory, "000004.log"));
            assert_eq!(found, Some((directory.entries[OsStr::new("000004.log")].id, directory.id)));
        }
        assert!(!names.has(Path::new("/d/000005.log")));
        std::fs::write(dirs[1].path().join("000005.log"), "").unwrap();
        list(&mut directories[1]);
        names.update(&directories);
        assert!(names.has(Path::new("/d/000005.log")) && names.rebuilds == 2);
        let gone = inode(&directories[1], "000005.log");
        directories[1].forget_files();
        names.update(&directories);
        assert_eq!((names.find(OsStr::new("000005.log"), gone), names.rebuilds), (None, 3));
        directories.pop();
        names.update(&directories);
        assert_eq!(names.rebuilds, 4);
    }
}

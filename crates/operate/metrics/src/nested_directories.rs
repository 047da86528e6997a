//! The deepest of very many directories that contains a file.
//!
//! Invariants: a lookup compares a few paths, however deep and many they are. A hostile user's path
//! can have two thousand components, and a database a thousand directories.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Directories, prepared for lookups.
pub(crate) struct NestedDirectories<'a> {
    /// Sorted by bytes.
    all: Vec<DirectoryPrefix<'a>>,
}

struct DirectoryPrefix<'a> {
    directory: &'a Path,
    /// Its path with one trailing slash: the common prefix of the files in it.
    prefix: Vec<u8>,
    /// The deepest other directory that contains it.
    around: Option<usize>,
}

impl<'a> NestedDirectories<'a> {
    /// Prepares directories.
    pub(crate) fn new(directories: &'a [PathBuf]) -> Self {
        let nest = |directory: &'a PathBuf| {
            let mut prefix = directory.as_os_str().as_bytes().to_vec();
            prefix.truncate(prefix.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1));
            prefix.push(b'/');
            DirectoryPrefix { directory, prefix, around: None }
        };
        let mut all: Vec<DirectoryPrefix<'_>> = directories.iter().map(nest).collect();
        all.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        for index in 1..all.len() {
            let mut around = Some(index - 1);
            while let Some(outer) = around.filter(|outer| !all[index].prefix.starts_with(&all[*outer].prefix))
            {
                around = all[outer].around;
            }
            all[index].around = around;
        }
        Self { all }
    }

    /// Returns the deepest directory that contains a file. The candidates are the last directory
    /// before the file in the order, if no other one comes between, and those around it.
    pub(crate) fn deepest_around(&self, file: &Path) -> Option<&'a Path> {
        let file = file.as_os_str().as_bytes();
        let last = self.all.partition_point(|nest| nest.prefix.as_slice() <= file).checked_sub(1)?;
        let same = self.all[last].prefix.iter().zip(file).take_while(|(a, b)| a == b).count();
        let mut around = Some(last);
        while let Some(nest) = around.map(|index| &self.all[index]) {
            if nest.prefix.len() <= same {
                return Some(nest.directory);
            }
            around = nest.around;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_in_the_deepest_directory_around_it() {
        let directories = ["/srv/data", "/", "/srv/data/deep/", "/srv/dat", "/srv/data/deep/x/y"];
        let directories = directories.map(PathBuf::from);
        let nested = NestedDirectories::new(&directories);
        let around = |path: &str| nested.deepest_around(Path::new(path)).unwrap().to_str().unwrap();
        assert_eq!(around("/srv/data/t.ibd"), "/srv/data");
        assert_eq!(around("/srv/data/deep/t/t.ibd"), "/srv/data/deep/");
        assert_eq!(around("/srv/data/deep/x/z"), "/srv/data/deep/", "another one comes between");
        assert_eq!(around("/srv/data"), "/", "it is not in itself");
        assert_eq!(around("/srv/database/t.ibd"), "/");
        assert_eq!(NestedDirectories::new(&directories[..1]).deepest_around(Path::new("/x/t")), None);
        assert_eq!(NestedDirectories::new(&directories[..1]).deepest_around(Path::new("/a")), None);
        assert_eq!(NestedDirectories::new(&[]).deepest_around(Path::new("/a")), None);
    }

    #[test]
    fn very_deep_paths_take_no_time_to_attribute() {
        // Hashing each ancestor of such paths takes minutes for 10,000 open files.
        let deep = PathBuf::from("/a".repeat(2031));
        let directories: Vec<PathBuf> = deep.ancestors().skip(900).step_by(2).map(Path::to_owned).collect();
        let nested = NestedDirectories::new(&directories);
        for number in 0..10_000 {
            let file = deep.join(number.to_string());
            assert_eq!(nested.deepest_around(&file), Some(directories[0].as_path()));
        }
    }
}

//! The largest page-cache users beside the databases: of all files that belong to none, those with
//! the most resident pages, or their directories.
//!
//! Invariants: pure. Each file counts once: alone if it has nearly all that its directory has, else
//! with its directory. The largest come first, and small ones are left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagekeeper_text::unescaped;
use serde::Serialize;

/// Maximum number of holders listed.
const LISTED_HOLDERS_MAX: usize = 5;
/// Minimum resident bytes of a listed holder.
const HOLDER_BYTES_MIN: u64 = 64 << 20;
/// Maximum number of processes listed per holder.
const LISTED_OPENERS_MAX: usize = 3;
/// A file is listed instead of its directory if it has at least this many tenths of the directory's
/// resident bytes.
const NEARLY_ALL_TENTHS: u64 = 9;

/// A file that belongs to no database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its resident bytes.
    pub resident: u64,
    /// The visible processes that have it open or mapped.
    pub open_in: Vec<OpenIn>,
}

/// A process that has a file open or mapped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OpenIn {
    /// The kernel's name for it.
    pub name: String,
    /// The process ID.
    pub pid: u32,
}

/// A file with much page cache, or a directory whose files have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The file, or the directory of the files.
    pub path: String,
    /// The number of files with resident pages.
    pub files: u64,
    /// The total size of the files in bytes.
    pub size_bytes: u64,
    /// Their resident bytes.
    pub resident_bytes: u64,
    /// Some of the visible processes that have one of them open.
    pub open_in: Vec<OpenIn>,
}

/// Returns the largest holders, largest first.
pub(crate) fn holders(files: Vec<HeldFile>) -> Vec<Holder> {
    let mut directories: BTreeMap<PathBuf, Vec<HeldFile>> = BTreeMap::new();
    for file in files {
        let directory = file.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        directories.entry(directory).or_default().push(file);
    }
    let mut holders: Vec<Holder> =
        directories.iter().map(|(directory, files)| holder(directory, files)).collect();
    holders.retain(|holder| holder.resident_bytes >= HOLDER_BYTES_MIN);
    holders.sort_by(|a, b| b.resident_bytes.cmp(&a.resident_bytes).then_with(|| a.path.cmp(&b.path)));
    holders.truncate(LISTED_HOLDERS_MAX);
    holders
}

/// Returns a directory as a holder, or the one file that has nearly all of its resident bytes.
fn holder(directory: &Path, files: &[HeldFile]) -> Holder {
    let resident: u64 = files.iter().map(|file| file.resident).sum();
    let alone = files.iter().find(|file| file.resident * 10 >= resident * NEARLY_ALL_TENTHS);
    let (path, files) = match alone {
        Some(file) => (&*file.path, std::slice::from_ref(file)),
        None => (directory, files),
    };
    let mut open_in: Vec<OpenIn> = files.iter().flat_map(|file| file.open_in.iter().cloned()).collect();
    open_in.sort();
    open_in.dedup();
    open_in.truncate(LISTED_OPENERS_MAX);
    Holder {
        path: unescaped(path).into_owned(),
        files: files.len() as u64,
        size_bytes: files.iter().map(|file| file.size).sum(),
        resident_bytes: files.iter().map(|file| file.resident).sum(),
        open_in,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, resident_mib: u64, open_in: &[u32]) -> HeldFile {
        let open_in = open_in.iter().map(|pid| OpenIn { name: format!("program{pid}"), pid: *pid }).collect();
        let (size, resident) = (resident_mib << 21, resident_mib << 20);
        HeldFile { path: path.into(), size, resident, open_in }
    }

    #[test]
    fn a_file_with_nearly_all_pages_is_named_otherwise_its_directory() {
        let files = vec![
            file("/var/lib/etcd/snap/db", 900, &[7]),
            file("/var/lib/etcd/snap/db.old", 100, &[8]),
            file("/archive/1", 64, &[]),
            file("/archive/2", 64, &[4, 3]),
            file("/archive/3", 64, &[1, 2, 3]),
            file("/small/one", 63, &[]),
        ];
        let found = holders(files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].path.as_str(), found[0].files), ("/var/lib/etcd/snap/db", 1));
        assert_eq!((found[0].resident_bytes, found[0].size_bytes), (900 << 20, 1800 << 20));
        assert_eq!(found[0].open_in, [OpenIn { name: "program7".to_owned(), pid: 7 }]);
        assert_eq!((found[1].path.as_str(), found[1].files), ("/archive", 3));
        let pids: Vec<u32> = found[1].open_in.iter().map(|open| open.pid).collect();
        assert_eq!((found[1].resident_bytes, pids), (192 << 20, vec![1, 2, 3]));
    }

    #[test]
    fn the_largest_come_first_and_there_are_few_of_them() {
        let files = (0..20).map(|at| file(&format!("/d{at:02}/f"), 100 + at, &[])).collect();
        let found = holders(files);
        let paths: Vec<&str> = found.iter().map(|holder| holder.path.as_str()).collect();
        assert_eq!(paths, ["/d19/f", "/d18/f", "/d17/f", "/d16/f", "/d15/f"]);
        assert_eq!(holders(vec![file("/top", 100, &[])])[0].path, "/top");
        assert_eq!(holders(Vec::new()), []);
    }
}

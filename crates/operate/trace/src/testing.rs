//! Helpers for this crate's own tests: real files on the file system of the temporary directory.

pub(crate) use pagekeeper_testing::{as_nobody, disk_dir, skip};
use tempfile::TempDir;

use pagekeeper_kernel::{InspectedFile, Links, residency};

/// Makes a synced file of `len` bytes, fully resident.
pub(crate) fn file_of(len: usize) -> (TempDir, InspectedFile) {
    let dir = disk_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![0x5a; len]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let file = InspectedFile::open(&path, Links::Refuse).unwrap();
    (dir, file)
}

/// Drops all pages of a clean file. Pages that the kernel itself holds at that moment (while it
/// moves them, or scans for some to reclaim) stay, so the advice is repeated until none is left.
pub(crate) fn evict_all(file: &InspectedFile) {
    for _ in 0..1000 {
        evict_once(file);
        if residency(file, 0..u64::MAX).unwrap().resident == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Drops the pages of a clean file that can be dropped, by the bare system call.
pub(crate) fn evict_once(file: &InspectedFile) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

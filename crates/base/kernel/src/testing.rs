//! Helpers for this crate's tests: real files on the file system of the temporary directory.

pub(crate) use pagekeeper_testing::{as_nobody, disk_dir, skip};
use tempfile::TempDir;

use std::ops::Range;

use crate::residency;
use crate::{InspectedFile, Links, ResidencySource};

/// Creates a synced file of `len` bytes, all resident.
pub(crate) fn file_of(len: usize) -> (TempDir, InspectedFile) {
    let dir = disk_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![0x5a; len]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let file = InspectedFile::open(&path, Links::Refuse).unwrap();
    (dir, file)
}

/// Whether the kernel counts a file's unwritten pages: cachestat(2), Linux 6.5.
pub(crate) fn counts_unwritten(file: &InspectedFile) -> bool {
    residency(file, 0..u64::MAX).unwrap().source == ResidencySource::Cachestat
}

/// Whether part of the range may be unwritten: always true if the kernel does not count that.
pub(crate) fn may_be_unwritten(file: &InspectedFile, range: Range<u64>) -> bool {
    residency(file, range).unwrap().unwritten() > 0 || !counts_unwritten(file)
}

/// Returns the unit for lengths of sparse files: a TiB with cachestat(2), which counts it at once;
/// a GiB without, since mincore(2) looks at each page of a hole.
pub(crate) fn tebibyte(file: &InspectedFile) -> u64 {
    if counts_unwritten(file) { 1 << 40 } else { 1 << 30 }
}

/// Drops all pages of a clean file. Pages that the kernel itself holds at that moment (to move
/// them, or to scan for reclaim) stay, so the advice is repeated until none is left.
pub(crate) fn evict_all(file: &InspectedFile) {
    for _ in 0..1000 {
        evict_once(file);
        if residency(file, 0..u64::MAX).unwrap().resident == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Drops the droppable pages of a clean file, by the bare system call.
pub(crate) fn evict_once(file: &InspectedFile) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

//! Helpers of this crate's own tests: real files on the file system of the temporary directory.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::{InspectedFile, Links};

/// A directory for test files: under the build's own target directory, since /tmp may be a tmpfs.
pub(crate) fn disk_dir() -> TempDir {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-files");
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}

/// A synced file of `len` bytes, all resident.
pub(crate) fn file_of(len: usize) -> (TempDir, InspectedFile) {
    let dir = disk_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![0x5a; len]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let file = InspectedFile::open(&path, Links::Refuse).unwrap();
    (dir, file)
}

/// Drops all pages of a clean file, by the bare system call.
pub(crate) fn evict_all(file: &InspectedFile) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}
